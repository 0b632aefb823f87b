"""Products of float32 are computed as such, whatever a script has set, and what it had set is put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from orchestrator.numerics import float32_precision
from orchestrator.numerics.determinism import left_as_it_was, prepare_thread

PLACES: Any = float32_precision._places()
OLDER = ("highest", "high", "medium")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = float32_precision.read()
    yield
    float32_precision.put_back(before)


@pytest.mark.parametrize("name", PLACES)
def test_a_newer_switch_is_put_back(name: str) -> None:
    """torch raises where it is asked for the older one after that."""
    before = float32_precision.read()
    with left_as_it_was():
        PLACES[name].fp32_precision = "tf32"
        lowered = float32_precision.read()
        with left_as_it_was():
            prepare_thread(1)
            assert float32_precision.lowered() == []
            assert torch.get_float32_matmul_precision() == "highest"
            assert set(float32_precision.read().values()) == {"ieee"}
        assert float32_precision.read() == lowered
    assert float32_precision.read() == before


def test_the_switch_of_onednn_is_not_that_of_all() -> None:
    """torch sets that of all where somebody assigns to the one of oneDNN."""
    onednn: Any = torch.backends.mkldnn
    onednn.set_flags(_fp32_precision="ieee")
    PLACES["torch.backends"].fp32_precision = "tf32"
    before = float32_precision.read()
    assert (before["torch.backends"], onednn.fp32_precision) == ("tf32", "ieee")
    with left_as_it_was():
        prepare_thread(1)
    assert (float32_precision.read(), onednn.fp32_precision) == (before, "ieee")


@pytest.mark.parametrize("precision", OLDER)
def test_the_older_switch_is_put_back(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    for other in OLDER:
        with left_as_it_was():
            torch.set_float32_matmul_precision(other)
        assert torch.get_float32_matmul_precision() == precision


def test_a_script_that_lowered_it_changes_no_bit_on_a_processor() -> None:
    """Only some processors have instructions for bfloat16."""
    left, right = (torch.randn(256, 256, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    prepare_thread(1)
    product = left @ right
    torch.set_float32_matmul_precision("medium")
    assert float32_precision.lowered()
    prepare_thread(1)
    assert torch.equal(left @ right, product)
