"""Clipping by the global norm: what torch does, without touching the gradients that peers may still read."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.updates.clipping import clip

gradients = st.lists(
    st.one_of(st.none(), st.lists(st.floats(-1e6, 1e6, width=32), max_size=4).map(torch.tensor)), max_size=4
)


@given(gradients, st.floats(1e-3, 1e7))
def test_it_is_torchs_clipping(tensors: list[torch.Tensor | None], limit: float) -> None:
    before = [None if tensor is None else tensor.clone() for tensor in tensors]
    clipped = clip(tensors, limit)
    parameters = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in tensors if tensor is not None]
    for parameter, tensor in zip(parameters, [tensor for tensor in tensors if tensor is not None], strict=True):
        parameter.grad = tensor.clone()
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    found = [tensor for tensor in clipped if tensor is not None]
    for parameter, tensor in zip(parameters, found, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(
            tensor, parameter.grad, rtol=1e-5 + 1e-6 / limit, atol=1e-12
        )  # torch adds 1e-6 to the norm
    assert [tensor is None for tensor in clipped] == [tensor is None for tensor in tensors]
    for kept, start in zip(tensors, before, strict=True):
        assert kept is start is None or torch.equal(kept, start)  # type: ignore[arg-type]


def test_what_is_short_enough_keeps_its_bits() -> None:
    tensors = [torch.tensor([3.0]), None, torch.tensor([4.0])]
    assert clip(tensors, 5.0) == tensors
    assert clip([None, None], 1.0) == [None, None]
    assert clip([], 1.0) == []


@pytest.mark.parametrize("size", [1e20, 1e30, 3e38])
def test_a_norm_beyond_float32_still_clips(size: float) -> None:
    """Its square overflows; scaling by limit / infinity would stop the training in silence."""
    clipped = clip([torch.tensor([size, -size]), torch.tensor([size])], 1.0)
    values = [value for tensor in clipped if tensor is not None for value in tensor.tolist()]
    assert values == pytest.approx([1 / math.sqrt(3), -1 / math.sqrt(3), 1 / math.sqrt(3)])
