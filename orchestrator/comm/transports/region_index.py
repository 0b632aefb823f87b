"""Which region of a member a tensor lies in: what a message says of a payload that is not sent itself."""

from __future__ import annotations

import bisect

import torch


class RegionIndex:
    """The addresses and sizes of regions, by their number in the order in which they were added."""

    def __init__(self) -> None:
        self._regions: list[tuple[int, int]] = []  # (address, bytes), by number
        self._by_address: list[tuple[int, int]] = []  # (address, number), sorted

    def add(self, address: int, size_bytes: int) -> None:
        bisect.insort(self._by_address, (address, len(self._regions)))
        self._regions.append((address, size_bytes))

    def remove(self, number: int) -> None:
        """Those of higher numbers move up."""
        del self._regions[number]
        self._by_address = sorted((address, index) for index, (address, _) in enumerate(self._regions))

    def locate(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """(number, byte offset) of a contiguous tensor inside a region; None for others and for empty ones."""
        start, size_bytes = tensor.data_ptr(), tensor.numel() * tensor.itemsize
        position = bisect.bisect_right(self._by_address, (start, len(self._regions))) - 1
        if position < 0 or size_bytes == 0:
            return None
        address, number = self._by_address[position]
        offset = start - address
        return (number, offset) if offset + size_bytes <= self._regions[number][1] else None
