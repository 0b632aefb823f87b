"""Bytes of tensors, however they lie in memory."""

from __future__ import annotations

import pytest
import torch

from orchestrator.numerics.byte_layout import bytes_of

NUMBERS = torch.arange(12.0).view(3, 4)


@pytest.mark.parametrize(
    "tensor", [NUMBERS, NUMBERS.t(), NUMBERS[:, 1], NUMBERS[:1, 2], NUMBERS.t()[:1, :1], NUMBERS[0, 0:0:3]]
)
def test_the_bytes_are_those_of_its_elements(tensor: torch.Tensor) -> None:
    """Also of one or no element, of which torch keeps any stride."""
    assert bytes_of(tensor).numpy().tobytes() == tensor.numpy().tobytes()


def test_those_of_a_contiguous_tensor_are_its_own() -> None:
    assert bytes_of(NUMBERS).data_ptr() == NUMBERS.data_ptr()
