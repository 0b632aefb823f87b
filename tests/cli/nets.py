"""Pipelines of a project of its own: a language model of Hugging Face, from a configuration, and a U-Net with its skips."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline

ROWS, HELD_OUT = 61, 9
VOCABULARY, LENGTH = 60, 16
CHANNELS, CLASSES, SIDE = 3, 4, 16


class Gpt2(Pipeline):
    """Its output layer is tied to its embedding."""

    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        tokens = torch.randint(VOCABULARY, (ROWS + HELD_OUT, LENGTH))
        return TensorDataset(tokens[:ROWS]), TensorDataset(tokens[ROWS:])

    def model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        model: nn.Module = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=48, n_layer=6, n_head=4, use_cache=False)
        )
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        (tokens,) = batch
        return model(input_ids=tokens, labels=tokens).loss


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(CHANNELS, 8), _block(8, 16), _block(16, 32)])
        self.bottom = _block(32, 32)
        self.up = nn.ModuleList([_block(64, 16), _block(32, 8), _block(16, 8)])
        self.dropout = nn.Dropout2d(0.1)
        self.out = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = functional.max_pool2d(skips[-1], 2)
        x = self.dropout(self.bottom(x))
        for block in self.up:
            x = block(torch.cat([functional.interpolate(x, scale_factor=2), skips.pop()], 1))
        out: Tensor = self.out(x)
        return out


class UNet(Pipeline):
    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        images = torch.randn(ROWS + HELD_OUT, CHANNELS, SIDE, SIDE)
        labels = torch.randint(CLASSES, (ROWS + HELD_OUT, SIDE, SIDE))
        return TensorDataset(images[:ROWS], labels[:ROWS]), TensorDataset(images[ROWS:], labels[ROWS:])

    def model(self) -> nn.Module:
        return _UNet()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}
