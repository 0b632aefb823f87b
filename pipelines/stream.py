"""A small GPT that predicts the next byte of source code, whose files need not fit the disk: `pipelines/prepare_stream.py`.

    place    a folder, or any URL that fsspec reads: s3://bucket/stream, gs://..., local:///data/stream

Documents are packed into windows. A target counts where it belongs to the same document as its input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator import Files, Packed, Pipeline
from pipelines.characters import GPT

COUNTS = Path("data/stream")
BYTES = 256


class Stream(Pipeline):
    def __init__(
        self,
        place: str = "data/stream",
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        window: int = 64,
        dropout: float = 0.1,
    ) -> None:
        self.place = place
        self.width = width
        self.layers = layers
        self.heads = heads
        self.window = window
        self.dropout = dropout

    def model(self) -> nn.Module:
        return GPT(BYTES, self.width, self.layers, self.heads, self.window, self.dropout)

    def datasets(self) -> tuple[Any, Any]:
        return self._part("train"), self._part("validation")

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, targets, counts = self._predicted(model, batch)
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        weight = counts.sum()
        return (losses * counts.flatten()).sum() / weight, weight

    def metrics(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        logits, targets, counts = self._predicted(model, batch)
        return {"accuracy": ((logits.argmax(-1) == targets) * counts).sum() / counts.sum()}

    def example(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["tokens"][:, :-1]

    def _part(self, name: str) -> Packed:
        counts = numpy.load(COUNTS / f"{name}.npy", mmap_mode="r")
        return Packed(Files(f"{self.place}/{name}"), self.window + 1, counts, bytes_of)

    def _predicted(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, T, V), targets (B, T), and 1 where a target counts (B, T)."""
        tokens, document = batch["tokens"], batch["document"]
        return model(tokens[:, :-1]), tokens[:, 1:], (document[:, 1:] == document[:, :-1]).to(torch.float32)


def bytes_of(row: dict[str, Any]) -> numpy.ndarray[Any, Any]:
    return numpy.frombuffer(row["text"].encode(), numpy.uint8)
