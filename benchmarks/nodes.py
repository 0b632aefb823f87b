"""A node lost and a node added, on Ray Train and here: the same model on three hosts of a worker each, turn by turn.

    PYTHONPATH=.venv/peers python -m benchmarks.nodes [--rounds 3] [--hidden 256] [--every 5] [--steps 700]

Each host is a network namespace with a node of Ray that has one CPU (benchmarks/hosts.py). In each round Ray Train trains
with two to three workers (its elastic training: DDP over gloo, a checkpoint every `--every` steps). It does so once with its
defaults and once with all that can be set to notice sooner; then a run of ours does. On all sides SIGKILL ends every process
of the last host, raylet and worker. 20 s later, when Ray knows that this node is dead, a node starts on a fourth host. Every
process marks every completed step with the time (benchmarks/wide.py). Measured from the SIGKILL, and from when the node is
there, to

    first step     the first step that every worker of the new group has completed; after a loss the one that was under way
                   does not count (so it counts against us)
    standing still the longest time without a completed step until then
    repeated       how many steps are completed again, by the same process or in place of one that is gone

The digest of ours has to be that of one worker whom nobody disturbs.

Hosts have no processors of their own. A micro-batch sleeps 50 ms on all sides, so that they suffice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import load, machine
from benchmarks.hosts import ADDRESS, DELAY, Nodes, environment, outcome, ray_on, require_equal
from benchmarks.namespaces import wired
from benchmarks.recovery import (
    QUIET_STEPS,
    Marks,
    lives,
    ours,
    ray_train,
    read,
    require_ray_train,
    telling,
    wait,
)
from tests.cluster.conftest import end_all_inside

WORKERS, LOST, ADDED = 3, 2, 3  # the last two are hosts
APART_S = 20.0  # Ray takes 14 s to see that a node is dead
SLEEP_S = 0.05
SIDES = ("Ray Train", "Ray Train, soonest", "orchestrator")
CASES = ("a node lost", "a node added")
SOONER = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "2",  # for room: who gets none had an old view of the nodes
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass(frozen=True)
class Change:
    """The consequences of a node that was lost or added."""

    first_s: float
    still_s: float
    repeated: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256, help="width of the model; 256: 0.6 million parameters")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--steps", type=int, default=700, help="of ours, enough for both changes")
    chosen = parser.parse_args(arguments)
    if os.geteuid():
        sys.exit("benchmarks.nodes needs root: it makes network namespaces")
    require_ray_train()
    before = load()
    found: dict[tuple[str, str], list[Change]] = {(case, side): [] for case in CASES for side in SIDES}
    alone = digest_alone(chosen)
    for number, side in itertools.product(range(chosen.rounds), SIDES):
        for case, change in zip(CASES, undergo(side, chosen, alone), strict=True):
            found[case, side].append(change)
            print(f"round {number + 1}, {case}, {side}: {change}", file=sys.stderr, flush=True)
    print(f"{machine()}; load average {before} before and {load()} after.\n\n{table(found)}")
    return 0


def table(found: Mapping[tuple[str, str], Sequence[Change]]) -> str:
    """In Markdown: least and median of the rounds."""
    heads = ("", "", "rounds", "first step, s", "/ ours", "standing still, s", "/ ours", "repeated")
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for (case, side), changes in found.items():
        columns = [case, side, str(len(changes))]
        for name in ("first_s", "still_s"):
            median, of_ours = (_median(each, name) for each in (changes, found[case, SIDES[-1]]))
            columns += [f"{min(getattr(each, name) for each in changes):.2f} / {median:.2f}", f"{median / of_ours:.1f}"]
        columns.append(f"{_median(changes, 'repeated'):.0f}")
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _median(changes: Sequence[Change], name: str) -> float:
    values: list[float] = [getattr(each, name) for each in changes]
    return statistics.median(values)


def undergo(side: str, chosen: argparse.Namespace, alone: str) -> list[Change]:
    """Both changes of one training."""
    more = SOONER if side == SIDES[1] else {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp")))
        marks = folder / "marks"
        marks.mkdir()
        network = stack.enter_context(wired(ADDED + 1, "1gbit", DELAY))
        nodes = stack.enter_context(ray_on(network, 1, LOST + 1, more))
        process = stack.enter_context(_training(side, nodes, folder, chosen))
        wait(process, lambda: _settled(read(marks, process.pid), WORKERS, 0))
        killed = time.monotonic()
        end_all_inside(network.names[LOST])
        lost = _change(process, marks, killed, WORKERS - 1)
        time.sleep(max(0.0, killed + APART_S - time.monotonic()))
        nodes.start(ADDED)
        added = _change(process, marks, time.monotonic(), WORKERS)
        if side == SIDES[-1]:
            require_equal(alone, outcome(process)["digest"], "a node lost, a node added")
        return [lost, added]


@contextlib.contextmanager
def _training(side: str, nodes: Nodes, folder: Path, chosen: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """It ends with its host, if not before."""
    workers = [WORKERS - 1, WORKERS]
    with telling(folder / "output.txt") as output:
        if side == SIDES[-1]:
            range_of = {"address": ADDRESS, "workers": {"min": workers[0], "max": workers[1]}}
            command = _ours(folder, chosen, SLEEP_S, range_of)
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": output, "cwd": folder / "project"}
        else:
            told = {"folder": str(folder), "hidden": chosen.hidden, "every": chosen.every, "losses": -1}
            look = {"look_s": 1.0} if side == SIDES[1] else {}
            command = ray_train({**told, "address": ADDRESS, "workers": workers, "sleep_s": SLEEP_S, **look})
            pipes = {"stdout": output, "stderr": output}
        yield nodes.network.start(0, command, nodes.variables, stdin=subprocess.DEVNULL, **pipes)


def _ours(folder: Path, chosen: argparse.Namespace, sleep_s: float, cluster: Mapping[str, Any]) -> list[str]:
    place = folder / "project"
    place.mkdir()
    told = {"hidden": chosen.hidden, "marks": str(folder / "marks"), "sleep_s": sleep_s}
    return [*ours(place, told, chosen.steps, chosen.every, cluster), "output=json"]


def digest_alone(chosen: argparse.Namespace) -> str:
    """The digest of one worker on this machine."""
    with tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "marks").mkdir()
        command = [*_ours(folder, chosen, 0.0, {"workers": WORKERS}), "cluster.workers=1"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        digest: str = outcome(subprocess.Popen(command, cwd=folder / "project", env=environment({}), **pipes))["digest"]
        return digest


def _change(process: subprocess.Popen[str], folder: Path, since: float, size: int) -> Change:
    """The change of the group, once it has this size and has done some steps more."""
    best = max(step for own in read(folder, process.pid).values() for at, step in own if at <= since)
    at = wait(process, lambda: first_step(_group(read(folder, process.pid), size), since, best + 2))
    farthest = max(step for own in read(folder, process.pid).values() for _, step in own)
    marks = wait(process, lambda: _settled(read(folder, process.pid), size, farthest))
    return Change(at - since, stillness(marks, since, at), repeated(marks, set(_living(marks)), since))


def _settled(marks: Marks, size: int, farthest: int) -> Marks | None:
    """All marks, once every worker of a group of this size has done some steps beyond that one."""
    group = _group(marks, size)
    settled = [len(own) >= QUIET_STEPS and own[-1][1] >= farthest + QUIET_STEPS for own in group.values()]
    return marks if settled and all(settled) else None


def _group(marks: Marks, size: int) -> Marks:
    """The marks of the living processes, if there are so many."""
    living = _living(marks)
    return living if len(living) == size else {}


def _living(marks: Marks) -> Marks:
    return {pid: own for pid, own in marks.items() if lives(pid)}


def first_step(group: Marks, since: float, floor: int) -> float | None:
    """When the first step was completed by all of them. floor: the first step that counts of who was there at `since`."""
    done = [
        {step: at for at, step in reversed(own) if at > since and (step >= floor or own[0][0] > since)}
        for own in group.values()
    ]
    common = set.intersection(*map(set, done)) if done else set()
    return min((max(own[step] for own in done) for step in common), default=None)


def stillness(marks: Marks, since: float, until: float) -> float:
    """The longest time between these two in which nobody completed a step."""
    between = sorted(at for own in marks.values() for at, _ in own if since < at < until)
    return max(later - earlier for earlier, later in itertools.pairwise([since, *between, until]))


def repeated(marks: Marks, group: Collection[int], since: float) -> int:
    """How many steps were done once more by this group: by a process that had done them, or by one that came after one that
    had done them and is gone."""
    gone = {step for pid, own in marks.items() if pid not in group for _, step in own}
    again: set[int] = set()
    for own in (marks[pid] for pid in group):
        before = set(gone) if own[0][0] > since else set()
        for at, step in own:
            again |= {step} if at > since and step in before else set()
            before.add(step)
    return len(again)


if __name__ == "__main__":
    sys.exit(main())
