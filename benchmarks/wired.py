"""The models of benchmarks/hosts.py, trained here and by DDP; both mark each step with the time and the bytes of the wire.

    python -m benchmarks.wired FOLDER '{"model": "mlp", "rank": 0, "world": 2, ...}'      one process of DDP

A mark is a line `<CLOCK_MONOTONIC in s> <step> <bytes sent> <bytes received>` in a file that is named for the host and the
process, written when the step's first micro-batch begins. All hosts share the machine's clock.
"""

from __future__ import annotations

import contextlib
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

from benchmarks.namespaces import here, interface, traffic
from orchestrator import Pipeline
from pipelines.characters import Characters

INPUTS, HIDDEN = 1024, 4096
ROWS = 8  # of a shard
RATE = 0.001


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
        time.sleep(self._sleep_s)


class Mlp(Pipeline):
    """25 million parameters on random numbers."""

    def __init__(self, folder: str, sleep_s: float = 0.0, slow: int = -1, factor: float = 1.0) -> None:
        self._marks = _Marks(folder, sleep_s, slow, factor)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, INPUTS)
        )

    def datasets(self) -> tuple[TensorDataset, None]:
        draw = torch.Generator().manual_seed(0)
        inputs, targets = (torch.randn(64 * ROWS, INPUTS, generator=draw) for _ in range(2))
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


MODELS: dict[str, Any] = {"mlp": Mlp, "characters": Text}


def train(folder: str, model: str, rank: int, world: int, master: str, shards: int, steps: int, **pace: Any) -> None:
    """One process of DDP. shards: of each process, whose gradients add up before they are sent."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface(here())
    dist.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=world)
    torch.manual_seed(0)
    pipeline = MODELS[model](folder, **pace)
    replicated = DistributedDataParallel(pipeline.model())
    optimizer = torch.optim.AdamW(replicated.parameters(), lr=RATE)
    items = pipeline.datasets()[0]
    for step in range(steps):
        optimizer.zero_grad()
        for shard in range(shards):
            first = ((step * world + rank) * shards + shard) * ROWS
            rows = [items[(first + row) % len(items)] for row in range(ROWS)]
            batch = tuple(torch.stack(column) for column in zip(*rows, strict=True))
            last = shard == shards - 1
            with contextlib.nullcontext() if last else replicated.no_sync():
                (pipeline.loss(replicated, batch, step) / shards).backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1], **json.loads(sys.argv[2]))
