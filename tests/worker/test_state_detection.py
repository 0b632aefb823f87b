"""A pipeline's state is found where no result of its first micro-batches differs yet, and what is none is let pass."""

from __future__ import annotations

import functools
import random
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from orchestrator.worker.admission import state_detection
from orchestrator.worker.admission.beginning import Beginning
from orchestrator.worker.admission.state_detection import another, grown, look, untrained


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.outputs: list[Any] = []


class Meter:
    def __init__(self) -> None:
        self.total, self._calls = 0.0, 0

    def add(self) -> None:
        self.total += 0.5


@dataclass(slots=True)
class Slotted:
    total: float = 0.0


class Wide(Slotted):
    """It has a dictionary, too."""


class Rows(Dataset[Any]):
    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return index


class Straight(torch.autograd.Function):
    calls = 0


class Pipeline:
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.net = Layer()
        self.bank: list[Any] = []
        self.queue: deque[float] = deque([0.0], maxlen=1)
        self.names: set[int] = set()
        self.average = torch.zeros(2)
        self.meter, self._meter = Meter(), Meter()
        self.slotted, self.wide = Slotted(), Wide()
        self.rows = Rows()
        self.table: dict[int, Any] = {}
        self.closed = closing()
        self.method = self.meter.add

    def loss(self, memory: list[int] = []) -> None:  # noqa: B006
        memory.append(1)


def closing() -> Callable[[], None]:
    calls = [0]

    def count() -> None:
        calls[0] += 1

    return count


def hooked(pipeline: Pipeline) -> None:
    """Both hooks close over what they count in."""
    module, tensor = [0.0], [0.0]

    def of_module(*_: Any) -> None:
        module[0] += 1

    def of_tensor(gradient: torch.Tensor) -> torch.Tensor:
        tensor[0] += 1
        return gradient

    pipeline.net.register_forward_hook(of_module)
    pipeline.net.weight.register_hook(of_tensor)  # type: ignore[no-untyped-call]


STATE: list[tuple[Callable[[Pipeline], object], str]] = [
    (lambda pipeline: pipeline.bank.append(torch.zeros(1)), "the length of pipeline.bank"),
    (lambda pipeline: pipeline.names.add(len(pipeline.names)), "the length of pipeline.names"),
    (lambda pipeline: pipeline.queue.append(pipeline.queue[-1] + 1), "pipeline.queue[0]"),
    (lambda pipeline: pipeline.average.add_(1), "pipeline.average"),
    (lambda pipeline: pipeline.net.outputs.append(None), "the length of pipeline.net.outputs"),
    (lambda pipeline: pipeline.meter.add(), "pipeline.meter.total"),
    (lambda pipeline: setattr(pipeline.slotted, "total", pipeline.slotted.total + 1), "pipeline.slotted.total"),
    (lambda pipeline: setattr(pipeline.wide, "total", pipeline.wide.total + 1), "pipeline.wide.total"),
    (lambda pipeline: setattr(pipeline.wide, "more", getattr(pipeline.wide, "more", 0) + 1), "pipeline.wide.more"),
    (lambda _: setattr(Straight, "calls", Straight.calls + 1), f"{__name__}.Straight.calls"),
    (lambda pipeline: pipeline.seen.append(1), f"the length of {__name__}.Pipeline.seen"),
    (lambda pipeline: pipeline.loss(), f"the length of {__name__}.Pipeline.loss.memory"),
    (lambda pipeline: pipeline.closed(), "pipeline.closed.calls[0]"),
]
NONE: list[Callable[[Pipeline], object]] = [
    lambda pipeline: setattr(pipeline._meter, "total", pipeline._meter.total + 1),
    lambda pipeline: setattr(pipeline.meter, "_calls", pipeline.meter._calls + 1),
    lambda pipeline: pipeline.rows[0],
    lambda pipeline: pipeline.table.update({1: torch.zeros(1)}),
    lambda pipeline: pipeline.average.fill_(3),
]


def looks(pipeline: Pipeline, change: Callable[[Pipeline], object], **options: bool) -> dict[str, bool]:
    """The places that changed each time."""
    found = []
    for _ in range(3):
        change(pipeline)
        roots = {"pipeline": pipeline, "model": pipeline.net, "train": pipeline.rows, f"{__name__}.Straight": Straight}
        found.append(look(roots, pipeline.net, **options))
    return grown(*found)


@pytest.mark.parametrize(("change", "place"), STATE, ids=[place for _, place in STATE])
def test_what_grows_or_moves_each_time_is_state(change: Callable[[Pipeline], object], place: str) -> None:
    assert looks(Pipeline(), change) == {place: True}


@pytest.mark.parametrize("change", NONE)
def test_private_names_caches_and_what_data_sets_count_are_none(change: Callable[[Pipeline], object]) -> None:
    assert not any(looks(Pipeline(), change).values())


def test_private_numbers_are_named_and_can_be_others_for_a_while() -> None:
    pipeline = Pipeline()
    meter = pipeline.meter
    grows = looks(pipeline, lambda _: setattr(meter, "_calls", meter._calls + 1))
    assert grows == {"pipeline.meter._calls": False}
    roots = {"pipeline": pipeline}
    with another(roots, pipeline.net, "pipeline.meter._calls", 1_000_000) as is_another:
        assert is_another
        assert meter._calls == 1_000_003
        meter._calls += 1
    assert meter._calls == 3
    with another(roots, pipeline.net, "pipeline.average", 1) as is_another:
        assert not is_another


def test_untrained_parameters_are_found_and_no_value_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that another stage has can be asked for none."""
    monkeypatch.setattr(state_detection, "_content", None)
    pipeline, model = Pipeline(), nn.Linear(2, 2)
    (pipeline.net(torch.ones(1, 2)) + model(torch.ones(1, 2))).sum().backward()
    assert untrained({"pipeline": pipeline, "model": model}, model) == ["pipeline.net.weight", "pipeline.net.bias"]


def test_an_untrained_tensor_that_requires_a_gradient_is_found() -> None:
    """As a factor of a loss that is to be learned, kept in the pipeline and not as a Parameter."""
    pipeline: Any = Pipeline()
    model = nn.Linear(2, 2)
    pipeline.factors = [torch.zeros(2, requires_grad=True), torch.ones(2)]
    (model(torch.ones(1, 2)) * pipeline.factors[0]).sum().backward()
    assert untrained({"pipeline": pipeline, "model": model}, model) == ["pipeline.factors[0]"]


def test_the_closures_of_hooks_are_looked_at() -> None:
    pipeline = Pipeline()
    hooked(pipeline)

    def step(_: Pipeline) -> None:
        pipeline.net(torch.ones(1, 2)).sum().backward()

    places = {re.sub(r"\[\d+\]", "[]", place, count=1) for place in looks(pipeline, step)}
    assert places == {"pipeline.net._forward_hooks[].module[0]", "pipeline.net.weight's hooks[].tensor[0]"}


def test_lists_that_somebody_reads_at_the_end_of_an_epoch_are_none() -> None:
    """As those of a LightningModule; other state counts there as elsewhere."""
    pipeline = Pipeline()
    assert looks(pipeline, lambda each: each.net.outputs.append(torch.zeros(1)), gathers=True) == {}
    assert looks(pipeline, lambda each: each.average.add_(1), gathers=True) == {"pipeline.average": True}


def test_containers_of_a_package_are_read_by_pythons_own_methods() -> None:
    """Irreps of e3nn refuse their length, and a lazy mapping imports what it is asked for."""

    class Irreps(tuple[Any, ...]):
        def __len__(self) -> int:
            raise NotImplementedError

    class Lazy(OrderedDict[str, Any]):
        def items(self) -> Any:
            raise NotImplementedError

    held = Pipeline()
    held.bank = [Irreps([torch.zeros(1)]), Lazy(a=torch.zeros(1))]
    found = look({"pipeline": held}, held.net)
    assert {"the length of pipeline.bank[0]", "pipeline.bank[0][0]", "pipeline.bank[1]['a']"} <= found.keys()


def test_a_generator_without_a_state_is_none() -> None:
    pipeline = Pipeline()
    pipeline.meter = random.SystemRandom()  # type: ignore[assignment]
    assert looks(pipeline, lambda each: each.meter.random()) == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("draw", [random.random, random.gauss, numpy.random.rand, torch.default_generator.seed])
def test_generators_that_are_seeded_for_each_micro_batch_are_none(draw: Any) -> None:
    pipeline = Pipeline()
    pipeline.meter = draw
    assert looks(pipeline, lambda each: each.meter()) == {}  # type: ignore[operator]
    beginning = Beginning({"pipeline": pipeline}, pipeline.net, {})
    draw()
    assert beginning.changed() == []


def test_a_linked_list_is_looked_at_as_far_as_python_may_go() -> None:
    first: Any = None
    for _ in range(5000):
        first = [first]
    pipeline = Pipeline()
    before = look({"pipeline": pipeline}, pipeline.net)
    pipeline.table[0] = first
    assert set(look({"pipeline": pipeline}, pipeline.net)) > set(before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch warns once in a process
def test_a_nested_tensor_is_no_number() -> None:
    pipeline = Pipeline()
    before = set(look({"pipeline": pipeline}, pipeline.net))
    pipeline.average = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    assert set(look({"pipeline": pipeline}, pipeline.net)) == before - {"pipeline.average"}
    Beginning({"pipeline": pipeline}, pipeline.net, {}).changed()


def test_what_a_packages_object_keeps_is_named_and_no_state() -> None:
    pipeline = Pipeline()
    other = functools.partial(print)
    other.kept = torch.zeros(1)  # type: ignore[attr-defined]
    pipeline.meter = other  # type: ignore[assignment]
    assert looks(pipeline, lambda _: other.kept.add_(1)) == {"pipeline.meter.kept": False}  # type: ignore[attr-defined]
