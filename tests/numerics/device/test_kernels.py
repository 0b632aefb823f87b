"""One contract for all ways to sum on a device: the bits of `numerics.exact`, for the same contributions.

The kernels' source runs here as a C++ compiler builds it for a processor, and is looked at as NVRTC compiles it for cards
(`test_compiling.py`). Properties that only a card can show are tested in `benchmarks.gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orchestrator.numerics import exact
from orchestrator.numerics.device import kernels as device_kernels
from orchestrator.numerics.device.kernels import (
    SIZE_BYTES,
    Accumulator,
    Kernels,
    Operations,
    Plain,
    Updating,
    integers_on,
    packed_room,
    sums_on,
)
from orchestrator.numerics.fixed_point import HOST, Pieces
from orchestrator.numerics.grid import ABSENT, Grid
from orchestrator.numerics.layout import BLOCK, Layout, Run
from orchestrator.numerics.levels import Rounding, add_levels, levels_of
from orchestrator.numerics.lossless_packing import PackedVector, most_bytes, pack
from tests.numerics.device import host
from tests.products import fewer

pytestmark = pytest.mark.slow

IMPLEMENTATIONS: dict[str, Callable[[], Kernels]] = {
    "operations of torch": Operations,
    "kernels, 1 thread": lambda: host.kernels(1, 1),
    "kernels, 5 threads": host.kernels,
    "kernels, 256 threads": lambda: host.kernels(256, 1000),
    "kernels, 3 warps": lambda: host.kernels(96, 3, lanes=True),
}
every = pytest.mark.parametrize("make", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
SPECIAL = [0.0, -0.0, 2.0**-149, -(2.0**-126), 3.4e38, 1.0, -1.0]
Shard = tuple[float, list[torch.Tensor | None]]  # weight, tensors


@st.composite
def models(draw: st.DrawFn) -> tuple[Layout, list[Shard]]:
    """Shapes, and for each shard its weight and tensors: some absent, some with other strides, denormals, special values."""
    seed = draw(st.integers(0, 2**32 - 1))
    dice = torch.Generator().manual_seed(seed)
    shapes = draw(
        st.lists(
            st.sampled_from([(), (1,), (3,), (0,), (7, 5), (16, 16), (2, 3, 4, 5), (4095,), (4096,), (9001,)]),
            min_size=1,
            max_size=6,
        )
    )
    strange = draw(st.floats(0.0, 0.3))
    scale = 2.0 ** draw(st.integers(-149, 100))
    layout = Layout.of([(str(i), torch.empty(shape)) for i, shape in enumerate(shapes)])

    def tensor(shape: tuple[int, ...]) -> torch.Tensor | None:
        kind = draw(st.integers(0, 5))
        if kind == 0:
            return None
        values = torch.randn(shape, generator=dice) * scale
        chosen = torch.rand(shape, generator=dice) < strange
        values[chosen] = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), (int(chosen.sum()),), generator=dice)]
        if kind == 1 and values.dim() > 1:  # as a transposed weight leaves it
            return values.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == 2:  # not on a boundary of 16 bytes
            return torch.cat([torch.zeros(1), values.reshape(-1)])[1:].view(shape)
        return values

    weights = st.just(1.0) | st.integers(0, 300).map(float) | st.floats(1e-6, 1e6)
    return layout, [(draw(weights), [tensor(shape) for shape in shapes]) for _ in range(draw(st.integers(1, 5)))]


def summed(accumulator: exact.Accumulator | Accumulator, shards: Sequence[Shard], grid: Grid) -> NDArray[numpy.int64]:
    accumulator.clear()
    for weight, tensors in shards:
        accumulator.add(tensors, weight, grid)
    return accumulator.complete()


@every
@fewer(1, most=60)
@given(model=models(), divisor=st.sampled_from([1.0, 3.0, 7.0, 8.0, 49.0, 0.7, 0.5, 1e-3]))
def test_totals_magnitudes_results_and_fingerprints_are_those_of_the_processor(
    make: Callable[[], Kernels], model: tuple[Layout, list[Shard]], divisor: float
) -> None:
    layout, shards = model
    kernels = make()
    right, mine = (torch.full((layout.size,), 5.0, dtype=torch.float64) for _ in range(2))
    reference, accumulator = exact.Accumulator(layout, right, exact=True), Accumulator(layout, mine, kernels)
    grid = Grid.unset(len(layout.slots), len(shards))
    for _ in range(2):  # without a grid, then with one that fits
        wanted = summed(reference, shards, grid)
        assert summed(accumulator, shards, grid).tolist() == wanted.tolist()
        for ours, theirs in zip(layout.views(mine), layout.views(right), strict=True):
            assert torch.equal(ours.contiguous().view(torch.int64), theirs.contiguous().view(torch.int64))
        grid = grid.refit(wanted.max(0).tolist())
    for buffer in (right, mine):  # what no slot covers is zero in a run
        covered = torch.zeros(layout.size, dtype=torch.bool)
        for slot in layout.slots:
            covered[slot.offset : slot.offset + slot.elements] = True
        buffer[~covered] = 0.0
    ours, theirs = torch.empty(layout.size), torch.empty(layout.size)
    sums = sums_on(kernels)
    for others in ([], [right.flip(0)]):
        for first in range(2):
            wanted_print = exact.finish([right, *others], divisor, theirs, 3 * first)
            assert exact.wrap(sums.finish([mine, *others], divisor, ours, 3 * first)) == exact.wrap(wanted_print)
            assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    if layout.size:
        by_operations = exact.fingerprint_by_operations
        assert int(by_operations(ours.view(torch.int32), 2)) == exact.wrap(exact.fingerprint_of(theirs, 2))
        assert int(by_operations(mine.view(torch.int64), 0)) == exact.fingerprint_of_integers(right.view(torch.int64))


@every
@fewer(1, most=30)
@given(
    count=st.integers(1, 20),
    blocks=st.integers(1, 3),
    divisor=st.sampled_from([1.0, 3.0, 4.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_parts_that_are_added_up_at_once_have_the_bits_of_the_processor(
    make: Callable[[], Kernels], count: int, blocks: int, divisor: float, seed: int
) -> None:
    """Also where the sum depends on the order, and of more parts than a kernel takes."""
    dice = torch.Generator().manual_seed(seed)
    parts = [torch.randn(blocks * BLOCK, generator=dice, dtype=torch.float64) * 3.0 ** (n % 5) for n in range(count)]
    sums, ours, theirs = sums_on(make()), torch.empty(blocks * BLOCK), torch.empty(blocks * BLOCK)
    wanted = exact.finish(parts, divisor, theirs, 5)
    assert exact.wrap(sums.finish(parts, divisor, ours, 5)) == exact.wrap(wanted)
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    total, joined = torch.empty_like(parts[0]), torch.empty_like(parts[0])
    exact.join(parts, total)
    for into in (joined, parts[0]):
        sums.join(parts, into)
        assert torch.equal(into.view(torch.int64), total.view(torch.int64))


@pytest.mark.parametrize("kernels", [Operations(), Plain()], ids=["exact", "plain"])
def test_operations_make_a_result_piece_by_piece(monkeypatch: pytest.MonkeyPatch, kernels: Kernels) -> None:
    """A copy of a whole model in float64 would take more memory than its sum."""
    parts = [torch.randn(5 * BLOCK, dtype=kernels.dtype) for _ in range(3)]
    found = []
    for at_once in (BLOCK, 2 * BLOCK, 1 << 30):
        monkeypatch.setattr(device_kernels, "_AT_ONCE", at_once)
        result = torch.empty(5 * BLOCK)
        found.append((sums_on(kernels).finish(parts, 3.0, result, 7), result.tolist()))
    assert found[0] == found[1] == found[2]


@every
@fewer(1, most=40)
@given(model=models(), dice=st.randoms(use_true_random=False))
def test_a_weight_that_lies_on_the_device_gives_the_same_bits_and_nothing_where_it_is_zero(
    make: Callable[[], Kernels], model: tuple[Layout, list[Shard]], dice: Random
) -> None:
    """Also where what weighs nothing is no number."""
    layout, shards = model
    late = [dice.random() < 0.7 for _ in shards]
    counted = [shard for shard, is_late in zip(shards, late, strict=True) if shard[0] or not is_late]
    right, mine = (torch.full((layout.size,), 5.0, dtype=torch.float64) for _ in range(2))
    reference, accumulator = exact.Accumulator(layout, right, exact=True), Accumulator(layout, mine, make())
    grid = Grid.unset(len(layout.slots), len(shards))
    for _ in range(2):
        wanted = summed(reference, counted, grid)
        accumulator.clear()
        for (weight, tensors), is_late in zip(shards, late, strict=True):
            nothing = is_late and not weight
            given = [None if each is None else each * torch.nan if nothing else each for each in tensors]
            accumulator.add(given, torch.tensor([weight], dtype=torch.float64) if is_late else weight, grid)
        assert accumulator.weights() == [weight for weight, _ in shards]
        assert accumulator.complete().tolist() == wanted.tolist()
        for ours, theirs in zip(layout.views(mine), layout.views(right), strict=True):
            assert torch.equal(ours.contiguous().view(torch.int64), theirs.contiguous().view(torch.int64))
        grid = grid.refit(wanted.max(0, initial=ABSENT).tolist())


@every
@fewer(1, most=60)
@given(model=models(), dice=st.randoms(use_true_random=False))
def test_plain_totals_are_those_of_a_loop_in_float32_in_the_order_of_shards(
    make: Callable[[], Kernels], model: tuple[Layout, list[Shard]], dice: Random
) -> None:
    layout, shards = model
    magnitudes = summed(
        exact.Accumulator(layout, torch.empty(layout.size), exact=False), shards, Grid.unset(len(layout.slots), 1)
    )
    mine = torch.full((layout.size,), 5.0)
    accumulator = Accumulator(layout, mine, Plain(make()))
    for weight, tensors in shards:
        given = torch.tensor([weight], dtype=torch.float64) if weight and dice.random() < 0.5 else weight
        accumulator.add(tensors, given, Grid.unset(len(layout.slots), 1))
    assert accumulator.weights() == [weight for weight, _ in shards]
    assert accumulator.complete().tolist() == magnitudes.tolist()
    for nth, view in enumerate(layout.views(mine)):
        right = torch.zeros(layout.slots[nth].shape)
        for weight, tensors in shards:
            tensor = tensors[nth]
            right += 0.0 if tensor is None else tensor * weight
        torch.testing.assert_close(view.reshape(right.shape), right, rtol=0, atol=0, equal_nan=True)


@every
def test_one_worker_alone_gets_the_result_at_once(make: Callable[[], Kernels]) -> None:
    layout = Layout.of([("weight", torch.empty(70, 70)), ("bias", torch.empty(70))])
    shards: list[Shard] = [(1.0, [torch.randn(70, 70), torch.randn(70)]), (2.0, [torch.randn(70, 70), None])]
    grid = Grid((-40, -40), 2)
    right, result = torch.zeros(layout.size, dtype=torch.float64), torch.zeros(layout.size)
    summed(exact.Accumulator(layout, right, exact=True), shards, grid)
    fingerprint = exact.finish([right], 3.0, result, 0)
    mine = torch.zeros(layout.size)
    accumulator = Accumulator(layout, torch.zeros(layout.size, dtype=torch.float64), make())
    for weight, tensors in shards:
        accumulator.add(tensors, weight, grid)
    accumulator.complete((3.0, mine))
    assert accumulator.finished is not None
    assert exact.wrap(int(accumulator.finished)) == exact.wrap(fingerprint)
    assert torch.equal(mine, result)


@every
def test_the_fingerprint_of_a_part_is_that_at_its_places_in_the_whole(make: Callable[[], Kernels]) -> None:
    layout = Layout.of([("first", torch.empty(2 * BLOCK)), ("second", torch.empty(BLOCK))])
    runs = [Run(0, 2 * BLOCK, 5), Run(2 * BLOCK, 3 * BLOCK, 11)]
    result = torch.zeros(layout.size)
    accumulator = Accumulator(layout, torch.zeros(layout.size, dtype=torch.float64), make(), runs)
    accumulator.add([torch.randn(2 * BLOCK), torch.randn(BLOCK)], 1.0, Grid((-40, -40), 1))
    accumulator.complete((3.0, result))
    assert accumulator.finished is not None
    parts = [exact.fingerprint_of(result[run.start : run.end], run.first_block) for run in runs]
    assert exact.wrap(int(accumulator.finished)) == exact.wrap(sum(parts))


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1, 77, 4095, 4099])
def test_a_value_that_is_not_finite_is_found_wherever_it_stands(
    make: Callable[[], Kernels], bad: float, place: int
) -> None:
    tensor = torch.zeros(5000)
    tensor[place] = bad
    layout = Layout.of([("t", tensor)])
    accumulator = Accumulator(layout, torch.zeros(layout.size, dtype=torch.float64), make())
    reference = exact.Accumulator(layout, torch.zeros(layout.size, dtype=torch.float64), exact=True)
    grid = Grid((-30,), 1)
    assert summed(accumulator, [(1.0, [tensor])], grid) == summed(reference, [(1.0, [tensor])], grid)


@every
@pytest.mark.parametrize("columns_first", [False, True])
def test_tensors_that_come_again_are_read_again(make: Callable[[], Kernels], columns_first: bool) -> None:
    numbers = torch.arange(6.0).view(2, 3)
    layout = Layout.of([("w", numbers)])
    gradient = numbers.t().contiguous().t() if columns_first else numbers.clone()
    same, total = (gradient,), torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, make())
    for factor in (1.0, 10.0):
        gradient.mul_(factor)
        accumulator.add(same, 1.0, Grid((-20,), 2))
    accumulator.complete()
    assert torch.equal(layout.views(total)[0], numbers.double() * 11)


def test_what_a_recording_adds_is_read_where_it_lay_as_it_was_recorded() -> None:
    """The launches of a recording are made behind it, and again on another grid."""
    kernels, launched = host.kernels(), list[tuple[Any, ...]]()
    launch = kernels._launch
    layout = Layout.of([("a", torch.empty(5000)), ("b", torch.empty(3, 2))])
    shards: list[list[torch.Tensor | None]] = [[torch.randn(5000), None], [torch.randn(5000), torch.randn(3, 2)]]
    found = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, found, kernels)
    accumulator.use(Grid((-30, -30), 8))
    accumulator.add(shards[0], 2.0, Grid((-30, -30), 8))  # as before each recording
    accumulator.clear()
    adder: Any = accumulator._add
    adder._launch = lambda *call: launched.append(call)
    grid = Grid((-20, -25), 8)
    accumulator.use(grid)
    with accumulator.recording(len(shards)) as kept:
        for tensors in shards:
            accumulator.add(tensors, 3.0, grid)
    taken = accumulator.taken
    for exponents in ((-20, -25), (-18, -22)):
        grid = Grid(exponents, 8)
        accumulator.clear()
        accumulator.use(grid)
        for row in taken.largest:
            row.fill_(ABSENT)
        for call in launched:
            launch(*call)
        accumulator.take(taken)
        expected = torch.zeros_like(found)
        direct = exact.Accumulator(layout, expected, exact=True)
        for tensors in shards:
            direct.add(tensors, 3.0, grid)
        assert numpy.array_equal(accumulator.complete(), direct.complete())
        assert torch.equal(found, expected)
    del kept


@every
def test_a_worker_without_a_shard_contributes_nothing(make: Callable[[], Kernels]) -> None:
    layout = Layout.of([("t", torch.empty(10))])
    total = torch.full((layout.size,), 3.0, dtype=torch.float64)
    assert Accumulator(layout, total, make()).complete().shape == (0, 1)
    assert not total.any()
    assert layout.size % BLOCK == 0


# ---- sums of few levels


@every
@fewer(1, most=40)
@given(
    bits=st.sampled_from(sorted(exact.FEW_LEVELS)),
    elements=st.sampled_from([0, 1, 77, BLOCK, 3 * BLOCK + 5]),
    weight=st.floats(0.01, 64),
    shards=st.integers(1, 8),
    keeps=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_levels_are_those_of_the_processor(
    make: Callable[[], Kernels], bits: int, elements: int, weight: float, shards: int, keeps: bool, seed: int
) -> None:
    """Ties, denormals and the largest among them."""
    dice = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=dice)
    most = levels_of(bits, shards)
    spacing = max(float(values.abs().max()) if elements else 0.0, 1e-30) * weight / most
    chosen = torch.randint(0, 5, (elements,), generator=dice)
    values[chosen == 0] = spacing / weight * 0.5
    values[chosen == 1] *= 2.0**-130
    rows = [values.clone() for _ in range(2)]
    totals = [torch.full((elements,), 3, dtype=exact.FEW_LEVELS[bits].dtype) for _ in range(2)]
    add_levels(rows[0], weight, spacing, most, totals[0], keeps=keeps)
    parts = zip(
        *(torch.split(each, [elements - elements // 3, 0, elements // 3]) for each in (rows[1], totals[1])), strict=True
    )
    row = [Rounding(values, weight / spacing, spacing / weight, total) for values, total in parts]
    make().quantize(row, float(most), keeps=keeps)
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(rows[0].view(torch.int32), rows[1].view(torch.int32))


# ---- parameters as integers


@st.composite
def moves(draw: st.DrawFn) -> tuple[Pieces, torch.Tensor, torch.Tensor]:
    """Pieces of whole blocks, and parameters before and after a step: close or far, ties, some out of range or no numbers."""
    dice = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    ends = sorted({draw(st.integers(0, 255)) * 16 for _ in range(draw(st.integers(0, 3)))} | {0})
    size = BLOCK * draw(st.integers(1, 3))
    lsbs = [2.0 ** draw(st.integers(-60, 20)) for _ in ends]
    pieces = tuple(zip(ends, [*ends[1:], size], lsbs, strict=True))
    before = torch.randn(size, generator=dice) * 2.0 ** draw(st.integers(-30, 30))
    after = before + torch.randn(size, generator=dice) * 2.0 ** draw(st.integers(-40, 30))
    if draw(st.booleans()):  # halves of a unit
        before.zero_()
        for start, end, lsb in pieces:
            after[start:end] = torch.arange(end - start) * (lsb / 2)
    if draw(st.booleans()):
        place = draw(st.integers(0, size - 1))
        after[place] = draw(st.sampled_from([float("nan"), float("inf"), -float("inf"), 3e38, -3e38]))
    return pieces, before, after


@every
@settings(max_examples=60, deadline=None)
@given(move=moves(), divisor=st.integers(1, 9))
def test_updates_are_those_of_the_processor(
    make: Callable[[], Kernels], move: tuple[Pieces, torch.Tensor, torch.Tensor], divisor: int
) -> None:
    pieces, before, after = move
    mine, theirs = (torch.full(before.shape, 9) for _ in range(2))
    assert Updating(make()).differ(pieces, after, before, divisor, mine) == HOST.differ(
        pieces, after, before, divisor, theirs
    )
    assert torch.equal(mine, theirs)


@every
@fewer(1, most=30)
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(0, 5), count=st.integers(2, 3))
def test_what_absorbs_updates_is_what_it_is_on_a_processor(
    make: Callable[[], Kernels], seed: int, blocks: int, count: int
) -> None:
    """Modulo 2**64, to the limits of the numbers."""
    dice = torch.Generator().manual_seed(seed)
    update, *sums = torch.randint(-(2**63), 2**63 - 1, (1 + count, blocks * BLOCK), generator=dice)
    others = [each.clone() for each in sums]
    assert Updating(make()).absorb(update, *sums) == HOST.absorb(update, *others)
    assert all(map(torch.equal, sums, others))


@every
@fewer(1, most=30)
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(0, 5))
def test_what_takes_updates_in_is_what_it_is_on_a_processor(
    make: Callable[[], Kernels], seed: int, blocks: int
) -> None:
    dice = torch.Generator().manual_seed(seed)
    update, *others = torch.randint(-(2**63), 2**63 - 1, (3, blocks * BLOCK), generator=dice)
    before = torch.randint(-(2**63), 2**63 - 1, (1,), generator=dice)
    total, own, found, expected = others[0], others[0].clone(), before.clone(), before.clone()
    Updating(make()).take_in(update, total, found)
    HOST.take_in(update, own, expected)
    assert torch.equal(total, own)
    assert torch.equal(found, expected)
    assert exact.wrap(int(before) + HOST.absorb(update, *others)) == int(found)


# ---- the packed form, for wires


@st.composite
def elements(draw: st.DrawFn) -> torch.Tensor:
    """float64 or int64, block by block of another kind: sums on a grid, float32, any bits, zeros; and some strange ones."""
    dice = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    integers = draw(st.booleans())
    size = draw(st.integers(1, 9)) * 512 - draw(st.sampled_from([0, 0, 1, 7, 496, 511]))
    values = torch.zeros(size, dtype=torch.int64 if integers else torch.float64)
    for start in range(0, size, 512):
        part = values[start : start + 512]
        bits = draw(st.integers(0, 62))
        kind = draw(st.sampled_from(["multiples", "multiples", "float32", "any", "zeros"]))
        if kind == "multiples":
            whole = torch.randint(-(2**bits), 2**bits, part.shape, generator=dice)
            shift = draw(st.integers(0, 63 - bits) if integers else st.integers(-1074, 900))
            part.copy_(whole << shift if integers else torch.ldexp(whole.double(), torch.tensor(float(shift))))
        elif kind == "float32":
            part.copy_(torch.randn(part.shape, generator=dice) * 2.0 ** draw(st.integers(-140, 60)))
        elif kind == "any":
            part.view(torch.int64).copy_(torch.randint(-(2**63), 2**63 - 1, part.shape, generator=dice))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, size - 1))
        values.view(torch.int64)[place] = draw(st.sampled_from(STRANGE) | st.integers(-(2**63), 2**63 - 1))
    return values


STRANGE = torch.tensor(
    [0.0, -0.0, float("inf"), float("nan"), 5e-324, 2.0**-1022, -(2.0**-149), 2.0**-126, 1e308, 2.0**50, 1 + 2.0**-24],
    dtype=torch.float64,
).view(torch.int64).tolist()  # fmt: skip


def packed(values: torch.Tensor) -> PackedVector:
    into = torch.empty(most_bytes(values.numel()), dtype=torch.uint8)
    return PackedVector(into[: pack(values, into)], values.dtype, values.numel())


@every
@fewer(1, most=30)
@given(values=elements())
def test_what_is_packed_has_the_bytes_of_the_processor_and_comes_back(
    make: Callable[[], Kernels], values: torch.Tensor
) -> None:
    kernels, wanted = make(), packed(values)
    room = torch.full((packed_room(values.numel()) + 64,), 77, dtype=torch.uint8)
    kernels.pack(values, room[:-64])
    size = int(room[:SIZE_BYTES].view(torch.int64))
    assert torch.equal(room[SIZE_BYTES : SIZE_BYTES + size], wanted.packed)
    assert bool((room[-64:] == 77).all())
    back = torch.full_like(values, 3)
    kernels.unpack(wanted, None, back)
    assert torch.equal(back.view(torch.int64), values.view(torch.int64))
    base = values.flip(0).clone()
    added = base.clone()
    kernels.unpack(wanted, added, added)
    numbers = (base + values).isnan().logical_not()  # of two that are none, either may come out
    assert torch.equal(added.isnan(), numbers.logical_not())
    assert torch.equal(added[numbers].view(torch.int64), (base + values)[numbers].view(torch.int64))


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_bytes_that_nobody_packed_are_refused_before_anything_is_written(
    make: Callable[[], Kernels], dtype: torch.dtype
) -> None:
    kernels, into = make(), torch.full((1000,), 5, dtype=dtype)
    good = packed(torch.arange(1000).to(dtype))
    for damaged in (good.packed[:-1], torch.cat([good.packed, good.packed[:8]]), torch.full_like(good.packed, 255)):
        with pytest.raises(ValueError, match="are not 1000 x"):
            kernels.unpack(PackedVector(damaged.clone(), dtype, 1000), None, into)
    assert bool((into == 5).all())


@every
def test_sums_on_a_device_take_what_came_packed(make: Callable[[], Kernels]) -> None:
    for sums, values in (
        (sums_on(make()), torch.randn(BLOCK, dtype=torch.float64)),
        (integers_on(make()), torch.arange(BLOCK) << 20),
    ):
        assert sums.unpack is not None
        partial = values.clone()
        sums.unpack(packed(values), partial, partial)
        assert torch.equal(partial, values + values)
