"""Elements in narrow form: nothing is lost, whatever they are, and sums of gradients get short."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orchestrator.numerics import loops
from orchestrator.numerics.exact import finish
from orchestrator.numerics.layout import BLOCK as LAYOUT_BLOCK
from orchestrator.numerics.lossless_packing import BLOCK, HEAD_BYTES, PackedVector, least_bytes, most_bytes, pack

bits = st.integers(-(2**63), 2**63 - 1)
exponents = st.integers(-1074, 900)
integers = st.integers(-(2**53), 2**53)


def narrowed(values: torch.Tensor) -> PackedVector:
    into = torch.empty(most_bytes(values.numel()), dtype=torch.uint8)
    return PackedVector(into[: pack(values, into)], values.dtype, values.numel())


def check_kept(values: torch.Tensor) -> PackedVector:
    short = narrowed(values)
    assert torch.equal(short.unpacked().view(torch.int64), values.view(torch.int64))
    assert least_bytes(values.numel()) <= short.packed.numel() <= most_bytes(values.numel())
    return short


def doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_what_loops_and_their_callers_both_take_for_granted_is_the_same() -> None:
    assert loops.PACKING_BLOCK == BLOCK
    assert int(doubles([loops.ANCHOR]).view(torch.int64)) == loops.ANCHOR_BITS


@given(arrays(numpy.int64, st.integers(0, 1100), elements=bits, fill=st.one_of(st.just(0), bits)))
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_any_bits_come_back(dtype: torch.dtype, values: Any) -> None:
    check_kept(torch.from_numpy(values).view(dtype))


@given(arrays(numpy.int64, st.integers(1, 600), elements=integers, fill=integers), st.integers(0, 62), exponents)
def test_multiples_of_a_power_of_two_come_back(values: Any, shift: int, exponent: int) -> None:
    """Multiples of every width and at every place: near the ends of the range they are no numbers any more, and come back
    too."""
    with numpy.errstate(over="ignore", under="ignore"):
        check_kept(torch.from_numpy(numpy.ldexp((values >> shift).astype(numpy.float64), exponent)))
    check_kept(torch.from_numpy(values << shift))


STRANGE = [
    *(0.0, -0.0, float("inf"), -float("inf"), float("nan"), 5e-324, -5e-324, 2.0**-1022, 2.0**-149, 2.0**-127),
    *(2.0**-126, 3.4028234663852886e38, 1e308, 2.0**50, 2.0**51, 2.0**53 - 1, -(2.0**52), 1 + 2.0**-23, 1 + 2.0**-24),
]  # fmt: skip


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("background", [0.0, 1.0, 3.0 * 2.0**-30, 1 + 2.0**-30])
@pytest.mark.parametrize("place", [0, 15, 16, 511])
def test_one_strange_number_among_others_comes_back(background: float, place: int, flush: bool) -> None:
    """Also where the processor takes denormal numbers for zero."""
    try:
        for number in STRANGE:
            values = torch.full((BLOCK,), background, dtype=torch.float64)
            values[place] = number
            torch.set_flush_denormal(flush)
            short = narrowed(values)
            torch.set_flush_denormal(False)
            assert torch.equal(short.unpacked().view(torch.int64), values.view(torch.int64)), number
            torch.set_flush_denormal(flush)
            assert torch.equal(short.unpacked().view(torch.int64), values.view(torch.int64)), number
    finally:
        torch.set_flush_denormal(False)


def gradients(shards: int) -> torch.Tensor:
    """A sum of float32 contributions on one grid, as spread as gradients are: each row has a size of its own."""
    dice = torch.Generator().manual_seed(shards)
    sizes = torch.exp(torch.randn(64, 1, generator=dice))
    parts = [(torch.randn(64, BLOCK, generator=dice) * sizes * 1e-3).double() for _ in range(shards)]
    lsb = 2.0**-56
    return sum((torch.round(part / lsb) * lsb).flatten() for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize(("shards", "most"), [(1, 4.0), (2, 5.1), (8, 5.5)])
def test_sums_of_gradients_take_few_bytes(shards: int, most: float) -> None:
    values = gradients(shards)
    assert check_kept(values).packed.numel() <= values.numel() * (most + HEAD_BYTES / BLOCK)


def test_where_nothing_is_nothing_travels() -> None:
    assert check_kept(torch.zeros(10 * BLOCK, dtype=torch.float64)).packed.numel() == 10 * HEAD_BYTES


@pytest.mark.parametrize("shards", [1, 2])
def test_what_is_added_as_it_comes_is_what_is_added_later(shards: int) -> None:
    values, base = gradients(shards)[: 3 * LAYOUT_BLOCK], gradients(3)[: 3 * LAYOUT_BLOCK]
    short = narrowed(values)
    total, results = torch.empty_like(base), torch.empty(2, base.numel())
    short.added(base, total)
    assert torch.equal(total, base + values)
    assert short.finish(base, 3.0, results[0], 2) == finish([base, values], 3.0, results[1], 2)
    assert torch.equal(*results)


@given(st.data())
def test_damaged_bytes_are_refused_or_are_other_numbers(data: st.DataObject) -> None:
    """Nothing is read or written outside, whatever the heads of blocks say."""
    values = gradients(2)[: LAYOUT_BLOCK + data.draw(st.integers(0, BLOCK))]
    packed = narrowed(values).packed
    damaged = packed[: data.draw(st.integers(0, packed.numel()))].clone()
    for place in (
        data.draw(st.lists(st.integers(0, max(0, damaged.numel() - 1)), max_size=3)) if damaged.numel() else []
    ):
        damaged[place] = data.draw(st.integers(0, 255))
    room = torch.full((values.numel() + 2 * BLOCK,), 7.0, dtype=torch.float64)
    inside = room[BLOCK : BLOCK + values.numel()]
    with suppress(ValueError):
        PackedVector(damaged, torch.float64, values.numel()).unpacked(inside)
        assert damaged.numel() == packed.numel()
    assert bool((room[:BLOCK] == 7).all())
    assert bool((room[-BLOCK:] == 7).all())


@pytest.mark.parametrize("size", [0, 7, 8, 100])
def test_too_few_bytes_are_told(size: int) -> None:
    values = gradients(2)[:LAYOUT_BLOCK]
    short = PackedVector(narrowed(values).packed[:size], torch.float64, LAYOUT_BLOCK)
    into, result = torch.empty_like(values), torch.empty(LAYOUT_BLOCK)
    for take in (short.unpacked, lambda: short.added(values, into), lambda: short.finish(values, 1.0, result, 0)):
        with pytest.raises(ValueError, match=f"{size} bytes that came are not 4096 x torch.float64"):
            take()
