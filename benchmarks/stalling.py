"""A small network on the digits whose micro-batches take a given time, and whose workers may be slow or stall: for `synchrony`
and `rests`.

Sleeping changes no bit: which worker sleeps, and when, decides only the order of updates.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline
from pipelines.digits import Digits

Batch = tuple[Tensor, Tensor]


class Stalling(Pipeline):
    """sleep_s: of each micro-batch. factor: how much slower one worker is than the others, who is the first to come. stall:
    with which probability a micro-batch takes four more. pause_at: the micro-batch at which that worker pauses for 50 ms.
    folder: where processes mark what they have done; data: of the digits."""

    def __init__(
        self, folder: str, data: str, sleep_s: float = 0.02, factor: float = 1.0, stall: float = 0.0, pause_at: int = -1
    ) -> None:
        self.folder = Path(folder)
        self.data = Path(data)
        self.sleep_s = sleep_s
        self.factor = factor
        self.stall = stall
        self.pause_at = pause_at

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        return self._read("train"), self._read("test")

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(model(images), labels)
        if not model.training:  # an evaluation
            return loss
        waits = self.sleep_s * (self.factor if self.factor > 1 and self._is_slow() else 1.0)
        if self.stall and int.from_bytes(os.urandom(4)) < self.stall * 2**32:
            waits += 4 * self.sleep_s
        if step == self.pause_at and self._is_slow():
            waits += 0.05
        time.sleep(waits)
        return loss

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        images, labels = batch
        with (self.folder / f"evaluated-{os.getpid()}").open("a") as file:
            file.write(f"{time.monotonic()}\n")
        return {"accuracy": (model(images).argmax(1) == labels).float().mean()}

    def _is_slow(self) -> bool:
        """Whether this process is the first that asked."""
        own = self.folder / "slow"
        try:
            with own.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        return own.read_text() == str(os.getpid())

    def _read(self, part: str) -> Any:
        images = torch.from_numpy(numpy.load(self.data / f"{part}_images.npy")).float() / 16
        return TensorDataset(images, torch.from_numpy(numpy.load(self.data / f"{part}_labels.npy")).long())


class Marking(Stalling):
    """Marks each micro-batch of the training, when it is done."""

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Tensor:
        loss = super().loss(model, batch, step)
        if model.training:
            with (self.folder / f"updates-{os.getpid()}").open("a") as file:
                file.write(f"{time.monotonic()} {step}\n")
        return loss


class Convolutional(Stalling):
    """The network of the demo, which computes instead of sleeping."""

    def model(self) -> nn.Module:
        return Digits().model()

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Tensor:  # noqa: ARG002
        images, labels = batch
        return functional.cross_entropy(model(images), labels)
