"""Some lines of a trace with their Merkle path, which prove by themselves that they are lines of the trace of a known root.

    {"run": ID, "root": "3000:9f3a...", "first": 0, "begin": 100, "lines": ["{...}", ...], "path": ["81f0...", ...]}

first: the step of the trace's first line; begin: that of the first line here. The content of a line has to go with its step.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.records import merkle


def make(run_id: str, trace: Sequence[bytes], first: int, begin: int, end: int) -> dict[str, Any]:
    """The excerpt of the steps from `begin` up to `end`, exclusive. trace: all its lines. Raises ValueError where there are
    none."""
    leaves = [merkle.leaf(line) for line in trace]
    path = merkle.path(leaves, begin - first, end - first)
    return {
        "run": run_id,
        "root": merkle.head(leaves),
        "first": first,
        "begin": begin,
        "lines": [line.decode() for line in trace[begin - first : end - first]],
        "path": [each.hex() for each in path],
    }


def problem(told: Mapping[str, Any], root: str) -> str | None:
    """Why these are no lines of the trace with this root; None where they are. Raises ValueError for what is no root."""
    merkle.parsed(root)
    try:
        lines = [str(line) for line in told["lines"]]
        first, begin = int(told["first"]), int(told["begin"])
        path = [bytes.fromhex(each) for each in told["path"]]
        steps = [json.loads(line)["step"] for line in lines]
        leaves = [merkle.leaf(line.encode()) for line in lines]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        return f"it is no part of a trace as export= writes it: {error!r}"
    if steps != list(range(begin, begin + len(lines))):
        return f"its lines are not those of the steps from {begin} on, one after the other"
    if not merkle.holds(root, begin - first, leaves, path):
        return f"its lines and its path do not lead to the root {root}"
    return None
