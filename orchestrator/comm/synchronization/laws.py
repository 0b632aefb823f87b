"""The laws that every mode obeys. Tests check the modes of the table, and a launch checks a user's own.

    safe        no shard starts further ahead of the slowest one than the mode's bound, however old what its worker knows is
    live        when all clocks are known, some shard can always start
    pure        asked again, `waits` says the same
    whole       the fields of the mode fit together

Not every order of events is looked at, only random ones, the same each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.comm.synchronization import SYNCHRONY, build_mode
from orchestrator.comm.synchronization.graphs import GRAPHS
from orchestrator.comm.synchronization.mode import Mode, View

_EXECUTIONS = ("lockstep", "sprints", "gossip")
_SHARDS = (1, 2, 5)
_STARTS = 200

Choose = Callable[[Sequence[int]], int]  # one of these numbers, which are never empty


def problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """The first law that a mode of the user's project breaks, as a sentence; none if it keeps all."""
    return SYNCHRONY.judge(name, lambda: broken(build_mode(name, options)))


def broken(mode: object) -> str | None:
    """The law that a mode breaks, as a predicate; None where it keeps to all."""
    if not isinstance(mode, Mode):
        return f"returns {type(mode).__name__}; it must be an orchestrator.comm.synchronization.Mode"
    if (problem := _unfit(mode)) is not None:
        return problem
    choose: Choose = random.Random(0).choice
    walks = (walk(mode, shards, _STARTS, choose) for shards in _SHARDS)
    return next((problem for problem in walks if problem is not None), None)


def walk(mode: Mode, shards: int, starts: int, choose: Choose) -> str | None:
    """Let shards start in the order that `choose` gives, knowing what it lets them know of others; the law that this breaks."""
    clocks = [0] * shards
    known = [[0] * shards for _ in range(shards)]  # row s: what the host of shard s has applied; it never gets less
    for _ in range(starts):
        answers = [mode.waits(View(tuple(clocks), shard)) for shard in range(shards)]
        if strange := [answer for answer in answers if not isinstance(answer, str | None)]:
            return f"has a `waits` that answers {strange[0]!r}; it must say why its shard has to wait, as text, or None"
        free = [shard for shard, answer in enumerate(answers) if answer is None]
        if not free:
            return f"is not live: no shard can start at the clocks {clocks}: {answers[0]}"
        shard = choose(range(shards))
        row = known[shard]
        row[:] = [choose(range(low, high + 1)) for low, high in zip(row, clocks, strict=True)]
        row[shard] = clocks[shard]
        view = View(tuple(row), shard)
        if (answer := mode.waits(view)) != mode.waits(view):
            return f"is not pure: for {view} it answers {answer!r}, and something else when asked again"
        ahead = clocks[shard] - min(clocks)
        if answer is None and mode.staleness is not None and ahead > mode.staleness:
            return (
                f"is not safe: shard {shard} starts {ahead} updates ahead of the slowest; the bound is {mode.staleness}"
            )
        started = shard if answer is None else choose(free)
        clocks[started] += 1
    return None


def _unfit(mode: Mode) -> str | None:
    if mode.execution not in _EXECUTIONS:
        return f"has execution {mode.execution!r}; there are {', '.join(_EXECUTIONS)}"
    if mode.rest_every < 1:
        return f"has rest_every {mode.rest_every}; it must be at least 1"
    if not math.isfinite(mode.threshold) or mode.threshold < 0:
        return f"has threshold {mode.threshold}; it must be finite and at least 0"
    if mode.execution == "lockstep" and (mode.staleness, mode.threshold, mode.rest_every) != (0, 0.0, 1):
        return "has execution lockstep: staleness must be 0, threshold 0 and rest_every 1"
    if (mode.execution == "gossip") != (mode.graph is not None):
        return "has a graph without execution gossip, or the reverse"
    if mode.graph is not None and mode.graph not in GRAPHS:
        return f"has graph {mode.graph!r}; there are {', '.join(GRAPHS)}"
    if mode.execution == "gossip" and mode.threshold:
        return "has execution gossip and a threshold: models are mixed whole"
    return None
