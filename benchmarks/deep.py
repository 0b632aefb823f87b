"""The models of benchmarks/stages.py: the GPT of pipelines/characters.py, and wide layers, on random data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline
from pipelines.characters import GPT

SAMPLES = 256
VOCABULARY = 512


class Deep(Pipeline):
    """A GPT: computation is what counts."""

    def __init__(self, width: int = 256, layers: int = 8, window: int = 128) -> None:
        self.width = width
        self.layers = layers
        self.window = window

    def model(self) -> nn.Module:
        return GPT(VOCABULARY, self.width, self.layers, 8, self.window, 0.1)

    def datasets(self) -> tuple[TensorDataset, None]:
        tokens = torch.randint(0, VOCABULARY, (SAMPLES, self.window + 1))
        return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), None

    def loss(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


class Wide(Pipeline):
    """Many parameters, little computation: memory is what counts."""

    def __init__(self, width: int = 1024, layers: int = 24) -> None:
        self.width = width
        self.layers = layers

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(self.layers):
            layers += [nn.Linear(self.width, self.width), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(self.width, 10))

    def datasets(self) -> tuple[TensorDataset, None]:
        return TensorDataset(torch.randn(SAMPLES, self.width), torch.randint(0, 10, (SAMPLES,))), None

    def loss(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])


def part(model: GPT, stage: int, stages: int) -> nn.Module:
    """One stage of it as torch.distributed.pipelining wants it: a module of one tensor. Its output layer is not tied."""
    blocks = list(model.blocks.children())
    blocks = blocks[len(blocks) * stage // stages : len(blocks) * (stage + 1) // stages]
    head = nn.Linear(model.head.in_features, model.head.out_features, bias=False)
    layers: list[nn.Module] = [*([_Begin(model)] if stage == 0 else []), *blocks]
    return nn.Sequential(*layers, *([model.norm, head] if stage == stages - 1 else []))


class _Begin(nn.Module):
    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.embedding, self.position, self.dropout = model.embedding, model.position, model.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(self.embedding(tokens) + self.position(torch.arange(tokens.shape[1])))
        return hidden
