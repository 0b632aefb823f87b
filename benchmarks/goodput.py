"""Goodput of a run whose workers are killed, beside what `simulate failures=` plays for such losses
(`experiments.simulation.losses`).

    python -m benchmarks.goodput [--steps 4000] [--conf digits]

Goodput is the time that the steps of the run would take undisturbed, over the time that it takes: of one run, so what else the
machine does all the time meets both. A first run, in which one worker is killed, reports what a scenario needs: a step with all
workers, and with one missing while another starts; detection, regrouping, start. By these the controller's decisions are
played for the kills of a second run, in which three are killed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.plan import Members, Timeouts
from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

import orchestrator  # noqa: E402
from benchmarks.simulation import project  # noqa: E402
from orchestrator.controller.state import Requirements  # noqa: E402
from orchestrator.experiments.simulation.conditions import Conditions  # noqa: E402
from orchestrator.experiments.simulation.losses import Scenario, simulate  # noqa: E402

WORKERS = 4
SHARDS = 8
KILLS = (0.25, 0.5, 0.75)  # of the steps


@dataclass(frozen=True)
class Disturbed:
    """A run of four workers of which some were killed. seconds: from its first step to its last; step_s: with all workers;
    between_s: from a loss until another worker has joined, who starts meanwhile and takes cores for that; detect_s: from a kill
    until the loss is known; regroup_s: until the next generation begins its first step; start_s: from a loss to a join."""

    steps: int
    seconds: float
    step_s: float
    between_s: float
    detect_s: float
    regroup_s: float
    start_s: float

    @property
    def goodput(self) -> float:
        return self.steps * self.step_s / self.seconds


class Killer:
    """Kills a worker at each of these steps; keeps when what happened, as (seconds, event)."""

    def __init__(self, at: Sequence[int]) -> None:
        self.left = list(at)
        self.pids: dict[int, int] = {}
        self.heard: list[tuple[float, Mapping[str, Any]]] = []

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.heard.append((time.monotonic(), event))
        if event["event"] == "worker_started":
            self.pids[event["worker"]] = event["pid"]
        elif event["event"] == "worker_lost":
            self.pids.pop(event["worker"], None)
        elif event["event"] == "step" and self.left and event["step"] >= self.left[0]:
            self.left.pop(0)
            os.kill(self.pids[min(self.pids)], signal.SIGKILL)
            self.heard.append((time.monotonic(), {"event": "killed"}))


def disturbed(conf: str, count: int, kills: Sequence[int]) -> Disturbed:
    """In the working directory."""
    killer = Killer(kills)
    quiet = ("evaluation.every=null", "checkpoint.every=null")
    orchestrator.launch(conf, f"cluster.workers={WORKERS}", f"run.steps={count}", *quiet, on_event=killer)
    assert not killer.left
    return _understood(count, killer.heard)


def _understood(count: int, heard: Sequence[tuple[float, Mapping[str, Any]]]) -> Disturbed:
    """From the events of a run. Its members are all there from the beginning, and from each join until the next kill."""
    steps = [(now, event["step"]) for now, event in heard if event["event"] == "step"]
    spent: dict[bool, list[float]] = {True: [], False: []}  # by whether all are there: seconds, steps, in turn
    whole, (since, first) = True, steps[0]
    done, detected, regrouped, started, loss = first, [], [], [], 0.0
    for now, event in heard:
        what = event["event"]
        if what == "step":
            done = event["step"]
        elif what == "killed" or (what == "recovered" and event["kind"] == "joined"):
            spent[whole] += [now - since, done - first]
            if what == "killed":
                loss = now
            else:
                regrouped.append((event["seconds"], True))
                started.append(now - event["seconds"] - loss)
            whole, since, first = what != "killed", now, done
        elif what == "worker_lost":
            detected.append(now - loss)
        elif what == "recovered":
            regrouped.append((event["seconds"], False))
            since, first = now, done
    spent[whole] += [steps[-1][0] - since, done - first]
    each = {there: sum(found[::2]) / max(1.0, sum(found[1::2])) for there, found in spent.items()}
    return Disturbed(
        count,
        steps[-1][0] - steps[0][0],
        each[True],
        each[False],
        _median(detected),
        max(0.0, _median([seconds - each[there] for seconds, there in regrouped])),
        _median(started),
    )


def _median(values: Sequence[float]) -> float:
    """Not a number where nothing was seen."""
    return statistics.median(values) if values else math.nan


def _outcome(known: Disturbed, count: int, kills: Sequence[int]) -> float:
    """Seconds of a run with these kills, by the conditions that another one told."""
    members, timeouts = Members(start=WORKERS, least=1, most=WORKERS), Timeouts(1e9, 1e9, 1e9)
    requirements = Requirements(shards=SHARDS, members=members, timeouts=timeouts)
    told = Conditions(detect_s=known.detect_s, regroup_s=known.regroup_s, start_s=known.start_s)
    step_s = lambda workers: known.step_s if workers == WORKERS else known.between_s  # noqa: E731
    losses: list[tuple[float, int]] = []
    for kill in kills:  # when the run so far has come to that step
        losses.append((simulate(Scenario(requirements, told, kill, step_s, losses=losses)).seconds, 0))
    return simulate(Scenario(requirements, told, count, step_s, losses=losses)).seconds


def compare(conf: str, count: int) -> None:
    """A run in which three workers are killed, beside what the controller makes of the same losses, by what a run in which
    one is killed reports: steps, detection, regrouping, start."""
    known = disturbed(conf, count // 2, [count // 8])
    if math.isnan(known.start_s):
        sys.exit("the run with one kill ended before another worker had started: give more --steps")
    kills = [round(share * count) for share in KILLS]
    found, seconds = disturbed(conf, count, kills), _outcome(known, count, kills)
    goodput = count * known.step_s / seconds
    print(
        f"\nby one kill: step {1e3 * known.step_s:.1f} ms, {1e3 * known.between_s:.1f} ms from a loss to a join "
        f"{known.start_s:.1f} s later, detection {known.detect_s:.2f} s, regrouping {known.regroup_s:.2f} s\n"
        f"{count} steps, {len(kills)} kills: step {1e3 * found.step_s:.1f} ms, {found.seconds:.1f} s, goodput "
        f"{found.goodput:.1%}; predicted {seconds:.1f} s, goodput {goodput:.1%}, error {goodput / found.goodput - 1:+.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--conf", default="digits")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = project(Path(temporary))
        with contextlib.chdir(folder):
            sys.path.insert(0, str(folder))
            compare(arguments.conf, arguments.steps)


if __name__ == "__main__":
    main()
