"""The trace: one line per step, which two runs of equal identity have in common to the last character.

    {"step": 7, "loss": "0x1.0d3f6p+1", "gradient": "81f0...", "parameters": "sha256...", "tensors": {"0.weight": "5e1c..."}}

`absent` lists the shards that sat the step out, since their site was away; there is none where all took part.

The loss is a hexadecimal float, exact, or `hmac:` and a keyed hash of it if it must not be told. `gradient` is the
fingerprint of the summed gradient. `parameters`, when due, is the digest after the step, and `tensors`, when due, are
shortened ones of each tensor. No line carries a time, a worker or anything else that may differ between exact repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.records import lines

Line = dict[str, Any]
_HIDDEN = "hmac:"


def line(
    step: int,
    loss: float | str,
    gradient: int,
    parameters: str | None = None,
    tensors: Mapping[str, str] | None = None,
    absent: Sequence[int] = (),
) -> Line:
    """A line of the trace. loss: a number, or what `hidden` gives; gradient: signed 64 bits; absent: shards."""
    text = loss if isinstance(loss, str) else loss.hex()
    entry: Line = {"step": step, "loss": text, "gradient": f"{gradient % 2**64:016x}"}
    if absent:
        entry["absent"] = list(absent)
    return with_digests(entry, parameters, tensors)


def sat_out(file: Path) -> dict[int, tuple[int, ...]]:
    """By step the shards that sat it out, of a trace. Raises OSError; ValueError where it is no trace."""
    found = {}
    for line in lines.read(file, b'"absent"'):
        try:
            found[int(line["step"])] = tuple(int(shard) for shard in line["absent"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"a line is no step: {line!r}") from error
    return found


def hidden(keyed_hash: str) -> str:
    """The text for a loss of which only a keyed hash may be told."""
    return f"{_HIDDEN}{keyed_hash}"


def is_hidden(loss: str) -> bool:
    return loss.startswith(_HIDDEN)


def loss_of(line: Mapping[str, Any]) -> float | None:
    """The loss that a line tells; None where it is hidden."""
    text: str = line["loss"]
    return None if is_hidden(text) else float.fromhex(text)


def with_digests(entry: Line, parameters: str | None, tensors: Mapping[str, str] | None) -> Line:
    """The same line with those of the digests that are given."""
    due = {"parameters": parameters, "tensors": None if tensors is None else dict(tensors)}
    return {**entry, **{key: value for key, value in due.items() if value is not None}}
