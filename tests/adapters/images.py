"""A classifier of small images as somebody wrote it for Lightning: hyperparameters, batch normalisation, metrics of
torchmetrics, a cosine schedule, a data module."""

from __future__ import annotations

from typing import Any

import lightning
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split


class Images(lightning.LightningModule):
    def __init__(self, channels: int = 8, lr: float = 0.05) -> None:  # noqa: ARG002
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.head = nn.Linear(4 * channels, 4)
        self.train_accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.features(images).flatten(1))
        return found

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        images, labels = batch
        logits = self(images)
        loss = functional.cross_entropy(logits, labels)
        self.train_accuracy(logits, labels)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        images, labels = batch
        logits = self(images)
        self.accuracy(logits, labels)
        self.f1(logits, labels)
        self.log("val_loss", functional.cross_entropy(logits, labels), prog_bar=True)
        self.log("val_accuracy", self.accuracy)
        self.log_dict({"val_f1": self.f1})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Data(lightning.LightningDataModule):
    def __init__(self, rows: int = 200, batch_size: int = 32) -> None:  # noqa: ARG002
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:  # noqa: ARG002
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(4, (self.hparams["rows"],), generator=generator)
        images = torch.randn(len(labels), 1, 6, 6, generator=generator) + labels[:, None, None, None]
        self.train, self.held_out = random_split(
            TensorDataset(images, labels), [0.8, 0.2], generator=torch.Generator().manual_seed(1)
        )

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.hparams["batch_size"], shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.held_out, self.hparams["batch_size"])
