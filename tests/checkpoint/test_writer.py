"""A writer tells how it went by exactly one event, and nothing it meets reaches training."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from orchestrator.checkpoint.catalog import Catalog, load
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import Buffer
from orchestrator.checkpoint.writer import PartWriter
from tests.checkpoint.stores import Failing, Held, InMemory, example, same


class Gated(InMemory):
    """A put begins, and waits to be let through."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.begun.set()
        assert self.gate.wait(60)
        super().put(name, pieces)


def test_parts_of_several_writers_become_a_checkpoint() -> None:
    storage = InMemory()
    told: list[dict[str, Any]] = []
    writers = [PartWriter(storage, told.append) for _ in range(3)]
    catalog = Catalog(storage, 2)
    for step in (10, 20):
        told.clear()
        for part, writer in enumerate(writers):
            writer.begin(example(step), step=step, generation=4, part=part, parts=3)
        assert all(writer.wait(60) for writer in writers)
        assert {(event["event"], event["step"], event["generation"]) for event in told} == {("part_written", step, 4)}
        assert [event["part"] for event in told if "values" in event] == [0]
        assert all(event["seconds"] >= 0 and event["stall_s"] >= 0 for event in told)
        catalog.commit(step, told)
    found = catalog.latest().manifest
    assert found is not None
    assert same(load(storage, found), example(20))


def test_training_may_go_on_while_a_part_is_written() -> None:
    storage = Gated()
    told: list[dict[str, Any]] = []
    writer = PartWriter(storage, told.append)
    state = example(10)
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    for tensor in state.tensors.values():
        tensor.zero_()
    assert storage.begun.wait(60)
    assert writer.busy
    assert not writer.wait(0)
    assert storage.nice > nice == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    writer.begin(state, step=11, generation=1, part=0, parts=1)
    (event,) = told
    assert (event["event"], event["step"]) == ("part_failed", 11)
    assert "still being written" in event["why"]
    storage.gate.set()
    assert writer.wait()
    assert told[1]["event"] == "part_written"
    saved = Catalog(storage, 1).commit(10, told[1:]).manifest
    assert same(load(storage, saved), example(10))


def test_a_full_disk_is_told_and_the_next_checkpoint_may_succeed() -> None:
    told: list[dict[str, Any]] = []
    writer = PartWriter(Failing(InMemory(), "raises", 0), told.append)
    for step in (10, 20):
        writer.begin(example(step), step=step, generation=1, part=0, parts=1)
        writer.wait()
    failed, written = told
    why = f"[Errno {errno.ENOSPC}] No space left on device"
    about = {"step": 10, "generation": 1, "part": 0, "parts": 1}
    assert failed == {"event": "part_failed", **about, "why": why}
    assert (written["event"], written["step"]) == ("part_written", 20)


def test_too_little_memory_is_told() -> None:
    told: list[dict[str, Any]] = []
    writer = PartWriter(InMemory(), told.append)
    huge = {"a": torch.ones(1).expand(1 << 50)}
    for state in (TrainingState({}, huge), TrainingState({}, huge, frozenset("a"))):
        writer.begin(state, step=1, generation=1, part=0, parts=1)
        assert "no memory for a copy of" in told.pop()["why"]


def steady(step: int) -> TrainingState:
    """`example` with one tensor that may change at once."""
    plain = example(step)
    return TrainingState(plain.values, plain.tensors, frozenset(plain.tensors) - {"model/0"})


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


def test_what_is_steady_is_copied_later_and_the_rest_at_once(
    monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    storage, held = InMemory(), Held(monkeypatch)
    writer, state = PartWriter(storage, told.append), steady(10)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    state.tensors["model/0"].zero_()
    assert held.begun.wait(60)
    assert (writer.busy, writer.copied(0.01), writer.wait(0.01)) == (True, False, False)
    assert (told, storage.files) == ([], {})
    held.gate.set()
    assert writer.copied()
    for tensor in state.tensors.values():
        tensor.zero_()
    assert writer.wait()
    assert not writer.busy
    assert told[0]["stall_s"] >= 0.02
    assert same(load(storage, Catalog(storage, 1).commit(10, told).manifest), example(10))
    assert held.priorities == [os.getpriority(os.PRIO_PROCESS, threading.get_native_id())]


class Card:
    """Implements `SideStream` and `Copies`: host memory stands for that of a GPU, whose copies end when they are let."""

    def __init__(self, there: Sequence[torch.Tensor]) -> None:
        self._there = {id(tensor) for tensor in there}
        self.gate = threading.Event()
        self.held_back = 0
        self.error: RuntimeError | None = None
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def holds(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._there

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.full((size_bytes,), 7, dtype=torch.uint8)

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Card:
        """Work that is launched behind `hold_back` cannot change what these copies read."""
        self._under_way = [(target, source.clone()) for target, source in zip(targets, sources, strict=True)]
        return self

    @property
    def ended(self) -> bool:
        return self.gate.is_set()

    def hold_back(self) -> None:
        self.held_back += 1

    def wait(self) -> None:
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        for target, source in self._under_way:
            target.copy_(source)


@pytest.mark.parametrize("on_the_card", [1, 2, 3])
def test_what_is_on_a_card_is_copied_there_and_nobody_waits(on_the_card: int, told: list[dict[str, Any]]) -> None:
    storage, state = InMemory(), steady(10)
    card = Card([state.tensors[name] for name in sorted(state.steady)[:on_the_card]])
    writer = PartWriter(storage, told.append, card)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    assert writer._copying.wait(60)  # what is not on the card
    assert (writer.copied(0), card.held_back) == (False, 0)  # a micro-batch is computed beside the copy
    assert writer.copied()
    assert card.held_back == 1
    for tensor in state.tensors.values():
        tensor.zero_()  # the update
    assert (writer.busy, writer.wait(0.01), told) == (True, False, [])
    card.gate.set()
    assert writer.wait()
    assert same(load(storage, Catalog(storage, 1).commit(10, told).manifest), example(10))
    writer.begin(steady(20), step=20, generation=1, part=0, parts=1)
    assert writer.wait()
    assert same(load(storage, Catalog(storage, 1).commit(20, told[1:]).manifest), example(20))


def test_what_a_card_has_copied_is_written_before_an_update(told: list[dict[str, Any]]) -> None:
    storage, state = InMemory(), steady(10)
    card = Card([state.tensors[name] for name in state.steady])
    writer = PartWriter(storage, told.append, card)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    assert not writer.copied(0)
    card.gate.set()
    assert writer.copied(0)
    assert writer.wait()
    assert [each["event"] for each in told] == ["part_written"]


@pytest.mark.parametrize("there", [True, False])
def test_memory_for_what_is_on_a_card_is_taken_before(there: bool, told: list[dict[str, Any]]) -> None:
    class Watched(Card):
        def host_memory(self, size_bytes: int) -> torch.Tensor:
            taken.append(threading.current_thread())
            return super().host_memory(size_bytes)

    taken: list[threading.Thread] = []
    storage, state = InMemory(), steady(10)
    card = Watched([state.tensors[name] for name in sorted(state.steady)] if there else [])
    card.gate.set()
    writer = PartWriter(storage, told.append, card)
    writer.reserve(state, part=0, parts=1)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    writer.reserve(state, part=0, parts=1)  # in vain: one is under way
    assert writer.wait()
    assert [thread is threading.current_thread() for thread in taken] == [False] * there
    assert same(load(storage, Catalog(storage, 1).commit(10, told).manifest), example(10))


def test_a_card_without_page_locked_memory_is_told_of_the_checkpoint(told: list[dict[str, Any]]) -> None:
    state = steady(10)
    card = Card([*state.tensors.values()])

    def full(size_bytes: int) -> torch.Tensor:
        raise RuntimeError(f"CUDA error: out of memory ({size_bytes})")

    card.host_memory = full  # type: ignore[method-assign]
    writer = PartWriter(InMemory(), told.append, card)
    writer.reserve(state, part=0, parts=1)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    assert [each["event"] for each in told] == ["part_failed"]


def test_a_card_that_fails_while_it_copies_is_told(told: list[dict[str, Any]]) -> None:
    state = steady(10)
    card = Card([*state.tensors.values()])
    why = "CUDA error: an illegal memory access was encountered"
    card.error = RuntimeError(f"{why}\nCUDA kernel errors might be asynchronously reported at some other API call.")
    card.gate.set()
    writer = PartWriter(InMemory(), told.append, card)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    assert writer.wait()
    assert (told[0]["event"], told[0]["why"]) == ("part_failed", why)


def test_the_stall_counts_from_when_training_stopped(told: list[dict[str, Any]]) -> None:
    writer = PartWriter(InMemory(), told.append)
    writer.begin(steady(1), step=1, generation=1, part=0, parts=1, since=time.monotonic() - 1000)
    writer.wait()
    assert 1000 <= told[0]["stall_s"] < 1000 + told[0]["seconds"] + 60


@pytest.mark.parametrize("when", ["before its copy", "after its copy"])
def test_a_part_that_was_changed_while_it_was_copied_fails(
    monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]], when: str
) -> None:
    storage, held = InMemory(), Held(monkeypatch)
    writer, state = PartWriter(storage, told.append), steady(10)
    writer.begin(state, step=10, generation=1, part=0, parts=1)
    if when == "after its copy":
        held.gate.set()
        assert writer._copying.wait(60)
    state.tensors["model/2"][1, 1] += 1
    held.gate.set()
    assert writer.wait()
    (event,) = told
    assert (event["event"], event["step"]) == ("part_failed", 10)
    assert event["why"] == "model/2 was changed while it was copied, which only an update may do"
    assert storage.files == {}
    writer.begin(steady(11), step=11, generation=1, part=0, parts=1)
    assert writer.wait()
    assert same(load(storage, Catalog(storage, 1).commit(11, told[1:]).manifest), example(11))


def test_a_copy_that_fails_in_the_background_is_told(
    monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    held = Held(monkeypatch, MemoryError("no page left"))
    writer = PartWriter(InMemory(), told.append)
    writer.begin(steady(1), step=1, generation=1, part=0, parts=1)
    assert held.begun.wait(60)
    held.gate.set()
    assert writer.copied()
    assert not writer.busy
    assert [(event["event"], event["why"]) for event in told] == [("part_failed", "no page left")]


def test_who_waits_copies_what_nobody_has_begun(monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]) -> None:
    storage = InMemory()
    writer, state = PartWriter(storage, told.append), steady(1)
    monkeypatch.setattr(writer._copying, "start", lambda _: None)  # it gets no core
    writer.begin(state, step=1, generation=1, part=0, parts=1)
    assert not writer.copied(0)
    assert writer.copied(0.01)
    assert writer.wait()
    assert same(load(storage, Catalog(storage, 1).commit(1, told).manifest), example(1))


def test_who_waits_takes_the_rest_from_the_other_thread(
    monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("orchestrator.checkpoint.writer._PIECE_BYTES", 1)
    storage, held = InMemory(), Held(monkeypatch)
    writer = PartWriter(storage, told.append)
    writer.begin(steady(1), step=1, generation=1, part=0, parts=1)
    assert held.begun.wait(60)
    assert not writer.copied(0.01)
    held.gate.set()
    assert writer.wait()
    assert len(held.priorities) == 1
    assert same(load(storage, Catalog(storage, 1).commit(1, told).manifest), example(1))


def test_who_closes_a_writer_waits_for_the_copy(monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]) -> None:
    storage, held, before = InMemory(), Held(monkeypatch), set(threading.enumerate())
    writer, state = PartWriter(storage, told.append), steady(1)
    own = set(threading.enumerate()) - before
    writer.begin(state, step=1, generation=1, part=0, parts=1)
    assert held.begun.wait(60)
    copy = writer._copy
    assert copy is not None
    finish = copy.finish

    def let_through(timeout_s: float | None) -> bool:
        held.gate.set()
        return finish(timeout_s)

    monkeypatch.setattr(copy, "finish", let_through)
    writer.close()
    assert held.gate.is_set()
    for tensor in state.tensors.values():
        tensor.zero_()
    for thread in own:
        thread.join(60)
    assert [thread.is_alive() for thread in own] == [False, False]
    assert same(load(storage, Catalog(storage, 1).commit(1, told).manifest), example(1))


def test_a_closed_writer_ends_its_threads_when_all_is_written() -> None:
    before = set(threading.enumerate())
    storage, told = Gated(), list[dict[str, Any]]()
    writer = PartWriter(storage, told.append)
    own = set(threading.enumerate()) - before
    writer.begin(example(1), step=1, generation=1, part=0, parts=1)
    writer.close()
    storage.gate.set()
    for thread in own:
        thread.join(60)
    assert [thread.is_alive() for thread in own] == [False, False]
    assert [event["event"] for event in told] == ["part_written"]
