"""The gain of claiming shards: steps per second with and without, with a straggler, with stalls, and undisturbed.

    python -m benchmarks.claims [--steps 20] [--rounds 3] [--only 'straggler, 8 shards']

Four workers. A micro-batch sleeps 100 ms and computes for less than 2, so two cores are enough. `straggler`: one worker takes
three times as long; `stalls`: a micro-batch takes five times as long with probability 0.1. `digits`: the network of the demo as
it is, which nothing disturbs but what else the machine does; so it needs more rounds, and its ratio is that of neighbours. In
each round both sides take turns, in changing order, both with `cluster.deal=equal`: else the dealt side is balanced by speed.
Steps per second are counted from the first evaluation to the last, as the workers mark them; both sides of a condition have to
end with the same digest."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import launch

REPOSITORY = Path(__file__).resolve().parent.parent
WORKERS, ROWS = 4, 4  # of a shard in a step
EVALUATIONS = 5


@dataclass(frozen=True)
class Condition:
    """pipeline: a class of `stalling`, with its arguments. more: so many times as many steps and rounds."""

    shards: int
    pipeline: str
    args: dict[str, float]
    more: int = 1


CONDITIONS = {
    "straggler, 8 shards": Condition(8, "Stalling", {"sleep_s": 0.1, "factor": 3.0}),
    "straggler, 32 shards": Condition(32, "Stalling", {"sleep_s": 0.1, "factor": 3.0}),
    "stalls, 32 shards": Condition(32, "Stalling", {"sleep_s": 0.1, "stall": 0.1}),
    "none, 32 shards": Condition(32, "Stalling", {"sleep_s": 0.1}),
    "digits, 8 shards": Condition(8, "Convolutional", {"sleep_s": 0.0}, more=4),
}


@dataclass(frozen=True)
class Course:
    """How one run went. busy: processor seconds of the computing threads of all workers, for a step; of_others: the share of
    shards that were computed by another worker than they were dealt to."""

    rate: float
    busy: float
    of_others: float
    digest: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=CONDITIONS, action="append")
    chosen = parser.parse_args(arguments)
    titles = f"{'':22}{'dealt':>10}{'claimed':>10}{'ratio':>8}{'of others':>11}{'busy ms':>9}{'ratio':>8}"
    lines = [f"{titles}   ratios, round by round"]
    for name in chosen.only or CONDITIONS:
        condition = CONDITIONS[name]
        pairs = [
            _pair(condition, chosen.steps * condition.more, first=bool(number % 2))
            for number in range(chosen.rounds * condition.more)
        ]
        lines.append(_line(name, pairs))
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    return 0


def _pair(condition: Condition, steps: int, *, first: bool) -> tuple[Course, Course]:
    """Dealt and claimed; first: which of them comes first."""
    found = {claims: run(condition, steps, claims=claims) for claims in (first, not first)}
    if found[False].digest != found[True].digest:
        sys.exit("claims changed the digest")
    return found[False], found[True]


def _line(name: str, pairs: Sequence[tuple[Course, Course]]) -> str:
    dealt, claimed = (statistics.median(pair[side].rate for pair in pairs) for side in (0, 1))
    ratios = [pair[1].rate / pair[0].rate for pair in pairs]
    others = statistics.median(pair[1].of_others for pair in pairs)
    busy = statistics.median(pair[1].busy for pair in pairs)
    busier = statistics.median(pair[1].busy / pair[0].busy for pair in pairs)
    each = " ".join(f"{ratio:.3f}" for ratio in ratios)
    told = f"{name:22}{dealt:10.2f}{claimed:10.2f}{statistics.median(ratios):8.3f}{others:11.1%}"
    return f"{told}{1e3 * busy:9.1f}{busier:8.3f}   {each}"


def run(condition: Condition, steps: int, *, claims: bool) -> Course:
    with tempfile.TemporaryDirectory(prefix="cla-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        args: dict[str, Any] = {"folder": name, "data": str(REPOSITORY / "data" / "digits"), **condition.args}
        settings = {
            "run": {"name": "claims", "steps": steps, "seed": 1},
            "pipeline": {"target": f"benchmarks.stalling:{condition.pipeline}", "args": args},
            "data": {"shards": condition.shards, "batch_size": ROWS * condition.shards},
            "optimizer": {"name": "adamw", "lr": 0.002},
            "cluster": {"workers": WORKERS, "claims": claims, "deal": "equal"},
            "evaluation": {"every": steps // EVALUATIONS},
        }
        return _course(folder, launch.outcome_of(settings, folder), steps)


def _course(folder: Path, outcome: dict[str, Any], steps: int) -> Course:
    """The last mark of each process and evaluation, so that the time between them is of training."""
    marks = [[float(at) for at in path.read_text().split()] for path in folder.glob("evaluated-*")]
    own = max(marks, key=len)
    batches = len(own) // EVALUATIONS
    seconds = own[(EVALUATIONS - 1) * batches] - own[0]
    told = outcome.get("shards", {}).values()
    computed = sum(each["computed"] for each in told)
    others = sum(each["of_others"] for each in told)
    between = (EVALUATIONS - 1) * (steps // EVALUATIONS)
    windows = REPOSITORY / ".orchestrator" / str(outcome["run_id"]) / "times.jsonl"
    busy = sum(sum(json.loads(line)["busy"].values()) for line in windows.read_text().splitlines())
    return Course(between / seconds, busy / steps, others / max(1, computed), outcome["digest"])


if __name__ == "__main__":
    sys.exit(main())
