"""Few elements: the right ones are chosen, their gaps come back, and sums are those of the shards' order."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from orchestrator.numerics import chosen
from orchestrator.numerics.chosen import Chosen, ChosenRow, chosen_by_operations, pack, unpack

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


@given(VECTORS, st.integers(0, 50))
def test_operations_of_torch_choose_what_the_loop_chooses(values: numpy.ndarray, count: int) -> None:
    vector, count = torch.from_numpy(values), min(count, len(values))
    assert torch.equal(chosen_by_operations(vector, count), chosen._chosen(vector, count))


@given(VECTORS, st.integers(0, 50), st.floats(0.1, 9.0), st.booleans())
def test_on_a_device_the_same_is_sent_kept_and_added(
    values: numpy.ndarray, count: int, weight: float, keeps: bool
) -> None:
    """All but the packing is done by operations of torch there."""
    found = []
    for in_host_memory in (True, False):
        vector, total = torch.from_numpy(values.copy()), torch.ones(len(values), dtype=torch.float64)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(chosen, "in_host_memory", lambda _, here=in_host_memory: here)
            one = Chosen.of(vector, count, keeps=keeps)
            one.add(weight, total)
        found.append((one.packed.tolist(), one.values.tolist(), vector, total))
    (packed, sent, kept, sums), (packed_there, sent_there, kept_there, sums_there) = found
    assert (packed, sent) == (packed_there, sent_there)
    assert torch.equal(kept.view(torch.int32), kept_there.view(torch.int32))
    assert torch.equal(sums, sums_there)


@given(VECTORS, st.integers(1, 50))
def test_what_is_chosen_and_what_is_kept_are_the_whole(values: numpy.ndarray, count: int) -> None:
    vector = torch.from_numpy(values.copy())
    found = Chosen.of(vector, count, keeps=True)
    assert torch.equal(dense(found, len(values)) + vector, torch.from_numpy(values))
    sent = dense(found, len(values))
    assert ((vector.abs() <= sent.abs() / 2**8) | (sent == 0) | (sent.abs() == LARGEST) | (vector.abs() < 1e-38)).all()


@pytest.mark.parametrize("in_host_memory", [True, False])
def test_long_gaps_come_back(in_host_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "in_host_memory", lambda _: in_host_memory)
    vector = torch.zeros(3_000_000)
    places = [0, 127, 128, 16_511, 2_999_999]
    vector[places] = torch.arange(1.0, 6.0)
    found = Chosen.of(vector, 5, keeps=False)
    assert found.packed.numel() == 1 + 1 + 1 + 2 + 4
    assert torch.equal(dense(found, vector.numel()), vector)


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
