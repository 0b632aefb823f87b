"""Clipping by the global norm: what torch does to the bit, without touching the gradients that peers may still read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.optim.clipping import clip

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (130,)]
drawn = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from(SHAPES), st.floats(-12, 12))), max_size=6)


@given(drawn, st.floats(1e-3, 1e7), st.integers(0, 2**31))
def test_it_is_torchs_clipping_to_the_bit(wanted: list[Any], limit: float, seed: int) -> None:
    """Norms from far below to far above the limit, and close to it."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [None if each is None else torch.randn(each[0], generator=generator) * 10.0 ** each[1] for each in wanted]
    before = [None if tensor is None else tensor.clone() for tensor in tensors]
    clipped = clip(tensors, limit)
    assert [tensor is None for tensor in clipped] == [tensor is None for tensor in tensors]
    assert _bits(clipped) == _bits(_by_torch(tensors, limit))
    assert _bits(tensors) == _bits(before)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.floats(-3e-6, 3e-6))
def test_it_is_torchs_clipping_at_the_border(values: list[float], aside: float) -> None:
    gradient = torch.tensor(values)
    limit = max(1e-9, float(torch.linalg.vector_norm(gradient)) + aside)
    assert _bits(clip([gradient], limit)) == _bits(_by_torch([gradient], limit))


def _by_torch(tensors: Sequence[torch.Tensor | None], limit: float) -> list[torch.Tensor | None]:
    """Copies of the gradients, clipped by `clip_grad_norm_`."""
    parameters = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in tensors if tensor is not None]
    for parameter, tensor in zip(parameters, [tensor for tensor in tensors if tensor is not None], strict=True):
        parameter.grad = tensor.clone()
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    scaled = iter(parameters)
    return [None if tensor is None else next(scaled).grad for tensor in tensors]


def _bits(tensors: Sequence[torch.Tensor | None]) -> list[Any]:
    return [
        None if tensor is None else (tensor.shape, tensor.view(-1).view(torch.int32).tolist()) for tensor in tensors
    ]


def test_what_is_short_enough_keeps_its_bits() -> None:
    tensors = [torch.tensor([3.0]), None, torch.tensor([4.0])]
    assert clip(tensors, 5.1) == tensors
    assert clip([None, None], 1.0) == [None, None]
    assert clip([], 1.0) == []


@pytest.mark.parametrize("size", [1e20, 1e30, 3e38])
def test_a_norm_beyond_float32_still_clips(size: float) -> None:
    """Its square overflows; scaling by limit / infinity would stop the training in silence."""
    clipped = clip([torch.tensor([size, -size]), torch.tensor([size])], 1.0)
    values = [value for tensor in clipped if tensor is not None for value in tensor.tolist()]
    assert values == pytest.approx([1 / math.sqrt(3), -1 / math.sqrt(3), 1 / math.sqrt(3)])
