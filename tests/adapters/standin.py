"""Stand-ins for Lightning and torchmetrics, whose import takes ten seconds of a processor. `test_lightning_itself.py` has the
true ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LightningModule(nn.Module):
    automatic_optimization = True
    trainer: Any = None
    log: Any = None

    def training_step(self, *_: Any) -> Any:
        raise NotImplementedError


LightningModule.__module__ = "lightning.pytorch.core.module"


def dim_zero_sum(values: torch.Tensor) -> torch.Tensor:
    return values.sum(0)


class Metric(nn.Module):
    """The form of torchmetrics' own: states by name, each with the function that puts it together."""

    def __init__(self, **reductions: Any) -> None:
        super().__init__()
        self._reductions = reductions
        self._update_count = 0

    def reset(self) -> None:
        for state in self._reductions:
            setattr(self, state, torch.tensor(0))


Metric.__module__ = "torchmetrics.metric"


class Hits(Metric):
    """The share of right answers, in hundredths."""

    right: torch.Tensor
    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__(right=dim_zero_sum, rows=dim_zero_sum)
        self.reset()

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.right = self.right + (outputs.argmax(1) == labels).sum()
        self.rows = self.rows + len(labels)

    def compute(self) -> torch.Tensor:
        return torch.round(100 * self.right / self.rows)


class CompositionalMetric(Metric):
    """A metric times a number."""

    def __init__(self, metric: Metric, factor: float) -> None:
        super().__init__()
        self.metric_a, self.factor = metric, factor

    def reset(self) -> None:
        self.metric_a.reset()

    def compute(self) -> Any:
        return self.metric_a.compute() * self.factor  # type: ignore[operator]


class Lit(LightningModule):
    """A module that fits."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(2, width)
        self.hits = Hits()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(inputs)
        return found

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        inputs, labels = batch
        self.hits(self(inputs), labels)
        self.log("hits", self.hits)
        self.log("loss_there", self._loss(batch), on_epoch=True)
        self.log("seen", len(inputs), reduce_fx="sum")
        self.log("widest", inputs.abs().max(), reduce_fx=torch.max)
        self.log("halved", inputs[:, 0].mean(), batch_size=len(inputs) // 2)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    def _loss(self, batch: Any) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self(inputs), labels)


class Data:
    """A data module that fits."""

    def __init__(self, rows: int = 40) -> None:
        self.rows = rows
        self.said: list[str] = []

    def prepare_data(self) -> None:
        self.said.append("prepared")

    def setup(self, stage: str) -> None:
        self.said.append(stage)
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.rows + 23, 2, generator=generator)
        labels = torch.randint(3, (self.rows + 23,), generator=generator)
        self.train = TensorDataset(inputs[: self.rows], labels[: self.rows])
        self.held_out = TensorDataset(inputs[self.rows :], labels[self.rows :])

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, 10, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.held_out, 10)
