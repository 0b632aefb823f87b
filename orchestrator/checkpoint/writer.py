"""A member's writing of checkpoints: copy beside the next step's computation, write in the background, tell by an event.

Between two updates parameters and optimizer state stay as they are. So only what else there is (buffers) is copied at the step
boundary; the rest follows in the background, and whoever is about to change it waits until it is copied (CheckFreq, Mohan et
al., FAST 2021, section 4). A tensor that was changed meanwhile nevertheless, by somebody who may not, makes the part fail: its
version tells. The compute thread asks for that, when nothing of the user's runs in it, because torch raises a version only
after the change, and a copy could end in between. Versions do not tell of writes through `.data`, numpy or a fused optimizer's
kernels, here as in rule A8: against our own optimizer only the waiting helps.

A tensor on a GPU is copied by the card, on a stream of its own (`side_stream`). Code that is about to change it has the card
wait, and goes on. Only the thread that writes waits for the copy itself. Memory for it is page-locked beside the second step
(`reserve`), when the optimizer's state is there.

Nothing here raises into training: whatever goes wrong is a `part_failed` event, and training goes on (a full disk is the
usual case). Two threads: copying has the priority of training, which may have to wait for it, and then copies the rest itself;
hashing and writing have a lower one, so that on busy cores training comes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Any

import torch

from orchestrator.checkpoint.background import Background
from orchestrator.checkpoint.parts import CheckpointPart, Copier, host_memory, share_of, write_part
from orchestrator.checkpoint.side_stream import Copies, CudaSideStream, SideStream
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import Storage
from orchestrator.common import card_faults, injection

Emit = Callable[[dict[str, Any]], None]
_NICE = 5  # yields to training on busy cores; 19 was starved there for half a minute, and held its copy as long
_PIECE_BYTES = 16 << 20  # copied in some milliseconds


class PartWriter:
    """Its methods belong to the compute thread; `emit` is called from the writing thread, or from them."""

    def __init__(self, storage: Storage, emit: Emit, side: SideStream | None = None) -> None:
        """side: for what is on a GPU; None: that of CUDA."""
        self._storage = storage
        self._emit = emit
        self._copier = Copier()
        self._side = side or CudaSideStream()
        self._copy: _Copy | None = None
        self._copying = Background("checkpoint copy", nice=0)
        self._writing = Background("checkpoint", nice=_NICE)

    @property
    def busy(self) -> bool:
        """Whether the checkpoint before is still being copied or written."""
        return self._copy is not None or self._writing.busy

    def begin(
        self, state: TrainingState, *, step: int, generation: int, part: int, parts: int, since: float | None = None
    ) -> None:
        """Copy this member's part of `state` and write it, both in the background. Its steady tensors may not change before
        `copied` has returned True; the rest may as soon as this returns. since: when training stopped for this, as
        `time.monotonic()` says it; None: now.

        Ends in exactly one event: `part_written` with the blob (from part 0 with the values too), or `part_failed`. `stall_s`
        is how long training stood still: for this and in `copied`.
        """
        started = time.monotonic() if since is None else since
        about: dict[str, Any] = {"step": step, "generation": generation, "part": part, "parts": parts}
        try:
            if self.busy:
                raise RuntimeError("the checkpoint before is still being written")
            self._copying.wait(None)  # it may still reserve the memory
            share = share_of(state.tensors, part, parts, state.own)
            copy = self._copy_of(share, state.steady, about)
        except Exception as error:
            self._emit(_failed(about, error))
            return
        if part == 0:
            about["values"] = state.values
        if not copy.is_filled:
            self._copying.start(copy.fill)
        copy.stall_s = time.monotonic() - started
        self._copy = copy
        if not copy.later:
            self.copied()

    def reserve(self, state: TrainingState, *, part: int, parts: int) -> None:
        """Page-lock memory for such a part of a state that is on a GPU, in the background: for gigabytes that takes a good
        part of a second, which no step is to wait for. If it fails, the checkpoint tries again and tells."""
        share = share_of(state.tensors, part, parts, state.own)
        if self.busy or self._copying.busy or not any(map(self._side.holds, share.values())):
            return
        size_bytes = sum(tensor.nbytes for tensor in share.values())
        self._copying.start(lambda: self._reserve(size_bytes))

    def _reserve(self, size_bytes: int) -> None:
        with suppress(MemoryError):
            self._copier.reserve(size_bytes, self._host_memory)

    def _copy_of(self, share: dict[str, torch.Tensor], steady: Set[str], about: dict[str, Any]) -> _Copy:
        """Tensors that are not steady are copied when this returns; steady ones on a GPU are under way."""
        later = {name: tensor for name, tensor in share.items() if name in steady}
        there = {name: tensor for name, tensor in later.items() if self._side.holds(tensor)}
        part = self._copier.copy(share, later.keys(), self._host_memory if there else host_memory)
        beside = self._side.copy([part.tensors[name] for name in there], [*there.values()]) if there else None
        return _Copy(part, later, about, beside, there.keys())

    def _host_memory(self, size_bytes: int) -> torch.Tensor:
        return self._side.host_memory(size_bytes)

    def copied(self, timeout_s: float | None = None) -> bool:
        """Until what was begun is copied, and from then on it is written; False when that took longer."""
        copy = self._copy
        if copy is None:
            return True
        started = time.monotonic()
        done = copy.finish(timeout_s)
        copy.stall_s += time.monotonic() - started
        if done:
            self._copy = None
            self._judge(copy)
        return done

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until nothing is being copied or written any more; False when that took longer."""
        started = time.monotonic()
        if not self.copied(timeout_s):
            return False
        left_s = None if timeout_s is None else max(0.0, started + timeout_s - time.monotonic())
        return self._writing.wait(left_s)

    def close(self) -> None:
        """End the threads once they have written what they were given, and let the memory go; waits for no more than a copy."""
        self.copied()
        self._copying.close()
        self._writing.close()

    def _judge(self, copy: _Copy) -> None:
        try:
            copy.check()
        except Exception as error:
            self._emit(_failed(copy.about, error))
            return
        part, beside, about = copy.part, copy.beside, {**copy.about, "stall_s": copy.stall_s}
        self._writing.start(lambda: self._write(part, beside, about))

    def _write(self, part: CheckpointPart, beside: Copies | None, about: dict[str, Any]) -> None:
        started = time.monotonic()
        try:
            if beside is not None:
                beside.wait()
            injection.at("checkpoint write", about["step"])
            blob = write_part(self._storage, part)
        except Exception as error:
            self._emit(_failed(about, error))
            return
        seconds = time.monotonic() - started
        self._emit({"event": "part_written", **about, "blob": blob.as_dict(), "seconds": seconds})


class _Copy:
    """A part of which some tensors are still to come. `fill` is for the background, `finish` and `check` for the thread that
    computes."""

    def __init__(
        self,
        part: CheckpointPart,  # where all of it is to lie
        later: dict[str, torch.Tensor],  # what is still to come
        about: dict[str, Any],  # which part it is, as its event tells
        beside: Copies | None,  # those that a card makes; None where it makes none
        there: Set[str],  # the names of these
    ) -> None:
        self.part = part
        self.about = about
        self.beside = beside
        self.stall_s = 0.0
        self.later = later
        self._versions = [tensor._version for tensor in later.values()]
        self._pieces = _pieces({name: tensor for name, tensor in later.items() if name not in there})
        self._filling = threading.Lock()
        self._is_awaited = False
        self._error: Exception | None = None

    @property
    def is_filled(self) -> bool:
        """Whether nothing is left for the background."""
        return not self._pieces

    def fill(self) -> None:
        """Piece by piece, until somebody waits."""
        while self._pieces and not self._is_awaited:
            with self._filling:
                self._fill_one()

    def finish(self, timeout_s: float | None) -> bool:
        """Wait for the piece that is being copied, and copy the others here: on busy cores the other thread may not even have
        begun. False when that piece took longer; with 0 this only asks, and holds back nothing that is launched later."""
        if timeout_s == 0 and (self._pieces or not (self.beside is None or self.beside.ended)):
            return False
        self._is_awaited = timeout_s != 0
        if not self._filling.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return False
        try:
            while self._pieces:
                self._fill_one()
        finally:
            self._filling.release()
        if self.beside is not None:
            self.beside.hold_back()
        return True

    def _fill_one(self) -> None:
        if self._pieces:
            try:
                self.part.fill(self._pieces.popleft())
            except Exception as error:
                self._error = error

    def check(self) -> None:
        """Once it is filled, and while nobody computes: raises what speaks against it."""
        if self._error is not None:
            raise self._error
        for (name, tensor), version in zip(self.later.items(), self._versions, strict=True):
            if tensor._version != version:
                raise RuntimeError(f"{name} was changed while it was copied, which only an update may do")


def _pieces(tensors: dict[str, torch.Tensor]) -> deque[dict[str, torch.Tensor]]:
    """In order, each of as many bytes as a short wait may take, or of one tensor."""
    pieces: deque[dict[str, torch.Tensor]] = deque()
    left = 0
    for name, tensor in tensors.items():
        if left < tensor.nbytes or not pieces:
            pieces.append({})
            left = _PIECE_BYTES
        pieces[-1][name] = tensor
        left -= tensor.nbytes
    return pieces


def _failed(about: dict[str, Any], error: Exception) -> dict[str, Any]:
    place = {key: about[key] for key in ("step", "generation", "part", "parts")}
    return {"event": "part_failed", **place, "why": card_faults.words(error) or type(error).__name__}
