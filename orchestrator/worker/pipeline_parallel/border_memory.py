"""Memory of a device in which a stage leaves activations and gradients, for stages of the same host to read in place.

Each shard has a place for what goes on and one for what goes back. Contents stay until the next attempt of a step. By then
all have voted, and a vote says that its sender has read all that it was sent. Tensors that do not fit, or have no place,
travel through host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from orchestrator.comm.transports.base import Regions

_MOST_BYTES: Final = 1 << 30  # of a worker; the last shards have no places then
_ALIGNMENT: Final = 512  # bytes


class BorderMemory:
    """The border memory of one worker. onward_bytes, back_bytes: of the tensors of a shard."""

    def __init__(self, regions: Regions, onward_bytes: int, back_bytes: int) -> None:
        self._regions = regions
        self._onward, self._back = _aligned(onward_bytes), _aligned(back_bytes)
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._shards: dict[int, int] = {}

    def suit(self, shards: Sequence[int]) -> None:
        """These are hosted from now on. Called before its peers connect, since they map the regions that exist then."""
        needed = bytes_of_places(self._onward, self._back, len(shards))
        hosted = list(shards)[: needed // (self._onward + self._back)] if needed else []
        self._shards = {shard: number for number, shard in enumerate(hosted)}
        if needed > self._memory.numel():
            self._regions.free(self._memory)
            self._memory = self._regions.allocate(needed, torch.uint8)

    def place(self, shard: int, *, onward: bool) -> torch.Tensor | None:
        """The place of a shard, as bytes; None if it has none."""
        if shard not in self._shards:
            return None
        start = self._shards[shard] * (self._onward + self._back)
        return (
            self._memory[start : start + self._onward] if onward else self._memory[start + self._onward :][: self._back]
        )


def bytes_of_places(onward_bytes: int, back_bytes: int, shards: int) -> int:
    """The bytes that a worker takes for the places of so many shards; beyond a limit further shards have none."""
    each = _aligned(onward_bytes) + _aligned(back_bytes)
    return min(shards, _MOST_BYTES // each) * each if each else 0


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
