"""`make gpu`: what this program does on a GPU, in at most 8 minutes: its bits, then its times beside plain PyTorch.

    python -m benchmarks.gpu [--check] [--only kernels,bfloat16-8] [--page docs/benchmarks/gpu.md]

Needs a GPU, torch 2.11 or newer with CUDA, and what `orchestrator` imports, which may lie on PYTHONPATH; no `make setup` and no
data. Checked first, in 4 minutes (--check: these alone):

    kernels          sums on the card beside the processor's: random layouts, strides, denormals, special values; to the bit
    memory-shared    memory of the card that processes share, its owner killed by SIGKILL in the middle of a kernel
    digests          runs of small models: one worker; three of which one is killed by SIGKILL; four; two stages; and
                     repeated, `exact`
    hosts            two hosts, which are network namespaces, with two workers on the card each; as root, with ip and tc; last

Then times, each run in a process of its own beside plain PyTorch on the same card: steps, device memory, a start, a loss, a
checkpoint. A part that has no time left, or whose setting this version lacks, is skipped with a line; --only names parts.
--page: the result replaces the one that stands there. Exits with 1 where a check or a part failed, and with 2 where no GPU is.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import bench as side_by_side
from benchmarks import pages
from benchmarks.gpu.budget import granted
from benchmarks.gpu.parts import CARD, PARTS, Bench, Part, Scale
from benchmarks.gpu.report import page, table
from benchmarks.gpu.runs import OutOfTime, has_setting

CHECKS_S, ALL_S = 240.0, 460.0  # a command that is ended, and what follows the last part, take some seconds
NO_GPU = 2


def no_gpu() -> str | None:
    """Why nothing can be measured here, in a sentence."""
    import torch

    from orchestrator.numerics import cuda

    if torch.cuda.is_available():
        return None
    why = cuda.build_problem()
    return f"no GPU is here to be measured: {why or 'torch finds none; look at nvidia-smi'}"


def card(device: str) -> str:
    """The device, with its versions; starts CUDA in this process, so it comes last."""
    import torch

    from orchestrator.numerics import cuda

    if device != "cuda":
        return "no card: toy sizes on processors, which say nothing about speed"
    found, versions = torch.cuda.get_device_properties(0), cuda.describe()
    return (
        f"{found.name} ({found.multi_processor_count} multiprocessors, compute capability {found.major}.{found.minor}, "
        f"{found.total_memory / 2**30:.0f} GiB), driver {versions['driver']}, "
        f"CUDA {versions['cuda']}, cuDNN {versions['cudnn']}"
    )


def perform(bench: Bench, parts: Sequence[Part], total_s: float) -> None:
    """All parts in turn, each in its time. One that fails is told, and the others follow."""
    planned_s = 0.0
    for part in parts:
        seconds = granted(part.share_s, planned_s, bench.elapsed_s, total_s)
        planned_s += part.share_s
        if part.needs is not None and not has_setting("run", part.needs):
            bench.skipped(f"{part.name}: this version has no run.{part.needs}")
        elif seconds is None:
            bench.skipped(
                f"{part.name}: {bench.elapsed_s:.0f} of {total_s:.0f} s are over; --only {part.name} measures it"
            )
        else:
            bench.tell(f"{part.name}, at most {seconds:.0f} s")
            try:
                part.work(bench, seconds)
            except OutOfTime as error:
                bench.skipped(f"{part.name}: {error}")
            except (Exception, SystemExit) as error:
                bench.wrong(f"{part.name}: {str(error) or type(error).__name__}")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--check", action="store_true", help="bits, digests and kills alone; 4 minutes")
    parser.add_argument("--only", type=_named, help=f"parts, of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.page is not None and (chosen.check or chosen.only):
        parser.error("--page needs all parts: what it replaces is one run's")
    return chosen


def _named(text: str) -> list[Part]:
    known = {part.name: part for part in PARTS}
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in text.split(",")]


def main(arguments: Sequence[str] | None = None, scale: Scale = CARD, total_s: float | None = None) -> int:
    """scale, total_s: others than a card's in tests."""
    chosen = _parsed(arguments)
    if scale.device == "cuda" and (why := no_gpu()):
        print(why, file=sys.stderr)
        return NO_GPU
    parts = chosen.only or [part for part in PARTS if part.check or not chosen.check]
    bench = Bench(scale)
    perform(bench, parts, total_s or (CHECKS_S if chosen.check else ALL_S))
    today = datetime.datetime.now(datetime.UTC).strftime("%d %B %Y").lstrip("0")
    where = f"{today}, {card(scale.device)}; {side_by_side.machine()}; {bench.elapsed_s / 60:.1f} minutes."
    print(where)
    if not chosen.check:
        print(table(bench.found))
    if chosen.page is not None:
        pages.replace(chosen.page, "gpu", page(where, bench.checks, bench.found, bench.missing))
    print("something failed: the lines with FAILED" if bench.failed else "nothing failed")
    return int(bench.failed)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
