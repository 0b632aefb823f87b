"""What `simulate` predicts beside what launches take: step times of layouts that nothing was fitted to, and goodput of kills.

    python -m benchmarks.simulation [--steps 400]

Three figures are fitted to a ring of 1, 2 and 4 workers: the processor time of a micro-batch, of the rest of a worker's step,
and of a message. All others are predictions. Each layout is launched in turn, and its fastest time counts: what else the
machine does only slows down.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.control.membership import Requirements
from orchestrator.control.shard_assignment import assign_shards
from orchestrator.simulation import steps
from orchestrator.simulation.conditions import Conditions, Network
from orchestrator.simulation.exchange import exchange
from orchestrator.simulation.lives import Life, live
from orchestrator.topologies import build_schedule

FITTED = [("ring", 1), ("ring", 2), ("ring", 4)]
PREDICTED = [
    ("ring", 3),
    ("ring", 6),
    ("ring", 8),
    ("tree", 4),
    ("tree", 8),
    ("parameter_server", 3),
    ("peer_to_peer", 4),
]
PREDICTED += [("peer_to_peer", 8)]
SHARDS, ELEMENTS = 8, 38_378
KILLS = (0.25, 0.5, 0.75)  # of the steps
Layout = tuple[str, int]


def launched(folder: Path, layout: Layout, count: int, *more: str) -> dict[str, Any]:
    topology, workers = layout
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "conf=digits",
        f"topology={topology}",
        f"cluster.workers={workers}",
    ]
    command += [f"run.steps={count}", "evaluation.every=null", "checkpoint.every=null", "output=json", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def predicted(layout: Layout, conditions: Conditions) -> float:
    """Seconds of a step on the cores of this machine."""
    topology, workers = layout
    hosted = np.array([len(each) for each in assign_shards(SHARDS, workers)])
    times = steps.micro_batches(conditions, workers, hosted, 1)
    exchanged = exchange(build_schedule(topology, workers), ELEMENTS * 8, ELEMENTS * 4, conditions.network)
    return steps.lockstep(conditions, times, exchanged).seconds


def fit(measured: dict[Layout, float], cores: int) -> Conditions:
    """Least squares of the relative errors over a grid that is refined: three figures, three measurements."""
    best: tuple[float, ...] = (1e-3, 1e-3, 5e-5)
    around = 4.0
    for _ in range(40):
        candidates = [
            tuple(value * around**power for value, power in zip(best, powers, strict=True)) for powers in _POWERS
        ]
        best = min(candidates, key=lambda each: _error(each, measured, cores))
        around = max(1.005, around**0.85)
    return _conditions(best, cores)


_POWERS = [(a, b, c) for a in (-1, -0.5, 0, 0.5, 1) for b in (-1, -0.5, 0, 0.5, 1) for c in (-1, -0.5, 0, 0.5, 1)]


def _conditions(figures: tuple[float, ...], cores: int) -> Conditions:
    compute, update, message = figures
    network = Network(latency_s=0.0, bandwidth=1e12, message_s=message, byte_s=0.3e-9 / 8)
    return Conditions(network=network, compute_s=compute, update_s=update, cores=cores)


def _error(figures: tuple[float, ...], measured: dict[Layout, float], cores: int) -> float:
    conditions = _conditions(figures, cores)
    return sum((predicted(layout, conditions) / seconds - 1) ** 2 for layout, seconds in measured.items())


def disturbed(folder: Path, count: int) -> tuple[float, int, dict[str, Any]]:
    """(seconds from the first step to the last, kills, report) of a run of four workers, of which some are killed."""
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "conf=digits",
        "cluster.workers=4",
        f"run.steps={count}",
        "output=json",
    ]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    left = [round(share * count) for share in KILLS]
    first = 0.0
    killed = 0
    while process.poll() is None:
        lines, workers = _progress(folder)
        first = first or (time.monotonic() if lines else 0.0)
        if left and lines >= left[0] and workers:
            left.pop(0)
            os.kill(workers[killed % len(workers)], signal.SIGKILL)
            killed += 1
        if lines >= count:
            break
        time.sleep(0.02)  # looks at a file that grows
    ended = time.monotonic()
    out, _ = process.communicate()
    return ended - first, killed, json.loads(out.splitlines()[-1])


def _progress(folder: Path) -> tuple[int, list[int]]:
    """Lines of the newest trace, and the processes of living workers."""
    runs = sorted(folder.glob(".orchestrator/*/journal.jsonl"), key=lambda file: file.stat().st_mtime)
    if not runs:
        return 0, []
    trace = runs[-1].with_name("trace.jsonl")
    lines = trace.read_bytes().count(b"\n") if trace.exists() else 0
    pids: dict[int, int] = {}
    for line in runs[-1].read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["event"] == "worker_started":
            pids[event["worker"]] = event["pid"]
        elif event["event"] == "worker_lost":
            pids.pop(event["worker"], None)
    return lines, [pids[worker] for worker in sorted(pids)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=2, help="launches of each layout")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary:
        folder = _project(Path(temporary))
        measured: dict[Layout, float] = {}
        for _ in range(arguments.rounds):
            for layout in (*FITTED, *PREDICTED):
                seconds = 1 / launched(folder, layout, arguments.steps)["steps_per_s"]
                measured[layout] = min(seconds, measured.get(layout, seconds))
        conditions = fit({layout: measured[layout] for layout in FITTED}, cores)
        print(
            f"fitted: micro-batch {1e3 * conditions.compute_s:.3f} ms, rest of a step {1e3 * conditions.update_s:.3f} ms, "
            f"message {1e6 * conditions.network.message_s:.0f} us; {cores} cores"
        )
        print("| layout | measured ms | predicted ms | error | |\n|---|---:|---:|---:|---|")
        for layout, seconds in measured.items():
            found = predicted(layout, conditions)
            kind = "fitted" if layout in FITTED else ""
            name = f"{layout[0]}, {layout[1]}"
            print(f"| {name} | {1e3 * seconds:.2f} | {1e3 * found:.2f} | {found / seconds - 1:+.1%} | {kind} |")
        sys.stdout.flush()
        _goodput(folder, conditions, arguments.steps * 10)


def _goodput(folder: Path, conditions: Conditions, count: int) -> None:
    """A run in which workers are killed, beside the life that the controller makes of the same losses."""
    seconds, kills, report = disturbed(folder, count)
    lost = [each["seconds"] for each in report["recoveries"] if each["kind"] == "lost"]
    step = {workers: predicted(("ring", workers), conditions) for workers in range(1, 5)}
    losses = [(share * count * step[4], 0) for share in KILLS[:kills]]
    requirements = Requirements(shards=SHARDS, start=4, least=1, most=4, start_timeout_s=1e9, step_timeout_s=1e9)
    told = Conditions(detect_s=float(np.median(lost)), start_s=_START_S)
    lived = live(Life(requirements, told, count, step.__getitem__, losses=losses))
    whole = count * step[4]
    print(
        f"\n{count} steps, {kills} kills: measured {seconds:.1f} s (goodput {whole / seconds:.1%}), predicted "
        f"{lived.seconds:.1f} s (goodput {whole / lived.seconds:.1%}), error {lived.seconds / seconds - 1:+.1%}"
    )


_START_S = 4.0  # of a worker that takes a lost one's place


def _project(folder: Path) -> Path:
    """The demo's files, with a record of their own."""
    import shutil

    for name in ("conf", "pipelines", "data"):
        shutil.copytree(name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


if __name__ == "__main__":
    main()
