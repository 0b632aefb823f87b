"""Few elements: the right ones are chosen, their gaps come back, and sums are those of the shards' order."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from orchestrator.numerics import chosen
from orchestrator.numerics.chosen import Chosen, ChosenRow, add_each, of_each, pack, unpack

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])
LARGEST = torch.finfo(torch.bfloat16).max
VECTORS = arrays.arrays(numpy.float32, st.integers(1, 40), elements=FLOATS)


def nearest(value: float) -> float:
    """In bfloat16, as torch rounds; what would become infinite is the largest number."""
    return float(torch.tensor(value).clamp(-LARGEST, LARGEST).bfloat16())


def dense(chosen: Chosen, elements: int) -> torch.Tensor:
    total = torch.zeros(elements, dtype=torch.float64)
    chosen.add(1.0, total)
    return total.float()


@given(VECTORS, st.integers(1, 50))
def test_the_largest_are_chosen_and_of_equal_ones_the_first(values: numpy.ndarray, count: int) -> None:
    vector = torch.from_numpy(values.copy())
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:count]
    expected = torch.zeros(len(values))
    for i in order:
        expected[i] = nearest(float(values[i]))
    found = Chosen.of(vector, count, keeps=False)
    assert torch.equal(vector, torch.from_numpy(values))
    assert torch.equal(dense(found, len(values)), expected)
    assert found.values.numel() == sum(values[i] != 0 for i in order)


@given(st.lists(st.none() | VECTORS, max_size=9), st.integers(0, 50), st.floats(0.1, 9.0), st.booleans(), st.booleans())
def test_on_a_device_the_same_is_sent_kept_and_added(
    given_vectors: list[numpy.ndarray | None], count: int, weight: float, keeps: bool, is_wide: bool
) -> None:
    """Operations of torch take several vectors together there, also such as are not of one length, and pieces of many. is_wide:
    as if some had more elements than int32 counts."""
    vectors = [None if values is None else torch.from_numpy(values.copy()) for values in given_vectors]
    vectors += [None if vector is None else vector.flip(0).contiguous() for vector in vectors]
    apart = [None if vector is None else vector.clone() for vector in vectors]
    found = [None if vector is None else Chosen.of(vector, count, keeps=keeps) for vector in vectors]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chosen, "in_host_memory", lambda _: False)
        patched.setattr(chosen, "TOGETHER", 20)
        patched.setattr(chosen, "NARROW", 3 if is_wide else chosen.NARROW)
        there = of_each(apart, [count] * len(apart), keeps=keeps)
    for one, other, vector, kept in zip(found, there, vectors, apart, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None and vector is not None and kept is not None:
            assert (one.packed.tolist(), one.values.tolist()) == (other.packed.tolist(), other.values.tolist())
            assert torch.equal(vector.view(torch.int32), kept.view(torch.int32))
    sizes = [0 if vector is None else vector.numel() for vector in vectors]
    starts = [sum(sizes[:nth]) for nth in range(len(sizes))]
    totals = torch.ones(2, sum(sizes), dtype=torch.float64)
    add_each(there, starts, weight, totals[1])
    for one, start, size in zip(found, starts, sizes, strict=True):
        if one is not None:
            one.add(weight, totals[0][start : start + size])
    assert torch.equal(*totals)


@given(VECTORS, st.integers(1, 50))
def test_what_is_chosen_and_what_is_kept_are_the_whole(values: numpy.ndarray, count: int) -> None:
    vector = torch.from_numpy(values.copy())
    found = Chosen.of(vector, count, keeps=True)
    assert torch.equal(dense(found, len(values)) + vector, torch.from_numpy(values))
    sent = dense(found, len(values))
    assert ((vector.abs() <= sent.abs() / 2**8) | (sent == 0) | (sent.abs() == LARGEST) | (vector.abs() < 1e-38)).all()


def test_long_gaps_come_back() -> None:
    vector = torch.zeros(3_000_000)
    places = [0, 127, 128, 16_511, 2_999_999]
    vector[places] = torch.arange(1.0, 6.0)
    found = Chosen.of(vector, 5, keeps=False)
    assert found.packed.numel() == 1 + 1 + 1 + 2 + 4
    assert torch.equal(dense(found, vector.numel()), vector)
    total = torch.zeros(2 * vector.numel(), dtype=torch.float64)
    add_each([found, found], [0, vector.numel()], 1.0, total)
    assert torch.equal(total.float(), torch.cat([vector, vector]))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.5, 9), st.lists(st.none() | VECTORS, min_size=3, max_size=3))))
def test_payloads_come_back(given_rows: list[tuple[int, float, list[numpy.ndarray | None]]]) -> None:
    rows = [
        ChosenRow(s, w, [None if v is None else Chosen.of(torch.from_numpy(v.copy()), 7, keeps=False) for v in vectors])
        for s, w, vectors in given_rows
    ]
    again = unpack(pack(rows), 3)
    assert [(row.shard, row.weight) for row in again] == [(row.shard, row.weight) for row in rows]
    for row, other in zip(rows, again, strict=True):
        for one, two in zip(row.vectors, other.vectors, strict=True):
            assert (one is None) == (two is None)
            if one is not None and two is not None:
                assert torch.equal(one.values, two.values)
                assert torch.equal(one.packed, two.packed)
