"""The cost of recording a run: at its launch, beside the launch itself, and in each step.

    python -m benchmarks.recording [--launches 3] [--steps 60]

The first table has the pieces of the record that are made at a launch, in seconds, each in this process, medians; the second
column says what they run beside. Only what comes `before` Ray's start adds to a launch; `launch` is the time from the command
to the first step, of true launches of the digits. The second table has the time in a step that goes to the trace, as shares
of the time of the thread: the fingerprint of the gradient, the line, and the digest of the parameters, which comes every 100
steps.

Not measured: the driver's writing of the trace and of MLflow's metrics, which is in another process than the step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.loop import PIPELINES, run_engine, settings_of
from orchestrator.adapters.table import find
from orchestrator.config.settings import Settings, load
from orchestrator.driver.preflight import checks
from orchestrator.numerics import exact
from orchestrator.numerics.layout import Layout
from orchestrator.provenance.code import git, imported, snapshot, worktree
from orchestrator.provenance.data import hashing, versions
from orchestrator.provenance.environment import node
from orchestrator.records import trace
from orchestrator.worker import hooks

REF = "benchmark"
DIGEST_EVERY = 100
REPEATS = 5


class Meter:
    """Time of the calling thread inside a function, and how often it was called."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - started
                self.calls += 1

        return timed


@contextmanager
def metered(module: ModuleType, name: str) -> Iterator[Meter]:
    meter, function = Meter(), getattr(module, name)
    setattr(module, name, meter.around(function))
    try:
        yield meter
    finally:
        setattr(module, name, function)


def at_launch(project: Path) -> list[tuple[str, str, float]]:
    """(piece, what it runs beside, median seconds)."""
    settings = load(["digits"], [])
    inputs = list(settings.data.inputs)
    scans = _scans(project, inputs)
    work = worktree.examine(project)
    with tempfile.TemporaryDirectory() as folder:
        bundle, patch = Path(folder) / "bundle", Path(folder) / "patch"
        try:
            kept = snapshot.keep(work, REF)
            pieces: list[tuple[str, str, Callable[[], object]]] = [
                ("reading the work tree", "before", lambda: worktree.examine(project)),
                ("hashing the data", "before", lambda: _scans(project, inputs)),
                ("the whole preflight", "before", lambda: checks.check(settings, project)),
                ("DVC about the data", "Ray's start", lambda: versions.look_up(project, scans)),
                ("snapshot commit", "Ray's start", lambda: snapshot.keep(work, REF)),
                ("bundle", "Ray's start", lambda: snapshot.bundle(kept, bundle)),
                ("patch", "Ray's start", lambda: snapshot.patch(kept, patch)),
                ("environment", "the first steps", node.capture),
                ("imported modules", "the first steps", lambda: _modules(project)),
            ]
            return [(name, where, statistics.median(map(_seconds, [piece] * REPEATS))) for name, where, piece in pieces]
        finally:
            git.run(work.root, "update-ref", "-d", snapshot.ref_of(REF))


def launches(count: int) -> list[float]:
    """`launch_s` of true launches."""
    command = [sys.executable, "-m", "orchestrator", "conf=digits", "run.steps=20", "cluster.workers=2", "output=json"]
    reports = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(count)]
    return [float(json.loads(report.splitlines()[-1])["launch_s"]) for report in reports]


def in_a_step(name: str, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds of the thread per step, and for each part of the trace its share."""
    started: list[float] = []
    settings = settings_of(name, "exact", steps)

    def emit(entry: dict[str, Any]) -> None:
        if "trace" in entry:
            started.append(time.thread_time())

    with (
        metered(trace, "line") as line,
        metered(hooks, "model_digest") as digest,
    ):
        run_engine(settings, emit)
    step = statistics.median(later - earlier for earlier, later in itertools.pairwise(started))
    return step, {
        "fingerprint": _fingerprint(settings) / step,
        "line": line.seconds / steps / step,
        "digest": digest.seconds / digest.calls / DIGEST_EVERY / step,
    }


def _fingerprint(settings: Settings) -> float:
    """Seconds of a pass of its own through the summed gradient; in a step it is part of another, which is less."""
    model = find(settings.pipeline.source)(**settings.pipeline.args).model()
    gradient = torch.zeros(Layout.of(model.named_parameters()).size)
    return statistics.median(_seconds(lambda: exact.fingerprint_of(gradient, 0)) for _ in range(REPEATS))


def _scans(project: Path, inputs: list[str]) -> dict[str, hashing.Scan]:
    return {path: hashing.scan_input(project, path) for path in inputs}


def _modules(project: Path) -> list[imported.Loaded]:
    return imported.gather(imported.files_of(sys.modules), project)


def _seconds(piece: Callable[[], object]) -> float:
    started = time.perf_counter()
    piece()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args(arguments)
    print(f"{'at a launch':<24}{'beside':<18}{'seconds':>8}")
    for name, where, seconds in at_launch(Path.cwd()):
        print(f"{name:<24}{where:<18}{seconds:>8.3f}")
    times = launches(chosen.launches)
    print(f"{'launch':<42}{statistics.median(times):>8.2f}   {' '.join(f'{each:.1f}' for each in times)}\n")
    print(f"{'in a step':<14}{'ms':>8}{'fingerprint':>14}{'line':>9}{'digest':>9}{'together':>10}")
    for name in PIPELINES:
        step, shares = in_a_step(name, chosen.steps)
        parts = f"{shares['fingerprint']:>14.3%}{shares['line']:>9.3%}{shares['digest']:>9.3%}"
        print(f"{name:<14}{step * 1e3:>8.2f}{parts}{sum(shares.values()):>10.3%}", flush=True)


if __name__ == "__main__":
    main()
