"""Moments of what a GPU does: CUDA events in the stream that is current, asked later whether the GPU has come to them.

Source: NVIDIA, "CUDA Runtime API", event management. The calls are those of torch.cuda; tests have a double. No card has run
this yet.
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

    def mark(self) -> CudaStamp:
        event = None
        try:
            if not self._failed:
                event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                event.record()
        except RuntimeError:
            self._failed = True
        return CudaStamp(time.monotonic(), event)

    def between(self, begin: CudaStamp, end: CudaStamp) -> float | None:
        try:
            if not self._failed:
                known = begin.event.query() and end.event.query()
                return float(begin.event.elapsed_time(end.event)) / 1e3 if known else None
        except RuntimeError:
            self._failed = True
        return end.host_s - begin.host_s

    def wait(self, stamp: CudaStamp) -> None:
        try:
            if not self._failed:
                stamp.event.synchronize()
        except RuntimeError:
            self._failed = True
