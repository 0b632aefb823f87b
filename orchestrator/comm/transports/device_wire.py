"""Payloads between the memory of a device and a wire: packed by kernels there, page-locked here.

A payload that leaves is packed (`numerics.lossless_packing`) or taken as it is, and copied to page-locked memory. `begin`
enqueues both and returns. `data` waits for that copy alone, so while one message is on the wire the next ones are made. A
payload that comes for a device is read into page-locked memory too, from where a copy waits for nothing (`memory_for`).

Order: the copy comes after all that was enqueued when the payload was sent, and the message leaves after the copy. So a
message tells what it tells where its sender has waited for the device (`device_memory`), and nothing here waits for a peer.

Limits: the packed bytes are not copied alone. Their number is known only on the device, so the whole room is copied, at many
times the speed of a wire. Payloads above `MOST_BYTES` are not taken: an exchange sends sums in pieces, and what is no sum
goes through memory that is not page-locked, where the processor packs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch

from orchestrator.numerics.device.kernels import SIZE_BYTES, Packer, packed_room

_LEAST_BYTES: Final = 1 << 12  # below, page-locked memory saves nothing
MOST_BYTES: Final = 1 << 22  # that are page-locked at once, and kept for later by torch: a piece of a sum has 2 MiB


class Enqueuing(Protocol):
    """The calls of a device's driver for payloads that leave it."""

    def mark(self) -> Callable[[], None]:
        """A function that waits until all that this thread has enqueued up to now is done."""


class Leaving:
    """One payload on its way to a wire; for one thread. The payload may not change before `begin` was called; operations that
    are enqueued after that may change it."""

    def __init__(
        self,
        payload: torch.Tensor,  # on the device: 1-D, contiguous, not empty
        driver: Enqueuing,
        packer: Packer | None,  # None: it goes as it is
    ) -> None:
        self.packed = packer is not None
        self._payload = payload.detach()
        self._driver = driver
        self._packer = packer
        self._here: torch.Tensor | None = None

    def begin(self) -> None:
        """Enqueue what makes the message. Safe to call twice."""
        if self._here is not None:
            return
        payload = self._payload
        if self._packer is None:
            there = payload.view(torch.uint8)
        else:
            there = torch.empty(packed_room(payload.numel()), dtype=torch.uint8, device=payload.device)
            self._packer.pack(payload, there)
        on_card = payload.device.type == "cuda"
        self._here = torch.empty(there.numel(), dtype=torch.uint8, pin_memory=on_card)
        self._here.copy_(there, non_blocking=on_card)
        self._wait = self._driver.mark()

    def data(self) -> torch.Tensor:
        """The bytes of the message, in memory of its own."""
        self.begin()
        assert self._here is not None
        self._wait()
        if not self.packed:
            return self._here
        size = int(self._here[:SIZE_BYTES].view(torch.int64))
        return self._here[SIZE_BYTES : SIZE_BYTES + size]


def memory_for(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """New memory here for what comes for a device: page-locked where that is worth it and can be had."""
    if device.type == "cuda" and _LEAST_BYTES <= elements * dtype.itemsize <= MOST_BYTES:
        try:
            return torch.empty(elements, dtype=dtype, pin_memory=True)
        except RuntimeError:  # no more of it can be locked
            pass
    return torch.empty(elements, dtype=dtype)
