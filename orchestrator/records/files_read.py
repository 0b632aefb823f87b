"""Which files of a training set were read, by their numbers in its manifest: of a run that took some of the samples, these are
what is proved to have been as the manifest says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FilesRead:
    """The files of a training set that a run has read. numbers: of those that were read; of: how many there are, 0 where the
    training set has no files."""

    numbers: frozenset[int] = frozenset()
    of: int = 0

    def __or__(self, other: FilesRead) -> FilesRead:
        return FilesRead(self.numbers | other.numbers, max(self.of, other.of))

    @property
    def sentence(self) -> str:
        """Empty where there are no files."""
        return f"{len(self.numbers):,} of {self.of:,} read" if self.of else ""

    def as_dict(self) -> dict[str, Any]:
        """The numbers as runs, first and last."""
        return {"of": self.of, "count": len(self.numbers), "read": _runs(sorted(self.numbers))}


def from_dict(told: Mapping[str, Any]) -> FilesRead:
    runs = told.get("read", ())
    return FilesRead(frozenset(number for first, last in runs for number in range(first, last + 1)), told.get("of", 0))


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
