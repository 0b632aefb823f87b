"""Digests of a model on a GPU, made beside the steps that follow.

A model of 545 MB takes the better part of a second to be copied into host memory and hashed, in which a card does several
steps. So it is copied as a checkpoint is, beside the next step's passes (`checkpoint.side_stream`), and hashed in a thread.
The digest is that of `numerics.digests`, to the bit.

    buffers        copied in the stream that computes, before anything that is launched later
    parameters     copied on a stream of their own; the next update has the card wait for them (`copied`), and so do
                   replicas that run free before they begin, since they move parameters in each pass
    the line       told when the digest is there, and the entries of the run behind it only then, in their order

A checkpoint and the end of a generation call `settle` before, since others then go by what was told. A tensor that was
changed while it was copied, by code that may not, ends the step with an error (rule A8); its line has no digest then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from typing import NamedTuple

import torch

from orchestrator.checkpoint.background import Background
from orchestrator.checkpoint.parts import Copier
from orchestrator.checkpoint.side_stream import Copies, CudaSideStream, SideStream
from orchestrator.numerics import digests
from orchestrator.worker.member.generation import Emit, Entry

Tell = Callable[[str | None], Entry]  # the entry with this digest


class _Begun(NamedTuple):
    """A digest that is being made."""

    tensors: Mapping[str, torch.Tensor]  # the copies
    beside: Copies  # under way, of parameters
    steady: Mapping[str, torch.Tensor]  # parameters themselves
    versions: Mapping[str, int]  # of these as their copies began
    tell: Tell  # makes the entry
    go_on: threading.Event  # set once an update may change them


class LateDigests:
    """One worker's. All belongs to the thread that computes; entries are told by another one, too."""

    def __init__(self, emit: Emit, side: SideStream | None = None) -> None:
        """emit: takes entries of the run, in their order; side: for what is on a GPU; None: that of CUDA."""
        self._emit = emit
        self._side = side or CudaSideStream()
        self._copier = Copier()
        self._thread: Background | None = None
        self._order = threading.Lock()
        self._begun: _Begun | None = None
        self._behind: list[Entry] = []
        self._is_whole = True
        self._error: Exception | None = None

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take memory for a copy of these in the background, if they are on a GPU: to page-lock it takes long."""
        if self._begun is None and any(map(self._side.holds, tensors.values())):
            size_bytes = sum(tensor.nbytes for tensor in tensors.values())
            self._background.wait(None)
            self._background.start(lambda: self._reserve(size_bytes))

    def emit(self, entry: Entry) -> None:
        """Tell an entry of the run, behind those before it."""
        with self._order:
            if self._begun is None:
                self._emit(entry)
            else:
                self._behind.append(entry)

    def begin(self, tensors: Mapping[str, torch.Tensor], steady: Set[str], tell: Tell) -> bool:
        """Begin with the digest of a model with these tensors, and tell its entry later; whether that is done. It is not for a
        model that is not on a GPU, and where there is no memory. steady: those that stay until the next update."""
        self.settle()
        if not any(map(self._side.holds, tensors.values())):
            return False
        self._background.wait(None)  # it may still reserve the memory
        try:
            places = self._copier.copy(tensors, tensors.keys(), self._side.host_memory).tensors
        except MemoryError:
            return False
        for name in tensors.keys() - steady:
            places[name].copy_(tensors[name], non_blocking=True)
        there = {name: tensors[name] for name in tensors if name in steady}
        beside = self._side.copy([places[name] for name in there], [*there.values()])
        versions = {name: tensor._version for name, tensor in there.items()}
        self._is_whole = True
        self._begun = begun = _Begun(dict(places), beside, there, versions, tell, threading.Event())
        self._background.start(lambda: self._complete(begun))
        return True

    def copied(self) -> None:
        """From here on parameters may be changed: the card does so behind the copies. Raises what the thread met."""
        begun = self._begun
        if begun is not None and not begun.go_on.is_set():
            self._is_whole = all(tensor._version == begun.versions[name] for name, tensor in begun.steady.items())
            begun.beside.hold_back()
            begun.go_on.set()
        self._raise()

    def settle(self) -> None:
        """Wait until all is told. Raises what the thread met, such as the failure of a card."""
        if self._begun is not None:
            self.copied()
            self._background.wait(None)
        self._raise()

    def close(self) -> None:
        """End the thread, once all is told."""
        if self._thread is not None:
            self._thread.close()
        self._thread = None

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def _background(self) -> Background:
        self._thread = self._thread or Background("digest", nice=0)
        return self._thread

    def _reserve(self, size_bytes: int) -> None:
        with suppress(MemoryError):
            self._copier.reserve(size_bytes, self._side.host_memory)

    def _complete(self, begun: _Begun) -> None:
        """Finish it, in the thread. Nothing more is told of the run if the card fails: its lines would have a gap."""
        try:
            begun.beside.wait()
            digest = digests.state_digest(begun.tensors)
            begun.go_on.wait()
            entry = begun.tell(digest if self._is_whole else None)
        except Exception as error:
            self._error = error
            return
        with self._order:
            for each in (entry, *self._behind):
                self._emit(each)
            self._behind.clear()
            self._begun = None
