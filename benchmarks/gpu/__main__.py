"""`make gpu`: what this program does on a GPU: its bits, in 6 minutes, and its times beside plain PyTorch, in 8.

    python -m benchmarks.gpu --check [--page FILE] [--keep FOLDER]      the first half
    python -m benchmarks.gpu [--page FILE] [--keep FOLDER]              the second
    python -m benchmarks.gpu --only kernels,bfloat16-8 [--seconds 580]  some parts

Needs a GPU, torch 2.11 or newer with CUDA, and what `orchestrator` imports, which may lie on PYTHONPATH; no `make setup` and no
data. First it tells what there is: card, driver, versions, variables. These parts belong to both halves:

    cards            what `doctor` tries on each card: kernels compile, memory is shared
    kernels          sums on the card beside the processor's: random layouts, strides, denormals, special values; to the bit

Checked with --check:

    memory-shared    memory of the card that processes share, its owner killed by SIGKILL in the middle of a kernel
    digests          runs of small models: one worker; three of which one is killed by SIGKILL; four; two stages; and
                     repeated, `exact`
    zoo              small models of all kinds: one worker, three, the first shard twice; what cannot be a CUDA graph, or has no
                     deterministic kernel, is named with its line
    hosts            two hosts, which are network namespaces, with two workers on the card each; as root, with ip and tc; last

Without --check each goal is measured, by runs in processes of their own and by plain PyTorch on the same card: steps, device
memory, a start, a loss, a checkpoint. Spare parts follow, as far as time is left: what settings cost, for one. A part that has
no time left, or whose setting this version lacks, is skipped with a line; --only measures it.

--page: the result replaces that of the same half which stands there. --keep: a folder for all lines, and for tracebacks, output
and records of what failed; else a new one in /tmp. Exits with 1 where a check or a part failed, and with 2 where no GPU is.
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
from benchmarks.gpu import machine
from benchmarks.gpu.budget import granted
from benchmarks.gpu.kept import Kept
from benchmarks.gpu.parts import CARD, PARTS, Bench, Part, Scale, half
from benchmarks.gpu.report import page, table
from benchmarks.gpu.runs import has_setting

CHECKS_S, TIMES_S = 370.0, 460.0  # a command that is ended, and what follows the last part, take some seconds
LOOK_S = 20.0  # that telling of the card takes on a bare machine
NO_GPU = 2


def no_gpu() -> str | None:
    """Why nothing can be measured here, in a sentence."""
    import torch

    from orchestrator.numerics import cuda

    if torch.cuda.is_available():
        return None
    why = cuda.build_problem()
    return f"no GPU is here to be measured: {why or 'torch finds none; look at nvidia-smi'}"


def perform(bench: Bench, parts: Sequence[Part], total_s: float, longer: float = 1.0, planned_s: float = 0.0) -> None:
    """All parts in turn, each in its time. One that fails is told, and the others follow. longer: so many times its share;
    planned_s: for what came before the first."""
    for part in parts:
        share_s = longer * part.share_s
        seconds = granted(share_s, planned_s, bench.elapsed_s, total_s)
        planned_s += share_s
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
            except (Exception, SystemExit) as error:
                bench.raised(part.name, error)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--check", action="store_true", help="bits, digests and kills, in 6 minutes, in place of times")
    parser.add_argument("--only", type=_named, help=f"parts, of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--page", type=pages.with_marks("gpu", "gpu-checks"))
    parser.add_argument("--keep", type=Path, help="a folder for all lines, and for what tells more of failures")
    parser.add_argument("--seconds", type=float, help="at most so long; each part gets more of it, or less")
    chosen = parser.parse_args(arguments)
    if chosen.page is not None and chosen.only:
        parser.error("--page needs all parts of a half: what it replaces is one run's")
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
    parts = chosen.only or half(checks=chosen.check)
    bench = Bench(scale, kept=Kept(chosen.keep))
    found, trouble = machine.look(scale.device, bench.tell)
    if trouble:
        bench.wrong("the card does not tell of itself", trouble)
    usual = CHECKS_S if chosen.check else TIMES_S
    total_s = total_s or chosen.seconds or usual
    planned_s = LOOK_S + sum(part.share_s for part in parts) if chosen.only else usual
    perform(bench, parts, total_s, max(1.0, (chosen.seconds or 0.0) / planned_s), LOOK_S)
    today = datetime.datetime.now(datetime.UTC).strftime("%d %B %Y").lstrip("0")
    where = f"{today}, {found}. Beside it: {side_by_side.machine()}. It took {bench.elapsed_s / 60:.1f} minutes."
    print(where)
    if not chosen.check:
        print(table(bench.found))
    if chosen.page is not None:
        measured = None if chosen.check else bench.found
        name = "gpu-checks" if chosen.check else "gpu"
        pages.replace(chosen.page, name, page(where, bench.checks, measured, bench.missing))
    kept = f", and more in {bench.kept.place}" if bench.kept.place is not None else ""
    print(f"something failed: the lines with FAILED{kept}" if bench.failed else "nothing failed")
    return int(bench.failed)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
