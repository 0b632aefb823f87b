"""What `simulate` and `tune` predict beside what runs take: step times of layouts that nothing was fitted to, and goodput.

    python -m benchmarks.simulation [--rounds 3] [--seconds 3] [--conf digits] [--kills 4000]

The figures of the model come from runs of one, two and four workers in a ring (`simulation.calibration`); all other layouts, of
1 to 8 workers, are predictions. Pieces of the run are measured on one Ray, each layout once in every round, so that what else
the machine does meets all alike, and again where other programs took more of the cores than `--quiet`; of a layout the piece
with the shortest steps counts. With --kills a run of four workers, of which some are killed, is held against the life that the
controller makes of the same losses.
"""

from __future__ import annotations

import argparse
import contextlib
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

from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

from orchestrator.cluster.sessions import environment  # noqa: E402
from orchestrator.control.membership import Requirements  # noqa: E402
from orchestrator.settings import Settings, load  # noqa: E402
from orchestrator.simulation.calibration import Layout, Measured, Model, calibrate, predicted, together  # noqa: E402
from orchestrator.simulation.conditions import Conditions  # noqa: E402
from orchestrator.simulation.lives import Life, live  # noqa: E402

FITTED = [Layout("ring", 1), Layout("ring", 2), Layout("ring", 4)]
PREDICTED = [
    *(Layout("ring", workers) for workers in (3, 6, 8)),
    *(Layout("tree", workers) for workers in (2, 4, 8)),
    *(Layout("parameter_server", workers) for workers in (1, 3)),
    *(Layout("peer_to_peer", workers) for workers in (2, 4, 8)),
]
FEW = [
    Layout("ring", 8),
    Layout("tree", 4),
    Layout("parameter_server", 3),
    Layout("peer_to_peer", 4),
]
SHARDS = 8
TRIES = 3  # of a piece, while other programs take more than they should
KILLS = (0.25, 0.5, 0.75)  # of the steps


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


def measure(settings: Settings, rounds: int, others: list[Layout], quiet: float) -> tuple[list[Measured], Model, float]:
    """Every layout, the fitted ones first, with the model and what adding a byte costs."""
    from orchestrator.commands.probing import added_s, probing
    from orchestrator.commands.tune import model_of
    from orchestrator.driver.terminal.progress import for_stream

    display, layouts = for_stream(), [*FITTED, *others]
    found: dict[Layout, list[Measured]] = {layout: [] for layout in layouts}
    with probing(settings, display, max(layout.workers for layout in layouts)) as prober:
        for _ in range(rounds):
            for layout in layouts:
                for _ in range(TRIES):
                    found[layout].append(prober.measure(layout))
                    if found[layout][-1].disturbed <= quiet:
                        break
    return [together(found[layout]) for layout in layouts], model_of(settings), added_s()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a piece")
    parser.add_argument("--quiet", type=float, default=0.05, help="share of the cores that other programs may take")
    parser.add_argument("--few", action="store_true", help="some of the predicted layouts instead of all")
    parser.add_argument("--conf", default="digits")
    parser.add_argument("--kills", type=int, default=0, metavar="STEPS", help="of the run in which workers are killed")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary:
        folder = _project(Path(temporary))
        with contextlib.chdir(folder):
            sys.path.insert(0, str(folder))
            settings = load([arguments.conf], [f"tuning.seconds={arguments.seconds}", "run.steps=100000"])
            environment.prepare_environment(settings.cluster.address)
            measured, model, byte_s = measure(
                settings, arguments.rounds, FEW if arguments.few else PREDICTED, arguments.quiet
            )
        conditions = calibrate(model, measured[: len(FITTED)], cores, byte_s)
        network = conditions.network
        print(
            f"micro-batch {1e3 * conditions.compute_s:.3f} ms, rest of a step {1e3 * conditions.update_s:.3f} ms, both "
            f"{conditions.contention:.3f} times with several workers, and {1e3 * conditions.switch_s:.3f} ms with more of them "
            f"than cores; vote {1e3 * conditions.vote_s:.3f} ms, message {1e6 * network.message_s:.0f} us, latency "
            f"{1e6 * network.latency_s:.0f} us, beside {1e3 * conditions.background_s:.3f} ms, others {conditions.others:.1%} "
            f"of a core; {cores} cores"
        )
        print("| layout | measured ms | predicted ms | error | other programs | |\n|---|---:|---:|---:|---:|---|")
        for each in measured:
            told = predicted(model, each.layout, conditions)
            kind = "fitted" if each.layout in FITTED else ""
            print(
                f"| {each.layout} | {1e3 * each.wall_s:.2f} | {1e3 * told:.2f} | {told / each.wall_s - 1:+.1%} | "
                f"{each.disturbed:.0%} | {kind} |"
            )
        sys.stdout.flush()
        if arguments.kills:
            _goodput(folder, model, conditions, arguments.kills)


def _goodput(folder: Path, model: Model, conditions: Conditions, count: int) -> None:
    """A run in which workers are killed, beside the life that the controller makes of the same losses."""
    seconds, kills, report = disturbed(folder, count)
    lost = [each["seconds"] for each in report["recoveries"] if each["kind"] == "lost"]
    step = {workers: predicted(model, Layout("ring", workers), conditions) for workers in range(1, 5)}
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
