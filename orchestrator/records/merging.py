"""The reports of all workers of one run, merged into the lines of its files, in whatever order the copies come.

Every worker reports every line of the trace and every sync barrier. If a step that is done again gives the same result, all
copies of a line have to be equal (rule D2). If replicas run free, steps that are done again after a loss give other results.
There each copy has the number of its generation, and

    a copy of the same generation     has to be equal
    one of a later generation         replaces what was written, and all behind it, which is being done again
    one of an earlier generation      comes late and counts no more, nor does what was made after it

A field that only one of two copies has, such as a digest at the end of an async phase, is no contradiction within a
generation. Between two generations it is one: their async phases ended elsewhere. So each line of a file was made after the
lines before it, and a rerun can repeat the file. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Entry = dict[str, Any]

_REMEMBERED = 10_000  # entries kept for comparison: workers report within a second of each other


class Disagreement(Exception):
    """Two copies of one entry differ. place: what it is of, such as "step 3"."""

    def __init__(self, place: str, what: str, first: Entry, second: Entry) -> None:
        super().__init__(f"replicas disagree about the {what} of {place}: {first} and {second}")


class Change(NamedTuple):
    """The change of a file: its first `kept` lines stay, and `new` follow. replaces: there were more; last: the last of those
    that stay, where it is remembered."""

    kept: int
    new: list[Entry]
    replaces: bool = False
    last: Entry | None = None


@dataclass
class _Known:
    """An entry, and the generations of its copies."""

    entry: Entry
    generations: set[int]

    @property
    def newest(self) -> int:
        return max(self.generations)


class Merger:
    """Merges the copies of numbered entries. An entry is new once, when its first copy has come and all before it are there.

    start: the first that is not written yet; number: the key of an entry's number; ranges: the only ones that there will be,
    each from its first up to its end, where there are gaps between them.
    """

    def __init__(self, start: int = 0, number: str = "step", ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._ranges = ranges
        self.written = start = self._from(start)
        self._number = number
        self._told = self._kept = start  # written when `change` was called last; of these, not replaced since
        self._known: dict[int, _Known] = {}
        self._came: set[int] = set()  # not written yet
        self._newest = 0  # generation
        self._redone: list[tuple[int, int]] = []  # from this number on, by this generation

    def expect(self, entries: Iterable[Entry]) -> None:
        """Take the entries of an earlier computation: copies of the same numbers have to be equal to them."""
        self._known.update((entry[self._number], _Known(entry, {0})) for entry in entries)

    def add(self, entry: Entry, generation: int = 0) -> bool:
        """Take a copy; returns whether it is a new entry, or replaces another one. Raises Disagreement."""
        place = entry[self._number]
        if self._redone and self.is_void(place, generation):
            return False
        known = self._known.get(place)
        if known is not None and place < self.written and known.entry == entry and generation in known.generations:
            return False  # nearly all copies are such, one of each worker and step, so they have to cost little
        if known is not None:
            what = difference(known.entry, entry)
            if what is None and (generation in known.generations or known.entry.keys() == entry.keys()):
                self._confirm(place, known, entry, generation)
                return False
            if what is not None and generation in known.generations:
                raise Disagreement(f"{self._number} {place}", what, known.entry, entry)
            if generation < known.newest:
                self._redone.append((place, known.newest))
                return False
            self.back_to(place, generation)
        elif place < self.written:  # of old, and forgotten
            if generation <= self._newest:
                self._known[place] = _Known(entry, {generation})
                return False
            self.back_to(place, generation)
        self._newest = max(self._newest, generation)
        self._known[place] = _Known(entry, {generation})
        self._came.add(place)
        self._write()
        return True

    def is_void(self, place: int, generation: int) -> bool:
        """Whether a later generation is known to do this again, or something before it."""
        return any(start <= place and generation < later for start, later in self._redone)

    def back_to(self, place: int, generation: int) -> None:
        """From this number on all of earlier generations is void."""
        self._redone = [(start, by) for start, by in self._redone if start < place or by > generation]
        self._redone.append((place, generation))
        for each in [each for each in self._known if each >= place and self._known[each].newest < generation]:
            del self._known[each]
        while place < self.written and place in self._known:
            place += 1
        self.written = min(self.written, place)
        self._kept = min(self._kept, place)
        self._came = {each for each in self._known if each >= self.written}

    def first_beyond(self, key: str, value: int) -> int | None:
        """The first remembered entry whose `key` is larger than `value`."""
        return min((place for place, known in self._known.items() if known.entry[key] > value), default=None)

    def change(self) -> Change:
        """The change since the last call."""
        places = range(self._kept, self.written)
        new = [self._known[place].entry for place in places if not self._ranges or place in self._known]
        last = self._known.get(self._kept - 1)
        change = Change(self._kept, new, self._kept < self._told, None if last is None else last.entry)
        for place in range(self._kept - _REMEMBERED, self.written - _REMEMBERED):
            self._known.pop(place, None)
        self._told = self._kept = self.written
        return change

    def _confirm(self, place: int, known: _Known, entry: Entry, generation: int) -> None:
        known.generations.add(generation)
        self._newest = max(self._newest, generation)
        if place >= self.written:
            known.entry = {**known.entry, **entry}
            self._came.add(place)
            self._write()

    def _write(self) -> None:
        while self.written in self._came:
            self._came.discard(self.written)
            self.written = self._from(self.written + 1)

    def _from(self, place: int) -> int:
        """The first from here on that there will be."""
        return next((max(place, first) for first, end in self._ranges if place < end), place)


class History:
    """Trace and sync barriers of one run, from the entries of members: `{"trace": line}` and `{"rest": record}`, with the
    `generation` where replicas run free.

    lines, barriers: how many are written; supersedes: steps that are done again after a loss give other results; ranges: of
    steps, where others are not computed.
    """

    def __init__(
        self,
        lines: int = 0,
        barriers: int = 0,
        *,
        supersedes: bool = False,
        ranges: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._trace = Merger(lines, ranges=ranges)
        self._barriers = Merger(barriers, "rest")
        self._supersedes = supersedes

    def expect(self, lines: Iterable[Entry]) -> None:
        self._trace.expect(lines)

    def add(self, entries: Iterable[Mapping[str, Any]]) -> tuple[Change, Change]:
        """The changes of the two files; other entries are passed over. Raises Disagreement."""
        for entry in entries:
            generation = entry.get("generation", 0) if self._supersedes else 0
            if "trace" in entry:
                self._add_line(entry["trace"], generation)
            elif "rest" in entry:
                self._add_barrier(entry["rest"], generation)
        return self._trace.change(), self._barriers.change()

    def is_void(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of a step tells of one that a later generation is known to do again."""
        return self._supersedes and self._trace.is_void(entry["step"], entry.get("generation", 0))

    def _add_line(self, line: Entry, generation: int) -> None:
        written = self._trace.written
        if self._trace.add(line, generation) and line["step"] < written:
            barrier = self._barriers.first_beyond("steps", line["step"])
            if barrier is not None:
                self._barriers.back_to(barrier, generation)

    def _add_barrier(self, barrier: Entry, generation: int) -> None:
        """Its lines came before it."""
        if self._trace.is_void(barrier["steps"] - 1, generation):
            return
        if self._barriers.add(barrier, generation) and self._supersedes:
            self._trace.back_to(barrier["steps"], generation)


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """In what two copies contradict each other; None when in nothing. A field that only one of them has is no
    contradiction."""
    return next((key for key in first if key in second and first[key] != second[key]), None)
