"""The trace: one line per step, which two runs of equal identity have in common to the last character.

    {"step": 7, "loss": "0x1.0d3f6p+1", "gradient": "81f0...", "parameters": "sha256..."}

The loss is a hexadecimal float, exact; `gradient` is the fingerprint of the summed gradient; `parameters`, when due, is the
digest after the step. No line carries a time, a worker or anything else that may differ between exact repetitions.
"""

from __future__ import annotations

from typing import Any

Line = dict[str, Any]


def line(step: int, loss: float, gradient: int, parameters: str | None = None) -> Line:
    """A line of the trace. gradient: signed 64 bits."""
    entry: Line = {"step": step, "loss": loss.hex(), "gradient": f"{gradient % 2**64:016x}"}
    return entry if parameters is None else {**entry, "parameters": parameters}


class Disagreement(Exception):
    """Two replicas report different lines for one step."""

    def __init__(self, step: int, first: Line, second: Line) -> None:
        what = [key for key in first if first[key] != second.get(key)] or [k for k in second if k not in first]
        super().__init__(f"replicas disagree about the {what[0]} of step {step}: {first} and {second}")


class Merger:
    """Merges the traces that all `reporters` send into one, checking that they agree.

    A line is new once, when its first copy comes; it is remembered until every reporter has sent it.
    """

    def __init__(self, reporters: int) -> None:
        self._reporters = reporters
        self._pending: dict[int, tuple[Line, int]] = {}
        self._written = 0

    def add(self, lines: list[Line]) -> list[Line]:
        """The lines that are new, in order of their steps. Raises Disagreement."""
        new: list[Line] = []
        for entry in lines:
            step = entry["step"]
            first, copies = self._pending.get(step, (entry, 0))
            if first != entry:
                raise Disagreement(step, first, entry)
            if step == self._written:
                new.append(entry)
                self._written += 1
            if copies + 1 == self._reporters:
                self._pending.pop(step, None)
            else:
                self._pending[step] = (first, copies + 1)
        return new
