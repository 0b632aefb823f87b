"""A pipeline whose samples come from elsewhere and are given once; it is copied into a project of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from orchestrator import Pipeline, Stream


class Random(Stream):
    """Samples from the machine's source of randomness."""

    live = True

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:  # noqa: ARG002
        while True:
            given = os.urandom(9)
            yield {"x": torch.tensor([each / 255 for each in given[:8]]), "y": given[8] % 3}


class Feed(Pipeline):
    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def datasets(self) -> tuple[Any, Any]:
        return Random(), None

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(self._pause)
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])
