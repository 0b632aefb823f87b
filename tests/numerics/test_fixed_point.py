"""Parameters as integers: rounded once, added in any order, within their range."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.numerics import fixed_point
from orchestrator.numerics.exact import fingerprint_of_integers, wrap
from orchestrator.numerics.fixed_point import HOST, FixedPoint, divided, exponent_for, largest, name_of, overflows
from orchestrator.numerics.layout import Layout

LAYOUT = Layout.of([("a", torch.zeros(3, 5)), ("b", torch.zeros(7)), ("c", torch.zeros(40))])
seeds = st.integers(0, 2**32)


def flat(seed: int, scale: float = 1.0) -> torch.Tensor:
    """float32 of the layout's size; zero where no tensor lies."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.zeros(LAYOUT.size)
    for slot in LAYOUT.slots:
        slot.view(values).copy_(torch.randn(slot.shape, generator=generator) * scale)
    return values


def integers(seed: int) -> torch.Tensor:
    return torch.randint(-(2**50), 2**50, (LAYOUT.size,), generator=torch.Generator().manual_seed(seed))


@given(st.floats(0, 1e30))
def test_a_value_of_that_size_leaves_room_for_many_like_it(value: float) -> None:
    multiples = value / 2.0 ** exponent_for(value)
    assert multiples <= 2.0**44
    assert value <= 1 or multiples > 2.0**43


@given(seeds, st.sampled_from([1e-3, 1.0, 100.0]))
def test_a_float32_comes_back_to_the_bit_unless_it_is_tiny(seed: int, scale: float) -> None:
    values, there, back = flat(seed, scale), torch.zeros(LAYOUT.size, dtype=torch.int64), torch.zeros(LAYOUT.size)
    fixed = FixedPoint.fitting(LAYOUT, values, len(LAYOUT.slots))
    fixed.integers(values, there)
    fixed.values(there, back)
    lsb = max(piece[2] for piece in fixed.pieces)
    large = values.abs() >= lsb * 2**24
    assert torch.equal(values[large], back[large])
    assert float((values - back).abs().max()) <= lsb / 2


@given(seeds, seeds, st.integers(1, 70))
def test_some_at_a_time_come_to_the_same_as_all_at_once(seed: int, other: int, at_once: int) -> None:
    values, more = flat(seed, 3.0), integers(other)
    fixed = FixedPoint.fitting(LAYOUT, values, len(LAYOUT.slots))
    whole = torch.cat([torch.round(values[start:end].double() * (1 / lsb)).long() for start, end, lsb in fixed.pieces])
    back = torch.cat([((whole + more)[start:end].double() * lsb).float() for start, end, lsb in fixed.pieces])
    found, sums = torch.zeros_like(whole), torch.zeros_like(back)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed_point, "_AT_ONCE", at_once)
        fixed.integers(values, found)
        fixed.values(found, sums, more)
    assert torch.equal(found, whole)
    assert torch.equal(sums.view(torch.int32), back.view(torch.int32))


@given(seeds, seeds, st.integers(1, 16))
def test_an_update_is_odd_and_rounded_to_half_a_unit(one: int, other: int, divisor: int) -> None:
    before, after = flat(one), flat(other)
    fixed = FixedPoint.fitting(LAYOUT, before, len(LAYOUT.slots))
    there, back = torch.zeros(LAYOUT.size, dtype=torch.int64), torch.zeros(LAYOUT.size, dtype=torch.int64)
    assert HOST.differ(fixed.pieces, after, before, divisor, there)
    assert HOST.differ(fixed.pieces, before, after, divisor, back)
    assert torch.equal(there, -back)
    exact = (after.double() - before.double()) / divisor
    for start, end, lsb in fixed.pieces:
        assert float((there[start:end].double() * lsb - exact[start:end]).abs().max()) <= lsb


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, 1e30])
def test_an_update_out_of_range_is_told(strange: float) -> None:
    before = flat(1)
    fixed = FixedPoint.fitting(LAYOUT, before, len(LAYOUT.slots))
    after = before.clone()
    after[3] = strange
    assert not HOST.differ(fixed.pieces, after, before, 1, torch.zeros(LAYOUT.size, dtype=torch.int64))


def test_tensors_of_one_size_are_one_piece() -> None:
    values = flat(1, 0.1)
    assert len(FixedPoint.fitting(LAYOUT, values, 3).pieces) == 1
    LAYOUT.slots[1].view(values).fill_(9.0)
    pieces = FixedPoint.fitting(LAYOUT, values, 3).pieces
    assert [start for start, _, _ in pieces] == [slot.offset for slot in LAYOUT.slots]
    assert pieces[-1][1] == LAYOUT.size
    assert largest(LAYOUT.slots[1:2], values) == [9.0]


def test_a_replica_out_of_range_is_told_by_its_tensor() -> None:
    values = torch.zeros(LAYOUT.size, dtype=torch.int64)
    assert not overflows(values)
    values[LAYOUT.slots[2].offset + 1] = -(2**62)
    assert overflows(values)
    assert name_of(LAYOUT, LAYOUT.slots[2].offset + 1) == "c"


@given(seeds, seeds)
def test_the_fingerprint_of_a_sum_is_the_sum_of_fingerprints(one: int, other: int) -> None:
    a, b = integers(one), integers(other)
    assert fingerprint_of_integers(a + b) == wrap(fingerprint_of_integers(a) + fingerprint_of_integers(b))


class Divisors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what tensors are divided by."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket.__name__ == "div_":
            self.seen.append(args[1])
        return operation(*args, **(kwargs or {}))


def test_a_quotient_is_never_a_product_with_a_reciprocal() -> None:
    values = torch.arange(1.0, 1000.0, dtype=torch.float64)
    with Divisors() as divisors:
        found = divided(values.clone(), 49)
    assert torch.equal(found, torch.from_numpy(values.numpy() / 49))
    assert not torch.equal(found, values * (1 / 49))
    (divisor,) = divisors.seen
    assert isinstance(divisor, torch.Tensor)  # on the device of the values; of a number a card takes the reciprocal
