"""The cost of a checkpoint for training, beside a synchronous torch.save of the same state to the same disk, turn by turn.

    python -m benchmarks.checkpoint [--repeats 7] [--folder FOLDER] [--sizes 0.4 25 100]

The state is a model's parameters and AdamW's moments, three numbers per parameter. Everything is measured twice: with a core to
spare, and with every other core kept busy by another process, as where there is a worker per core. One turn is some quiet
steps; a checkpoint of ours, with training going on until it is written; and a torch.save, during which training stands still.

First table, how long training stands still. Ours: `begin` at the step boundary takes the state, and copies what cannot wait.
Then the step computes forward and backward while the state is copied beside it, and `wait` waits for the end of that copy,
before the optimizer changes what is copied. `stall` is `begin` and `wait` together. `first` is the stall without the memory
of a copy before. `save` is the whole call of torch.save; its file is then flushed, timed for `+ fsync`, so that neither
leaves work behind for the other.

Second table, what the steps lose: how much longer than `quiet` ones they take (`step`, on average, the wait not included).
They count from the first, beside which the state is copied, to the last, beside which it is hashed and written; `lost` is the
sum over all of them. `writing` is how long the background thread hashes and writes. `all` is stall and lost time together.
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

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.storage import LocalFolder
from orchestrator.checkpoint.writer import PartWriter
from orchestrator.worker.model.snapshot import capture

LAYERS = 24
WIDTHS = {"0.4": 128, "25": 1024, "100": 2048}  # millions of parameters -> width of each layer
BATCH = 8
QUIET_STEPS = 5


class Training:
    """Layers as wide as high, in one thread; a step is forward, backward and AdamW. All return seconds."""

    def __init__(self, width: int) -> None:
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self._inputs = torch.randn(BATCH, width)
        self.step()

    def compute(self) -> float:
        started = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self._inputs).square().mean().backward()
        return time.perf_counter() - started

    def update(self) -> float:
        started = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - started

    def step(self) -> float:
        return self.compute() + self.update()


class Ours:
    """One writer and one catalog over one folder."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._told: list[dict[str, Any]] = []
        storage = LocalFolder(folder)
        self.writer = PartWriter(storage, self._told.append)
        self._catalog = Catalog(storage, keep=1)
        self._steps = itertools.count()

    def step(self) -> tuple[float, float, float]:
        """A checkpoint, and the step that it is copied beside. Seconds: at the boundary, of the step, of the wait in it."""
        started = time.perf_counter()
        state = capture(self._training.model, self._training.optimizer, {"step": 0})
        self.writer.begin(state, step=next(self._steps), generation=0, part=0, parts=1)
        begun = time.perf_counter() - started
        computed = self._training.compute()
        started = time.perf_counter()
        self.writer.copied()
        waited = time.perf_counter() - started
        return begun, computed + self._training.update(), waited

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


def measure(training: Training, folder: Path, repeats: int) -> dict[str, list[float]]:
    """Column -> seconds of each turn."""
    times: dict[str, list[float]] = {}
    ours = Ours(training, folder / "steady")
    for turn in range(repeats + 1):
        found = _first(training, folder / "first") | _turn(training, ours)
        found["save"], found["flushed"] = torch_save(training, folder / "state.pt")
        if turn > 0:
            for column, seconds in found.items():
                times.setdefault(column, []).append(seconds)
    ours.writer.close()
    return times


def _first(training: Training, folder: Path) -> dict[str, float]:
    fresh = Ours(training, folder)
    begun, _, waited = fresh.step()
    fresh.finish()
    fresh.writer.close()
    return {"first": begun + waited}


def _turn(training: Training, ours: Ours) -> dict[str, float]:
    quiet = statistics.median(training.step() for _ in range(QUIET_STEPS))
    begun, stepped, waited = ours.step()
    steps = [stepped]
    while ours.writer.busy:
        steps.append(training.step())
    return {
        "begin": begun,
        "wait": waited,
        "stall": begun + waited,
        "quiet": quiet,
        "step": statistics.mean(steps),
        "lost": sum(steps) - quiet * len(steps),
        "writing": ours.finish(),
    }


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
    _print_following(medians)


def _print_stalls(sizes: Sequence[str], folder: Path | None, repeats: int) -> dict[tuple[str, str], dict[str, float]]:
    """Measure, row by row; columns by size and cores."""
    columns = ("begin", "wait", "stall", "first", "save", "flushed")
    titles = "".join(f"{title:>10}" for title in (*columns[:-1], "+ fsync"))
    print(f"{'million':>8}  {'cores':<6}{titles}{'/ save':>9}{'/ fsync':>9}")
    medians = {}
    for size in sizes:
        for cores, surroundings in (("spare", nullcontext), ("busy", other_cores_busy)):
            with tempfile.TemporaryDirectory(dir=folder) as place, surroundings():
                times = measure(Training(WIDTHS[size]), Path(place), repeats)
            seconds = medians[size, cores] = {column: statistics.median(each) for column, each in times.items()}
            figures = [f"{seconds[column] * 1e3:>10.2f}" for column in columns]
            ratios = [f"{seconds['stall'] / seconds[column]:>9.3f}" for column in ("save", "flushed")]
            print(f"{size:>8}  {cores:<6}" + "".join([*figures, *ratios]), flush=True)
    return medians


def _print_following(medians: dict[tuple[str, str], dict[str, float]]) -> None:
    columns = ("quiet", "step", "writing", "lost")
    titles = "".join(f"{title:>10}" for title in columns)
    print(f"\n{'million':>8}  {'cores':<6}{titles}{'all / save':>12}{'all / fsync':>12}")
    for (size, cores), seconds in medians.items():
        figures = [f"{seconds[column] * 1e3:>10.2f}" for column in columns]
        everything = seconds["stall"] + seconds["lost"]
        ratios = [f"{everything / seconds[column]:>12.3f}" for column in ("save", "flushed")]
        print(f"{size:>8}  {cores:<6}" + "".join([*figures, *ratios]))


if __name__ == "__main__":
    main()
