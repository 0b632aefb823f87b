"""The use of a run's time: members' reports, added up, as shares, and as a timeline to be looked at. Pure.

A member reports windows of time, each of some steps (`worker.member.time_account`). Its activity at any moment is one of:

    compute      the micro-batches of its shards: their data, forward, backward, rounding onto the grid
    wait         until slower members have come as far: blocked in a vote, at a rest, at the border of a stage
    exchange     sums, and what a vote takes apart from waiting
    update       the optimizer's step, and what lies between two steps
    evaluate     evaluations, with their exchange
    checkpoint   what a checkpoint holds up: its copy, and writers that are not done
    report       lines of the trace and digests
    connect      from one generation to the next: connections, state that is given and taken, nothing to do in between

A window is {"first", "steps", "started", "wall", "seconds", "busy", "process", "micro_batch_s"}: its first step and how many
it has, when it began in seconds of the epoch, its length, and seconds of each kind. Processor seconds follow, of the
computing thread by kind and of the whole process; and the median of a micro-batch, if any was computed. The kinds of a window
add up to its length. The little that a wait computes counts as exchange. If shards are claimed it has "shards", too: how many
the member computed in these steps, and how many of those were dealt to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

KINDS: Final = ("compute", "wait", "exchange", "update", "evaluate", "checkpoint", "report", "connect")
IN_WORDS: Final[Mapping[str, str]] = {
    "compute": "computing",
    "wait": "waiting for others",
    "exchange": "exchange",
    "update": "update",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
    "report": "reports",
    "connect": "connecting",
}
_NAMED: Final = 6  # so many members are named one by one
_TOLD: Final = 0.005  # a smaller share is left out of a sentence

Seconds = dict[str, float]


def added(windows: Iterable[Mapping[str, Any]], what: str = "seconds") -> Seconds:
    """Seconds of each kind over windows, of any members. what: or "busy"."""
    total = dict.fromkeys(KINDS, 0.0)
    for window in windows:
        for kind, seconds in window[what].items():
            total[kind] += seconds
    return total


def by_member(windows: Iterable[Mapping[str, Any]]) -> dict[str, Seconds]:
    """The same for each member, by its name such as "worker 0", in the order of their numbers, workers first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for window in windows:
        found.setdefault(window["member"], []).append(window)
    return {member: added(found[member]) for member in sorted(found, key=_place)}


def shards_by_member(windows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The shards that each member has said it computed, and how many of those were dealt to others; in order of members."""
    found: dict[str, tuple[int, int]] = {}
    for window in windows:
        if "shards" in window:
            before, (computed, others) = found.get(window["member"], (0, 0)), window["shards"]
            found[window["member"]] = before[0] + computed, before[1] + others
    return {member: found[member] for member in sorted(found, key=_place)}


def by_rank(windows: Iterable[Mapping[str, Any]]) -> dict[int, Seconds]:
    """The same for each rank, whichever workers had it one after another. A spare has none."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for window in windows:
        if "rank" in window:
            found.setdefault(window["rank"], []).append(window)
    return {rank: added(found[rank]) for rank in sorted(found)}


def steps_per_s(windows: Iterable[Mapping[str, Any]]) -> float | None:
    """Steps by the seconds that workers took for them, with evaluations and checkpoints, without connecting; None where no
    window has a step. A worker's windows up to its first step, in which libraries warm up, are left out where the others have
    as many steps."""
    warm: set[str] = set()
    first, rest = [0, 0.0], [0, 0.0]
    for window in windows:
        member, seconds = window["member"], window["seconds"]
        if not member.startswith("worker "):
            continue
        part = rest if member in warm else first
        part[0] += window["steps"]
        part[1] += sum(seconds.values()) - seconds.get("connect", 0.0)
        if window["steps"]:
            warm.add(member)
    steps, taken = rest if rest[0] >= first[0] else (first[0] + rest[0], first[1] + rest[1])
    return steps / taken if steps and taken > 0 else None


def shares(seconds: Mapping[str, float]) -> Seconds:
    """Shares of the sum; nothing if that is 0."""
    whole = sum(seconds.values())
    return {kind: each / whole for kind, each in seconds.items()} if whole > 0 else {}


def sentence(seconds: Mapping[str, float]) -> str:
    """ "computing 61%, exchange 12%", the largest first; empty where there is nothing to tell."""
    found = sorted(shares(seconds).items(), key=lambda each: -each[1])
    return ", ".join(f"{IN_WORDS[kind]} {share:.0%}" for kind, share in found if share >= _TOLD)


def sentence_of_shards(computed: Mapping[str, tuple[int, int]]) -> str:
    """ "worker 0 1,200 (40 of others), worker 1 1,120"; of many the most and the fewest. Empty where nothing is told."""
    if len(computed) <= _NAMED:
        return ", ".join(f"{member} {_counted(*found)}" for member, found in computed.items())
    in_order = sorted(computed, key=lambda member: computed[member][0])
    named = ", ".join(f"{member} {_counted(*computed[member])}" for member in (in_order[-1], in_order[0]))
    whole, others = (sum(each) for each in zip(*computed.values(), strict=True))
    return f"{named}, all {len(computed)} workers {_counted(whole, others)}"


def _counted(computed: int, others: int) -> str:
    return f"{computed:,}" + (f" ({others:,} of others)" if others else "")


def per_step(windows: Sequence[Mapping[str, Any]], columns: int) -> list[tuple[float, Seconds]]:
    """(step in the middle, seconds of each kind that a member takes for a step, in the mean) for at most so many stretches of
    the run. Windows of one member lie side by side; those of two members overlap as they like."""
    whole = [window for window in windows if window["steps"]]
    if not whole:
        return []
    first = min(window["first"] for window in whole)
    last = max(window["first"] + window["steps"] for window in whole)
    width = max(1, -(-(last - first) // columns))
    buckets: dict[int, list[Mapping[str, Any]]] = {}
    for window in whole:
        middle = window["first"] + (window["steps"] - 1) / 2
        buckets.setdefault(int((middle - first) // width), []).append(window)
    found = []
    for number in sorted(buckets):
        steps = sum(window["steps"] for window in buckets[number])
        mean = {kind: seconds / steps for kind, seconds in added(buckets[number]).items()}
        middle = sum((w["first"] + (w["steps"] - 1) / 2) * w["steps"] for w in buckets[number]) / steps
        found.append((middle, mean))
    return found


def chrome(lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events of the Chrome trace format, which ui.perfetto.dev shows too. lines: {"member", "started", "spans"}, a span being
    [kind, step, shard, seconds since `started`, seconds], with null for no step and no shard."""
    named: dict[str, int] = {}
    origin: float | None = None
    for line in lines:
        origin = line["started"] if origin is None else origin
        if line["member"] not in named:
            named[line["member"]] = len(named)
            where = {"pid": 0, "tid": named[line["member"]]}
            yield {"name": "thread_name", "ph": "M", **where, "args": {"name": line["member"]}}
            yield {"name": "thread_sort_index", "ph": "M", **where, "args": {"sort_index": _place(line["member"])[1]}}
        for kind, step, shard, since, seconds in line["spans"]:
            known = {"step": step, "shard": shard}
            yield {
                "name": kind if shard is None else f"{kind} shard {shard}",
                "cat": kind,
                "ph": "X",
                "pid": 0,
                "tid": named[line["member"]],
                "ts": round(1e6 * (line["started"] - origin + since), 1),
                "dur": round(1e6 * seconds, 1),
                "args": {key: value for key, value in known.items() if value is not None},
            }


def _place(member: str) -> tuple[bool, int]:
    """Workers by their numbers, then servers; before them what belongs to the driver."""
    role, _, number = member.partition(" ")
    return role != "worker", int(number) if number.isdigit() else -1
