"""The memory of a worker: launches of a wide model on one, two and four workers, beside DDP over gloo with as many processes.

    python -m benchmarks.memory [--hidden 4096] [--workers 1 2 4] [--topology ring] [--shards 4] [--steps 6]

The model is `benchmarks.wired:Mlp` (4096: 25 million parameters) with AdamW; a step is `--shards` micro-batches on both. The
memory of the same processes with a model of 1 unit is subtracted: Python, torch, Ray and the rest. MB, and bytes for each
parameter, of the median process:

    peak      the largest resident set (VmHWM), in which what a process has read of its peers' regions counts too
    held      the most that it held itself: anonymous memory and the shared regions that it has open, touched or not, each
              divided by the processes that have it open; these add up

It does not measure checkpoints, whose copy of the state comes on top in the worker that writes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import wide
from benchmarks.wired import HIDDEN, RATE

REPOSITORY = Path(__file__).resolve().parent.parent
EVERY_S = 0.02  # between two looks at the processes
Sizes = tuple[float, float]  # peak, held


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--sides", nargs="+", default=["DDP", "orchestrator"])
    chosen = parser.parse_args(arguments)
    count = parameters(chosen.hidden)
    print(f"{count:,} parameters, {chosen.shards} micro-batches, {chosen.topology}")
    print(f"{'':14}{'workers':>8}{'peak':>8}{'/ parameter':>13}{'held':>8}{'/ parameter':>13}", flush=True)
    for workers in chosen.workers:
        for side in chosen.sides:
            more = [] if side == "DDP" else [f"topology={chosen.topology}"]
            sizes = above_tiny(side, workers, chosen.hidden, chosen.shards, chosen.steps, more)
            columns = "".join(f"{size / 1e6:8.0f}{size / count:13.1f}" for size in sizes)
            print(f"{side:14}{workers:8}{columns}", flush=True)


def parameters(hidden: int) -> int:
    with torch.device("meta"):
        return sum(each.numel() for each in wide.model(hidden).parameters())


def above_tiny(side: str, workers: int, hidden: int, shards: int, steps: int, more: Sequence[str] = ()) -> Sizes:
    """Bytes of the median process above those with a model of one unit. side: "DDP", or ours with `more` settings."""
    small, large = (_measure(side, workers, each, shards, steps, more) for each in (1, hidden))
    return large[0] - small[0], large[1] - small[1]


def _measure(side: str, workers: int, hidden: int, shards: int, steps: int, more: Sequence[str]) -> Sizes:
    with tempfile.TemporaryDirectory(prefix="mem-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        (folder / "marks").mkdir()
        marks = str(folder / "marks")
        if side == "DDP":
            meeting = {"world": workers, "meeting": f"file://{folder}/meeting", "interface": "lo"}
            each = {"model": "mlp", **meeting, "shards": shards // workers, "steps": steps, "hidden": hidden}
            commands = [["benchmarks.wired", marks, json.dumps({**each, "rank": n})] for n in range(workers)]
        else:
            settings = {
                "run": {"steps": steps, "seed": 1},
                "pipeline": {"target": "benchmarks.wired:Mlp", "args": {"folder": marks, "hidden": hidden}},
                "data": {"shards": shards, "batch_size": wide.ROWS * shards},
                "optimizer": {"name": "adamw", "lr": RATE},
                "cluster": {"workers": workers},
            }
            (folder / "run.yaml").write_text(json.dumps(settings))
            commands = [["orchestrator", "conf=run.yaml", *more]]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        given = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": name, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        with (folder / "output.txt").open("w") as output:
            processes = [
                subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=folder,
                    env={**inherited, **given},
                    stdout=output,
                    stderr=output,
                )
                for command in commands
            ]
            found = _watch(processes, folder / "marks")
        if any(process.returncode for process in processes) or len(found) < workers:
            raise RuntimeError(f"{side} failed:\n{(folder / 'output.txt').read_text()[-4000:]}")
    return statistics.median(peak for peak, _ in found), statistics.median(held for _, held in found)


def _watch(processes: Sequence[subprocess.Popen[bytes]], marks: Path) -> list[Sizes]:
    """The sizes of each process that has marked a step, until all commands have ended."""
    found: dict[str, Sizes] = {}
    while any(process.poll() is None for process in processes):
        pids = {mark.name.partition("-")[2] for mark in marks.iterdir()}
        regions = {pid: _regions(Path(f"/proc/{pid}/fd")) for pid in pids}
        holders = Counter(region for own in regions.values() for region in own)
        for pid, own in regions.items():
            if (sizes := resident(pid)) is None:
                continue
            peak, anonymous = sizes
            held = anonymous + sum(size / holders[region] for region, size in own.items())
            found[pid] = peak, max(held, found.get(pid, (0.0, 0.0))[1])
        time.sleep(EVERY_S)
    return list(found.values())


def resident(pid: str) -> tuple[float, float] | None:
    """The largest resident set and the anonymous memory, in bytes; None of a process that has ended, waited for or not."""
    try:
        told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return float(told["VmHWM"].split()[0]) * 1024, float(told["RssAnon"].split()[0]) * 1024
    except (OSError, KeyError):
        return None


def _regions(descriptors: Path) -> dict[int, int]:
    """The bytes of the memfds that a process has open, by their number; nothing of one that has ended."""
    found = {}
    with contextlib.suppress(OSError):
        for descriptor in descriptors.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(descriptor.readlink()).startswith("/memfd:"):
                    about = descriptor.stat()
                    found[about.st_ino] = about.st_blocks * 512
    return found


if __name__ == "__main__":
    main()
