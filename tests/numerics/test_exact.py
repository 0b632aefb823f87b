"""Exact sums: free of order, *and* right (rule A1).

Equal digests prove nothing about accuracy, so every total is held against two references that share no code with the kernel:
rounding in rational arithmetic, and `math.fsum`. Ties are forced, because they are where wrong shortcuts show.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.numerics.exact import (
    FAST_MEANS,
    FEW_LEVELS,
    INTEGERS,
    MEANS,
    Accumulator,
    Sums,
    finish,
    wrap,
)
from orchestrator.numerics.grid import ABSENT, HEADROOM, INFINITE, SLACK, Grid, needed_exponent
from orchestrator.numerics.layout import BLOCK, Layout

Values = list[float]
Shard = tuple[float, Values]  # weight, elements of one tensor

ordinary = st.floats(width=32, allow_nan=False, allow_infinity=False)
tiny = st.integers(-(2**10), 2**10).map(lambda k: k * 2.0**-149)
scaled = st.tuples(st.integers(-(2**24), 2**24), st.integers(-149, 80)).map(
    lambda p: float(numpy.float32(p[0] * 2.0 ** p[1]))
)
element = st.one_of(ordinary, tiny, scaled, st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**127, -(2.0**-149)]))
weight = st.one_of(st.just(1.0), st.integers(1, 200).map(float), st.floats(1e-6, 1e6))


@st.composite
def contributions(draw: st.DrawFn) -> list[Shard]:
    """A tensor's value in each shard, at times with ties: multiples of half of the grid that the largest element asks for."""
    size = draw(st.integers(1, 5))
    count = draw(st.integers(1, 9))
    shards = [(draw(weight), draw(st.lists(element, min_size=size, max_size=size))) for _ in range(count)]
    if draw(st.booleans()):
        shards = [(1.0, values) for _, values in shards]
        top = max(abs(value) for _, values in shards for value in values)
        needed = needed_exponent(magnitudes([torch.tensor([top])], 1.0)[0], count)
        if needed is not None and needed + HEADROOM - 1 >= -149:
            half = 2.0 ** (needed + HEADROOM - 1)
            for _, values in shards:
                values[draw(st.integers(0, size - 1))] = draw(st.integers(-(2**21), 2**21)) * half
    return shards


def magnitudes(tensors: Sequence[torch.Tensor | None], weight: float) -> list[int]:
    """The magnitudes that an accumulator measures of one shard."""
    layout = Layout.of([(str(i), torch.empty(0) if t is None else t) for i, t in enumerate(tensors)])
    accumulator = Accumulator(layout, torch.zeros(layout.size, dtype=torch.float64), exact=True)
    accumulator.add(tensors, weight, Grid.unset(len(tensors), 1))
    (found,) = accumulator.complete().tolist()
    return list(found)


def agreed_grid(shards: Sequence[Shard]) -> tuple[Grid, int]:
    """The grid of a first step, and the magnitude that all shards together have."""
    magnitude = max(magnitudes([torch.tensor(values)], weight)[0] for weight, values in shards)
    return Grid.unset(1, len(shards)).refit([magnitude]), magnitude


def total_of(shards: Sequence[Shard], grid: Grid) -> torch.Tensor:
    """One worker's total of these shards."""
    layout = Layout.of([("t", torch.tensor(shards[0][1]))])
    total = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, exact=True)
    for weight, values in shards:
        accumulator.add([torch.tensor(values)], weight, grid)
    accumulator.complete()
    return layout.views(total)[0]


def rounded(weight: float, value: float, exponent: int) -> Fraction:
    """The contribution on the grid: the float64 product, to the nearest multiple of 2**exponent, ties to even."""
    lsb = Fraction(2) ** exponent
    return round(Fraction(value * weight) / lsb) * lsb


def bits(values: torch.Tensor) -> list[str]:
    return [value.hex() for value in values.tolist()]


@given(contributions(), st.randoms(use_true_random=False))
def test_order_and_grouping_change_no_bit(shards: list[Shard], shuffler: random.Random) -> None:
    grid, _ = agreed_grid(shards)
    expected = bits(total_of(shards, grid))
    for _ in range(3):
        order = list(shards)
        shuffler.shuffle(order)
        cuts = sorted(shuffler.choices(range(len(order) + 1), k=shuffler.randrange(4)))
        groups = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True) if start < end]
        partials = [total_of(group, grid) for group in groups]
        shuffler.shuffle(partials)
        assert bits(_sum(partials)) == expected


def _sum(partials: Sequence[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(partials[0])
    for partial in partials:
        total += partial
    return total


@given(contributions())
@example([(1.0, [2.0**-149])])
@example([(1.0, [3.4028234663852886e38]), (200.0, [-3.4028234663852886e38])])
def test_each_contribution_is_rounded_to_nearest_and_the_total_loses_nothing(shards: list[Shard]) -> None:
    grid, _ = agreed_grid(shards)
    exponent = grid.exponents[0]
    totals = total_of(shards, grid).tolist()
    for i, total in enumerate(totals):
        if exponent is None:
            assert bits(torch.tensor([total])) == bits(torch.tensor([0.0]))
            continue
        exact = [rounded(weight, values[i], exponent) for weight, values in shards]
        for contribution, (weight, values) in zip(exact, shards, strict=True):
            alone = total_of([(weight, values)], grid).tolist()[i]
            assert Fraction(alone) == contribution
            assert abs(contribution - Fraction(values[i] * weight)) <= Fraction(2) ** exponent / 2
            assert math.copysign(1, alone) == 1 or alone != 0  # no negative zero: its sign would depend on the order
        assert Fraction(total) == sum(exact)
        assert total == math.fsum(map(float, exact))


@given(contributions(), st.integers(0, SLACK))
def test_the_error_is_what_the_grid_promises(shards: list[Shard], coarser: int) -> None:
    """At any exponent that is accepted, from the finest to the coarsest."""
    fresh, magnitude = agreed_grid(shards)
    needed = needed_exponent(magnitude, len(shards))
    if needed is None:
        return
    grid = Grid((needed + coarser,), len(shards))
    assert not grid.misfits([magnitude])
    largest = max(abs(Fraction(value * weight)) for weight, values in shards for value in values)
    promised = len(shards) * Fraction(2) ** (needed + coarser) / 2
    for i, total in enumerate(total_of(shards, grid).tolist()):
        true = sum(Fraction(values[i] * weight) for weight, values in shards)
        assert abs(Fraction(total) - true) <= promised
    growth = max(2, (len(shards) - 1).bit_length())
    assert promised <= largest * len(shards) * Fraction(2) ** (growth + coarser - 53)
    assert fresh.exponents == (needed + HEADROOM,)


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 1024, 1025])
def test_the_largest_total_that_a_grid_takes_is_exact(shards: int) -> None:
    """All shards at the maximum, odd in the last place, on the finest grid that is accepted."""
    largest = 1.9999998807907104  # all bits of a float32 are set
    magnitude = magnitudes([torch.tensor([largest])], 1.0)[0]
    needed = needed_exponent(magnitude, shards)
    assert needed is not None
    for exponent in (needed, needed + SLACK):
        grid = Grid((exponent,), shards)
        assert not grid.misfits([magnitude])
        total = total_of([(1.0, [largest, -largest])] * shards, grid).tolist()
        assert Fraction(total[0]) == shards * rounded(1.0, largest, exponent)
        assert total[1] == -total[0]
    assert Grid((needed - 1,), shards).misfits([magnitude]) == [0]


# --- the two tempting shortcuts of rule A1 are caught by the tests above


def _total_from_anchor(shards: Sequence[Shard], grid: Grid) -> torch.Tensor:
    """Wrong: the total starts at M, so a tie rounds by the parity of what is there already."""
    anchor = 1.5 * 2.0**52 * 2.0 ** (grid.exponents[0] or 0)
    total = torch.full((len(shards[0][1]),), anchor, dtype=torch.float64)
    for weight, values in shards:
        total += torch.tensor(values).double() * weight
    return total - anchor


def _total_in_float32(shards: Sequence[Shard], grid: Grid) -> torch.Tensor:
    """Wrong: the sum with M is formed in float32 and only then stored as float64."""
    anchor = 1.5 * 2.0**52 * 2.0 ** (grid.exponents[0] or 0)
    total = torch.zeros(len(shards[0][1]), dtype=torch.float64)
    for _, values in shards:
        shifted = torch.empty_like(total)
        torch.add(torch.tensor(values), anchor, out=shifted)
        total += shifted - anchor
    return total


def _tied_shards() -> tuple[list[Shard], Grid]:
    """Elements at multiples of half the grid, every other one a tie, beside one that sets the grid."""
    generator = torch.Generator().manual_seed(0)
    half = 2.0 ** (1 + 3 - 53 + HEADROOM - 1)
    ties = torch.randint(-(2**21), 2**21, (8, 64), generator=generator) * half
    shards = [(1.0, [1.0, *row]) for row in ties.tolist()]
    grid, _ = agreed_grid(shards)
    assert grid.exponents == (1 + 3 - 53 + HEADROOM,)
    return shards, grid


@pytest.mark.parametrize(("sum_up", "right"), [(total_of, True), (_total_from_anchor, False)])
def test_ties_expose_a_total_that_starts_at_the_anchor(
    sum_up: Callable[[Sequence[Shard], Grid], torch.Tensor], right: bool
) -> None:
    shards, grid = _tied_shards()
    assert (bits(sum_up(shards, grid)) == bits(sum_up(shards[::-1], grid))) is right


@pytest.mark.parametrize(("sum_up", "right"), [(total_of, True), (_total_in_float32, False)])
def test_accuracy_exposes_an_addition_in_float32(
    sum_up: Callable[[Sequence[Shard], Grid], torch.Tensor], right: bool
) -> None:
    """Its bits agree with themselves in every order; they are only wrong."""
    generator = torch.Generator().manual_seed(0)
    shards = [(1.0, row) for row in torch.randn(8, 64, generator=generator).tolist()]
    grid, _ = agreed_grid(shards)
    totals = sum_up(shards, grid)
    assert bits(totals) == bits(sum_up(shards[::-1], grid))
    true = torch.tensor([math.fsum(values[i] for _, values in shards) for i in range(64)], dtype=torch.float64)
    assert bool((totals - true).abs().max() < 1e-9) is right


# --- accumulating several tensors


def test_tensors_land_in_their_slots_with_strides_and_gaps() -> None:
    layout = Layout.of(
        [
            ("plain", torch.empty(2, 3)),
            ("last", torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)),
            ("none", torch.empty(7)),
            ("empty", torch.empty(0, 3)),
            ("scalar", torch.empty(())),
        ]
    )
    tensors = [torch.randn(2, 3), torch.randn(2, 3, 4, 5), None, torch.empty(0, 3), torch.tensor(1.5)]
    total = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, exact=True)
    found = magnitudes(tensors, 2.0)
    assert found[2:4] == [ABSENT, ABSENT]
    grid = Grid.unset(5, 4).refit(found)
    assert grid.exponents[2:4] == (None, None)
    for _ in range(2):
        accumulator.clear()
        accumulator.add(tensors, 2.0, grid)
        accumulator.add(tensors, 2.0, grid)
        accumulator.complete()
    for tensor, view in zip(tensors, layout.views(total), strict=True):
        expected = torch.zeros(7) if tensor is None else 4 * tensor
        assert torch.allclose(view.float(), expected, rtol=1e-6)
    used = sum(view.count_nonzero().item() for view in layout.views(total))
    assert total.count_nonzero() == used


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", [(8.0,) * 4, (3.0, 8.0, 0.3, 1.0), (3.0, 8.0, 0.3, 1.0, 8.0, 0.7, 2.0, 5.0, 1e-3, 9.0)]
)
def test_how_many_shards_are_added_together_changes_no_bit(
    weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large and small tensors, absent in some shards; against rational arithmetic."""
    sizes = [3 * 32768 + 5, 4097, 100, 0, 4096, 7]
    layout = Layout.of([(str(i), torch.empty(size)) for i, size in enumerate(sizes)])
    generator = torch.Generator().manual_seed(0)
    shards: list[list[torch.Tensor | None]] = [
        [None if (i + s) % 4 == 0 else torch.randn(size, generator=generator) for i, size in enumerate(sizes)]
        for s in range(len(weights))
    ]
    grid = Grid((-40, -41, -42, -30, -30, -40), len(weights))
    totals = []
    for waiting_bytes in (1, 3 * 4 * layout.size, 32 << 20):
        monkeypatch.setattr("orchestrator.numerics.layout._WAITING_BYTES", waiting_bytes)
        total = torch.full((layout.size,), 7.0, dtype=torch.float64)
        total[layout.slots[-1].offset + 7 :] = 0.0
        accumulator = Accumulator(layout, total, exact=True)
        for shard, weight in zip(shards, weights, strict=True):
            accumulator.add(shard, weight, grid)
        found = accumulator.complete().tolist()
        assert [[m == ABSENT for m in row] for row in found] == [[t is None or not len(t) for t in s] for s in shards]
        largest = [[0.0 if t is None or not len(t) else t.double().abs().max().item() for t in s] for s in shards]
        expected = [[m * w for m in row] for row, w in zip(largest, weights, strict=True)]
        assert (numpy.where(numpy.array(found) == ABSENT, 0, found).view(numpy.float64) == expected).all()
        totals.append([bits(view) for view in layout.views(total)])
    assert totals[0] == totals[1] == totals[2]
    for i, slot in enumerate(layout.slots):
        exponent = grid.exponents[i]
        assert exponent is not None
        for place in range(0, slot.elements, max(1, slot.elements // 50)):
            values = [
                (w, t[place].item()) for w, shard in zip(weights, shards, strict=True) if (t := shard[i]) is not None
            ]
            assert Fraction(float.fromhex(totals[0][i][place])) == sum(rounded(w, v, exponent) for w, v in values)


def test_what_does_not_lie_in_memory_like_its_slot_is_copied() -> None:
    """Expanded, transposed, of another type, and negated lazily."""
    like = [torch.empty(2, 3), torch.empty(3, 2), torch.empty(4), torch.empty(4)]
    complex_ = torch.tensor([1 + 2j, 3 - 4j, 5j, -6j])
    tensors = [
        torch.tensor(1.5).expand(2, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.ones(4).bfloat16(),
        complex_.conj().imag,
    ]
    assert tensors[3].is_neg()
    layout = Layout.of([(str(i), t) for i, t in enumerate(like)])
    total = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, exact=True)
    accumulator.add(tensors, 1.0, Grid((-20,) * 4, 1))
    (found,) = accumulator.complete().view(numpy.float64).tolist()
    for view, tensor in zip(layout.views(total), tensors, strict=True):
        assert torch.equal(view, tensor.double())
    assert found == [1.5, 5.0, 1.0, 6.0]


def test_a_tensor_without_a_grid_is_added_as_it_is() -> None:
    layout = Layout.of([("a", torch.empty(3)), ("b", torch.empty(3))])
    total = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, exact=True)
    accumulator.add([torch.full((3,), 1.7), torch.full((3,), 1.7)], 1.0, Grid((None, 0), 2))
    accumulator.complete()
    a, b = layout.views(total)
    assert (a.float().tolist(), b.tolist()) == (torch.full((3,), 1.7).tolist(), [2.0] * 3)


def test_fast_sums_need_no_grid() -> None:
    layout = Layout.of([("a", torch.empty(3)), ("b", torch.empty(2))])
    total = torch.zeros(layout.size)
    accumulator = Accumulator(layout, total, exact=False)
    for value in (1.0, 2.0):
        accumulator.add([torch.full((3,), value), None], 0.5, Grid.unset(2, 2))
    accumulator.complete()
    assert layout.views(total)[0].tolist() == [1.5] * 3
    accumulator.clear()
    accumulator.complete()
    assert not total.any()


# --- magnitudes


@given(st.lists(element, min_size=1, max_size=6), st.floats(1e-30, 1e30))
def test_a_magnitude_is_the_largest_weighted_element(values: Values, weight: float) -> None:
    (found,) = magnitudes([torch.tensor(values)], weight)
    largest = max(abs(float(numpy.float32(value))) * weight for value in values)
    assert found == int.from_bytes(numpy.float64(largest).tobytes(), "little")


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 77, 4095, 4099])
def test_a_value_that_is_not_finite_is_found_wherever_it_stands(bad: float, place: int) -> None:
    tensor = torch.linspace(-1e30, 1e30, 4100)
    tensor[place] = bad
    found = magnitudes([torch.ones(2), tensor.view(41, 100), torch.ones(1)], 3.0)
    assert [magnitude < INFINITE for magnitude in found] == [True, False, True]


def test_a_weight_can_take_a_magnitude_out_of_range() -> None:
    assert magnitudes([torch.tensor([1e38])], 1e300)[0] >= INFINITE


def test_zeros_have_the_magnitude_zero_and_absence_has_none() -> None:
    tensors = [torch.tensor([0.0, -0.0]), None, torch.empty(0), torch.tensor([-(2.0**-149)]), torch.zeros(())]
    found = magnitudes(tensors, 1.0)
    assert found[:3] == [0, ABSENT, ABSENT]
    assert found[3] > 0
    assert found[4] == 0
    assert magnitudes([None, torch.empty(0)], 1.0) == [ABSENT, ABSENT]
    assert magnitudes([], 1.0) == []


# --- finishing


divisors = st.one_of(
    st.integers(1, 1000).map(float), st.integers(-300, 300).map(lambda e: 2.0**e), st.floats(1e-100, 1e100)
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(1, 20), divisors, st.integers(-40, 40), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_quotient_is_rounded_once(blocks: int, divisor: float, scale: int, two: bool, seed: int) -> None:
    """Float64 sum and quotient, then one cast; chunked as the cache likes it. Powers of two take another way."""
    dice = numpy.random.default_rng(seed)
    total, last = (dice.normal(size=BLOCK * blocks) * (divisor * 2.0**scale) for _ in range(2))
    result = torch.empty(BLOCK * blocks)
    finish([torch.from_numpy(each) for each in ((total, last) if two else (total,))], divisor, result, 0)
    expected = ((total + last if two else total) / divisor).astype(numpy.float32)
    assert numpy.array_equal(result.numpy(), expected)


def parts_of(dtype: torch.dtype, count: int, blocks: int, seed: int) -> list[torch.Tensor]:
    """Parts whose sum depends on the order, if they are floats, and wraps around, if they are integers."""
    dice = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return [
            torch.randint(limits.min, limits.max, (blocks * BLOCK,), generator=dice, dtype=dtype) for _ in range(count)
        ]
    parts = [torch.randn(blocks * BLOCK, generator=dice, dtype=dtype) * 3.0 ** (n % 5) for n in range(count)]
    strange = torch.tensor([0.0, -0.0, math.inf, math.nan, 1e-45, 3e38], dtype=dtype)
    for part in parts:
        places = torch.randint(len(part), (20,), generator=dice)
        part[places] = strange[torch.randint(len(strange), (20,), generator=dice)]
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("sums", [MEANS, FAST_MEANS, INTEGERS, *FEW_LEVELS.values()], ids=lambda each: str(each.dtype))
@settings(max_examples=40)
@given(st.integers(1, 11), st.integers(1, 3), st.sampled_from([1.0, 3.0, 4.0]), st.integers(0, 2**32 - 1))
def test_parts_that_are_added_up_at_once_have_the_bits_of_one_addition_after_the_other(
    sums: Sums, count: int, blocks: int, divisor: float, seed: int
) -> None:
    """Also where the sum depends on the order."""
    divisor = divisor if sums.dtype.is_floating_point else 1.0
    parts = parts_of(sums.dtype, count, blocks, seed)
    total = parts[0].clone()
    for part in parts[1:]:
        torch.add(total, part, out=total)
    wanted, found = (torch.empty(len(total), dtype=sums.result) for _ in range(2))
    assert sums.finish(parts, divisor, found, 5) == sums.finish([total], divisor, wanted, 5)
    assert same_bits(found, wanted)
    joined = torch.empty_like(total)
    sums.join(parts, joined)
    assert same_bits(joined, total)
    sums.join(parts, parts[0])
    assert same_bits(parts[0], total)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numpy().tobytes() == other.numpy().tobytes()


@settings(max_examples=60)
@given(st.integers(-60, 60), st.integers(0, 2**32 - 1))
def test_a_fast_quotient_by_a_power_of_two_is_rounded_once_too(exponent: int, seed: int) -> None:
    """Subnormal quotients, too."""
    values = numpy.random.default_rng(seed).normal(size=BLOCK).astype(numpy.float32) * numpy.float32(2.0**-80)
    result = torch.empty(BLOCK)
    finish([torch.from_numpy(values)], 2.0**exponent, result, 0)
    assert numpy.array_equal(result.numpy(), values / numpy.float32(2.0**exponent))


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("divisor", [4.0, 29.8])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_worker_that_is_alone_finishes_the_same_sum(
    exact: bool, divisor: float, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not all shards can wait, the sum is left to `finish`."""
    sizes = [5000, 3, 0, 4096, 9000, 17]
    layout = Layout.of([(str(i), torch.empty(size)) for i, size in enumerate(sizes)])
    monkeypatch.setattr("orchestrator.numerics.layout._WAITING_BYTES", (8 if at_once else 2) * 4 * layout.size)
    generator = torch.Generator().manual_seed(0)
    shards: list[list[torch.Tensor | None]] = [
        [None if i == 3 else torch.randn(size, generator=generator) for i, size in enumerate(sizes)] for _ in range(6)
    ]
    found = []
    for alone in (False, True):
        total = torch.zeros(layout.size, dtype=torch.float64 if exact else torch.float32)
        result = torch.zeros(layout.size)
        accumulator = Accumulator(layout, total, exact=exact)
        for _ in range(2):
            accumulator.clear()
            for weight, shard in enumerate(shards, 2):
                accumulator.add(shard, float(weight), Grid((-40,) * len(sizes), len(shards)))
            magnitudes = accumulator.complete((divisor, result) if alone else None)
        assert (accumulator.finished is not None) is (alone and at_once)
        if accumulator.finished is None:
            fingerprint = finish([total], divisor, result, 0)
        else:
            fingerprint = accumulator.finished
            assert not total.any()
        found.append((magnitudes.tolist(), bits(result), wrap(fingerprint)))
    assert found[0] == found[1]
    assert any(float.fromhex(value) for value in found[0][1])
