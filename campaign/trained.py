"""The pipeline under faults: a small network on random rows, in memory or in files; each process that makes it has traps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from campaign.traps import installed
from orchestrator import Files, Pipeline

FEATURES, CLASSES, WIDTH = 6, 3, 12

installed()  # here and not with the first instance: a driver that goes on with a run makes none


class Small(Pipeline):
    """rows: of the training set; files: the folder of them, where they are read from there."""

    def __init__(self, rows: int = 96, files: str | None = None) -> None:
        self._rows = rows
        self._files = files
        self._traps = installed()

    def datasets(self) -> tuple[Any, Any]:
        train, held_out = (self._drawn(rows) for rows in (self._rows, 12))
        return (train if self._files is None else Files(self._files)), held_out

    def _drawn(self, rows: int) -> TensorDataset:
        return TensorDataset(torch.randn(rows, FEATURES), torch.randint(CLASSES, (rows,)))

    def collate(self, items: Sequence[Any]) -> Any:
        if not isinstance(items[0], dict):
            return super().collate(items)
        return torch.tensor([each["x"] for each in items]), torch.tensor([each["y"] for each in items])

    def model(self) -> nn.Module:
        if self._traps is not None and not self._traps.in_driver:  # which builds one too, only to look at it
            self._traps.hit("prepare")
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, labels = batch
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean()}


def write_rows(folder: Path, rows: int = 96, files: int = 4) -> None:
    """The same kind of rows as files, for a data set that is read file by file."""
    dice = Random(1)
    folder.mkdir(parents=True)
    for number in range(files):
        lines = [
            json.dumps({"x": [dice.gauss(0, 1) for _ in range(FEATURES)], "y": dice.randrange(CLASSES)})
            for _ in range(rows // files)
        ]
        (folder / f"rows-{number}.jsonl").write_text("\n".join(lines) + "\n")
