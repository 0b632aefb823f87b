"""Storages for tests: one in memory, doubles that wrap any storage and make it fail; and a writer's copy that is held back."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from orchestrator.checkpoint.parts import CheckpointPart, Copier, share_of, write_part
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import Buffer, Storage


class InMemory:
    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.files[name] = b"".join(pieces)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name][start:stop]

    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def delete(self, name: str) -> None:
        self.files.pop(name, None)


class Dead(BaseException):
    """The process that used the storage is no more: nothing of ours catches this."""


class Failing:
    """Lets `after` changes through. Then: `raises` refuses the next one and works again, `full` refuses every further put,
    `dead` ends the process that asks, `dead_after` ends it once the change is made."""

    def __init__(self, storage: Storage, how: str, after: int) -> None:
        self._storage = storage
        self._how = how
        self._left = after
        self.fired = False

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        self._change("put", name, pieces)

    def delete(self, name: str) -> None:
        self._change("delete", name)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._storage.get(name, start, stop)

    def sizes(self) -> dict[str, int]:
        return self._storage.sizes()

    def _change(self, verb: str, *arguments: Any) -> None:
        self._left -= 1
        if self._left < 0 and not (self.fired and self._how == "raises") and (verb == "put" or self._how != "full"):
            self.fired = True
            if self._how in ("raises", "full"):
                raise OSError(errno.ENOSPC, "No space left on device")
            if self._how == "dead_after":
                getattr(self._storage, verb)(*arguments)
            raise Dead
        getattr(self._storage, verb)(*arguments)


class Held:
    """From now on a writer's copy in the background begins, and waits to be let through, at the latest by the end of a
    `with`; then it fails, if `error` is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.priorities: list[int] = []
        fill = CheckpointPart.fill

        def held(part: CheckpointPart, tensors: dict[str, torch.Tensor]) -> None:
            if threading.current_thread().name == "checkpoint copy":
                self.priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
                self.begun.set()
                assert self.gate.wait(60)
                if error is not None:
                    raise error
            fill(part, tensors)

        monkeypatch.setattr(CheckpointPart, "fill", held)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()


def example(step: int, tensors: int = 3) -> TrainingState:
    """A state that differs from step to step, but for one tensor that never changes."""
    generator = torch.Generator().manual_seed(step)
    named = {f"model/{i}": torch.randn(i + 1, 2, generator=generator) for i in range(tensors)}
    return TrainingState({"step": step}, {**named, "model/frozen": torch.ones(50)})


def events(
    storage: Storage, state: TrainingState, step: int, parts: int = 2, generation: int = 1
) -> list[dict[str, Any]]:
    """Write all parts in the foreground; what their writers would report."""
    reported = []
    for part in range(parts):
        blob = write_part(storage, Copier().copy(share_of(state.tensors, part, parts)))
        about = {"event": "part_written", "step": step, "generation": generation, "part": part, "parts": parts}
        reported.append({**about, "blob": blob.as_dict(), **({"values": state.values} if part == 0 else {})})
    return reported


def same(left: TrainingState, right: TrainingState) -> bool:
    """Equal to the bit, values, names, dtypes and shapes included."""
    if left.values != right.values or left.tensors.keys() != right.tensors.keys():
        return False
    pairs = [(left.tensors[name], right.tensors[name]) for name in left.tensors]
    return all(a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b) for a, b in pairs)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
