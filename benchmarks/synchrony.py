"""The gain of asynchronous modes: updates per second and validation loss against time, with a straggler and with stalls.

    python -m benchmarks.synchrony [--steps 200] [--rounds 1] [--picture docs/benchmarks/synchronisation.svg]
    python -m benchmarks.synchrony --digits        without stragglers, on pipelines/digits.py: what the modes cost

Four workers with two shards each; a micro-batch sleeps 20 ms and computes for less than 2. `straggler`: one worker takes three
times as long. `stalls`: a micro-batch takes five times as long with probability 0.1. Modes take turns, so that a busy machine
disturbs all alike. Updates per second are counted from the first evaluation to the last, as the workers mark them.

It measures no network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import launch, pages

REPOSITORY = Path(__file__).resolve().parent.parent
WORKERS, SHARDS = 4, 8
MODES: dict[str, dict[str, Any]] = {
    "bsp": {"name": "bsp"},
    "ssp, staleness 3": {"name": "ssp", "staleness": 3},
    "asp, threshold 0.01": {"name": "asp", "threshold": 0.01},
    "bap": {"name": "bap"},
    "gossip, ring": {"name": "gossip", "graph": "ring"},
}
CONDITIONS: dict[str, dict[str, float]] = {"none": {}, "straggler": {"factor": 3.0}, "stalls": {"stall": 0.1}}
EVALUATIONS = 10


@dataclass(frozen=True)
class Course:
    """How one run went. rate: updates per second; losses: (seconds since the first evaluation, validation loss)."""

    rate: float
    losses: tuple[tuple[float, float], ...]
    accuracy: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synchrony")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--digits", action="store_true", help="without sleeping, on the network of the demo")
    chosen = parser.parse_args(arguments)
    conditions = {"digits": None} if chosen.digits else CONDITIONS
    found: dict[tuple[str, str], list[Course]] = {}
    for number in range(chosen.rounds):
        for condition, options in conditions.items():
            for mode in MODES:
                course = run(MODES[mode], options, chosen.steps)
                found.setdefault((condition, mode), []).append(course)
                shown = f"{course.rate:.1f} updates/s, loss {course.losses[-1][1]:.3f}, accuracy {course.accuracy:.3f}"
                print(f"round {number + 1}, {condition}, {mode}: {shown}", file=sys.stderr, flush=True)
    print(table(found))
    if chosen.picture is not None:
        draw(found, chosen.picture)
    return 0


def run(mode: Mapping[str, Any], options: Mapping[str, float] | None, steps: int) -> Course:
    """options: of `stalling.Stalling`; None: the digits as they are."""
    with tempfile.TemporaryDirectory(prefix="syn-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        data = REPOSITORY / "data" / "digits"
        args = {"folder": str(folder), "data": str(data), **({"sleep_s": 0.0} if options is None else options)}
        target = "benchmarks.stalling:Stalling" if options is not None else "benchmarks.stalling:Convolutional"
        settings = {
            "run": {"name": "synchrony", "steps": steps, "seed": 1},
            "pipeline": {"target": target, "args": args},
            "data": {"shards": SHARDS, "batch_size": 64},
            "optimizer": {"name": "adamw", "lr": 0.002},
            "cluster": {"workers": WORKERS},
            "evaluation": {"every": steps // EVALUATIONS},
            "sync": mode,
        }
        return _course(folder, launch.outcome_of(settings, folder))


def _course(folder: Path, outcome: Mapping[str, Any]) -> Course:
    journal = REPOSITORY / ".orchestrator" / str(outcome["run_id"]) / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    evaluated = [event for event in events if event["event"] == "evaluated"]
    times = times_of(folder, len(evaluated))
    losses = tuple((at - times[0], e["metrics"]["validation/loss"]) for at, e in zip(times, evaluated, strict=True))
    between = evaluated[-1]["step"] - evaluated[0]["step"]
    accuracy = outcome["metrics"]["validation/accuracy"]
    return Course(between * SHARDS / (times[-1] - times[0]), losses, accuracy)


def times_of(folder: Path, evaluations: int) -> list[float]:
    """When each evaluation began, by the first process that took part in it."""
    marks = [[float(at) for at in path.read_text().split()] for path in folder.glob("evaluated-*")]
    each = [[own[i * len(own) // evaluations] for i in range(evaluations)] for own in marks if len(own) >= evaluations]
    return [min(at) for at in zip(*each, strict=True)]


def table(found: Mapping[tuple[str, str], Sequence[Course]]) -> str:
    """Medians over the rounds; the ratio is to bsp under the same condition."""
    lines = [f"{'':12}{'mode':22}{'updates/s':>11}{'/ bsp':>8}{'loss':>9}{'accuracy':>10}"]
    for (condition, mode), courses in found.items():
        rate, reference = _rate(courses), _rate(found[condition, "bsp"])
        loss = statistics.median(course.losses[-1][1] for course in courses)
        accuracy = statistics.median(course.accuracy for course in courses)
        lines.append(f"{condition:12}{mode:22}{rate:11.1f}{rate / reference:8.2f}{loss:9.4f}{accuracy:10.4f}")
    return "\n".join(lines)


def _rate(courses: Sequence[Course]) -> float:
    return statistics.median(course.rate for course in courses)


def draw(found: Mapping[tuple[str, str], Sequence[Course]], path: Path) -> None:
    """Validation loss against time, one panel per condition."""
    conditions = list(dict.fromkeys(condition for condition, _ in found))
    with pages.picture(path, len(conditions), 4) as axes:
        for axis, condition in zip(axes, conditions, strict=True):
            for (of, mode), courses in found.items():
                if of == condition:
                    axis.plot(*zip(*courses[0].losses, strict=True), label=mode)
            axis.set_title({"none": "no straggler"}.get(condition, condition))
            axis.set_xlabel("seconds")
        axes[0].set_ylabel("validation loss")
        axes[-1].legend(fontsize=7)


if __name__ == "__main__":
    sys.exit(main())
