"""Attention and what stands around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case, Draw

_attend = F.scaled_dot_product_attention


def _qkv(d: Draw, length: int = 32, width: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    return d(2, 4, length, width), d(2, 4, length, width), d(2, 4, length, width)


def _by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * 0.25
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


def _rotated(x: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 0.1 ** torch.arange(half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


class _Own(nn.Module):
    """Self-attention of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return found


CASES: dict[str, Case] = {
    "attention": lambda d: d.both(_attend, *_qkv(d)),
    "attention causal": lambda d: d.both(lambda q, k, v: _attend(q, k, v, is_causal=True), *_qkv(d)),
    "attention causal long": lambda d: d.both(lambda q, k, v: _attend(q, k, v, is_causal=True), *_qkv(d, 130, 32)),
    "attention masked": lambda d: d.both(lambda q, k, v, m: _attend(q, k, v, m), *_qkv(d), d(32, 32)),
    "attention boolean mask": lambda d: d.both(
        lambda q, k, v: _attend(q, k, v, torch.ones(32, 32, dtype=torch.bool).tril()), *_qkv(d)
    ),
    "attention across": lambda d: d.both(_attend, d(2, 4, 9, 16), d(2, 4, 21, 16), d(2, 4, 21, 16)),
    "attention odd width": lambda d: d.both(_attend, *_qkv(d, 17, 13)),
    "attention grouped queries": lambda d: d.both(
        lambda q, k, v: _attend(q, k, v, enable_gqa=True), d(2, 4, 16, 16), d(2, 2, 16, 16), d(2, 2, 16, 16)
    ),
    "attention by hand": lambda d: d.both(_by_hand, *_qkv(d)),
    "multi-head attention": lambda d: d.both(d.module(_Own()), d(3, 10, 32)),
    "transformer encoder layer": lambda d: d.both(
        d.module(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)), d(3, 10, 32)
    ),
    "transformer decoder layer": lambda d: d.both(
        d.module(nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)), d(3, 10, 32), d(3, 7, 32)
    ),
    "rotary embedding": lambda d: d.both(_rotated, d(2, 4, 20, 16)),
}
