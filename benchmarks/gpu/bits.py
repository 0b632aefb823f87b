"""The sums of a device beside the processor's, on the same numbers: the contract of tests/numerics/device without pytest.

    python -m benchmarks.gpu.bits DEVICE NAME LAYOUTS SECONDS

prints what one implementation came to, as JSON.

Random layouts, weights, absent tensors, strides, places in memory, denormals and special values. Magnitudes without a grid and
on one that fits, totals, results and fingerprints have to be equal to the bit. So has what a compression makes of a vector, and
the prints of tensors. All is computed as in a run, with deterministic algorithms alone.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.numerics import determinism, exact
from orchestrator.numerics.chosen import add_each, of_each
from orchestrator.numerics.device import compiling
from orchestrator.numerics.device.kernels import (
    SIZE_BYTES,
    Accumulator,
    Kernels,
    Operations,
    Plain,
    Updating,
    packed_room,
    sums_on,
)
from orchestrator.numerics.digests import prints_of
from orchestrator.numerics.fixed_point import HOST, Pieces, divided
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.levels import Rounding, add_levels, largest, levels_of
from orchestrator.numerics.lossless_packing import PackedVector, most_bytes, pack
from orchestrator.optim.privacy.keys import KEY_BYTES, Keys
from orchestrator.optim.privacy.noise import normal

_SPECIAL: Final = (0.0, -0.0, 2.0**-149, -(2.0**-126), 3.4e38, 1.0, -1.0)
_SHAPES: Final[Sequence[tuple[int, ...]]] = (
    *((), (1,), (3,), (0,), (7, 5), (16, 16), (2, 3, 4, 5)),
    *((4095,), (4096,), (9001,), (120, 130)),
)
_DIVISORS: Final = (1.0, 3.0, 7.0, 8.0, 49.0, 0.7, 0.5, 1e-3)
_TOLD: Final = 12  # differences after which no further layout is tried
_LARGE: Final = 136_314_880  # elements of the sums that are timed
_BAD: Final = (float("nan"), float("inf"), -float("inf"))
Tensors = list[torch.Tensor | None]
Shard = tuple[float, Tensors, Tensors]  # weight; here, and the same on the device


def rounds(kernels: Kernels, device: str, most: int, until: float) -> tuple[int, list[str]]:
    """How many were tried until that moment of the monotonic clock, at most so many; and what differed. It ends with the layout
    in which that becomes more than is worth reading."""
    differed: list[str] = []
    for number in range(most):
        if number and (time.monotonic() > until or len(differed) > _TOLD):
            return number, differed
        differed += [f"layout {number}: {each}" for each in _differences(kernels, device, number)]
    return most, differed


def _differences(kernels: Kernels, device: str, seed: int) -> Iterator[str]:
    """The differences for the layout of this seed, by kind of kernel: a fault of one hides nothing of the others."""
    dice = random.Random(seed)
    layout, shards = model(dice, device)
    whole = torch.zeros(layout.size, dtype=torch.float64)
    checks: dict[str, Callable[[], str | None]] = {
        "sums": lambda: _difference_of_sums(kernels, layout, shards, whole, device),
        "results": lambda: _difference_of_results(kernels, whole, dice.choice(_DIVISORS), device),
        "updates": lambda: _difference_of_updates(kernels, layout, dice, device),
        "plain sums": lambda: _difference_of_plain_sums(kernels, layout, shards, device),
        "levels": lambda: _difference_of_levels(kernels, layout.size, dice, device),
        "few elements": lambda: _difference_of_few(shards, dice, device),
        "prints": lambda: _difference_of_prints(shards),
        "packing": lambda: _difference_of_packing(kernels, whole, device),
        "packing of integers": lambda: _difference_of_packing(
            kernels, whole.view(torch.int64) >> dice.randint(0, 63), device
        ),
        "noise": lambda: _difference_of_noise(dice, device),
        "values that are not finite": lambda: difference_of_bad(kernels, device, seed),
    }
    for name, check in checks.items():
        try:
            found = check()
        except Exception as error:
            print(f"{name}, layout {seed}:", traceback.format_exc(), sep="\n", file=sys.stderr)
            found = f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if found:
            yield found


def _difference_of_sums(
    kernels: Kernels, layout: Layout, shards: Sequence[Shard], whole: torch.Tensor, device: str
) -> str | None:
    """whole: gets the total as it has to be, with zeros where no tensor lies, as in a run."""
    right = torch.full((layout.size,), 5.0, dtype=torch.float64)
    mine = right.to(device, copy=True)
    reference, accumulator = exact.Accumulator(layout, right, exact=True), Accumulator(layout, mine, kernels)
    grid, steps = Grid.unset(len(layout.slots), len(shards)), []
    for name in ("without a grid", "on a grid"):
        wanted = _summed(reference, [(weight, here) for weight, here, _ in shards], grid)
        steps.append((name, grid, wanted))
        grid = grid.refit(wanted.max(0).tolist())
    for slot in layout.slots:
        part = slice(slot.offset, slot.offset + slot.elements)
        whole[part] = right[part]
    for name, grid, wanted in steps:
        found = _summed(accumulator, [(weight, there) for weight, _, there in shards], grid)
        if found.tolist() != wanted.tolist():
            return f"magnitudes {name}: {_first(torch.from_numpy(found), torch.from_numpy(wanted), torch.int64)}"
    for slot in layout.slots:  # without a grid totals depend on the order of sums, and are thrown away in a run
        part = slice(slot.offset, slot.offset + slot.elements)
        if differs := _first(mine[part], right[part], torch.int64):
            return f"total of tensor {slot.name} {tuple(slot.shape)}: {differs}"
    return None


def _difference_of_plain_sums(kernels: Kernels, layout: Layout, shards: Sequence[Shard], device: str) -> str | None:
    """The difference of totals in float32, which operations of torch add up here."""
    right, grid = torch.zeros(layout.size), Grid.unset(len(layout.slots), len(shards))
    mine = right.to(device, copy=True)
    wanted = _summed(Accumulator(layout, right, Plain()), [(weight, here) for weight, here, _ in shards], grid)
    found = _summed(Accumulator(layout, mine, Plain(kernels)), [(weight, there) for weight, _, there in shards], grid)
    differs = _first(torch.from_numpy(found), torch.from_numpy(wanted), torch.int64) or _first(mine, right, torch.int32)
    return f"float32: {differs}" if differs else None


def _difference_of_few(shards: Sequence[Shard], dice: random.Random, device: str) -> str | None:
    """The difference of the largest magnitude of a vector, and of the largest elements of several; of equal ones the first."""
    pairs = [(here.reshape(-1), there.reshape(-1)) for here, there in _pairs(shards)]
    for here, there in pairs:
        bits = [int(largest([each], each)) for each in (here, there)]
        if bits[0] != bits[1]:
            return f"largest magnitude: {bits[1]:#x}, not {bits[0]:#x}"
    whole = torch.cat([here for here, _ in pairs]) if pairs else torch.empty(0)
    if len(whole) and dice.random() < 0.5:
        whole = (whole.clamp(-1e30, 1e30) * (4 / whole.abs().max().clamp(1e-30, 1e30))).round_()  # many are equal
    size, weight, keeps = dice.randint(1, len(whole) + 1), dice.uniform(0.1, 64), dice.random() < 0.5
    count = dice.randint(0, size)
    told: list[tuple[torch.Tensor, ...]] = []
    for at in ("cpu", device):
        vector, total = whole.to(at, copy=True), torch.ones(len(whole), dtype=torch.float64, device=at)
        vectors = torch.split(vector, size)
        found = of_each(vectors, [count] * len(vectors), keeps=keeps)
        if at != "cpu":
            add_each(found, range(0, len(whole) + 1, size)[: len(found)], weight, total)
        for one, part in zip(found, torch.split(total, size), strict=True):
            if at == "cpu" and one is not None:
                one.add(weight, part)
        packed = torch.cat([one.packed for one in found if one is not None])
        values = torch.cat([one.values for one in found if one is not None])
        told.append((packed, values, vector, divided(total, weight)))
    kinds = {"places": torch.uint8, "values": torch.int32, "what is kept": torch.int32, "their mean": torch.int64}
    for (name, kind), wanted, got in zip(kinds.items(), *told, strict=True):
        differs = _first(got, wanted, kind) if got.shape == wanted.shape else f"{len(got)}, not {len(wanted)}"
        if differs:
            return f"{count} of each {size} of {len(whole)} elements, {name}: {differs}"
    return None


def _difference_of_prints(shards: Sequence[Shard]) -> str | None:
    """The difference of the numbers by which gradients are compared."""
    here, there = (prints_of(tensors) for tensors in zip(*_pairs(shards), strict=True)) if _pairs(shards) else ([], [])
    wrong = sum(one != other for one, other in zip(there, here, strict=True))
    return f"prints of {wrong} of {len(here)} tensors" if wrong else None


def _pairs(shards: Sequence[Shard]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each tensor here and on the device."""
    both = [pair for _, here, there in shards for pair in zip(here, there, strict=True)]
    return [(one, other) for one, other in both if one is not None and other is not None]


def _difference_of_packing(kernels: Kernels, values: torch.Tensor, device: str) -> str | None:
    """The first difference in what other hosts are sent, or in what comes from them."""
    elements = values.numel()
    into, room = (torch.empty(size, dtype=torch.uint8) for size in (most_bytes(elements), packed_room(elements)))
    wanted = PackedVector(into[: pack(values, into)], values.dtype, elements)
    there = room.to(device)
    kernels.pack(values.to(device), there)
    room.copy_(there)
    size = int(room[:SIZE_BYTES].view(torch.int64))
    if size != wanted.packed.numel():
        return f"the packed form of {values.dtype}: {size} bytes, not {wanted.packed.numel()}"
    if differs := _first(room[SIZE_BYTES : SIZE_BYTES + size], wanted.packed, torch.uint8):
        return f"the packed form of {values.dtype}: {differs}"
    base = values.flip(0).to(device)
    kernels.unpack(wanted, base, base)
    differs = _first(base, values.flip(0) + values, torch.int64)
    return f"what was packed of {values.dtype}, added: {differs}" if differs else None


def _difference_of_updates(kernels: Kernels, layout: Layout, dice: random.Random, device: str) -> str | None:
    """The difference of parameters as integers."""
    generator, ours = torch.Generator().manual_seed(dice.getrandbits(32)), Updating(kernels)
    before = torch.randn(layout.size, generator=generator) * 2.0 ** dice.randint(-20, 20)
    after = before + torch.randn(layout.size, generator=generator) * 2.0 ** dice.randint(-40, 20)
    pieces: Pieces = ((0, 48, 2.0**-44), (48, layout.size, 2.0 ** dice.randint(-50, -30)))
    divisor, theirs = dice.randint(1, 9), torch.zeros(layout.size, dtype=torch.int64)
    mine = theirs.to(device, copy=True)
    wanted = HOST.differ(pieces, after, before, divisor, theirs)
    found = ours.differ(pieces, after.to(device), before.to(device), divisor, mine)
    if found != wanted:
        return f"update, divided by {divisor}: it {'fits' if found else 'does not fit'} 2**62"
    if differs := _first(mine, theirs, torch.int64):
        return f"update, divided by {divisor}: {differs}"
    sums = torch.randint(-(2**63), 2**63 - 1, (3, layout.size), generator=generator)
    there = sums.to(device, copy=True)
    if ours.absorb(mine, *there) != HOST.absorb(theirs, *sums):
        return "fingerprint of what absorbs an update"
    differs = _first(there, sums, torch.int64)
    return f"what absorbs an update: {differs}" if differs else None


def _difference_of_levels(kernels: Kernels, elements: int, dice: random.Random, device: str) -> str | None:
    """The difference of contributions that are rounded to few levels."""
    generator = torch.Generator().manual_seed(dice.getrandbits(32))
    values = torch.randn(elements, generator=generator) * 2.0 ** dice.randint(-130, 60)
    bits, weight, keeps = dice.choice(sorted(exact.FEW_LEVELS)), dice.uniform(0.1, 64), dice.random() < 0.5
    most = levels_of(bits, dice.randint(1, 8))
    spacing = max([1e-30, *values.abs().tolist()]) * weight / most
    theirs, total = values.clone(), torch.zeros(values.numel(), dtype=exact.FEW_LEVELS[bits].dtype)
    ours, there = values.to(device, copy=True), total.to(device, copy=True)
    add_levels(theirs, weight, spacing, most, total, keeps=keeps)
    size = dice.randint(1, elements + 1)
    parts = zip(*(torch.split(each, size) for each in (ours, there)), strict=True)
    row = [Rounding(part, weight / spacing, spacing / weight, total_of_part) for part, total_of_part in parts]
    kernels.quantize(row, float(most), keeps=keeps)
    kind = torch.int8 if bits == 8 else torch.int16
    differs = _first(there, total, kind) or _first(ours, theirs, torch.int32)
    return f"levels of {bits} bits: {differs}" if differs else None


def _difference_of_noise(dice: random.Random, device: str) -> str | None:
    """The difference of normal numbers that are made of the same secret bits."""
    key, elements = Keys(dice.randbytes(KEY_BYTES)), dice.randint(1, 300_000)
    theirs, ours = (
        torch.cat([*normal(key.stream("noise"), elements, 2.0**40, torch.device(place))]) for place in ("cpu", device)
    )
    differs = _first(ours, theirs, torch.int64)
    return f"noise: {differs}" if differs else None


def _difference_of_results(kernels: Kernels, right: torch.Tensor, divisor: float, device: str) -> str | None:
    parts = [right, right.flip(0), *(right * 3.0**-n for n in range(1, 10))]  # their sum depends on the order
    there, sums = [part.to(device, copy=True) for part in parts], sums_on(kernels)
    for count, first in itertools.product((1, 2, 4, 8, 11), (0, 3)):
        theirs, ours = torch.empty(len(right)), torch.empty(len(right), device=device)
        wanted = exact.finish(parts[:count], divisor, theirs, first)
        found = sums.finish(there[:count], divisor, ours, first)
        if differs := _first(ours, theirs, torch.int32):
            return f"result of {count}, divided by {divisor}: {differs}"
        if exact.wrap(found) != exact.wrap(wanted):
            return f"fingerprint of the result of {count}, divided by {divisor}"
        total, joined = torch.empty_like(right), torch.empty_like(there[0])
        exact.join(parts[:count], total)
        sums.join(there[:count], joined)
        if differs := _first(joined, total, torch.int64):
            return f"sum of {count}: {differs}"
    return None


def difference_of_bad(kernels: Kernels, device: str, seed: int) -> str | None:
    """Whether a value that is not finite is seen where it stands."""
    dice = random.Random(seed)
    tensor = torch.zeros(5000)
    bad, place = dice.choice(_BAD), dice.randrange(len(tensor))
    tensor[place] = bad
    layout = Layout.of([("t", tensor)])
    right = torch.zeros(layout.size, dtype=torch.float64)
    grid = Grid((-30,), 1)
    wanted = _summed(exact.Accumulator(layout, right, exact=True), [(1.0, [tensor])], grid)
    accumulator = Accumulator(layout, right.to(device, copy=True), kernels)
    found = _summed(accumulator, [(1.0, [tensor.to(device)])], grid)
    return None if found.tolist() == wanted.tolist() else f"magnitude with {bad} at {place}"


def model(dice: random.Random, device: str) -> tuple[Layout, list[Shard]]:
    shapes = [dice.choice(_SHAPES) for _ in range(dice.randint(1, 8))]
    generator = torch.Generator().manual_seed(dice.getrandbits(32))
    strange, scale = dice.uniform(0.0, 0.3), 2.0 ** dice.randint(-149, 100)
    layout = Layout.of((str(number), torch.empty(shape)) for number, shape in enumerate(shapes))

    def tensor(shape: tuple[int, ...]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        kind = dice.randrange(6)
        if kind == 0:
            return None, None
        values = torch.randn(shape, generator=generator) * scale
        chosen = torch.rand(shape, generator=generator) < strange
        values[chosen] = torch.tensor(_SPECIAL)[torch.randint(len(_SPECIAL), (int(chosen.sum()),), generator=generator)]
        return _placed(values, kind), _placed(values.to(device), kind)

    shards: list[Shard] = []
    for _ in range(dice.randint(1, 8)):
        drawn = [tensor(shape) for shape in shapes]
        weight = dice.choice([1.0, float(dice.randint(0, 300)), dice.uniform(1e-6, 1e6)])
        shards.append((weight, [here for here, _ in drawn], [there for _, there in drawn]))
    return layout, shards


def _placed(values: torch.Tensor, kind: int) -> torch.Tensor:
    if kind == 1 and values.dim() > 1:  # as a transposed weight leaves it
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2:  # not on a boundary of 16 bytes
        return torch.cat([values.new_zeros(1), values.reshape(-1)])[1:].view(values.shape)
    return values


def _summed(accumulator: Any, shards: Sequence[tuple[float, Tensors]], grid: Grid) -> NDArray[numpy.int64]:
    accumulator.clear()
    for weight, tensors in shards:
        accumulator.add(tensors, weight, grid)
    magnitudes: NDArray[numpy.int64] = accumulator.complete()
    return magnitudes


def _first(one: torch.Tensor, other: torch.Tensor, bits: torch.dtype) -> str:
    """The first element whose bits differ, and how many do; empty where none does."""
    found, wanted = (each.detach().cpu().contiguous().flatten() for each in (one, other))
    differs = (found.view(bits) != wanted.view(bits)).nonzero().flatten()
    if not len(differs):
        return ""
    place = int(differs[0])
    ours, theirs = (f"{each[place].item()!r} ({each.view(bits)[place].item():#x})" for each in (found, wanted))
    return f"{len(differs)} of {found.numel()} differ, the first at {place}: {ours}, not {theirs}"


def implementations(device: str) -> dict[str, Callable[[], Kernels]]:
    """Those that a run may use on this device, which is started."""
    torch.zeros(1, device=device)
    compiled: dict[str, Callable[[], Kernels]] = {"kernels": compiling.for_this_card} if device == "cuda" else {}
    return {**compiled, "operations of torch": Operations}


def times(kernels: Kernels) -> dict[str, float]:
    """Milliseconds of sums of 136 million elements on this card, the least of some."""
    shape = 1 << 20
    layout = Layout.of((str(number), torch.empty(shape, device="meta")) for number in range(_LARGE // shape))
    total, result = (torch.zeros(layout.size, dtype=kind, device="cuda") for kind in (torch.float64, torch.float32))
    gradients, weight = [torch.randn(shape, device="cuda") for _ in layout.slots], 1.0
    anchors = torch.full((len(layout.slots),), exact.ANCHOR * 2.0**-48, dtype=torch.float64, device="cuda")
    largest = torch.full((len(layout.slots),), -1, dtype=torch.int32, device="cuda")
    fingerprint, add = torch.zeros(1, dtype=torch.int64, device="cuda"), kernels.adder(layout, total)
    made: dict[str, Callable[[], None]] = {
        "first shard": lambda: add(gradients, weight, anchors, largest, fresh=True),
        "next shard": lambda: add(gradients, weight, anchors, largest, fresh=False),
        "finish": lambda: kernels.finish([total], 3.0, result, 0, fingerprint),
        "finish of 4": lambda: kernels.finish([total] * 4, 3.0, result, 0, fingerprint),
    }
    found: dict[str, float] = {}
    for name, work in made.items():
        work()
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            work()
            end.record()
            end.synchronize()
            found[name] = min(found.get(name, float("inf")), float(begin.elapsed_time(end)))
    return found


def main(device: str, name: str, layouts: str, seconds: str) -> None:
    until = time.monotonic() + float(seconds)
    determinism.prepare_thread(torch.get_num_threads(), device)
    kernels = implementations(device)[name]()
    count, differed = rounds(kernels, device, int(layouts), until)
    told = {"count": count, "differed": differed}
    print(json.dumps(told), flush=True)
    if device == "cuda" and not differed:
        print(json.dumps({**told, "times": times(kernels)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
