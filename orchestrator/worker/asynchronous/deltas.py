"""The messages of workers that run free, and the order in which they count. Pure.

A *delta* is the exact sum of some consecutive updates of one worker, its origin. Deltas of one origin are applied in their
order, and one that has read another is applied after that one (causal delivery): otherwise an effect could be known where its
cause is not. Without it 8 of 300 prototype runs could not be replayed, or diverged.

    header    int64: kind, origin, number, fingerprint, V counts per shard, W numbers read, W numbers applied
    slices    int64, the parts of the sum, each after a header of its own

`read`: per origin, the deltas that had been applied here before the last of these updates began. `applied`: those that are
applied now, which is the acknowledgement: an origin has at most a window of deltas that somebody has not applied yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

DELTA: Final = 1
APPLIED: Final = 2  # an acknowledgement alone
BELL: Final = 3  # the sender has ended its async phase, and sends nothing more of it
_WINDOW_BYTES: Final = 64 << 20
_WINDOW_MOST: Final = 8


def window_of(elements: int) -> int:
    """How many deltas of one worker may be unacknowledged, for a model of so many elements."""
    return max(1, min(_WINDOW_MOST, _WINDOW_BYTES // (8 * max(1, elements))))


@dataclass(frozen=True)
class Header:
    """Begins each message of an async phase; the module's docstring gives the order of its numbers."""

    kind: int  # DELTA, APPLIED or BELL
    origin: int  # the rank of the worker that made the delta
    number: int  # counts the deltas of one origin
    fingerprint: int  # of the sum, which the ledger compares
    counts: tuple[int, ...]  # updates in the delta, by shard
    read: tuple[int, ...]  # by origin, the deltas that had been applied here before the first of these updates began
    applied: tuple[int, ...]  # by origin, the deltas that are applied now: the acknowledgement

    def encode(self) -> torch.Tensor:
        numbers = [self.kind, self.origin, self.number, self.fingerprint, *self.counts, *self.read, *self.applied]
        return torch.tensor(numbers, dtype=torch.int64)

    @classmethod
    def decode(cls, payload: torch.Tensor, shards: int) -> Header:
        kind, origin, number, fingerprint, *others = payload.tolist()
        workers = (len(others) - shards) // 2
        counts, read, applied = others[:shards], others[shards : shards + workers], others[shards + workers :]
        return cls(kind, origin, number, fingerprint, tuple(counts), tuple(read), tuple(applied))


@dataclass
class Delta:
    """A delta on its way into a replica. slices: those that have come, by their number."""

    header: Header
    slices: dict[int, torch.Tensor] = field(default_factory=dict)


class Deliveries:
    """Which deltas one worker has applied, holds back, or may apply next; and what the others have told of theirs."""

    def __init__(self, workers: int, me: int, slices: int) -> None:
        self._me = me
        self._slices = slices
        self.applied = [0] * workers
        self._acknowledged = [[0] * workers for _ in range(workers)]
        self._held: dict[tuple[int, int], Delta] = {}

    def header(self, header: Header) -> None:
        """A header has come."""
        acknowledged = self._acknowledged[header.origin]
        self._acknowledged[header.origin] = [
            max(before, now) for before, now in zip(acknowledged, header.applied, strict=True)
        ]
        if header.kind == DELTA:
            self._held.setdefault((header.origin, header.number), Delta(header))

    def part(self, origin: int, number: int, part: int, payload: torch.Tensor) -> None:
        """A slice has come, after its header."""
        self._held[origin, number].slices[part] = payload

    def next(self) -> Delta | None:
        """One that may be applied now, and counts as applied from here on."""
        for origin, done in enumerate(self.applied):
            delta = self._held.get((origin, done + 1))
            if delta is not None and len(delta.slices) == self._slices and self._is_caused(delta.header):
                self.applied[origin] += 1
                return self._held.pop((origin, done + 1))
        return None

    def waiting(self) -> list[Delta]:
        """Those that have come whole and are not applied, in no order."""
        return [delta for delta in self._held.values() if len(delta.slices) == self._slices]

    def sent(self) -> int:
        """This worker sends its next delta; returns its number."""
        self.applied[self._me] += 1
        return self.applied[self._me]

    @property
    def unacknowledged(self) -> int:
        """How many deltas of this worker somebody has not applied, as far as is known here."""
        others = [told[self._me] for worker, told in enumerate(self._acknowledged) if worker != self._me]
        return self.applied[self._me] - min(others, default=self.applied[self._me])

    def _is_caused(self, header: Header) -> bool:
        """Whether all that the delta has read is applied here."""
        needed = ((o, read) for o, read in enumerate(header.read) if o not in (self._me, header.origin))
        return all(self.applied[origin] >= read for origin, read in needed)


def total(counts: Sequence[int], more: Sequence[int]) -> list[int]:
    return [before + now for before, now in zip(counts, more, strict=True)]
