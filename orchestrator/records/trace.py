"""The trace: one line per step, which two runs of equal identity have in common to the last character.

    {"step": 7, "loss": "0x1.0d3f6p+1", "gradient": "81f0...", "parameters": "sha256...", "tensors": {"0.weight": "5e1c..."}}

The loss is a hexadecimal float, exact; `gradient` is the fingerprint of the summed gradient; `parameters`, when due, is the
digest after the step, and `tensors`, when due, are shortened ones of each tensor. No line carries a time, a worker or anything
else that may differ between exact repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Line = dict[str, Any]


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
