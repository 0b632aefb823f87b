"""A writer tells how it went by exactly one event, and nothing it meets reaches training."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from orchestrator.checkpoints.catalog import Catalog, load
from orchestrator.checkpoints.parts import Copier
from orchestrator.checkpoints.state import State
from orchestrator.checkpoints.storage import Buffer
from orchestrator.checkpoints.writer import Writer
from tests.checkpoints.stores import Failing, InMemory, example, same


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
    writers = [Writer(storage, told.append) for _ in range(3)]
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
    writer = Writer(storage, told.append)
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
    writer = Writer(Failing(InMemory(), "raises", 0), told.append)
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
    writer = Writer(InMemory(), told.append)
    huge = State({}, {"a": torch.ones(1).expand(1 << 50)})
    writer.prepare(huge, part=0, parts=1)
    writer.wait()
    writer.begin(huge, step=1, generation=1, part=0, parts=1)
    assert "no memory for a copy of" in told[0]["why"]


def test_memory_is_prepared_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(Copier, "prepare", lambda *_: prepared.append(threading.current_thread().name))
    writer = Writer(InMemory(), lambda _: None)
    writer.prepare(example(1), part=0, parts=1)
    assert writer.wait()
    assert prepared == ["checkpoint"]


def test_a_closed_writer_ends_its_thread_when_all_is_written() -> None:
    before = set(threading.enumerate())
    storage, told = Gated(), list[dict[str, Any]]()
    writer = Writer(storage, told.append)
    (own,) = set(threading.enumerate()) - before
    writer.begin(example(1), step=1, generation=1, part=0, parts=1)
    writer.close()
    storage.gate.set()
    own.join(60)
    assert (own.is_alive(), [event["event"] for event in told]) == (False, ["part_written"])
