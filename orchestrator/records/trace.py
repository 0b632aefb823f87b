"""The trace: one line per step, which two runs of equal identity have in common to the last character.

    {"step": 7, "loss": "0x1.0d3f6p+1", "gradient": "81f0...", "parameters": "sha256...", "tensors": {"0.weight": "5e1c..."}}

The loss is a hexadecimal float, exact; `gradient` is the fingerprint of the summed gradient; `parameters`, when due, is the
digest after the step, and `tensors`, when due, are shortened ones of each tensor. No line carries a time, a worker or anything
else that may differ between exact repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Line = dict[str, Any]

_REMEMBERED = 10_000  # lines kept for comparison: workers report within a second of each other


def line(
    step: int, loss: float, gradient: int, parameters: str | None = None, tensors: Mapping[str, str] | None = None
) -> Line:
    """A line of the trace. gradient: signed 64 bits."""
    entry: Line = {"step": step, "loss": loss.hex(), "gradient": f"{gradient % 2**64:016x}"}
    return with_digests(entry, parameters, tensors)


def with_digests(entry: Line, parameters: str | None, tensors: Mapping[str, str] | None) -> Line:
    """The same line with those of the digests that are given."""
    due = {"parameters": parameters, "tensors": None if tensors is None else dict(tensors)}
    return {**entry, **{key: value for key, value in due.items() if value is not None}}


class Disagreement(Exception):
    """One step has two different lines."""

    def __init__(self, step: int, what: str, first: Line, second: Line) -> None:
        super().__init__(f"replicas disagree about the {what} of step {step}: {first} and {second}")


class Merger:
    """Merges the traces that all workers send, in whatever order they come, into one, checking that they agree.

    A line is new once, when its first copy has come and all before it are there. Other copies, of other workers or of a step
    that is computed again after a loss, have to be equal (rule D2). start: the first step that is not written yet.
    """

    def __init__(self, start: int = 0) -> None:
        self.written = start
        self._lines: dict[int, Line] = {}
        self._early: set[int] = set()  # came, but one before them is missing

    def expect(self, lines: Iterable[Line]) -> None:
        """Lines of an earlier computation: those of the same steps have to be equal to them."""
        self._lines.update((line["step"], line) for line in lines)

    def add(self, lines: Iterable[Line]) -> list[Line]:
        """The lines that are new, in order of their steps. Raises Disagreement."""
        for entry in lines:
            step = entry["step"]
            known = self._lines.setdefault(step, entry)
            if (what := difference(known, entry)) is not None:
                raise Disagreement(step, what, known, entry)
            if step >= self.written:
                self._lines[step] = {**known, **entry}
                self._early.add(step)
        new: list[Line] = []
        while self.written in self._early:
            self._early.discard(self.written)
            new.append(self._lines[self.written])
            self._lines.pop(self.written - _REMEMBERED, None)
            self.written += 1
        return new


def difference(first: Line, second: Line) -> str | None:
    """What two lines of one step contradict each other in: "loss", "gradient", "parameters" or "tensors"; None when in nothing.
    A digest that only one of them has is no contradiction."""
    return next((key for key in first if key in second and first[key] != second[key]), None)
