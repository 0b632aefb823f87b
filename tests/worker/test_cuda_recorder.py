"""Captures on a card: what warms up, what is captured, and that one that fails leaves nothing half ended."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.common import frames
from orchestrator.numerics import cuda
from orchestrator.worker.model import recorder as module
from orchestrator.worker.model.held_memory import HoldMemory, hold_memory
from orchestrator.worker.model.recorder import CudaRecorder
from tests.worker import captures
from tests.worker.captures import CAPTURE, patched


def test_work_is_warmed_up_on_one_side_stream_and_captured_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    card, recorder = patched(monkeypatch), CudaRecorder()
    before = card.stream
    for _ in range(2):
        recorder.record(card.launch)[0]()
    side, captured = card.at[0], card.at[3]
    assert card.at == [side, side, side, captured] * 2
    assert captured == CAPTURE
    assert card.pools == {7: 2}
    assert side is not before
    assert card.stream is before
    assert not card.underway
    card.draw()


def test_what_work_reads_is_brought_before_each_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work may change it in place, as labels that are counted down until a card ends for it."""
    card, place, read = patched(monkeypatch), [0], list[int]()

    def work() -> None:
        if not card.capturing:
            read.append(place[0])
            place[0] -= 1

    CudaRecorder().record(work, before=lambda: place.__setitem__(0, 1))
    assert read == [1, 1, 1]


def test_nothing_of_a_pass_before_is_alive_when_one_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd's nodes for gradients name a stream, and those of an earlier pass would name another one."""
    card = patched(monkeypatch)
    passes: list[weakref.ref[Node]] = []

    def work() -> None:
        if card.capturing:
            assert [each() for each in passes] == [None] * 3
        else:
            passes.append(weakref.ref(Node()))

    CudaRecorder().record(work)
    assert len(passes) == 3


@pytest.mark.parametrize("in_turn", [False, True])
def test_what_a_recording_reads_is_held_though_its_code_lets_it_go(
    monkeypatch: pytest.MonkeyPatch, *, in_turn: bool
) -> None:
    """Such as a moving average: done again, the recording would read what the allocator has given to others."""
    patched(monkeypatch)
    kept, read, made = {"average": torch.zeros(3)}, list[weakref.ref[Any]](), list[weakref.ref[Any]]()

    def work() -> None:
        doubled = kept["average"] * 2
        read.append(weakref.ref(kept["average"].untyped_storage()))
        made.append(weakref.ref(doubled.untyped_storage()))
        kept["average"] = doubled + 1

    repeating: Any = CudaRecorder().in_turn([work]) if in_turn else CudaRecorder().record(work)
    kept.clear()
    assert [each() is not None for each in read] == [False] * (len(read) - 1) + [True]
    assert made[-1]() is None
    del repeating
    assert read[-1]() is None


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_recording_that_is_let_go_has_done_what_it_was_told(
    monkeypatch: pytest.MonkeyPatch, *, in_turn: bool
) -> None:
    """torch gives its memory back without a wait for the stream of its replays, which would read there still."""
    card, recorder, busy = patched(monkeypatch), CudaRecorder(), list[bool]()
    again: Any = partial(recorder.in_turn([card.launch]), [1]) if in_turn else recorder.record(card.launch)[0]
    weakref.finalize(card.graphs.pop(), lambda: busy.append(card.stream.is_busy))
    again()
    assert card.stream.is_busy
    del again
    assert busy == [False]


@pytest.mark.long
def test_no_recording_imports_the_compiler_that_nobody_uses() -> None:
    """It takes 1.5 s of a processor, in each worker."""
    with hold_memory() as held:  # here it may be imported
        torch.ones(3) * 2
    assert isinstance(held, HoldMemory)
    lines = [
        "import sys, torch",
        "from orchestrator.worker.model.held_memory import hold_memory",
        "with hold_memory(): torch.ones(3) * 2",
        "before = 'torch._dynamo' in sys.modules",
        "import torch._dynamo",
        "with hold_memory() as held: torch.ones(3) * 2",
        "print(before, torch._dynamo.is_compiling(), len(held._made) > 0)",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("False False True\n", "")


def test_works_in_turn_draw_from_states_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    card, recorder = patched(monkeypatch), CudaRecorder()
    recorder.record(card.launch)
    before, drawing = card.state, list[object]()
    again = recorder.in_turn([lambda: drawing.append(card.state)] * 3)
    assert card.state is before
    assert len({id(state) for state in drawing}) == 3
    assert drawing == card.graphs[-1].states
    for seeds in ([1, 2, 3], [7, 8, 9]):
        again(seeds)
    assert card.drawn == [[1, 2, 3], [7, 8, 9]]


def test_what_works_in_turn_leave_lies_where_no_other_recording_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording writes activations anywhere in its pool where nothing lay when it was made. So one that is older would write
    over what the works leave, if a shard of another worker is done again before that is read."""
    card, recorder = patched(monkeypatch), CudaRecorder()
    recorder.record(card.launch)
    recorder.in_turn([card.launch] * 2)
    recorder.record(card.launch)
    recorder.in_turn([card.launch] * 2)
    assert card.pools == {7: 2, 8: 2}


def test_works_in_turn_that_fail_leave_nothing_half_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    card, recorder = patched(monkeypatch), CudaRecorder()
    (again,) = recorder.record(card.launch)
    stream, state = card.stream, card.state
    with pytest.raises(RuntimeError):
        recorder.in_turn([card.launch, card.look, card.launch])
    assert card.stream is stream
    assert not card.underway
    assert not card.writes_seeds, "their memory is given to others now"
    card.draw()
    assert card.state is state, "recordings of single works draw from this one"
    again()


class Node:
    """It is kept by itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.parametrize("ended", [False, True])
def test_a_capture_that_fails_leaves_nothing_half_ended(monkeypatch: pytest.MonkeyPatch, *, ended: bool) -> None:
    card = patched(monkeypatch, ended=ended)
    before = card.stream
    monkeypatch.setattr(frames, "_LIBRARIES", (*frames._LIBRARIES, captures.__file__))
    with pytest.raises(RuntimeError, match="previous error") as raised:
        CudaRecorder().record(lambda: card.look())
    assert card.stream is before
    assert not card.underway
    assert set(card.pools.values()) == {0}
    card.draw()
    # The line that looks is told, and not that the capture could not end.
    told = module.reason(raised.value)
    assert told.startswith(__file__)
    assert told.endswith("card.look()): CUDA error: operation not permitted when stream is capturing")


@pytest.mark.parametrize("ended", [False, True])
def test_a_capture_that_fails_gives_back_the_memory_of_those_before_it(
    monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    """A forward pass of a stage whose backward pass finds no memory would keep its activations as long as the process lives."""
    card = patched(monkeypatch, ended=ended)
    with pytest.raises(RuntimeError):
        CudaRecorder().record(card.launch, card.look, apart=True)
    assert len(card.graphs) == 2
    assert set(card.pools.values()) == {0}


def test_work_that_looks_at_values_only_outside_of_a_capture_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes another way while it is captured, and what it gives there may be right for the values at hand by chance."""
    card, recorder = patched(monkeypatch), CudaRecorder()
    monkeypatch.setattr(frames, "_LIBRARIES", (*frames._LIBRARIES, __file__))
    with pytest.raises(RuntimeError) as raised:
        recorder.record(card.launch, lambda: card.look_unless_capturing())
    told = module.reason(raised.value)
    assert told.startswith(captures.__file__)
    assert told.endswith(" looks at values, but not while it is recorded")
    assert card.waits_are_told == "default"
    assert not card.underway
    assert set(card.pools.values()) == {0}, "its pool would keep the memory of both passes"
    recorder.record(card.launch)
    assert set(card.pools.values()) == {0, 1}


def test_a_look_of_the_first_pass_alone_is_none_of_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    card, looks = patched(monkeypatch), iter([True])

    def work() -> None:
        if next(looks, False):
            card.look()
        card.launch()

    CudaRecorder().record(work)[0]()


def test_waits_of_another_thread_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    card = patched(monkeypatch)
    with cuda.waits() as found:
        thread = threading.Thread(target=card.look)
        thread.start()
        thread.join()
        assert not found
        card.look()
    assert [place.rpartition(":")[0] for place in found] == [__file__]


@pytest.mark.parametrize("package", ["masks", "torchmetrics"])
def test_where_only_a_package_has_looked_its_line_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    file = tmp_path / "site-packages" / package / "masks.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(module, "_TORCH", tmp_path / "site-packages" / "torch")
    file.write_text("def look():\n    raise RuntimeError('operation not permitted')\n")
    found: dict[str, Any] = {}
    exec(compile(file.read_text(), file, "exec"), found)
    with pytest.raises(RuntimeError) as raised:
        found["look"]()
    error = raised.value
    assert error.__traceback__ is not None
    told = module.reason(error.with_traceback(error.__traceback__.tb_next))
    assert told == f"{file}:2: raise RuntimeError('operation not permitted'): operation not permitted"


@pytest.mark.parametrize("ended", [False, True])
def test_so_does_one_whose_work_raises_of_itself(monkeypatch: pytest.MonkeyPatch, *, ended: bool) -> None:
    card = patched(monkeypatch, ended=ended)
    before = card.stream

    def work() -> None:
        if card.capturing:
            raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.")

    with pytest.raises(RuntimeError, match="current_seed"):
        CudaRecorder().record(work)
    assert card.stream is before
    assert not card.underway
    assert set(card.pools.values()) == {0}
    card.draw()


def test_who_goes_on_after_a_warm_up_that_raises_waits_for_what_it_has_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = patched(monkeypatch)
    before = card.stream

    def work() -> None:
        card.launch()
        if len(card.at) == 2:
            raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        CudaRecorder().record(work)
    assert card.stream is before
    assert before.waited_for == [card.at[0]]
