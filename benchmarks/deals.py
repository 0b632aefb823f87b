"""The gain of dealing shards by measured speed: two workers through TCP, as on two hosts, one of them at half speed.

    python -m benchmarks.deals [--steps 300] [--shards 12] [--factor 2]

A micro-batch sleeps 20 ms, that of one worker `factor` times as long, and computes for less than 2. The possible gain follows
from the workers' reports: the median micro-batch of each, for which the best division is known, and the rest of a step at the
worker that takes least time for it. Steps per second are those between the first and the last evaluation, with all that
happens there, and those of the second half, in which the deal is settled.

It measures no network (`benchmarks.hosts` does).
"""

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
from benchmarks.synchrony import times_of
from orchestrator.controller.load_balancing import shortest_end
from orchestrator.records.times import added

REPOSITORY = Path(__file__).resolve().parent.parent
EVALUATIONS = 10


@dataclass(frozen=True)
class Found:
    """rate, settled: steps per second of all, and of the second half; possible: with the best division; deals: of each
    generation, how many shards each worker had; redealt: what was journaled of the reason."""

    rate: float
    settled: float
    possible: float
    deals: list[list[int]]
    redealt: list[dict[str, Any]]
    digest: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deals")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--factor", type=float, default=2.0)
    chosen = parser.parse_args(arguments)
    found = {deal: run(deal, chosen.steps, chosen.shards, chosen.factor) for deal in ("equal", "measured")}
    print(f"{'deal':10}{'steps/s':>9}{'settled':>9}{'possible':>10}{'of it':>7}  shards of each worker, by generation")
    for deal, each in found.items():
        part = each.settled / each.possible
        print(f"{deal:10}{each.rate:9.2f}{each.settled:9.2f}{each.possible:10.2f}{part:7.1%}  {each.deals}")
    print(f"digests {'equal' if len({each.digest for each in found.values()}) == 1 else 'DIFFER'}")
    print(json.dumps(found["measured"].redealt))
    return 0


def run(deal: str, steps: int, shards: int, factor: float) -> Found:
    with tempfile.TemporaryDirectory(
        prefix="deal-", dir="/tmp"
    ) as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        data = REPOSITORY / "data" / "digits"
        settings = {
            "run": {"name": "deals", "steps": steps, "seed": 1},
            "pipeline": {
                "target": "benchmarks.stalling:Stalling",
                "args": {"folder": str(folder), "data": str(data), "factor": factor},
            },
            "data": {"shards": shards, "batch_size": 8 * shards},
            "optimizer": {"name": "adamw", "lr": 0.002},
            "cluster": {"workers": 2, "deal": deal},
            "transport": "tcp",
            "evaluation": {"every": steps // EVALUATIONS},
        }
        return _found(folder, launch.outcome_of(settings, folder), shards)


def _found(folder: Path, outcome: dict[str, Any], shards: int) -> Found:
    run_folder = REPOSITORY / ".orchestrator" / str(outcome["run_id"])
    journal, windows = (_lines(run_folder / f"{name}.jsonl") for name in ("journal", "times"))
    steps = [event["step"] for event in journal if event["event"] == "evaluated"]
    times = times_of(folder, len(steps))
    half = len(steps) // 2
    reported: dict[str, list[float]] = {}
    for window in windows:
        reported.setdefault(window["member"], []).extend([window["micro_batch_s"]] if "micro_batch_s" in window else [])
    rates = [1 / statistics.median(each) for each in reported.values()]
    least = shortest_end(shards, rates, [1] * len(rates))
    return Found(
        (steps[-1] - steps[0]) / (times[-1] - times[0]),
        (steps[-1] - steps[half]) / (times[-1] - times[half]),
        1 / (least + _beside_s(windows)),
        [[len(own) for own in event["shards"]] for event in journal if event["event"] == "generation_started"],
        [event for event in journal if event["event"] == "shards_redealt"],
        outcome["digest"],
    )


def _beside_s(windows: list[dict[str, Any]]) -> float:
    """Seconds of a step in which the member that does least beside neither computes nor waits."""
    each: list[float] = []
    for member in {window["member"] for window in windows}:
        own = [window for window in windows if window["member"] == member and window["steps"]]
        beside = added(own)
        each.append(
            sum(beside[kind] for kind in ("exchange", "update", "report")) / sum(int(one["steps"]) for one in own)
        )
    return min(each)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())
