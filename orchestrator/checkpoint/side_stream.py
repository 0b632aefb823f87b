"""From a GPU into host memory beside the next step: copies on a stream of their own, in order by events on the card.

    copies = side.copy(targets, sources)     # It begins behind all that this thread has launched, and returns at once.
    copies.ended                             # Whether they have; nobody waits for that.
    copies.hold_back()                       # What this thread launches from now on begins when they have ended.
    copies.wait()                            # Any thread waits until they have ended.

Only the thread that reads what was copied waits for the card. To page-lock memory takes long, so `PartWriter.reserve` does that
beside a step.
The calls are those of torch.cuda; tests have a double.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Copies(Protocol):
    """Copies that are under way."""

    @property
    def ended(self) -> bool:
        """Whether they have ended, or the card has failed, which `wait` tells."""

    def hold_back(self) -> None:
        """Work that the calling thread launches from now on begins when they have ended."""

    def wait(self) -> None:
        """Until they have ended. Raises RuntimeError where the card has failed."""


class SideStream(Protocol):
    """A stream on which copies run beside the computation. `copy` and `hold_back` belong to the thread that computes."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies where this copies from."""

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Bytes into which it copies without stopping anybody. Raises RuntimeError where there are none."""

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copies:
        """Begin to copy. Sources may not be written before `Copies.hold_back`."""


class CudaSideStream:
    """Implements `SideStream` for the GPU that is current."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copies:
        side = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
                source.record_stream(side)  # an optimizer may let go of it before it is copied
        ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ended.record(side)
        return _CudaCopies(ended)


class _CudaCopies:
    """Implements `Copies`."""

    def __init__(self, ended: torch.cuda.Event) -> None:
        self._event = ended

    @property
    def ended(self) -> bool:
        try:
            return bool(self._event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return True

    def hold_back(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)

    def wait(self) -> None:
        self._event.synchronize()
