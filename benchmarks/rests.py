"""The cost of a rest of replicas that run free, beside a step of lockstep; and how soon they go on after a worker was killed.

    python -m benchmarks.rests [--rounds 3] [--steps 100] [--losses 3]

A rest: a run with `sync=bap` rests after each step, another one every 20 steps, and a third one is in lockstep, turn by turn.
The cost of a rest is the time that a step takes longer with a rest in each. `sleeping`: a micro-batch sleeps 20 ms, so that
waiting for others shows; `digits`: the network of the demo, which computes.

A kill: three workers, `sync=bap`, no rest for long, so that survivors begin with earlier updates again. SIGKILL to one, and the
time until a survivor has computed the micro-batch of the next update that counts, by marks of the workers themselves.

It measures no network.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.synchrony import REPOSITORY, SHARDS, run

EVERY = 20
MODES: dict[str, dict[str, Any]] = {
    "bsp": {"name": "bsp"},
    "rests seldom": {"name": "bap", "rest_every": EVERY},
    "rests always": {"name": "bap", "rest_every": 1},
}
CONDITIONS: dict[str, Mapping[str, float] | None] = {"sleeping": {}, "digits": None}
WORKERS, MARKS, SLEEP_S = 3, 400, 0.02  # so many updates later the driver has opened the record
PATIENCE_S = 300.0
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--losses", type=int, default=3)
    chosen = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(chosen.rounds):
        for condition, options in CONDITIONS.items():
            for name, mode in MODES.items():
                taken = SHARDS / run(mode, options, chosen.steps).rate
                seconds.setdefault((condition, name), []).append(taken)
                print(f"round {number + 1}, {condition}, {name}: {taken:.4f} s a step", file=sys.stderr, flush=True)
    losses = [lose() for _ in range(chosen.losses)]
    print(table(seconds, losses))
    print(f"load of the machine: {before:.1f} before, {os.getloadavg()[0]:.1f} afterwards, {os.cpu_count()} cores")
    return 0


def table(seconds: Mapping[tuple[str, str], Sequence[float]], losses: Sequence[float]) -> str:
    lines = [f"{'':12}{'bsp step ms':>13}{'rest ms':>10}{'rest / bsp step':>17}"]
    for condition in CONDITIONS if seconds else ():
        step, seldom, always = (statistics.median(seconds[condition, name]) for name in MODES)
        cost = (always - seldom) / (1 - 1 / EVERY)
        lines.append(f"{condition:12}{1000 * step:13.1f}{1000 * cost:10.1f}{cost / step:17.2f}")
    if losses:
        each = ", ".join(f"{1000 * loss:.0f}" for loss in losses)
        middle = 1000 * statistics.median(losses)
        lines.append(
            f"next update after a kill: {middle:.0f} ms ({each}), of which {1000 * SLEEP_S:.0f} are its micro-batch"
        )
    return "\n".join(lines)


def lose() -> float:
    """Seconds from SIGKILL to the next update that counts."""
    with tempfile.TemporaryDirectory(prefix="rst-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        settings = {
            "run": {"name": "rests", "steps": 100_000, "seed": 1},
            "pipeline": {
                "target": "benchmarks.stalling:Marking",
                "args": {"folder": name, "data": str(REPOSITORY / "data" / "digits"), "sleep_s": SLEEP_S},
            },
            "data": {"shards": 6, "batch_size": 48},
            "optimizer": {"name": "adamw", "lr": 0.002},
            "cluster": {"workers": WORKERS},
            "sync": {"name": "bap", "rest_every": 100_000},
        }
        (folder / "run.yaml").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "orchestrator", f"conf={folder}/run.yaml"]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            marks = _wait(process, lambda: _all_marked(folder))
            victim = max(marks)
            killed_at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            found = _wait(process, lambda: _again(folder, marks, killed_at)) - killed_at
            print(f"next update {1000 * found:.0f} ms after a kill", file=sys.stderr, flush=True)
            return found
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


Marks = dict[int, list[tuple[float, int]]]  # of each process: when, and the step of a micro-batch


def _marks(folder: Path) -> Marks:
    found: Marks = {}
    for path in folder.glob("updates-*"):
        lines = path.read_text().split("\n")[:-1]  # the last one may be on its way
        found[int(path.name.partition("-")[2])] = [(float(at), int(step)) for at, step in map(str.split, lines)]
    return found


def _all_marked(folder: Path) -> Marks | None:
    """Once all workers are under way. The reference micro-batch of each worker's proof is marked too."""
    marks = _marks(folder)
    ready = [own for own in marks.values() if len(own) >= MARKS and own[-1][1] > 3]
    return marks if len(ready) == WORKERS else None


def _again(folder: Path, before: Marks, killed_at: float) -> float | None:
    """When the first update was computed that a survivor makes again. before: marks of all, until the kill. A worker's shards
    take turns, so without a loss no step is lower than the last one but one."""
    victim = max(before)
    times = [
        at
        for pid, own in _marks(folder).items()
        if pid in before and pid != victim
        for at, step in own
        if at > killed_at and step < before[pid][-1][1] - 1
    ]
    return min(times, default=None)


def _wait(process: subprocess.Popen[bytes], look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit("the run ended, or does not go on")
        time.sleep(0.005)
    return seen


if __name__ == "__main__":
    sys.exit(main())
