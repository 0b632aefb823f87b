"""Before its border a stage runs a module once for each kind of arguments, and then knows what it gives on shapes."""

from __future__ import annotations

import copy
import inspect
import random
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.numerics import streams
from orchestrator.worker.admission import state_detection
from orchestrator.worker.pipeline_parallel.all_stages import WholeModel
from orchestrator.worker.pipeline_parallel.cuts import Way, cut
from orchestrator.worker.pipeline_parallel.replay import Stage
from orchestrator.worker.pipeline_parallel.survey import survey

RUNS: Counter[str] = Counter()


class Counted(nn.Linear):
    def __init__(self, name: str) -> None:
        super().__init__(6, 6)
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        RUNS[self.name] += 1
        return super().forward(x).relu()


class Block(nn.Module):
    """Calls a layer that others call too, and returns what was made before with it."""

    def __init__(self, name: str, shared: nn.Module) -> None:
        super().__init__()
        self.own, self.shared = Counted(name), shared

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, list[Tensor]]:
        kept = self.own(x)
        return self.shared(kept) * scale, [kept, x]


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        RUNS["draws"] += 1
        return x if random.random() < 0.5 else x * 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = Counted("shared")
        self.blocks = nn.ModuleList([Block(f"block {i}", shared) for i in range(4)])
        self.draws = Draws()

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.blocks:
            x, more = block(self.draws(x), scale=0.5)
            skips += more
        return x + sum(skips[::3])


class Keeps(nn.Module):
    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.kept = out = x * 2
        return out


class Kept(nn.Module):
    """A module's result is found in an attribute of it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.keeps, self.last = nn.Linear(6, 6), Keeps(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(self.keeps(self.layer(x)))
        return hidden + self.keeps.kept


class Router(nn.Module):
    """Gives what a layer within has given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.own = Router(), Counted("expert")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.own(x) * self.router(x)
        return out


class Gathered(nn.Module):
    """The loss has what hooks have gathered from routers, as in mixtures of experts of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Expert(), Expert()) for _ in range(3)])
        self.gathered: list[Tensor] = []
        for module in self.modules():
            if isinstance(module, Router):
                module.register_forward_hook(lambda _module, _args, out: self.gathered.append(out))

    def forward(self, x: Tensor) -> Tensor:
        self.gathered.clear()
        for block in self.blocks:
            x = block(x)
        return x + sum(logits**2 for logits in self.gathered)


def _bits(model: nn.Module, whole: WholeModel | None, x: Tensor) -> list[Tensor]:
    def call() -> Tensor:
        loss: Tensor = (model(x) ** 2).mean()
        return loss

    for parameter in model.parameters():
        parameter.grad = None
    with streams.seeded_with(3):
        loss = call() if whole is None else whole.forward(call)
        loss.backward() if whole is None else whole.backward(loss)
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def _cut(model: nn.Module, x: Tensor, *borders: str) -> WholeModel:
    with streams.seeded_with(3):
        surveys: dict[Way, Any] = {"training": survey(model, lambda: model(x))}
    return WholeModel(model, cut(surveys, borders, [name for name, _ in model.named_parameters()]))


def test_a_module_before_the_border_runs_once_for_each_kind_of_arguments() -> None:
    model, small, large = Net(), torch.randn(3, 6), torch.randn(5, 6)
    expected = {len(x): _bits(model, None, x) for x in (small, large)}
    whole = _cut(model, small, "blocks.2")
    found = []
    for x in (small, small, large, small, large):
        RUNS.clear()
        assert all(torch.equal(one, other) for one, other in zip(_bits(model, whole, x), expected[len(x)], strict=True))
        found.append((RUNS["block 0"], RUNS["block 1"], RUNS["block 2"], RUNS["block 3"]))
    # On values each once; blocks before the border on shapes too, where those are new.
    assert found == [(2, 2, 1, 1), (1, 1, 1, 1), (2, 2, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)]
    RUNS.clear()
    _bits(model, whole, small)
    assert RUNS["draws"] == 3 + 4, "what draws is run each time"
    whole.close()
    assert not [module for module in model.modules() if "forward" in vars(module)]


def test_results_that_hooks_gather_are_gathered_in_each_micro_batch() -> None:
    model, inputs = Gathered(), [torch.randn(3, 6) for _ in range(4)]
    expected = [_bits(model, None, x) for x in inputs]
    whole = _cut(model, inputs[0], "blocks.1", "blocks.2")
    found = [_bits(model, whole, x) for x in inputs]
    assert [[*map(torch.equal, *each)] for each in zip(found, expected, strict=True)] == [[True] * len(expected[0])] * 4
    assert len(expected[0]) == 1 + len(list(model.parameters()))
    assert not [place for place in state_detection.look({"model": model}, model) if ".forward." in place]
    whole.close()


def test_what_a_module_keeps_has_no_value_of_an_earlier_micro_batch() -> None:
    before, behind = Kept(), Kept()
    behind.load_state_dict(before.state_dict())
    inputs = [torch.randn(3, 6) for _ in range(3)]
    with streams.seeded_with(3):
        surveys: dict[Way, Any] = {"training": survey(before, lambda: before(inputs[0]))}
    cuts = cut(surveys, ["last"], [name for name, _ in before.named_parameters()])
    first, second = Stage(before, cuts, 0), Stage(behind, cuts, 1)
    for x in inputs:
        _, leaves, _ = first.forward(lambda x=x: before(x), "training", None)  # type: ignore[misc]
        _, _, value = second.forward(lambda x=x: behind(x), "training", leaves)  # type: ignore[misc]
        hidden = before.layer(x) * 2
        assert torch.equal(value, before.last(hidden) + hidden)
    assert behind.keeps.kept is not before.keeps.kept


def test_a_copy_of_the_model_is_a_model_of_its_own() -> None:
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), torch.randn(3, 6)
    surveys: dict[Way, Any] = {"training": survey(model, lambda: model(x))}
    stage = Stage(model, cut(surveys, ["1"], [name for name, _ in model.named_parameters()]), 1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(x).eq(0).all()
    assert not model(x).eq(0).all()
    assert str(inspect.signature(model[0].forward)) == str(inspect.signature(nn.Linear(1, 1).forward))
    stage.close()
