"""An optimizer that gives parameters other memory has the bits of one that writes into them, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.errors import PipelineRaised
from tests.worker import pipelines as p
from tests.worker.elastic import Fault, survive
from tests.worker.runs import ONE, Layout, assert_same_run, members_end, train

pytestmark = pytest.mark.threads


class Written(torch.optim.Optimizer):
    """The heavy ball, which remembers where each parameter was before."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                before = state.get("before", each)
                following = each - group["lr"] * each.grad + 0.5 * (each - before)
                self.move(each, state, following)

    def move(self, each: Tensor, state: dict[str, Tensor], following: Tensor) -> None:
        state["before"] = each.clone()
        each.copy_(following)


class Replaced(Written):
    def move(self, each: Tensor, state: dict[str, Tensor], following: Tensor) -> None:
        state["before"] = each.data
        each.data = following


class Turned(Written):
    def move(self, each: Tensor, state: dict[str, Tensor], following: Tensor) -> None:  # noqa: ARG002
        each.data = following.t()


class Transposing(Written):
    """Turns square matrices in their own memory."""

    def move(self, each: Tensor, state: dict[str, Tensor], following: Tensor) -> None:
        super().move(each, state, following)
        if each.ndim == 2 and each.shape[0] == each.shape[1]:
            self.turn(each)

    def turn(self, each: Tensor) -> None:
        each.data = each.data.t()


class WritingTransposed(Transposing):
    def turn(self, each: Tensor) -> None:
        each.copy_(each.t().clone())


class Square(p.Small):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(p.FEATURES, p.FEATURES), nn.Tanh(), super().model())


class ByTransposing(Square):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Transposing(model.parameters())


class ByWritingTransposed(Square):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return WritingTransposed(model.parameters())


class ByWriting(p.Small):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Written(model.parameters())


class ByReplacing(p.Small):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Replaced(model.parameters())


class ByTurning(p.Small):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Turned(model.parameters())


class Averaged(p.Small):
    """With a frozen average, which the optimizer gives other memory, too."""

    def model(self) -> nn.Module:
        model = super().model()
        model.average = nn.ParameterList(nn.Parameter(each.clone(), False) for each in model.parameters())
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Averaging(model)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        distances = [each.square().sum() for each in model.get_submodule("average").parameters()]
        return torch.stack([super().loss(model, batch), *distances]).sum()


class Averaging(Replaced):
    def __init__(self, model: Any) -> None:
        super().__init__(each for each in model.parameters() if each.requires_grad)
        self.average = list(model.average)

    def move(self, each: Tensor, state: dict[str, Tensor], following: Tensor) -> None:
        super().move(each, state, following)
        own = next(own for own in self.average if own.shape == following.shape)
        own.data = own.data.lerp(following, 0.5)


MODES: dict[str, dict[str, Any]] = {
    "bsp": {},
    "gossip": {"sync": {"name": "gossip"}},
    "ssp": {"sync": {"name": "ssp"}, "shards": 2},
}


@pytest.mark.parametrize("mode", MODES)
def test_it_has_the_bits_of_one_that_writes(mode: str) -> None:
    settings = {"optimizer": None, **MODES[mode]}
    assert_same_run(train(ByReplacing, ONE, **settings), train(ByWriting, ONE, **settings))


@pytest.mark.parametrize("mode", MODES)
def test_so_has_one_that_turns_square_matrices_where_they_lie(mode: str) -> None:
    settings = {"optimizer": None, **MODES[mode]}
    assert_same_run(train(ByTransposing, ONE, **settings), train(ByWritingTransposed, ONE, **settings))


@pytest.mark.parametrize("layout", [ONE, Layout(3, "tree")], ids=str)
def test_it_has_them_as_a_local_optimizer(layout: Layout) -> None:
    runs = [
        train(p.Small, layout, local={"steps": 3, "optimizer": {"name": f"{__name__}:{kind.__name__}", "lr": 0.1}})
        for kind in (Replaced, Written)
    ]
    assert_same_run(*runs)


@pytest.mark.parametrize("pipeline", [ByReplacing, ByTransposing, Averaged], ids=lambda kind: kind.__name__)
def test_no_bit_depends_on_the_layout(pipeline: type[p.Small]) -> None:
    reference = train(pipeline, ONE, optimizer=None)
    assert_same_run(train(pipeline, Layout(3, "tree"), optimizer=None), reference)
    told = survive(pipeline, Layout(3), [Fault(1, 60, "die")], optimizer=None)
    assert (told.trace, told.digest) == (reference.trace, reference.digest)


def test_another_shape_is_refused() -> None:
    (end,) = members_end(ByTurning, ONE, optimizer=None)
    assert isinstance(end, PipelineRaised)
    assert end.code == "optimizer.changes-shape"
    assert f"'weight' the shape [{p.FEATURES}, {p.CLASSES}]" in end.message
