"""No contribution is longer than the clipping norm, whatever it is made of; and integers fit their sums."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.settings.rules.privacy import MOST_CLIENTS
from orchestrator.config.settings.sections import MOST_NOISE
from orchestrator.numerics.layout import Layout
from orchestrator.optim.privacy import quantization_grid
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.privacy.quantization_grid import QuantizationGrid, loss_on_grid, mean_loss

LAYOUT = Layout.of([("a", torch.empty(3, 4)), ("b", torch.empty(5)), ("c", torch.empty(2, 2, 3, 2).transpose(1, 3))])
KEYS = Keys(bytes(32))


def contributions(seed: int, scale: float) -> list[torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return [torch.randn(slot.shape, generator=stream) * scale for slot in LAYOUT.slots]


def on_lattice(norm: float, tensors: list[torch.Tensor | None]) -> list[int]:
    total = torch.zeros(LAYOUT.size, dtype=torch.int64)
    assert QuantizationGrid(norm, LAYOUT).add(tensors, total)
    found: list[int] = total.tolist()
    return found


@given(st.integers(0, 2**32), st.floats(-30, 30), st.floats(1e-6, 1e6))
def test_what_is_added_is_never_longer_than_the_clipping_norm(seed: int, magnitude: float, norm: float) -> None:
    """In whole numbers, without any rounding."""
    integers = on_lattice(norm, list(contributions(seed, 10.0**magnitude)))
    limit = int(math.ldexp(1.0, 60) * (norm / QuantizationGrid(norm, LAYOUT).lsb / 2.0**60))
    assert sum(k * k for k in integers) <= (limit + 1) ** 2
    assert sum(k * k for k in integers) <= (norm / QuantizationGrid(norm, LAYOUT).lsb) ** 2


def test_one_that_is_just_as_long_is_shortened_by_nothing_that_shows() -> None:
    tensors = contributions(1, 1.0)
    norm = math.sqrt(math.fsum(float(t.double().square().sum()) for t in tensors))
    found = on_lattice(norm, list(tensors))
    length = math.sqrt(sum(k * k for k in found)) * QuantizationGrid(norm, LAYOUT).lsb
    assert norm * (1 - 1e-9) <= length <= norm


@given(st.integers(0, 2**32), st.floats(-6, 0))
def test_elements_are_truncated_toward_zero_and_not_rounded(seed: int, magnitude: float) -> None:
    tensors = contributions(seed, 10.0**magnitude)
    norm = 1e3
    lsb, total = QuantizationGrid(norm, LAYOUT).lsb, torch.zeros(LAYOUT.size, dtype=torch.int64)
    assert QuantizationGrid(norm, LAYOUT).add(list(tensors), total)
    for slot, tensor in zip(LAYOUT.slots, tensors, strict=True):
        expected = (tensor.double() / lsb).trunc()
        assert torch.equal(slot.view(total).double(), expected)


def test_what_is_not_finite_is_told_and_adds_nothing() -> None:
    tensors: list[torch.Tensor | None] = list(contributions(1, 1.0))
    total = torch.zeros(LAYOUT.size, dtype=torch.int64)
    for bad in (math.nan, math.inf):
        tensors[1] = torch.full((5,), bad)
        assert not QuantizationGrid(1.0, LAYOUT).add(tensors, total)
    assert not total.any()


def test_absent_tensors_count_as_zeros() -> None:
    whole = list(contributions(3, 0.01))
    assert on_lattice(1.0, [whole[0], None, whole[2]]) == on_lattice(1.0, [whole[0], torch.zeros(5), whole[2]])


@pytest.mark.parametrize("together", [1, 20, 40, 1000])
@given(st.integers(0, 2**32), st.sets(st.integers(0, 2)), st.sampled_from([0.01, 1.0]))
def test_small_tensors_that_a_device_takes_together_give_the_same_integers(
    together: int, seed: int, absent: set[int], scale: float
) -> None:
    tensors = [None if i in absent else tensor for i, tensor in enumerate(contributions(seed, scale))]
    expected = on_lattice(1.0, list(tensors))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quantization_grid, "in_host_memory", lambda _: False)
        patched.setattr(quantization_grid, "_TOGETHER", together)
        assert on_lattice(1.0, list(tensors)) == expected


@pytest.mark.parametrize("norm", [1e-3, 0.5, 0.75, 1.0, 1e3])
def test_the_most_clients_and_the_most_noise_fit_64_bits(norm: float) -> None:
    largest = norm / QuantizationGrid(norm, LAYOUT).lsb
    assert 2.0 ** (quantization_grid.BITS - 1) <= largest <= 2.0**quantization_grid.BITS
    assert MOST_CLIENTS * largest + MOST_NOISE * largest * 12.3 < 2.0**62
    assert MOST_CLIENTS * abs(loss_on_grid(math.inf)) < 2.0**62


def test_the_noise_has_its_spread_in_each_tensor_and_none_between_them() -> None:
    layout = Layout.of([("a", torch.empty(5000)), ("b", torch.empty(3)), ("c", torch.empty(5000))])
    total = torch.zeros(layout.size, dtype=torch.int64)
    two = QuantizationGrid(0.5, layout)
    two.add_noise(3.0, KEYS.stream("noise", 0), total)
    views = [slot.view(total).double() * two.lsb for slot in layout.slots]
    assert all(view.std().item() == pytest.approx(1.5, rel=0.05) for view in (views[0], views[2]))
    inside = sum(slot.elements for slot in layout.slots)
    assert int((total != 0).sum()) == inside  # none on the padding
    assert abs(numpy.corrcoef(views[0], views[2])[0, 1]) < 0.05


def test_the_mean_is_over_a_number_that_is_fixed_beforehand() -> None:
    layout = Layout.of([("a", torch.empty(2))])
    total, result = torch.zeros(layout.size, dtype=torch.int64), torch.ones(layout.size)
    one = QuantizationGrid(1.0, layout)
    for _ in range(3):
        one.add([torch.tensor([0.25, -0.5])], total)
    one.mean(total, 12.0, result)
    assert result[:2].tolist() == [0.0625, -0.125]
    assert not result[2:].any()


@given(st.lists(st.floats(-70000, 70000), min_size=1, max_size=20))
def test_the_mean_loss_is_exact_on_its_lattice(losses: list[float]) -> None:
    held = [min(max(loss, -65536.0), 65536.0) for loss in losses]
    found = mean_loss(sum(loss_on_grid(loss) for loss in losses), len(losses))
    assert found == pytest.approx(math.fsum(held) / len(held), abs=2**-24)
    assert mean_loss(0, 0) == 0.0
