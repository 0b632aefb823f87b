"""Copies to a GPU in a stream of their own, beside what the GPU computes.

    begin     the copies are enqueued in the copy stream, from page-locked memory, and an event behind them
    arrive    the stream that computes waits for the event, the thread for nothing

The copies' memory is allocated in the copy stream. So it is told which other stream uses it, and the allocator gives it to a
later copy only when that use is over. A batch that never arrives may be dropped at any time.

Source: PyTorch, "CUDA semantics", sections CUDA streams and Use pinned memory buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Begun(NamedTuple):
    """Copies that are under way."""

    tensors: Sequence[torch.Tensor]  # on the device
    event: Any  # behind the copies

    def arrive(self) -> Sequence[torch.Tensor]:
        """The tensors, for what is enqueued in the current stream from now on."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self.event)
        for tensor in self.tensors:
            tensor.record_stream(stream)
        return self.tensors


class CopyStream:
    """The copy stream of one thread, on the GPU that is current."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None

    def begin(self, tensors: Sequence[torch.Tensor]) -> Begun:
        """Begin to copy these from host memory. Raises OutOfMemoryError of torch."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            there = [page_locked(each, self._device).to(self._device, copy=True, non_blocking=True) for each in tensors]
            return Begun(there, self._stream.record_event())


def page_locked(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor as a copy to the device wants it: from other memory a copy waits for all that the device is to do before.
    Never the user's own, who may write there again before the device has read it."""
    goes = device.type == "cuda" and tensor.device.type == "cpu" and tensor.layout == torch.strided
    # One that was expanded has several elements in one place, and cannot be written there.
    if not goes or not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tensor
    return (tensor.clone() if tensor.is_pinned() else tensor).pin_memory()
