"""The cost of run.arithmetic=portable: a step of a process that computes portably, one of a process that does not, and so on.

    python -m benchmarks.portable

Both are one worker with all shards; while one computes the other waits. torch chooses its code when it is loaded, so it takes
two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.numerics import determinism

WARM_UP = 4  # steps that are not counted: the first fits the grid and computes twice
PIPELINES: dict[str, Any] = {
    "digits": "digits",
    "characters": "characters",
    "residual": {
        "run": {"seed": 1},
        "pipeline": {"target": "benchmarks.residual:Residual"},
        "data": {"shards": 8, "batch_size": 64},
        "optimizer": {"name": "adamw", "lr": 0.002},
    },
}
ARITHMETICS: tuple[determinism.Arithmetic, ...] = ("native", "portable")


class Turns:
    """One of the two processes. A turn is a step; its time is that of the process's own thread and the one on the wall."""

    def __init__(self, name: str, arithmetic: determinism.Arithmetic, steps: int) -> None:
        command = (sys.executable, "-m", "benchmarks.portable", "--turns", name, arithmetic, "--steps", str(steps))
        with determinism.environment_of(arithmetic):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**determinism.ENVIRONMENT, **os.environ},
            )

    def take(self) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        computing, wall = json.loads(self._process.stdout.readline())
        return computing, wall

    def end(self) -> None:
        self._process.communicate()


def serve(name: str, arithmetic: determinism.Arithmetic, steps: int) -> None:
    """Take a step for each line of stdin, and tell what it took."""
    from benchmarks.loop import run_engine
    from orchestrator.config.settings import load

    overrides = [f"run.arithmetic={arithmetic}", f"run.steps={steps}", "cluster.workers=1", "topology=ring"]
    settings = load([PIPELINES[name]], [*overrides, "trace.digest_every=0", "evaluation.every=null"])
    sys.stdin.readline()
    began = time.thread_time(), time.perf_counter()

    def take_turn(entry: dict[str, Any]) -> None:
        nonlocal began
        if "trace" in entry:
            print(json.dumps([time.thread_time() - began[0], time.perf_counter() - began[1]]), flush=True)
            sys.stdin.readline()
            began = time.thread_time(), time.perf_counter()

    run_engine(settings, take_turn)


def compare(name: str, steps: int) -> str:
    """Medians in ms, and the ratios of neighbouring steps."""
    processes = [Turns(name, arithmetic, steps + WARM_UP) for arithmetic in ARITHMETICS]
    rounds = [[process.take() for process in processes] for _ in range(steps + WARM_UP)][WARM_UP:]
    for process in processes:
        process.end()
    native, portable = (statistics.median(each[i][1] for each in rounds) * 1e3 for i in range(2))
    wall = statistics.median(each[1][1] / each[0][1] for each in rounds)
    computing = statistics.median(each[1][0] / each[0][0] for each in rounds)
    return f"{name:>11}{native:>11.2f}{portable:>13.2f}{wall:>9.3f}{computing:>11.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.portable")
    parser.add_argument("--steps", type=int, default=40, help="counted steps")
    parser.add_argument("--turns", nargs=2, help="be one of the two processes: pipeline and arithmetic")
    chosen = parser.parse_args(arguments)
    if chosen.turns:
        name, arithmetic = chosen.turns
        serve(name, arithmetic, chosen.steps)
        return
    print(f"{'pipeline':>11}{'native ms':>11}{'portable ms':>13}{'ratio':>9}{'computing':>11}")
    for name in PIPELINES:
        print(compare(name, chosen.steps), flush=True)


if __name__ == "__main__":
    main()
