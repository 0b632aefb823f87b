"""Predictions of `simulate` and `tune` beside true runs: step times of layouts that nothing was fitted to.

    python -m benchmarks.simulation [--rounds 6] [--seconds 3] [--conf digits]

The figures of the model come from runs of one, two and four workers in a ring (`experiments.simulation.calibration`); all
other layouts, of 1 to 8 workers, are predictions. Pieces of the run are measured on one Ray, each layout once in every round,
in an order that is drawn anew for each. A piece is measured again if other programs took more of the cores than `--quiet`.
The figure of a layout is the median of its pieces. The cost of the same work differs by half from minute to minute on a
virtual machine: the spread of a layout's pieces says by how much, and many rounds even it out. `benchmarks/goodput.py` is
about losses of workers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

from orchestrator.cluster.sessions import environment  # noqa: E402
from orchestrator.config.settings import Settings, load  # noqa: E402
from orchestrator.experiments.simulation.calibration import (  # noqa: E402
    Layout,
    Measured,
    Model,
    calibrate,
    predicted,
)

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
TRIES = 3  # of a piece, while other programs take more than they should


Pieces = dict[Layout, list[Measured]]


def measure(settings: Settings, rounds: int, others: list[Layout], quiet: float) -> tuple[Pieces, Model, float]:
    """The pieces of every layout, the fitted ones first, with the model and what adding a byte costs."""
    from orchestrator.driver.terminal.progress import for_stream
    from orchestrator.experiments.tuning.choosing import model_of
    from orchestrator.experiments.tuning.probing import added_s, probing

    display, layouts = for_stream(), [*FITTED, *others]
    found: Pieces = {layout: [] for layout in layouts}
    with probing(settings, display, max(layout.workers for layout in layouts)) as prober:
        for number in range(rounds):
            for layout in random.Random(number).sample(layouts, len(layouts)):
                tries = [prober.measure(layout)]
                while tries[-1].disturbed > quiet and len(tries) < TRIES:
                    tries.append(prober.measure(layout))
                found[layout].append(min(tries, key=lambda each: each.disturbed))
    return found, model_of(settings), added_s()


def typical(points: Sequence[Measured]) -> Measured:
    """The median of each figure over several runs of one layout, made in turn with others. A virtual machine is now faster
    and now slower for a minute; the fastest run of one layout would be compared with one of another that never met such a
    minute."""

    return replace(
        points[0],
        wall_s=statistics.median(each.wall_s for each in points),
        busy_s={kind: statistics.median(each.busy_s[kind] for each in points) for kind in points[0].busy_s},
        process_s=statistics.median(each.process_s for each in points),
        driver_s=statistics.median(each.driver_s for each in points),
        fixed=statistics.median(each.fixed for each in points),
        disturbed=statistics.median(each.disturbed for each in points),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a piece")
    parser.add_argument("--quiet", type=float, default=0.05, help="share of the cores that other programs may take")
    parser.add_argument("--few", action="store_true", help="some of the predicted layouts instead of all")
    parser.add_argument("--conf", default="digits")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary:
        folder = project(Path(temporary))
        with contextlib.chdir(folder):
            sys.path.insert(0, str(folder))
            settings = load([arguments.conf], [f"tuning.seconds={arguments.seconds}", "run.steps=100000"])
            environment.prepare_environment(settings.cluster.address)
            pieces, model, byte_s = measure(
                settings, arguments.rounds, FEW if arguments.few else PREDICTED, arguments.quiet
            )
        conditions = calibrate(model, [typical(pieces[layout]) for layout in FITTED], cores, byte_s)
        network = conditions.network
        print(
            f"micro-batch {1e3 * conditions.compute_s:.3f} ms, rest of a step {1e3 * conditions.update_s:.3f} ms, both "
            f"{conditions.contention:.3f} times with several workers, and {1e3 * conditions.switch_s:.3f} ms with more of them "
            f"than cores; vote {1e3 * conditions.vote_s:.3f} ms, message {1e6 * network.message_s:.0f} us, latency "
            f"{1e6 * network.latency_s:.0f} us, beside {1e3 * conditions.background_s:.3f} ms, others {conditions.others:.1%} "
            f"of a core; {cores} cores"
        )
        print("| layout | pieces, ms | median | predicted | error | other programs |")
        print("|---|---:|---:|---:|---:|---:|")
        for layout, found in pieces.items():
            each = typical(found)
            least, most = (1e3 * extreme(piece.wall_s for piece in found) for extreme in (min, max))
            told = predicted(model, each.layout, conditions)
            name = f"{layout} (fitted)" if layout in FITTED else str(layout)
            print(
                f"| {name} | {least:.1f} to {most:.1f} | {1e3 * each.wall_s:.2f} | {1e3 * told:.2f} | "
                f"{told / each.wall_s - 1:+.1%} | {each.disturbed:.0%} |"
            )


def project(folder: Path) -> Path:
    """The demo's files, with a record of their own."""
    import shutil

    for name in ("conf", "pipelines", "data"):
        shutil.copytree(name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


if __name__ == "__main__":
    main()
