"""The loops as `numba.cfunc` makes them, for versions of numba that were not tried, compute the bits of those that are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

from orchestrator.common import tested_versions
from orchestrator.common.tested_versions import Tried
from orchestrator.numerics import chosen, compiled, exact, levels, lossless_packing
from orchestrator.numerics.exact import Accumulator
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.worker.member import lasting_memory
from orchestrator.worker.member.shared_queue import Assignment, SharedQueue

ELEMENTS = 2 * BLOCK
SPECIAL = [0.0, -0.0, 1e-42, -1e-45, 2.5, 3.5, numpy.inf, -numpy.inf, numpy.nan, 3.4e38]


def _floats(seed: int, *, special: bool) -> torch.Tensor:
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))
    if special:
        values[: len(SPECIAL)] = torch.tensor(SPECIAL)
    return values


def _integers(seed: int, dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min // 2, limits.max // 2, (ELEMENTS,), generator=generator, dtype=dtype)


def _sums(seed: int, dtype: torch.dtype, *, special: bool) -> Iterator[Any]:
    layout = Layout.of([("a", torch.empty(ELEMENTS - 5)), ("b", torch.empty(3))])
    for alone in (None, (3.0, torch.zeros(layout.size)), (4.0, torch.zeros(layout.size))):
        total = torch.zeros(layout.size, dtype=dtype)
        accumulator = Accumulator(layout, total, exact=dtype == torch.float64)
        for shard in range(2):
            tensors = [_floats(seed + shard, special=special)[: ELEMENTS - 5], None if shard else torch.ones(3)]
            accumulator.add(tensors, 0.3, Grid((-40, -40), 2))
        yield accumulator.complete(alone).tobytes()
        yield accumulator.finished
        yield total if alone is None else alone[1]
        for divisor in (3.0, 4.0):
            result = torch.zeros(layout.size)
            yield exact.finish([total] if alone else [total, total.clone()], divisor, result, 1)
            yield result.clone()
            yield exact.finish([total] * 4, divisor, result, 1)
            yield result
        for count in (3, 4, 5):
            joined = torch.empty_like(total)
            exact.join([total] * count, joined)
            yield joined


def _packed(values: torch.Tensor) -> Iterator[Any]:
    into = torch.zeros(lossless_packing.most_bytes(ELEMENTS), dtype=torch.uint8)
    size = lossless_packing.pack(values, into)
    narrow = lossless_packing.PackedVector(into[:size].clone(), values.dtype, ELEMENTS)
    yield narrow.packed
    yield narrow.unpacked()
    places = torch.empty(lossless_packing.blocks_of(ELEMENTS), dtype=torch.int64)
    narrow.locate(places)
    yield places
    if values.dtype == torch.float64:
        total, result = torch.empty_like(values), torch.empty(ELEMENTS)
        narrow.added(values, total)
        yield total
        for divisor in (3.0, 4.0):
            yield narrow.finish(values, divisor, result, 2)
            yield result.clone()


def _of_integers(seed: int) -> Iterator[Any]:
    for dtype in (torch.int64, torch.int16, torch.int8):
        values, result = _integers(seed, dtype), torch.empty(ELEMENTS, dtype=dtype)
        yield exact.keep([values, values], 1.0, result, 1)
        yield result.clone()
        yield exact.keep([values] * 3, 1.0, result, 1)
        yield result.clone()
        exact.join([values] * 4, result)
        yield result
    update, *sums = (_integers(seed + i, torch.int64) for i in range(4))
    yield exact.absorb(update, *sums[:2])
    yield exact.absorb(update, *sums)
    yield from sums


def _of_levels(seed: int) -> Iterator[Any]:
    values = _floats(seed, special=False)
    yield levels.largest([values, None, _floats(seed, special=True)], values)
    for dtype, most in ((torch.int8, 63), (torch.int16, 16000)):
        for keeps in (False, True):
            total, result = torch.zeros(ELEMENTS, dtype=dtype), torch.empty(ELEMENTS)
            rest = values.clone()
            levels.add_levels(rest, 0.7, 5.0 / most, most, total, keeps=keeps)
            levels.mean_of_levels(total, 5.0 / most, 3.0, result)
            yield from (total, rest, result)


def _of_chosen(seed: int) -> Iterator[Any]:
    for count in (1, 100, ELEMENTS):
        vector, total = _floats(seed, special=False), torch.zeros(ELEMENTS, dtype=torch.float64)
        found = chosen.Chosen.of(vector, count, keeps=True)
        found.add(0.3, total)
        yield from (found.packed, found.values, vector, total)


def _claims() -> Iterator[Any]:
    fd = lasting_memory.created()
    try:
        board, deal = SharedQueue(fd, 6), Assignment([[0, 1, 2, 3], [4, 5]], 1)
        for stamp in (1, 2):
            deal.stamp.value = stamp
            yield [board.claim(deal) for _ in range(8)]
    finally:
        os.close(fd)


def _everything() -> Iterator[Any]:
    for seed, special in ((0, False), (10, True)):
        values = _floats(seed, special=special)
        yield exact.fingerprint_of(values, 3)
        for dtype in (torch.float64, torch.float32):
            yield from _sums(seed, dtype, special=special)
        into = torch.empty(ELEMENTS, dtype=torch.int64)
        yield exact.differ(values, _floats(seed + 1, special=False), 3, 2.0**-40, into)
        yield into
        yield from _packed(values.double())
        yield from _packed(_floats(seed, special=special).double() * 1.1)
        yield from _packed((values.nan_to_num(0, 9, -9) * 2.0**20).round().double() * 2.0**-20)
        yield from _packed(_integers(seed, torch.int64))
        yield from _packed(_integers(seed, torch.int16).long())
        yield from _of_integers(seed)
        yield from _of_levels(seed)
        yield from _of_chosen(seed)
    yield from _claims()


def _outcome() -> list[Any]:
    return [each.numpy().tobytes() if isinstance(each, torch.Tensor) else each for each in _everything()]


class Counted:
    """`Code` that notes which loops are called."""

    def __init__(self, code: compiled.Code) -> None:
        self._code = code
        self.called: set[str] = set()

    def loop(self, name: str) -> Callable[..., int]:
        function = self._code.loop(name)

        def call(*arguments: Any) -> int:
            self.called.add(name)
            return function(*arguments)

        return call

    def prepared(self, name: str, arguments: Any) -> Callable[[], int]:
        self.called.add(name)
        return self._code.prepared(name, arguments)


@pytest.mark.long
@pytest.mark.slow
def test_loops_of_an_untried_numba_compute_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = _outcome()
    monkeypatch.setattr(tested_versions, "NUMBA", Tried("numba", ("0.1",)))
    code = compiled.load()
    assert isinstance(code, compiled.PublicCode)
    counted = Counted(code)
    monkeypatch.setattr(exact.LOOPS, "_code", counted)
    before = dict(exact.LOOPS)
    exact.LOOPS.clear()
    try:
        found = _outcome()
    finally:
        exact.LOOPS.clear()
        exact.LOOPS.update(before)
    assert counted.called == set(compiled._signatures())
    assert [place for place, (a, b) in enumerate(zip(found, usual, strict=True)) if a != b] == []


@pytest.mark.slow
@pytest.mark.long
def test_nothing_of_a_compiler_is_imported_before_a_loop_is_called() -> None:
    """So that a command starts with any version of numba and LLVM."""
    code = (
        "import sys, orchestrator.numerics.exact, orchestrator.worker.worker as _\n"
        "print([name for name in ('numba', 'llvmlite') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
