"""An optimizer that reads what a batch left in an object is refused, and one that is tried twice has the bits of one step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.errors import Inconsistent
from orchestrator.worker.step.second_update import SecondUpdate
from tests.worker import pipelines as p
from tests.worker.runs import ONE, Layout, assert_same_run, members_end, train

pytestmark = pytest.mark.threads


class Plain(torch.optim.Optimizer):
    """SGD whose rate has a factor, by a function of the pipeline."""

    def __init__(self, parameters: Any, factor: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.factor = factor

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(each.grad, alpha=-group["lr"] * float(self.factor()))


class ByLoss(p.Small):
    """The size of a step follows from the last loss, as Polyak's."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Plain(model.parameters(), lambda: self._last)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = super().loss(model, batch)
        self._last = loss.detach()
        return loss


class ByActivations(p.Small):
    """The size of a step follows from what a hook keeps in a layer, as in K-FAC."""

    def model(self) -> nn.Module:
        model = nn.Linear(p.FEATURES, p.CLASSES)
        model.register_forward_pre_hook(lambda layer, args: setattr(layer, "_seen", args[0].square().mean()))
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Plain(model.parameters(), lambda: model._seen)


class ByBuffer(ByLoss):
    """So it does from a buffer, which has the mean over the shards."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("last", torch.zeros(1))
        return model

    def buffers(self) -> dict[str, str]:
        return {"last": "mean"}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Plain(model.parameters(), lambda: model.last)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        if model.training:
            torch.as_tensor(model.last).fill_(loss.detach())
        return loss


class Keeping(torch.optim.Optimizer):
    """Keeps what an optimizer may: tensors written in place and anew, lists, tuples, numbers in groups; and draws numbers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        group["steps"] = group.get("steps", 0) + 1
        group["rates"] = [*group.get("rates", []), 1 / group["steps"]][-3:]
        for each in group["params"]:
            state = self.state[each]
            if not state:
                state.update(sum=torch.zeros_like(each), last=[each.grad.clone()], pair=(torch.zeros(()), 0))
            state["sum"].add_(each.grad)
            state["last"].append(each.grad.clone())
            del state["last"][:-2]
            state["pair"] = state["pair"][0] + 1, state["pair"][1] + 1
            state["mean"] = state["sum"] / state["pair"][0]
            each.add_(state["mean"] + state["last"][0], alpha=-group["lr"] * sum(group["rates"]))
            each.add_(torch.randn_like(each), alpha=0.01)


class Kept(p.Batchnorm):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Keeping(model.parameters())


@pytest.mark.parametrize("layout", [ONE, Layout(2)], ids=str)
@pytest.mark.parametrize("pipeline", [ByLoss, ByActivations])
def test_an_optimizer_that_reads_what_a_batch_left_is_refused(pipeline: type[p.Small], layout: Layout) -> None:
    error = next(each for each in members_end(pipeline, layout, optimizer=None) if isinstance(each, Inconsistent))
    assert error.code == "optimizer.follows-batch"
    assert error.message.startswith("step 0: the optimizer's update came out differently behind another micro-batch")


def test_one_that_reads_a_buffer_on_which_shards_agree_is_not() -> None:
    assert_same_run(train(ByBuffer, Layout(3, "tree"), optimizer=None), train(ByBuffer, optimizer=None))


@pytest.mark.parametrize("layout", [ONE, Layout(2, "tree")], ids=str)
def test_a_step_that_is_taken_twice_has_the_bits_of_one(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"optimizer": None, "steps": 9, "clip": 0.5}
    tried = train(Kept, layout, **settings)
    monkeypatch.setattr(SecondUpdate, "apply", lambda _, __, ___, apply: apply())
    assert_same_run(tried, train(Kept, **settings))
