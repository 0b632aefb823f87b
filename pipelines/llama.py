"""A Llama that predicts the next token of a text: 1.3 billion parameters as it stands, in stages where no card holds so many.

Architecture: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), section 2.2, with grouped heads
(Ainslie et al., "GQA", 2023): RMSNorm before each part of a block, rotary positions, and SwiGLU. Nothing is tied.

The folder of the data has train.npy and validation.npy: tokens, whole numbers below `vocabulary`. Each of the `groups` of heads
shares keys and values.

Legend: B = rows, T = tokens of a window, C = width, H = heads, D = C / H, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator import Pipeline
from pipelines.characters import Windows

BASE = 10_000.0  # of the wavelengths: Su et al., "RoFormer" (2021), section 3.3

Batch = tuple[Tensor, Tensor]  # windows (B, T) int64, and the same one token later


class Llama(Pipeline):
    def __init__(
        self,
        width: int = 2048,
        layers: int = 24,
        heads: int = 16,
        groups: int = 4,
        inner: int = 6144,
        vocabulary: int = 32_000,
        window: int = 1024,
        folder: str = "data/characters",
    ) -> None:
        self.width, self.layers, self.inner = width, layers, inner
        self.heads, self.groups = heads, groups
        self.vocabulary, self.window = vocabulary, window
        self.folder = folder

    def model(self) -> nn.Module:
        with torch.device("meta"):  # without values, which are drawn once, below
            model = Transformer(self.vocabulary, self.width, self.layers, self.heads, self.groups, self.inner)
        return model.to_empty(device="cpu").apply(_initialise)

    def datasets(self) -> tuple[Windows, Windows]:
        return Windows("train", self.window, self.folder), Windows("validation", self.window, self.folder)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.wavelengths = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        turns = _turns(tokens.shape[1], self.wavelengths, tokens.device)
        hidden = self.embedding(tokens)  # (B, T, C)
        for block in self.blocks:
            hidden = block(hidden, turns)
        logits: Tensor = self.head(self.norm(hidden))  # (B, T, V)
        return logits


class Block(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm_attention = nn.RMSNorm(width, eps=1e-5)
        self.queries = nn.Linear(width, width, bias=False)
        self.keys_values = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.project(self._attend(self.norm_attention(hidden), turns))
        normed = self.norm_mlp(hidden)
        mixed: Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return hidden + mixed

    def _attend(self, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        rows, length, width = hidden.shape
        queries = self.queries(hidden).view(rows, length, self.heads, self.size).transpose(1, 2)  # (B, H, T, D)
        keys, values = self.keys_values(hidden).view(rows, length, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        queries, keys = _turned(queries, turns), _turned(keys, turns)
        mixed = functional.scaled_dot_product_attention(
            queries, self._shared(keys), self._shared(values), is_causal=True
        )
        return mixed.transpose(1, 2).reshape(rows, length, width)

    def _shared(self, each: Tensor) -> Tensor:
        """Keys or values of each group, once for each of its heads: (B, H, T, D)."""
        rows, groups, length, size = each.shape
        shared = each[:, :, None].expand(rows, groups, self.heads // groups, length, size)
        return shared.reshape(rows, self.heads, length, size)


def _turns(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine by which pairs of elements are turned at each position, (T, D / 2)."""
    speeds = BASE ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.outer(torch.arange(length, device=device), speeds)
    return angles.cos(), angles.sin()


def _turned(each: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys (B, H, T, D), turned by their position: the first half of the elements with the second."""
    (cosine, sine), (one, other) = turns, each.chunk(2, dim=-1)
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1).to(each.dtype)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.RMSNorm):
        nn.init.ones_(module.weight)
