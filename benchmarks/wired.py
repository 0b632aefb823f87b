"""Models that are trained here and by DDP; both mark each step with the time and the bytes of the wire.

    python -m benchmarks.wired FOLDER '{"model": "mlp", "rank": 0, "world": 2, ...}'      one process of DDP

A mark is a line `<CLOCK_MONOTONIC in s> <step> <bytes sent> <bytes received>` in a file that is named for the host and the
process, written when the step's first micro-batch begins. All hosts share the machine's clock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks import wide
from benchmarks.namespaces import here, traffic
from orchestrator import Pipeline
from orchestrator.data.fetching import fetch
from pipelines.characters import Characters
from pipelines.digits import Digits

HIDDEN = 4096  # 25 million parameters
RATE = 0.001
WARM_UP = 3  # steps that are not counted: the first fits the grid and computes twice
Marks = dict[int, dict[int, list[float]]]  # host -> step -> when it began there, bytes sent and received until then


class _Marks:
    """folder: of the marks. sleep_s: of each micro-batch, and on the host `slow` `factor` times as long."""

    def __init__(self, folder: str, sleep_s: float, slow: int, factor: float) -> None:
        self._host = here()
        self._path = Path(folder) / f"{self._host}-{os.getpid()}"
        self._sleep_s = sleep_s * (factor if self._host == slow else 1.0)
        self._last = -1

    def micro_batch(self, step: int) -> None:
        if step != self._last:
            sent, received = traffic()
            with self._path.open("a") as file:
                file.write(f"{time.monotonic():.6f} {step} {sent} {received}\n")
            self._last = step
        if self._sleep_s:
            time.sleep(self._sleep_s)


class Mlp(Pipeline):
    """Wide layers on random numbers."""

    def __init__(
        self, folder: str, hidden: int = HIDDEN, sleep_s: float = 0.0, slow: int = -1, factor: float = 1.0
    ) -> None:
        self._hidden = hidden
        self._marks = _Marks(folder, sleep_s, slow, factor)

    def model(self) -> nn.Module:
        return wide.model(self._hidden)

    def datasets(self) -> tuple[TensorDataset, None]:
        draw = torch.Generator().manual_seed(0)
        inputs, targets = (torch.randn(64 * wide.ROWS, wide.INPUTS, generator=draw) for _ in range(2))
        return TensorDataset(inputs, targets), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor], step: int = 0) -> Tensor:
        self._marks.micro_batch(step)
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)


class Text(Characters):
    """pipelines/characters.py."""

    def __init__(self, folder: str, sleep_s: float = 0.0, slow: int = -1, factor: float = 1.0) -> None:
        super().__init__()
        self._marks = _Marks(folder, sleep_s, slow, factor)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor], step: int = 0) -> Tensor:
        if model.training:
            self._marks.micro_batch(step)
        return super().loss(model, batch)


class Images(Digits):
    """pipelines/digits.py."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._marks = _Marks(folder, 0.0, -1, 1.0)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor], step: int = 0) -> Tensor:
        if model.training:
            self._marks.micro_batch(step)
        return super().loss(model, batch)


MODELS: dict[str, Any] = {"mlp": Mlp, "characters": Text, "digits": Images}


def train(
    folder: str,
    model: str,
    rank: int,
    world: int,
    meeting: str,
    interface: str,
    shards: int,
    steps: int,
    rows: int = wide.ROWS,
    lr: float = RATE,
    clip: float | None = None,
    **args: Any,
) -> None:
    """One process of DDP, as the documentation of torch has it. meeting: a URL for `init_process_group`; shards: of each
    process, whose gradients add up before they are sent; rows: of each of them; args: of the pipeline."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    torch.manual_seed(0)
    pipeline = MODELS[model](folder, **args)
    replicated = DistributedDataParallel(pipeline.model())
    optimizer = torch.optim.AdamW(replicated.parameters(), lr=lr)
    items = pipeline.datasets()[0]
    for step in range(steps):
        optimizer.zero_grad()
        for shard in range(shards):
            first = ((step * world + rank) * shards + shard) * rows
            batch = fetch(items, [(first + row) % len(items) for row in range(rows)], pipeline.collate)
            last = shard == shards - 1
            with contextlib.nullcontext() if last else replicated.no_sync():
                (pipeline.loss(replicated, batch, step) / shards).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(replicated.parameters(), clip)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def marks_of(folder: Path) -> Marks:
    """The marks of all processes, without those of the warm-up: the first one of a host and a step counts."""
    marks: Marks = {}
    for path in folder.glob("[0-9]*-[0-9]*"):
        of_host = marks.setdefault(int(path.name.partition("-")[0]), {})
        for line in path.read_text().splitlines():
            at, step, *wire = map(float, line.split())
            if step >= WARM_UP:
                of_host[int(step)] = min(of_host.get(int(step), [at, *wire]), [at, *wire])
    return marks


def spans_of(marks: Marks) -> list[float]:
    """Seconds from step to step that all hosts have marked."""
    common = sorted(set.intersection(*map(set, marks.values())))
    began = [min(of_host[step][0] for of_host in marks.values()) for step in common]
    return [later - earlier for earlier, later in itertools.pairwise(began)]


if __name__ == "__main__":
    train(sys.argv[1], **json.loads(sys.argv[2]))
