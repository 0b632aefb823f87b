"""The memory of a worker: launches of a wide model on one, two and four workers, beside DDP over gloo with as many processes.

    python -m benchmarks.memory [--hidden 4096] [--workers 1 2 4] [--topology ring] [--shards 4] [--steps 6]

The model is that of benchmarks/wide.py (4096: 25 million parameters) with AdamW; a step is `--shards` micro-batches on both.
What the same processes hold with a model of 1 unit is subtracted: Python, torch, Ray and the rest. MB, and bytes for each
parameter, of the median process:

    peak      the largest resident set (VmHWM), in which what a process has read of its peers' regions counts too
    held      the most that it held itself: anonymous memory and its own shared regions, touched or not; these add up

What it does not do: measure checkpoints, whose copy of the state comes on top in the worker that writes it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks import wide

REPOSITORY = Path(__file__).resolve().parent.parent
EVERY_S = 0.02  # between two looks at the processes
Sizes = tuple[float, float]  # peak, held


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--sides", nargs="+", default=["DDP", "orchestrator"])
    parser.add_argument("--ddp", help=argparse.SUPPRESS)  # be the other side: where the marks go
    chosen = parser.parse_args(arguments)
    if chosen.ddp:
        spawn(_ddp, args=(chosen.workers[0], chosen), nprocs=chosen.workers[0])  # type: ignore[no-untyped-call]
        return
    with torch.device("meta"):
        count = sum(each.numel() for each in wide.model(chosen.hidden).parameters())
    print(f"{count:,} parameters, {chosen.shards} micro-batches, {chosen.topology}")
    print(f"{'':14}{'workers':>8}{'peak':>8}{'/ parameter':>13}{'held':>8}{'/ parameter':>13}", flush=True)
    for workers in chosen.workers:
        for side in chosen.sides:
            small, large = (_measure(side, workers, hidden, chosen) for hidden in (1, chosen.hidden))
            sizes = [after - before for before, after in zip(small, large, strict=True)]
            columns = "".join(f"{size / 1e6:8.0f}{size / count:13.1f}" for size in sizes)
            print(f"{side:14}{workers:8}{columns}", flush=True)


def _measure(side: str, workers: int, hidden: int, chosen: argparse.Namespace) -> Sizes:
    with tempfile.TemporaryDirectory(prefix="mem-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        (folder / "marks").mkdir()
        shutil.copy2(REPOSITORY / "benchmarks" / "wide.py", folder)
        (folder / "wide.yaml").write_text(
            f"run: {{steps: {chosen.steps}, seed: 1}}\n"
            f"pipeline: {{target: 'wide:Wide', args: {{hidden: {hidden}, marks: {folder}/marks}}}}\n"
            f"data: {{shards: {chosen.shards}, batch_size: {wide.ROWS * chosen.shards}}}\n"
            f"cluster: {{workers: {workers}}}\ntopology: {chosen.topology}\n"
        )
        alike = [f"--hidden={hidden}", f"--workers={workers}", f"--shards={chosen.shards}", f"--steps={chosen.steps}"]
        theirs = ["-m", "benchmarks.memory", *alike, f"--ddp={folder}/marks"]
        command = theirs if side == "DDP" else ["-m", "orchestrator", "conf=wide.yaml"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        given = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": name, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env={**inherited, **given}, stdout=output, stderr=output
            )
            found = _watch(process, folder / "marks")
        if process.returncode != 0 or len(found) < workers:
            sys.exit(f"{side} failed:\n{(folder / 'output.txt').read_text()[-4000:]}")
    return statistics.median(peak for peak, _ in found), statistics.median(held for _, held in found)


def _watch(process: subprocess.Popen[bytes], marks: Path) -> list[Sizes]:
    """Of each process that has marked a step, until the command has ended."""
    found: dict[str, Sizes] = {}
    while process.poll() is None:
        for pid in (mark.name for mark in marks.iterdir()):
            try:
                peak, anonymous = (_bytes(Path(f"/proc/{pid}/status"), name) for name in ("VmHWM:", "RssAnon:"))
                held = anonymous + _regions(Path(f"/proc/{pid}/fd"))
            except (OSError, StopIteration, RuntimeError):  # it has ended
                continue
            found[pid] = peak, max(held, found.get(pid, (0.0, 0.0))[1])
        time.sleep(EVERY_S)
    return list(found.values())


def _bytes(file: Path, name: str) -> float:
    return next(float(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(name))


def _regions(descriptors: Path) -> float:
    """The bytes of the memfds that a process has open: those that it made."""
    found = 0
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).startswith("/memfd:"):
                found += descriptor.stat().st_blocks * 512
    return float(found)


def _ddp(rank: int, workers: int, chosen: argparse.Namespace) -> None:
    """The loop as the documentation of torch has it: micro-batches are accumulated, the last one is reduced."""
    torch.set_num_threads(1)
    meeting = Path(chosen.ddp).parent / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=workers)
    inner = wide.model(chosen.hidden)
    optimizer = wide.optimizer(inner, Path(chosen.ddp))
    model = DistributedDataParallel(inner)
    own = len(range(rank, chosen.shards, workers))
    for _ in range(chosen.steps):
        optimizer.zero_grad()
        for micro in range(own):
            model.require_backward_grad_sync = micro == own - 1
            inputs, targets = torch.randn(wide.ROWS, wide.INPUTS), torch.randn(wide.ROWS, wide.INPUTS)
            functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
