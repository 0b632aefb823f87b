"""Modules whose code looks at values: stages behind a call of theirs are told its result."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from orchestrator.errors import PipelineRaised
from orchestrator.numerics import streams
from orchestrator.worker.pipeline_parallel import call_results
from orchestrator.worker.pipeline_parallel.call_results import CallResult, Leaf
from orchestrator.worker.pipeline_parallel.replay import Stage
from tests.products import thinned
from tests.refusals import refused
from tests.worker.pipeline_parallel.bits import cuts_of, made
from tests.worker.pipeline_parallel.models import CASES, Case, squares

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(1))


class Reader(nn.Module):
    """Looks at a value, and does something else."""

    def __init__(self, does: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.does = nn.Linear(16, 16), does
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, extra: Tensor) -> Any:
        hidden = self.inner(x)
        if hidden.sum() > 1e9:
            hidden = -hidden
        found = self.does(self, hidden, extra)
        return hidden if found is None else found


class Reading(nn.Module):
    elsewhere: ClassVar[list[Tensor]] = []

    def __init__(self, does: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        Reading.elsewhere = []  # as in a module that is imported in a worker: the tests freeze what was there before
        self.first, self.reader, self.last = nn.Linear(16, 16), Reader(does), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        extra = torch.zeros(16)
        hidden = self.reader(self.first(x), extra)
        Reading.elsewhere.clear()
        return self.last(hidden if isinstance(hidden, Tensor) else x) + extra.sum()


def _leaves(reader: Any, hidden: Tensor, _: Tensor) -> None:
    reader.count = len(hidden)


def _writes(_: Any, __: Tensor, extra: Tensor) -> None:
    extra.add_(1)


def _writes_a_part(_: Any, __: Tensor, extra: Tensor) -> None:
    extra[:4].fill_(2)


def _draws(_: Any, hidden: Tensor, __: Tensor) -> Any:
    return hidden * random.random()


# By what a reader does beside reading: what the refusal says.
EFFECTS: dict[str, tuple[Callable[[Any, Tensor, Tensor], Any], str]] = {
    "an attribute": (_leaves, "leaves a new value in the attribute 'count' of 'reader'"),
    "a list of its own": (lambda reader, hidden, _: reader.seen.append(hidden.detach().sum()), "the attribute 'seen'"),
    "a list elsewhere": (
        lambda _, hidden, __: Reading.elsewhere.append(hidden),
        "keeps a tensor elsewhere that it returns",
    ),
    "what it is given": (_writes, "changes a tensor that was made before it"),
    "a view of it": (_writes_a_part, "changes a tensor that was made before it"),
    "a random number of Python's": (_draws, "draws from a generator of Python or numpy"),
    "an object": (lambda *_: object(), "returns a value of type object"),
    "a parameter": (lambda reader, *_: reader.inner.bias, "returns 'reader.inner.bias', which one stage has"),
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_no_stage_begins_behind_one_that_leaves_more_than_its_result(effect: str) -> None:
    does, why = EFFECTS[effect]
    case = Case(lambda: Reading(does), squares, X, ())
    with refused("stages.border-barred", why):
        cuts_of(case, ("last",))
    assert cuts_of(case, ("reader",)).borders == ("reader",)


def test_stages_begin_behind_one_that_only_returns() -> None:
    case = Case(lambda: Reading(lambda *_: None), squares, X, ())
    assert [*cuts_of(case, ("last",)).readers["training"]] == ["reader"]


class Stages:
    """Each stage with a model of its own, as in processes."""

    def __init__(self, case: Case, borders: tuple[str, ...]) -> None:
        cuts = cuts_of(case, borders)
        self.models = [made(case) for _ in range(len(borders) + 1)]
        self.stages = [Stage(model, cuts, index) for index, model in enumerate(self.models)]
        self.loss = case.loss
        for stage in self.stages:
            stage.host()

    def forward(self, batch: Any, seed: int) -> Any:
        came, value = None, None
        for stage, model in zip(self.stages, self.models, strict=True):
            with streams.seeded_with(seed):
                _, came, value = stage.forward(partial(self.loss, model, batch), "training", came)
        return value


@pytest.mark.parametrize("borders", thinned([("norms.1",), ("norms.1", "out"), ("routers.1.gate", "norms.2")], 3, 2))
def test_each_micro_batch_is_told_its_own_results(borders: tuple[str, ...]) -> None:
    case = CASES["routed"]
    model, stages = made(case), Stages(case, borders)
    generator = torch.Generator().manual_seed(2)
    for seed, rows in enumerate((12, 12, 5, 12)):
        batch = torch.randn(rows, 16, generator=generator) * (1 + seed), torch.randint(4, (rows,), generator=generator)
        with streams.seeded_with(seed):
            expected = case.loss(model, batch)
        assert torch.equal(stages.forward(batch, seed), expected)


class Fickle(nn.Module):
    """Returns two tensors for large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor, _: Tensor) -> Any:
        x = self.inner(x)
        return (x, x + 1) if x.abs().max() > 50 else x


def test_a_result_of_another_structure_is_told() -> None:
    def make() -> nn.Module:
        model = Reading(lambda *_: None)
        model.reader = Fickle()  # type: ignore[assignment]
        return model

    stages = Stages(Case(make, squares, X, ()), ("last",))
    stages.forward(X, 1)
    with refused("stages.output-needed", "'reader', whose code reads values"):
        stages.forward(X * 1000, 1)


def test_results_arrive_as_they_were_told() -> None:
    like = torch.empty_strided((2, 3), (1, 2), dtype=torch.bfloat16, device="meta")
    leaves = (
        Leaf(given=0),
        Leaf(first=0),
        Leaf(like=like, home="cpu"),
        Leaf(like=like[0]),
        Leaf(value=0.1),
        Leaf(value="a"),
    )
    told = {("a.b", 2): CallResult(leaves, "tree", {"a.b.c": 3}), ("d", 1): CallResult((), "other", {})}
    text = call_results.to_text(told)
    came = call_results.from_text(text, {"a.b": "tree", "d": "other"})
    assert call_results.to_text(came) == text
    assert came["a.b", 2].calls == {"a.b.c": 3}
    first = came["a.b", 2].leaves
    assert [leaf._replace(like=None) for leaf in first] == [leaf._replace(like=None) for leaf in leaves]
    assert [(leaf.like.shape, leaf.like.stride(), leaf.like.dtype) for leaf in first if leaf.like is not None] == [
        ((2, 3), (1, 2), torch.bfloat16),
        ((3,), (2,), torch.bfloat16),
    ]
    assert call_results.from_text(call_results.to_text({}), {}) == {}


def test_code_outside_of_modules_bars_all_behind_it() -> None:
    """As before: nobody could be told what it does."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        hidden = model.first(x)  # type: ignore[operator]
        scale = 1.0 if hidden.sum() > 0 else 2.0
        found: Tensor = model.last(hidden * scale).square().mean()  # type: ignore[operator]
        return found

    with pytest.raises(PipelineRaised, match="reads a value"):
        cuts_of(Case(lambda: Reading(lambda *_: None), loss, X, ()), ("last",))
