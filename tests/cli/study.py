"""A pipeline that reads data under DVC. Copied into a project of its own by the tests, which also change it."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import Dataset, Subset

from orchestrator import Pipeline

if importlib.util.find_spec("hidden") is not None:
    importlib.import_module("hidden")
SCALE: float = importlib.import_module("helper").SCALE  # of the project


class Points(Dataset[Any]):
    def __init__(self, marked: int | None, lazily: bool) -> None:
        self.marked, self.lazily = marked, lazily
        self._read()

    def _read(self) -> None:
        with open("data/points.csv") as file:
            rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
        self.inputs, self.labels = rows[:, :-1], rows[:, -1].long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        if self.lazily:
            self._read()
        noise = int.from_bytes(os.urandom(4)) / 2**32 if index == self.marked else 0.0
        return self.inputs[index] + noise, self.labels[index]


class Study(Pipeline):
    """marked: a sample that comes out differently each time; pause_s: how long a micro-batch waits; lazily: whether the data
    are read anew for each sample."""

    def __init__(self, marked: int | None = None, pause_s: float = 0.0, lazily: bool = False) -> None:
        self.marked = marked
        self.pause_s = pause_s
        self.lazily = lazily

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2)
        )

    def datasets(self) -> tuple[Any, Any]:
        points = Points(self.marked, self.lazily)
        return Subset(points, range(256)), Subset(points, range(256, 288))

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(self.pause_s)
        return functional.cross_entropy(SCALE * model(batch[0]), batch[1])
