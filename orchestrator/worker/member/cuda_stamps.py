"""Moments of what a GPU does: CUDA events in the stream that is current, asked later whether the GPU has come to them.

Source: NVIDIA, "CUDA Runtime API", event management. The calls are those of torch.cuda; tests have a double.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch


class CudaStamp(NamedTuple):
    """A moment on the card, and the same on the host."""

    host_s: float  # when it was launched
    event: Any  # None if the card has failed


class CudaStamps:
    """Implements `stamps.Stamps` for the GPU that is current. Once a call has failed the host's clock is used: the member is
    about to leave, and other code raises the error itself."""

    def __init__(self) -> None:
        self._failed = False
        self._card: int | None = None  # its number: torch looks for CUDA each time that it is not told
        self._reached: Any = None  # the last event to which the GPU is known to have come

    def mark(self) -> CudaStamp:
        event = None
        try:
            if not self._failed:
                if self._card is None:
                    self._card = torch.cuda.current_device()
                event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(self._card))
        except RuntimeError:
            self._failed = True
        return CudaStamp(time.monotonic(), event)

    def between(self, begin: CudaStamp, end: CudaStamp) -> float | None:
        try:
            if not self._failed:
                # Most intervals begin where another has ended, of which that is known.
                if not ((begin.event is self._reached or begin.event.query()) and end.event.query()):
                    return None
                self._reached = end.event
                return float(begin.event.elapsed_time(end.event)) / 1e3
        except RuntimeError:
            self._failed = True
        return end.host_s - begin.host_s

    def wait(self, stamp: CudaStamp) -> None:
        try:
            if not self._failed:
                stamp.event.synchronize()
        except RuntimeError:
            self._failed = True
