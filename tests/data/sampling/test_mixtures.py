"""Laws of mixtures: exact proportions, each sample of a source once in its epochs, and a row is a function of its position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, KeysView, Mapping
from itertools import pairwise
from typing import Any

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.common.values import Steps
from orchestrator.data.drawn import Drawn
from orchestrator.data.mixture import Mixture, Sources, Turns, whole
from orchestrator.data.sampling.mixtures import Pattern, are_weights, counts_of
from orchestrator.data.sampling.orders import ORDERS

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**32)


def test_weights_are_whole_numbers_of_rows() -> None:
    assert counts_of({"a": 0.7, "b": 0.3}) == {"a": 7, "b": 3}
    assert counts_of({"a": 2, "b": 4, "c": 6}) == {"a": 1, "b": 2, "c": 3}
    assert counts_of({"a": 0.1, "b": 0.2, "c": 0.25}) == {"a": 2, "b": 4, "c": 5}


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "1", True, None, 0.123456])
def test_other_weights_are_refused(weight: float) -> None:
    assert not are_weights({"a": weight, "b": 1})


@given(COUNTS, SEEDS, st.integers(0, 3), st.lists(st.integers(0, 60), min_size=2, max_size=6).map(sorted))
def test_every_cut_into_micro_batches_gives_the_same_rows_and_each_pattern_its_numbers(
    counts: tuple[int, ...], seed: int, shard: int, cuts: list[int]
) -> None:
    pattern, length = Pattern(seed, counts), sum(counts)
    end = -(-cuts[-1] // length) * length
    whole = rows(pattern, shard, 0, end)
    assert [source for source, _ in whole[cuts[0] : cuts[-1]]] == [
        source for first, last in pairwise(cuts) for source, _ in rows(pattern, shard, first, last)
    ]
    assert [row for first, last in pairwise([0, *cuts, end]) for row in rows(pattern, shard, first, last)] == whole
    for start in range(0, end, length):
        assert Counter(source for source, _ in whole[start : start + length]) == dict(enumerate(counts))
    for source in range(len(counts)):
        draws = [draw for other, draw in whole if other == source]
        assert draws == list(range(len(draws)))


def rows(pattern: Pattern, shard: int, first: int, last: int) -> list[tuple[int, int]]:
    """(source, draw) of each row."""
    found: dict[int, tuple[int, int]] = {}
    for piece in pattern.pieces(shard, first, last):
        found |= {
            row: (piece.source, draw)
            for row, draw in zip(piece.rows.tolist(), range(piece.first, piece.last), strict=True)
        }
    return [found[row] for row in range(last - first)]


@given(
    st.sampled_from(["shuffled", "blocks", "sequential"]),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(1, 5),
    SEEDS,
)
def test_each_sample_of_a_source_comes_once_in_each_of_its_epochs(
    order: str, files: list[int], shards: int, seed: int
) -> None:
    samples = sum(files)
    assume(samples >= shards)
    turns = Turns(seed, samples, shards, "a", files)
    built = ORDERS.build(order, {"files": 2} if order == "blocks" else {})(turns)
    runs = [turns.run(0, shard) for shard in range(shards)]
    for epoch in range(2):
        found = [
            sample
            for shard, (start, end) in enumerate(runs)
            for sample in turns.drawn(built, shard, epoch * (end - start), (epoch + 1) * (end - start))
        ]
        assert sorted(found) == list(range(samples))
    start, end = runs[-1]
    length = 3 * (end - start)
    whole = turns.drawn(built, shards - 1, 0, length)
    assert whole == [sample for draw in range(length) for sample in turns.drawn(built, shards - 1, draw, draw + 1)]


@pytest.mark.slow
@given(COUNTS, SEEDS, st.integers(1, 4), st.integers(1, 20))
def test_a_run_has_the_proportions_of_its_weights(
    counts: tuple[int, ...], seed: int, shards: int, rows_of_shard: int
) -> None:
    sources = Sources({str(number): numpy.arange(20 + number) for number in range(len(counts))})
    weights = {str(number): count for number, count in enumerate(counts)}
    drawn = Drawn(len(sources), Steps.constant(rows_of_shard * shards), shards)
    mixture = Mixture(seed, drawn, sources, weights, ORDERS.build("shuffled", {}), lambda _: None)
    length = sum(counts_of(weights).values())
    ends = numpy.cumsum([len(source) for source in sources.by_name.values()])
    for shard in range(shards):
        found = [index for step in range(length) for index in mixture.indices(step, shard)]
        own = Counter(int(ends.searchsorted(index, "right")) for index in found)
        assert own == {number: count * rows_of_shard for number, count in enumerate(counts_of(weights).values())}


class Columns(Mapping[Any, Any]):
    """A table that is read by the name of a column and by the number of a row, as a TensorDict."""

    def __init__(self, **columns: list[int]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return {name: column[key] for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def keys(self) -> KeysView[Any]:
        return self._columns.keys()


def test_a_mapping_that_gives_its_rows_is_one_training_set() -> None:
    table = Columns(a=[1, 2, 3], b=[4, 5, 6])
    assert whole(table) is table
    assert isinstance(whole({"a": [1, 2, 3], "b": [4, 5]}), Sources)
