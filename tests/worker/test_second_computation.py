"""A micro-batch is computed once more by the pipeline as it was before the first step, in each way to train; what nothing
follows from may change."""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import queue
import random
from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset

from orchestrator.config.settings import Every
from orchestrator.errors import Inconsistent
from orchestrator.worker.admission import beginning as module
from orchestrator.worker.admission.beginning import Beginning
from orchestrator.worker.step.second_computation import is_scheduled, require_repeated
from tests.worker import faulty
from tests.worker.pipelines import CLASSES, FEATURES, Batch, Batchnorm, FromOne
from tests.worker.runs import Layout, members_end, train

WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "local steps": {"local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.1}}},
    "asynchronous": {"sync": {"name": "ssp", "staleness": 1}},
    "gossip": {"sync": {"name": "gossip"}},
}


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.table: torch.Tensor | None = None


class Counter:
    total = 0

    def __init__(self) -> None:
        self.seen: list[int] = []


@dataclass(frozen=True, slots=True)
class Slotted:
    scale: float = 1.0
    later: float = field(init=False)


class Wide(Slotted):
    """It has a dictionary, too."""


class Held:
    known: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        self.net = Layer()
        self.counter, self.slotted, self.wide = Counter(), Slotted(), Wide()
        self.one = 1
        self.mask, self.masks, self.array = torch.zeros(2), [torch.zeros(2)], numpy.zeros(2)
        self.reshaped = numpy.zeros(4).reshape(2, 2)
        self.count = counting()
        self.norms: dict[torch.Tensor, float] = {}


def counting() -> Any:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


variables: dict[str, Any] = {"scale": 1.0}
UNWATCHED = (  # before each step
    "pipeline.counter.seen",
    f"{__name__}.Held.known",
    "pipeline.count.calls",
    "pipeline.net._forward_hooks",
    "model.bias.calls",
)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda held: setattr(held, "one", 2), "pipeline.one"),
        (lambda held: setattr(held, "new", 2), "pipeline.new"),
        (lambda held: delattr(held, "one"), "pipeline.one"),
        (lambda held: object.__setattr__(held.slotted, "scale", 2.0), "pipeline.slotted.scale"),
        (lambda held: object.__setattr__(held.slotted, "later", 2.0), "pipeline.slotted.later"),
        (lambda held: object.__delattr__(held.slotted, "scale"), "pipeline.slotted.scale"),
        (lambda held: object.__setattr__(held.wide, "new", 2.0), "pipeline.wide.new"),
        (lambda held: setattr(held.net, "table", torch.ones(2)), "pipeline.net.table"),
        (lambda held: held.net.eval(), "pipeline.net.training"),
        (lambda held: held.net.bias.requires_grad_(False), "model.bias.requires_grad"),
        (lambda held: setattr(held.net.bias, "calls", 1), "model.bias.calls"),
        (lambda held: held.counter.seen.append(1), "pipeline.counter.seen"),
        (lambda held: setattr(type(held.counter), "total", 3), f"{__name__}.Counter.total"),
        (lambda held: held.known.update(a=1), f"{__name__}.Held.known"),
        (lambda held: held.count(), "pipeline.count.calls"),
        (lambda held: held.net.register_forward_hook(print), "pipeline.net._forward_hooks"),
        (lambda _: variables.update(scale=2.0), "variables.scale"),
        (lambda _: variables.update(other=2.0), "variables.other"),
    ],
)  # fmt: skip
def test_what_has_changed_is_as_in_the_beginning_within_the_block(change: Any, place: str) -> None:
    held = Held()
    beginning = Beginning({"pipeline": held}, held.net, {"variables": variables})
    assert not beginning.has_more()
    assert beginning.changed() == []
    change(held)
    assert beginning.has_more() == (place not in UNWATCHED)
    assert not beginning.has_more()
    assert beginning.changed() == [place]
    with beginning.restored():
        assert beginning.changed() == []
        held.one, held.net.table = 5, torch.zeros(2)
    assert beginning.changed() == [place]


@pytest.fixture(autouse=True)
def as_written() -> Iterator[None]:
    yield
    Counter.total = 0
    Held.known.clear()
    variables.clear()
    variables["scale"] = 1.0


FILLS: dict[str, Any] = {
    "pipeline.mask": lambda held: held.mask.fill_(2),
    "pipeline.masks": lambda held: held.masks[0].fill_(2),
    "pipeline.array": lambda held: held.array.fill(2),
    "pipeline.reshaped": lambda held: held.reshaped.fill(2),
}


@pytest.mark.parametrize("place", FILLS)
def test_what_has_been_written_in_place_has_its_former_content_within_the_block(place: str) -> None:
    held = Held()
    beginning = Beginning({"pipeline": held}, held.net, {})
    before = held.mask, held.masks[0], held.array, held.reshaped
    FILLS[place](held)
    assert not beginning.has_more()
    assert beginning.changed() == [place]
    for only in (None, place):
        with beginning.restored(only):
            assert [each.max() for each in (held.mask, held.masks[0], held.array, held.reshaped)] == [0, 0, 0, 0]
            FILLS[place](held)
    assert all(
        now is was for now, was in zip((held.mask, held.masks[0], held.array, held.reshaped), before, strict=True)
    )
    assert sum(each.max() for each in before) == 2


def test_nothing_is_put_back_once_a_large_tensor_has_been_filled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number may say for what it was filled."""
    monkeypatch.setattr(module, "_MOST_BYTES", 4)
    held = Held()
    beginning = Beginning({"pipeline": held}, held.net, {})
    held.one = 2
    assert beginning.changed() == ["pipeline.one"]
    held.mask.fill_(2)
    assert beginning.changed() == []
    with beginning.restored():
        assert held.one == 2


@pytest.mark.parametrize("lent", ["numpy", "shared", "resized"])
def test_nothing_is_put_back_once_other_memory_than_its_own_has_been_filled_anew(lent: str) -> None:
    held = Held()
    whole = torch.zeros(2, 3)
    if lent == "numpy":
        held.array = whole.numpy()
    else:
        held.mask = whole if lent == "resized" else whole.share_memory_()  # type: ignore[no-untyped-call]
    beginning = Beginning({"pipeline": held}, held.net, {})
    held.one = 2
    whole.fill_(2)
    if lent == "resized":
        whole.resize_(1, 2)
    assert beginning.changed() == []
    with beginning.restored():
        assert held.one == 2


def test_whoever_else_refers_to_what_was_written_has_its_former_content() -> None:
    """A view, and a hook that fills it."""
    held = Held()
    whole = torch.zeros(2, 3)
    held.mask, _ = held.masks = list(whole)
    fill = partial(torch.Tensor.fill_, whole)
    beginning = Beginning({"pipeline": held}, held.net, {})
    fill(2)
    assert beginning.changed() == ["pipeline.mask", "pipeline.masks"]
    with beginning.restored():
        assert whole.max() == 0
        fill(3)
        assert held.mask.max() == 3
    assert (whole == 2).all()


def test_what_moves_with_the_model_or_is_of_another_kind_has_no_copy() -> None:
    held = Held()
    held.mask = held.net.weight.detach()
    held.masks = [torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.zeros(2, requires_grad=True) * 2]
    beginning = Beginning({"pipeline": held}, held.net, {})
    held.net.weight.data.fill_(3)
    assert beginning.changed() == []
    with beginning.restored():
        assert held.mask.max() == 3


@pytest.mark.parametrize("weight", [torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)[1:], torch.zeros(())])
def test_a_weight_outside_of_the_model_may_not_move(weight: torch.Tensor) -> None:
    held = Held()
    teacher = nn.Linear(2, 2)
    teacher.register_buffer("average", weight)
    held.count = teacher
    beginning = Beginning({"pipeline": held}, held.net, {})
    assert beginning.moved_weight(wholly=True) is None
    weight.data.add_(1)
    assert beginning.moved_weight(wholly=False) is None
    assert beginning.moved_weight(wholly=True) == "pipeline.count.average"
    with torch.no_grad():
        teacher.weight.add_(1)
    assert beginning.moved_weight(wholly=False) == "pipeline.count.weight"


def test_a_tensor_of_a_matrix_s_shape_that_has_no_copy_is_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a moving average of a large model, or of one on a card."""
    monkeypatch.setattr(module, "_MOST_BYTES", 4)
    held = Held()
    held.counter.seen = [torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(4)]  # type: ignore[list-item]
    beginning = Beginning({"pipeline": held}, held.net, {})
    for other in held.counter.seen[1:]:
        other.add_(1)  # type: ignore[attr-defined]
    assert beginning.moved_weight(wholly=True) is None
    held.counter.seen[0].add_(1)  # type: ignore[attr-defined]
    assert beginning.moved_weight(wholly=False) == "pipeline.counter.seen"


def of_a_package(kind: Any, package: str = "averages") -> Any:
    """An object of this class, as if the class were of a package."""
    made = kind()
    made.__class__ = type(kind.__name__, (kind,), {"__module__": package})
    kind.__module__ = package
    return made


@pytest.mark.parametrize(
    ("package", "found"), [("averages", ["pipeline._one.seen"]), ("queue", []), ("orchestrator", [])]
)
def test_an_object_of_a_package_that_one_of_the_users_has_is_put_back(package: str, found: list[str]) -> None:
    class Average:
        def __init__(self) -> None:
            self.seen: list[int] = []

    held = Held()
    held._one = of_a_package(Average, package)  # type: ignore[attr-defined]
    beginning = Beginning({"pipeline": held}, held.net, {})
    held._one.seen.append(1)  # type: ignore[attr-defined]
    assert beginning.changed() == found
    with beginning.restored():
        assert held._one.seen == ([] if found else [1])  # type: ignore[attr-defined]


def remembers(memory: list[int] = []) -> list[int]:  # noqa: B006
    return memory


class Memory:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def add(self) -> None:
        self.seen.append(1)


class Named(dict[str, Any]):
    """As research code writes it: keys are attributes."""

    __getattr__ = dict.__getitem__

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError(key)

    clear = update = items = copy = __setitem__  # type: ignore[assignment]


class Ordered(OrderedDict[str, Any]):
    clear = update = items = copy = Named.__setitem__  # type: ignore[assignment]


def shown(kept: Any) -> tuple[list[Any], dict[str, Any]]:
    return [(key, kept[key]) for key in kept] if isinstance(kept, dict) else list(kept), vars(kept).copy()


class Recent(deque[int]):
    total = 0

    def append(self, value: int) -> None:
        super().append(value)
        self.total += value


KEY = Memory()
KEPT: dict[str, tuple[Any, Any]] = {  # by its place: what an attribute refers to, and what changes it
    "pipeline.one.step": (SimpleNamespace(step=0), lambda one: setattr(one, "step", 1)),
    "pipeline.one.data": (UserDict(step=0), lambda one: one.update(step=1)),
    "pipeline.one['rows']": ({"rows": deque([0], maxlen=1)}, lambda one: one["rows"].append(1)),
    "pipeline.one[0]": (({"rows": torch.zeros(2)},), lambda one: one[0]["rows"].add_(1)),
    "pipeline.one[1]": ((None, torch.zeros(2)), lambda one: one[1].add_(1)),
    "pipeline.one.args[0]": (partial(print, [0]), lambda one: one.args[0].append(1)),
    "pipeline.one.keywords": (partial(print, end=torch.zeros(2)), lambda one: one.keywords["end"].add_(1)),
    "pipeline.one.memory": (remembers, lambda one: one().append(1)),
    "pipeline.one.__self__.seen": (Memory().add, lambda one: one()),
    "pipeline.one.calls": (remembers, lambda one: setattr(one, "calls", 1)),
    "pipeline.one['by'].data": ({"by": WeakKeyDictionary({KEY: 0})}, lambda one: one["by"].update({KEY: 1})),
    "pipeline.one[150]": ([[0] for _ in range(300)], lambda one: one[150].append(1)),
    "pipeline.one[2]": ((0, 0, random.Random(0)), lambda one: one[2].random()),
    "pipeline.one.__self__": (random.Random(0).random, lambda one: one()),
}


@pytest.mark.parametrize("place", KEPT)
def test_what_is_kept_within_namespaces_containers_and_functions_is_put_back(place: str) -> None:
    kept, change = KEPT[place]
    remembers.calls = 0  # type: ignore[attr-defined]
    held = Held()
    held.one = kept
    beginning = Beginning({"pipeline": held}, held.net, {})
    assert beginning.changed() == []
    change(kept)
    assert beginning.changed() == [place]
    with beginning.restored():
        assert beginning.changed() == []
    assert beginning.changed() == [place]


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (partial(Named, step=0, more=1), lambda one: dict.update(one, step=1)),
        (partial(Ordered, step=0, more=1), lambda one: OrderedDict.move_to_end(one, "step")),
        (partial(Recent, [1], maxlen=3), lambda one: one.append(1)),
    ],
)
def test_a_class_of_the_users_that_derives_from_a_container_is_put_back(make: Any, change: Any) -> None:
    held = Held()
    held.one = kept = make()
    beginning = Beginning({"pipeline": held}, held.net, {})
    before = shown(kept)
    assert beginning.changed() == []
    change(kept)
    after = shown(kept)
    assert "pipeline.one" in beginning.changed()
    with beginning.restored():
        assert shown(kept) == before
    assert shown(kept) == after != before


def test_a_container_of_a_package_that_keeps_an_index_of_it_stays_as_it_is() -> None:
    held = Held()
    held.one = of_a_package(type("Sorted", (dict,), {"__module__": __name__}))
    held.one.index = object()  # type: ignore[attr-defined]
    beginning = Beginning({"pipeline": held}, held.net, {})
    held.one["a"] = 1  # type: ignore[index]
    assert beginning.changed() == []
    del held.one.index  # type: ignore[attr-defined]
    assert beginning.changed() == ["pipeline.one.index"]


def seen(key: int, known: list[int] = []) -> int:  # noqa: B006
    known.append(key)
    return len(known)


@pytest.mark.parametrize(
    "advanced",
    [
        itertools.count(),
        itertools.count(1.5, -2),
        iter([3, 4, 5]),
        iter((3, 4, 5)),
        iter(range(5)),
        functools.cache(seen),
    ],
    ids=lambda each: type(each).__name__,  # a text has another address in each process
)
def test_iterators_and_caches_of_functions_are_as_they_were_within_the_block(advanced: Any) -> None:
    def advance(one: Any, key: int) -> Any:
        return one(key) if callable(one) else next(one)

    held = Held()
    held.one = advanced
    seen.__defaults__[0].clear()  # type: ignore[index]
    advance(advanced, 0)
    beginning = Beginning({"pipeline": held}, held.net, {})
    assert beginning.changed() == []
    with beginning.restored():
        assert held.one is advanced  # one that has not moved stays
    first = advance(advanced, 1)
    assert beginning.changed()[0] == "pipeline.one"
    for only in (None, "pipeline.one"):
        seen.__defaults__[0][:] = [0]  # type: ignore[index]
        with beginning.restored(only):
            assert held.one is not advanced
            assert advance(held.one, 1) == first
    assert held.one is advanced
    seen.__defaults__[0][:] = [0, 1]  # type: ignore[index]
    assert advance(advanced, 2) != first


def test_a_cache_that_gets_no_more_stays_filled() -> None:
    """It may hold a model."""
    held = Held()
    held.one = cached = functools.cache(seen)  # type: ignore[assignment]
    cached(0)
    beginning = Beginning({"pipeline": held}, held.net, {})
    cached(0)
    with beginning.restored():
        assert held.one is cached  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("at", ["new", "old"])
def test_files_threads_and_modules_stay_as_they_are(at: str) -> None:
    """One may have been closed since, in the block too."""
    held = Held()
    held.one, held.file = 1, None if at == "new" else io.StringIO()  # type: ignore[attr-defined]
    beginning = Beginning({"pipeline": held}, held.net, {"variables": variables})
    variables["late"], opened = module, (io.StringIO(), io.StringIO())
    held.one, held.file = 2, opened[0]  # type: ignore[attr-defined]
    assert beginning.changed() == ["pipeline.one"]
    with beginning.restored():
        assert (held.one, held.file, variables["late"]) == (1, opened[0], module)  # type: ignore[attr-defined]
        held.file = opened[1]  # type: ignore[attr-defined]
    assert (held.one, held.file, variables["late"]) == (2, opened[1], module)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (numpy.random.default_rng(0), lambda one: one.random()),
        (numpy.random.RandomState(0), lambda one: one.normal()),
        (numpy.random.PCG64(0), lambda one: numpy.random.Generator(one).random()),
        (random.Random(0), lambda one: one.random()),
        (torch.Generator(), lambda one: float(torch.rand((), generator=one))),
    ],
)
def test_generators_of_random_numbers_are_put_back(generator: Any, draw: Any) -> None:
    held = Held()
    held.one = generator
    beginning = Beginning({"pipeline": held}, held.net, {})
    assert beginning.changed() == []
    first = draw(generator)
    assert beginning.changed() == ["pipeline.one"]
    with beginning.restored():
        assert beginning.changed() == []
        assert draw(generator) == first
    assert draw(generator) != first


def test_an_object_to_which_a_layer_of_a_package_refers_is_put_back() -> None:
    """As the config of a model of transformers."""
    net = of_a_package(nn.Identity, "models")
    nn.Identity.__module__ = "torch.nn.modules.linear"
    net.config = of_a_package(Counter, "models")
    Counter.__module__ = __name__
    beginning = Beginning({"pipeline": object(), "model": net}, net, {})
    net.config.total = 1
    assert beginning.changed() == ["model.config.total"]
    with beginning.restored():
        assert net.config.total == 0


def test_modules_in_one_of_a_package_are_put_back() -> None:
    """As metrics of torchmetrics in their collection."""
    held = Held()
    held.one = nn.Sequential(nn.Dropout())  # type: ignore[assignment]
    beginning = Beginning({"pipeline": held}, held.net, {})
    held.one[0].p = 0.1  # type: ignore[index]
    assert beginning.changed() == ["pipeline.one.0.p"]


def test_attributes_without_end_are_not_looked_at_for_ever() -> None:
    held = Held()
    beginning = Beginning({"pipeline": held}, held.net, {})
    found = []
    for number in range(200):
        setattr(held, f"step_{number}", number)
        found.append(beginning.has_more())
    assert found == [True] * 100 + [False] * 100


def test_another_number_of_the_same_value_is_none() -> None:
    held = Held()
    beginning = Beginning({"pipeline": held}, held.net, {})
    held.one = int("1")
    held.counter.seen += []
    assert beginning.changed() == []


def test_dictionaries_by_parameters_are_compared() -> None:
    held = Held()
    held.norms = dict.fromkeys(held.net.parameters(), 0.0)
    beginning = Beginning({"pipeline": held}, held.net, {})
    assert beginning.changed() == []
    held.norms[held.net.weight] = 2.0
    assert beginning.changed() == ["pipeline.norms"]


def test_containers_stay_the_same_since_others_refer_to_them() -> None:
    held = Held()
    seen, hooks = held.counter.seen, held.net._forward_hooks
    beginning = Beginning({"pipeline": held}, held.net, {})
    seen.append(1)
    with beginning.restored():
        assert held.counter.seen is seen
        assert seen == []
        seen.append(2)
        held.net.register_forward_hook(print)
    assert (seen, len(hooks)) == ([1], 0)


@given(st.integers(1, 10**6))
def test_tried_are_four_steps_of_each_doubling(step: int) -> None:
    assert sum(map(is_scheduled, range(step, 2 * step))) == min(step, 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_an_earlier_model_is_found_in_each_way_to_train(way: str) -> None:
    (end,) = members_end(faulty.CopiesAtAStep, steps=6, **WAYS[way])
    assert isinstance(end, Inconsistent)
    assert end.code == "pipeline.changed-once"
    assert "pipeline.earlier" in str(end)


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_move_outside_of_the_model_are_found_in_each_way_to_train(way: str) -> None:
    (end,) = members_end(faulty.MovesATarget, steps=6, **WAYS[way])
    assert isinstance(end, Inconsistent)
    assert end.code == "pipeline.weights-moved"


class Gathers(Batchnorm):
    """A training set that grows, as the memory of an agent does."""

    def datasets(self) -> tuple[Dataset[Any], Dataset[Any] | None]:
        train, held_out = super().datasets()
        self._gathered = Gathered(train[i] for i in range(self.rows))
        return self._gathered, held_out

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self._gathered.rows.append((batch[0][0], batch[1][0]))
        return super().loss(model, batch)


class Gathered(Dataset[Batch]):
    def __init__(self, rows: Iterator[Batch]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Batch:
        return self.rows[number]


@pytest.mark.parametrize("way", WAYS)
def test_a_training_set_that_grows_is_found_in_each_way_to_train(way: str) -> None:
    (end,) = members_end(Gathers, steps=6, **WAYS[way])
    assert isinstance(end, Inconsistent)
    assert end.code == "pipeline.length-changed"
    assert "22 when the run began" in str(end)


class Evaluates(Batchnorm):
    """The moving average of a package."""

    def __init__(self) -> None:
        super().__init__()

        class Average:
            weights: list[torch.Tensor]

        self.average = of_a_package(Average)

    def model(self) -> nn.Module:
        model = super().model()
        self.average.weights = [each.detach().clone() for each in model.parameters()]
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        for mean, now in zip(self.average.weights, model.parameters(), strict=True):
            mean.lerp_(now.detach(), 0.1 if model.training else 0)
        return super().loss(model, batch)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Any]:  # noqa: ARG002
        return {"average": self.average.weights[0].square().mean()}


@pytest.mark.parametrize("way", WAYS)
def test_an_average_of_a_package_that_moves_before_an_evaluation_is_found(way: str) -> None:
    (end,) = members_end(Evaluates, steps=6, evaluate_every=Every(steps=3), **WAYS[way])
    assert isinstance(end, Inconsistent)
    assert end.code == "pipeline.metrics-changed"
    assert "pipeline.average.weights" in str(end)


class Merges(Batchnorm):
    """Has a layer that merges its weights for evaluations, as loralib's."""

    class Layer(nn.Linear):
        merged = False

        def __init__(self, features: int) -> None:
            super().__init__(features, features, bias=False)
            self.change = nn.Parameter(torch.zeros(features))
            self.weight.requires_grad_(False)

        def train(self, mode: bool = True) -> Merges.Layer:
            if self.merged is mode:
                self.weight.data += self.change if self.merged else -self.change
                self.merged = not mode
            return super().train(mode)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows) - (0 if self.merged else rows @ self.change[:, None])

    def model(self) -> nn.Module:
        return nn.Sequential(self.Layer(FEATURES), super().model())


def test_a_layer_that_merges_its_weights_for_evaluations_is_told_from_an_average() -> None:
    """The advice was on averages of weights alone."""
    (end,) = members_end(Merges, steps=6, evaluate_every=Every(steps=3))
    assert isinstance(end, Inconsistent)
    assert "model.0.merged" in str(end)
    assert "eval() of Layer merges its weights, give it merge_weights=False" in end.remedy


HELPERS = {  # by the place in a module `helper` that keeps something: its text
    "calls": "calls = 0\ndef scale():\n    global calls\n    calls += 1\n    return 1 if calls < 40 else 2\n",
    "Settings.calls": "class Settings:\n    calls = 0\n"
    "def scale():\n    Settings.calls += 1\n    return 1 if Settings.calls < 40 else 2\n",
    "meter.calls": "class Meter:\n    calls = 0\nmeter = Meter()\n"
    "def scale():\n    meter.calls += 1\n    return 1 if meter.calls < 40 else 2\n",
    "": "calls = 0\ndef scale():\n    global calls\n    calls += 1\n    return 1\n",
}
OBJECT = "class Scales:\n    def __call__(self):\n        return scale()\nscales = Scales()\n"
CASES = [*((place, "from {name} import scale") for place in HELPERS), ("calls", "from {name} import scales as scale")]


@pytest.mark.parametrize(("place", "imported"), CASES)
def test_what_another_module_of_the_project_keeps_is_found(
    place: str, imported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"helper_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(HELPERS[place] + OBJECT)
    (tmp_path / f"{name}_pipeline.py").write_text(
        f"from tests.worker.pipelines import Batchnorm\n{imported.format(name=name)}\n"
        "class Scaled(Batchnorm):\n    def loss(self, model, batch):\n"
        "        return super().loss(model, batch) * scale()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (end,) = members_end(importlib.import_module(f"{name}_pipeline").Scaled, steps=12)
    if not place:
        assert not isinstance(end, BaseException)
        return
    assert isinstance(end, Inconsistent)
    assert end.code == "pipeline.changed-once"
    assert f"{name}.{place}" in str(end)


@functools.cache
def one_as(number: int) -> float:
    return number / number


class Notes(Batchnorm):
    """Looks back on what it has computed, and lets nothing follow."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self.last: torch.Tensor | None = None
        self.one: torch.Tensor | None = None
        self.best: dict[str, float] = {}

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if self.one is None:
            self.one = torch.ones(())
        self.last = super().loss(model, (batch[0] * self.one * one_as(next(self._numbers)), *batch[1:]))
        return self.last

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        found = super().metrics(model, batch)
        if model.training is False:
            self.best["accuracy"] = float(found["accuracy"])
        return found


class Hooked(Batchnorm):
    """A hook has the list of the pipeline's, and a layer gets another from a certain step on."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[torch.Tensor] = []
        self.handle: Any = None

    def model(self) -> nn.Module:
        model = super().model()
        model.register_forward_hook(partial(keep, self.outputs))
        return model

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step >= 2 and self.handle is None:
            self.handle = model.register_forward_hook(lambda *given: given[-1] * 2)
        self.outputs.clear()
        return super().loss(model, batch) + self.outputs[0].square().mean()


def keep(outputs: list[torch.Tensor], *given: Any) -> None:
    outputs.append(given[-1])


@pytest.mark.parametrize("way", WAYS)
def test_lists_that_hooks_fill_and_hooks_of_a_step_are_let_pass(way: str) -> None:
    assert len(train(Hooked, steps=6, **WAYS[way]).trace) > 0


@pytest.mark.parametrize("way", WAYS)
def test_notes_are_let_pass_and_change_no_bit(way: str) -> None:
    """Batch normalisation moves its statistics with each computation."""
    settings = {"steps": 6, "evaluate_every": Every(steps=2), **WAYS[way]}
    assert train(Notes, **settings).digest == train(Batchnorm, **settings).digest


class Negatives(Batchnorm):
    """A queue of what batches gave, used once there is enough of it, lies where no worker looks."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: Any = queue.Queue()

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        self._queue.put(loss.item())
        return loss * self._queue.get() if self._queue.qsize() > 60 else loss


def test_what_lies_where_no_worker_looks_is_found_at_the_first_step_of_a_doubling() -> None:
    (end,) = members_end(Negatives, steps=17)
    assert isinstance(end, Inconsistent)
    assert end.code == "pipeline.repeated-differently"


@pytest.mark.parametrize("results", ["aa", "abbb", "babb", "bbbb", "abaa"])
def test_a_processor_that_slips_once_is_not_told_as_the_pipelines_fault(results: str) -> None:
    require_repeated(map(str.encode, results).__next__, 8, "loss")


@pytest.mark.parametrize("results", ["abab", "abba", "abcd", "abcb"])
def test_results_of_which_no_three_are_equal_are_of_a_pipeline_that_keeps_state(results: str) -> None:
    with pytest.raises(Inconsistent, match=r"step 8: the loss came out differently"):
        require_repeated(map(str.encode, results).__next__, 8, "loss")


class InParts(faulty.Numbered):
    """Can be cut into two stages."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(), nn.Linear(8, CLASSES))


class RemembersInParts(InParts, faulty.RemembersAfterAWarmUp):
    pass


class TellsInParts(InParts, faulty.TellsTheLastLoss):
    pass


class NotesInParts(FromOne):
    """Changes its batch, looks back on what it has computed, and lets nothing follow."""

    last: torch.Tensor | None = None

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:  # noqa: ARG002
        self.last = super().loss(model, batch)
        return self.last


class FreezesInParts(InParts):
    """A layer of the first stage, by setting one of its attributes."""

    frozen = "0"

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step == 1:
            model.get_submodule(self.frozen).requires_grad_(False)
        return super().loss(model, batch)


class EndsADropoutInParts(InParts):
    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step == 1:
            model.get_submodule("1").eval()
        return super().loss(model, batch)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (RemembersInParts, "pipeline.memory"),
        (FreezesInParts, "model.0.weight.requires_grad"),
        (EndsADropoutInParts, "model.1.training"),
        (TellsInParts, "pipeline.last"),
    ],
)
@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_stage_computes_its_part_once_more(kind: type[InParts], place: str, recompute: bool) -> None:
    settings: dict[str, Any] = {"steps": 6, "recompute": recompute, "evaluate_every": Every(steps=2)}
    ends = members_end(kind, Layout(2, stages=2), **settings)
    (error,) = (end for end in ends if isinstance(end, BaseException))
    assert isinstance(error, Inconsistent)
    assert error.code == ("pipeline.metrics-changed" if kind is TellsInParts else "pipeline.changed-once")
    assert place in str(error)


@pytest.mark.parametrize("recompute", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_notes_of_stages_are_let_pass_and_change_no_bit(order: str, recompute: bool) -> None:
    settings: dict[str, Any] = {"steps": 5, "evaluate_every": Every(steps=2), "shards": 4, "batch_size": 8}
    split = train(NotesInParts, Layout(2, stages=2), pipeline_order=order, recompute=recompute, **settings)
    assert split.digest == train(FromOne, **settings).digest


class Follows(faulty.Numbered):
    """A value that follows from the step in each call."""

    factor = 1.0

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        self.factor = 1.0 + step
        return super().loss(model, batch) * self.factor


class Freezes(faulty.Numbered):
    """A layer that is frozen from a certain step on."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Linear(CLASSES, CLASSES))

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        model.get_submodule("0").requires_grad_(step < 2)
        return super().loss(model, batch)


class Late(faulty.Numbered):
    """A value and an array that any worker sets in its first step from a certain one on."""

    begun, factor = False, 1.0
    weight: torch.Tensor | None = None

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step >= 1 and not self.begun:
            self.begun, self.factor, self.weight = True, 2.0, torch.tensor(0.5)
        return super().loss(model, batch) * (self.factor if self.weight is None else self.factor * self.weight)


@pytest.mark.parametrize("kind", [Follows, Freezes, Late])
def test_values_that_follow_from_the_step_are_let_pass(kind: type[faulty.Numbered]) -> None:
    assert train(kind, steps=5).digest == train(kind, Layout(2), steps=5).digest


class Unseen:
    """As an object of Python's, at which no worker looks."""

    __module__ = "queue"

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Short(faulty.Numbered):
    """Has memory for the passes of a step, and none for more."""

    passes: ClassVar[Any] = Unseen(of={})  # by step

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        self.passes.of[step] = self.passes.of.get(step, 0) + 1
        if step > 0 and self.passes.of[step] == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(model, batch)


def test_a_card_without_memory_for_it_computes_the_step_alone() -> None:
    Short.passes.of.clear()
    assert (
        train(Short, steps=3, args={"held_out": None}).digest
        == train(faulty.Numbered, steps=3, args={"held_out": None}).digest
    )
    assert Short.passes.of[1] == 1 + 5


class ShortInEvaluations(faulty.Numbered):
    """Has memory for one pass of an evaluation, and none for the other."""

    steps: ClassVar[Any] = Unseen(last=0, failed=[])
    output: torch.Tensor | None = None

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if model.training:
            self.steps.last = step
        self.output = super().loss(model, batch)
        return self.output

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        if self.steps.last > 0 and self.steps.last not in self.steps.failed:
            self.steps.failed.append(self.steps.last)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().metrics(model, batch)


def test_a_card_without_memory_for_another_evaluation_makes_one() -> None:
    train(ShortInEvaluations, steps=4, evaluate_every=Every(steps=2))
    assert ShortInEvaluations.steps.failed == [1, 3]
