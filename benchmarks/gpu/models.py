"""The models of `benchmarks.gpu`: self-contained, since a copy of this file is the project of each run.

All samples are random numbers, so nothing has to be there but this file and `pipelines/`. nap_s: of each sample that is read,
which makes a step last where a worker is to be killed in the middle; it sleeps where a CUDA graph does not see it.
Legend: B = rows, T = tokens of a row, C = width, V = tokens of the vocabulary.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from orchestrator import Pipeline
from pipelines import characters, digits, llama


class Slow(Dataset[Any]):
    """The items of `samples`, each after a nap."""

    def __init__(self, samples: TensorDataset, nap_s: float) -> None:
        self.samples = samples
        self.nap_s = nap_s

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.nap_s)
        return self.samples[index]


def read(samples: TensorDataset, nap_s: float) -> Dataset[Any]:
    return Slow(samples, nap_s) if nap_s else samples


def tokens(rows: int, length: int, vocabulary: int) -> TensorDataset:
    """Each token, and the one after it."""
    dice = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, vocabulary, (rows, length + 1), generator=dice)
    return TensorDataset(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())


class Gpt(Pipeline):
    """136 million parameters as it stands: a GPT without dropout, its output layer not tied to the embedding."""

    def __init__(
        self,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        vocabulary: int = 32_768,
        window: int = 256,
        nap_s: float = 0.0,
    ) -> None:
        self.width, self.layers, self.heads = width, layers, heads
        self.vocabulary, self.window = vocabulary, window
        self.nap_s = nap_s

    def model(self) -> nn.Module:
        return Transformer(self.width, self.layers, self.heads, self.vocabulary, self.window)

    def datasets(self) -> tuple[Dataset[Any], None]:
        return read(tokens(2048, self.window, self.vocabulary), self.nap_s), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


class Llama(llama.Llama):
    """1.3 billion parameters as it stands."""

    def datasets(self) -> tuple[Any, Any]:
        return tokens(512, self.window, self.vocabulary), None


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, vocabulary: int, window: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(window, width))
        self.blocks = nn.Sequential(*(characters.Block(width, heads, 0.0) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        hidden = self.embedding(inputs) + self.position[: inputs.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


class Digits(digits.Digits):
    """Convolutions, batch normalisation and dropout."""

    def __init__(self, nap_s: float = 0.0) -> None:
        super().__init__()
        self.nap_s = nap_s

    def datasets(self) -> tuple[Any, Any]:
        dice = torch.Generator().manual_seed(0)
        images, labels = torch.rand(1437, 1, 8, 8, generator=dice), torch.randint(0, 10, (1437,), generator=dice)
        return read(TensorDataset(images, labels), self.nap_s), None


class Characters(characters.Characters):
    """Attention, dropout, and an embedding that is tied to the output layer."""

    vocabulary = 95

    def __init__(self, nap_s: float = 0.0) -> None:
        super().__init__()
        self.nap_s = nap_s

    def model(self) -> nn.Module:
        return characters.GPT(self.vocabulary, self.width, self.layers, self.heads, self.window, self.dropout)

    def datasets(self) -> tuple[Any, Any]:
        return read(tokens(2048, self.window, self.vocabulary), self.nap_s), None


class Wide(Pipeline):
    """Rows of 256 kB, of which a micro-batch goes to the card beside what that computes. Its steps last by what sets their
    rate, so that loaders have read what comes next."""

    def __init__(self, nap_s: float = 0.0, width: int = 1 << 16) -> None:
        self.nap_s, self.width = nap_s, width

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.width, 32), nn.ReLU(), nn.Linear(32, 10))

    def datasets(self) -> tuple[Any, Any]:
        dice = torch.Generator().manual_seed(0)
        rows, labels = torch.rand(256, self.width, generator=dice), torch.randint(0, 10, (256,), generator=dice)
        return TensorDataset(rows, labels), None

    def rate(self, step: int) -> float:  # noqa: ARG002
        time.sleep(50 * self.nap_s)
        return 1.0

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, labels = batch
        return functional.cross_entropy(model(rows), labels)


class Sequences(Pipeline):
    """A recurrent network over tokens."""

    def __init__(self, nap_s: float = 0.0, width: int = 64, vocabulary: int = 50, window: int = 16) -> None:
        self.nap_s, self.width, self.vocabulary, self.window = nap_s, width, vocabulary, window

    def model(self) -> nn.Module:
        return Recurrent(self.width, self.vocabulary)

    def datasets(self) -> tuple[Any, Any]:
        return read(tokens(1024, self.window, self.vocabulary), self.nap_s), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


class Recurrent(nn.Module):
    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, _ = self.cells(self.embedding(inputs))
        logits: Tensor = self.head(hidden)
        return logits
