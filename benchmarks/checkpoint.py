"""What a checkpoint costs training here, beside a synchronous torch.save of the same state to the same disk, turn by turn.

    python -m benchmarks.checkpoint [--repeats 7] [--folder FOLDER] [--sizes 0.4 25 100]

The state is a model's parameters and AdamW's moments, three numbers per parameter. Ours: `stall` is what the step boundary
waits for (taking the state and copying it), `first` the same without the memory of a copy before, `prepared` the first
one after `Writer.prepare`. torch.save is the whole call; its file is then flushed, timed for the second column, so that neither
leaves work behind for the other.

The second table is about the steps that follow: how much longer they take while the background thread hashes and writes,
once with a core to spare and once with every other core kept busy by another process, as where there is a worker per core.
`all` is stall and lost time together.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from orchestrator.checkpoints.catalog import Catalog
from orchestrator.checkpoints.storage import LocalFolder
from orchestrator.checkpoints.writer import Writer
from orchestrator.engine.state import capture

LAYERS = 24
WIDTHS = {"0.4": 128, "25": 1024, "100": 2048}  # millions of parameters -> width of each layer
BATCH = 8
QUIET_STEPS = 5


class Training:
    """Layers as wide as high, in one thread; a step is forward, backward and AdamW."""

    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self._inputs = torch.randn(BATCH, width)
        self.step()

    def step(self) -> float:
        """Seconds."""
        started = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self._inputs).square().mean().backward()
        self.optimizer.step()
        return time.perf_counter() - started


class Ours:
    """One writer and one catalog over one folder."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._told: list[dict[str, Any]] = []
        storage = LocalFolder(folder)
        self.writer = Writer(storage, self._told.append)
        self._catalog = Catalog(storage, keep=1)
        self._steps = itertools.count()

    def prepare(self) -> None:
        self.writer.prepare(capture(self._training.model, self._training.optimizer, {}), part=0, parts=1)
        self.writer.wait()

    def begin(self) -> float:
        """Seconds of the stall."""
        started = time.perf_counter()
        state = capture(self._training.model, self._training.optimizer, {"step": 0})
        self.writer.begin(state, step=next(self._steps), generation=0, part=0, parts=1)
        return time.perf_counter() - started

    def finish(self) -> float:
        """Wait and commit; seconds that the background thread took."""
        self.writer.wait()
        (written,) = self._told
        self._told.clear()
        self._catalog.commit(written["step"], [written])
        return float(written["seconds"])


def torch_save(training: Training, path: Path) -> tuple[float, float]:
    """Seconds without and with a flush to the disk."""
    started = time.perf_counter()
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        saved = time.perf_counter() - started
        os.fsync(file.fileno())
    return saved, time.perf_counter() - started


def stalls(training: Training, folder: Path, repeats: int) -> dict[str, float]:
    """Column -> median seconds."""
    times: dict[str, list[float]] = {}
    ours = Ours(training, folder / "steady")
    for turn in range(repeats + 1):
        for column, prepared in (("first", False), ("prepared", True)):
            fresh = Ours(training, folder / column)
            if prepared:
                fresh.prepare()
            times.setdefault(column, []).append(fresh.begin())
            fresh.finish()
            fresh.writer.close()
        stall = ours.begin()
        ours.finish()
        save, flushed = torch_save(training, folder / "state.pt")
        if turn > 0:
            for column, seconds in (("stall", stall), ("save", save), ("flushed", flushed)):
                times.setdefault(column, []).append(seconds)
    return {column: statistics.median(seconds) for column, seconds in times.items()}


def following(training: Training, folder: Path, repeats: int) -> dict[str, float]:
    """The steps while a checkpoint is written: column -> median seconds."""
    times: dict[str, list[float]] = {"quiet": [], "busy": [], "writing": [], "lost": []}
    ours = Ours(training, folder / "following")
    ours.begin()
    ours.finish()
    for _ in range(repeats):
        quiet = statistics.median(training.step() for _ in range(QUIET_STEPS))
        ours.begin()
        steps = [training.step()]
        while ours.writer.busy:
            steps.append(training.step())
        times["quiet"].append(quiet)
        times["busy"].append(statistics.mean(steps))
        times["lost"].append(sum(steps) - quiet * len(steps))
        times["writing"].append(ours.finish())
    return {column: statistics.median(seconds) for column, seconds in times.items()}


@contextmanager
def other_cores_busy() -> Iterator[None]:
    """A process for each core but one, working in float32 as another worker would."""
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0))
    others = [context.Process(target=_work, daemon=True) for _ in range(cores - 1)]
    for other in others:
        other.start()
    time.sleep(5)  # they import torch
    try:
        yield
    finally:
        for other in others:
            other.terminate()
            other.join()


def _work() -> None:
    torch.set_num_threads(1)
    matrix = torch.randn(512, 512)
    while True:
        matrix @ matrix


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to measure; default: where temporary files are"
    )
    parser.add_argument("--sizes", nargs="+", choices=WIDTHS, default=list(WIDTHS), help="millions of parameters")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    medians = _print_stalls(chosen.sizes, chosen.folder, chosen.repeats)
    _print_following(medians, chosen.folder, chosen.repeats)


def _print_stalls(sizes: Sequence[str], folder: Path | None, repeats: int) -> dict[str, dict[str, float]]:
    columns = ("stall", "first", "prepared", "save", "flushed")
    print(
        f"{'million':>8}{'stall':>10}{'first':>10}{'prepared':>10}{'save':>10}{'+ fsync':>10}{'/ save':>9}{'/ fsync':>9}"
    )
    medians = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            seconds = medians[size] = stalls(Training(WIDTHS[size]), Path(place), repeats)
        figures = [f"{seconds[column] * 1e3:>10.2f}" for column in columns]
        ratios = [f"{seconds['stall'] / seconds[column]:>9.3f}" for column in ("save", "flushed")]
        print(f"{size:>8}" + "".join([*figures, *ratios]), flush=True)
    return medians


def _print_following(medians: dict[str, dict[str, float]], folder: Path | None, repeats: int) -> None:
    titles = "".join(f"{title:>10}" for title in ("quiet", "step", "writing", "lost"))
    print(f"\n{'million':>8}  {'cores':<6}{titles}{'all / save':>12}{'all / fsync':>12}")
    for size, before in medians.items():
        for cores, surroundings in (("spare", nullcontext), ("busy", other_cores_busy)):
            with tempfile.TemporaryDirectory(dir=folder) as place, surroundings():
                after = following(Training(WIDTHS[size]), Path(place), repeats)
            figures = [f"{after[column] * 1e3:>10.2f}" for column in ("quiet", "busy", "writing", "lost")]
            everything = before["stall"] + after["lost"]
            ratios = [f"{everything / before[column]:>12.3f}" for column in ("save", "flushed")]
            print(f"{size:>8}  {cores:<6}" + "".join([*figures, *ratios]), flush=True)


if __name__ == "__main__":
    main()
