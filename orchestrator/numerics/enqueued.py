"""Work that was enqueued on a device: marks in it, and bytes that it brings to host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Mark(Protocol):
    """A point in what was enqueued on a device, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the device has come there."""

    def synchronize(self) -> None:
        """Wait until it has."""


def mark_of(device: torch.device) -> Mark | None:
    """The present end of what is enqueued there; None where nothing ever is."""
    if device.type != "cuda":
        return None
    event: Mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[attr-defined]
    return event


def collected(size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """As `collecting`, when they are there. One wait brings all that lie on a GPU."""
    bytes_here = collecting(size_bytes, pieces)
    if _on_card(pieces):
        torch.cuda.current_stream().synchronize()
    return bytes_here


def collecting(size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """New bytes in host memory: of each piece those of its tensor, which is 1-D, from an offset on, zeros between them. The
    memory is page-locked if some lie on a GPU, and they are there when that has done what was enqueued up to now."""
    on_card = _on_card(pieces)
    bytes_here = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=on_card)
    for offset, tensor in pieces:
        found = tensor.detach().view(torch.uint8)
        bytes_here[offset : offset + found.numel()].copy_(found, non_blocking=on_card)
    return bytes_here


def _on_card(pieces: Sequence[tuple[int, torch.Tensor]]) -> bool:
    return any(tensor.device.type == "cuda" for _, tensor in pieces)
