"""A small GPT that predicts the next character, with dropout and an embedding tied to its output layer.

Architecture: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3, made small.
Legend: B = rows, T = characters of a window, C = width, V = characters of the vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from orchestrator import Pipeline

FOLDER = Path("data/characters")

Batch = tuple[Tensor, Tensor]  # windows (B, T) int64, and the same one character later


class Characters(Pipeline):
    def __init__(
        self, width: int = 128, layers: int = 2, heads: int = 4, window: int = 64, dropout: float = 0.1
    ) -> None:
        self.width = width
        self.layers = layers
        self.heads = heads
        self.window = window
        self.dropout = dropout

    def model(self) -> nn.Module:
        vocabulary = json.loads((FOLDER / "vocabulary.json").read_text())
        return GPT(len(vocabulary), self.width, self.layers, self.heads, self.window, self.dropout)

    def datasets(self) -> tuple[Windows, Windows]:
        return Windows("train", self.window), Windows("validation", self.window)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        inputs, targets = batch
        return {"accuracy": (model(inputs).argmax(-1) == targets).float().mean()}


class Windows(Dataset[Batch]):
    """The text, cut into windows that do not overlap."""

    def __init__(self, part: str, window: int, folder: str | Path = FOLDER) -> None:
        self.tokens = torch.from_numpy(numpy.load(Path(folder) / f"{part}.npy")).long()
        self.window = window

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, index: int) -> Batch:
        start = index * self.window
        return self.tokens[start : start + self.window], self.tokens[start + 1 : start + 1 + self.window]


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, window: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.dropout(self.embedding(tokens) + self.position(positions))  # (B, T, C)
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))  # (B, T, V)
        return logits


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._drop(self.project(self._attend(self.norm_attention(hidden))))
        return hidden + self._drop(self.mlp(self.norm_mlp(hidden)))

    def _attend(self, hidden: Tensor) -> Tensor:
        rows, length, width = hidden.shape
        parts = self.queries_keys_values(hidden).view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # each (B, heads, T, C / heads)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
        return mixed.transpose(1, 2).reshape(rows, length, width)

    def _drop(self, hidden: Tensor) -> Tensor:
        return functional.dropout(hidden, self.dropout, self.training)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
