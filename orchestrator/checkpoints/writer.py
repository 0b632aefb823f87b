"""A member's writing of checkpoints: copy at the step boundary, write in a background thread, tell by an event.

Nothing here raises into training: whatever goes wrong is a `part_failed` event, and training goes on (a full disk is the
usual case). The thread has a low priority, so that on busy cores training comes first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from orchestrator.checkpoints.parts import Copier, Part, share_of, write_part
from orchestrator.checkpoints.state import State
from orchestrator.checkpoints.storage import Storage

Emit = Callable[[dict[str, Any]], None]
_NICE = 10


class Writer:
    """`begin` and `wait` belong to the compute thread; `emit` is called from the background thread, or from `begin`."""

    def __init__(self, storage: Storage, emit: Emit) -> None:
        self._storage = storage
        self._emit = emit
        self._copier = Copier()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether the checkpoint before is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, state: State, *, step: int, generation: int, part: int, parts: int) -> None:
        """Copy this member's part of `state`, which may change as soon as this returns, and write it in the background.

        Ends in exactly one event: `part_written` with the blob (from part 0 with the values too), or `part_failed`.
        """
        started = time.monotonic()
        about: dict[str, Any] = {"step": step, "generation": generation, "part": part, "parts": parts}
        try:
            if self.busy:
                raise RuntimeError("the checkpoint before is still being written")
            copied = self._copier.copy(share_of(state.tensors, part, parts))
        except Exception as error:
            self._emit(_failed(about, error))
            return
        if part == 0:
            about["values"] = state.values
        about["stall_s"] = time.monotonic() - started
        self._start(lambda: self._write(copied, about))

    def prepare(self, state: State, *, part: int, parts: int) -> None:
        """In the background, touch the memory that the copy will need, so that the first `begin` is as short as the others."""
        if not self.busy:
            share = share_of(state.tensors, part, parts)
            self._start(lambda: self._touch(share))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until nothing is being written any more; False when that took longer."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.busy

    def _start(self, act: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(OSError, AttributeError):  # not everywhere, and only a courtesy
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            act()

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def _touch(self, share: dict[str, torch.Tensor]) -> None:
        with suppress(MemoryError):  # `begin` will meet and tell it
            self._copier.prepare(share)

    def _write(self, part: Part, about: dict[str, Any]) -> None:
        started = time.monotonic()
        try:
            blob = write_part(self._storage, part)
        except Exception as error:
            self._emit(_failed(about, error))
            return
        seconds = time.monotonic() - started
        self._emit({"event": "part_written", **about, "blob": blob.as_dict(), "seconds": seconds})


def _failed(about: dict[str, Any], error: Exception) -> dict[str, Any]:
    place = {key: about[key] for key in ("step", "generation", "part", "parts")}
    return {"event": "part_failed", **place, "why": str(error) or type(error).__name__}
