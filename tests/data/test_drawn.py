"""Which samples a micro-batch holds where shards draw from parts of their own: passes, weights, epochs, and no memory."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import Steps
from orchestrator.data.division import SampleSubset
from orchestrator.data.drawn import Drawn, PassSampler, WeightedSampler
from tests.data.test_order import changing


def parts(owners: list[int], shards: int) -> list[SampleSubset]:
    return [SampleSubset(numpy.flatnonzero(numpy.array(owners) == shard), None) for shard in range(shards)]


def drawn_by(sampler: Any, shard: int, steps: int) -> list[int]:
    return [index for step in range(steps) for index in sampler.indices(step, shard)]


owners = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(owners, changing, st.integers(0, 2**63 - 1))
def test_a_shard_goes_through_its_own_part_in_passes(owned: list[int], sizes: Steps, seed: int) -> None:
    """Each sample once before any comes again, whatever the sizes of micro-batches."""
    divided = parts(owned, 5)
    sampler = PassSampler(seed, Drawn(len(owned), sizes, 5), divided)
    for shard, part in enumerate(divided):
        seen = drawn_by(sampler, shard, 12)
        length = len(part.samples)
        assert not seen or length
        for number in range(len(seen) // max(1, length)):
            assert sorted(seen[number * length : (number + 1) * length]) == part.samples.tolist()


@given(st.integers(1, 40), changing, st.integers(1, 40))
def test_every_step_is_full_and_dealt_evenly(samples: int, sizes: Steps, shards: int) -> None:
    order = Drawn(samples, sizes, shards)
    for step in range(20):
        rows = [order.rows(step, shard) for shard in range(shards)]
        lengths = [last - first for first, last in rows]
        assert sum(lengths) == sizes.at(step)
        assert max(lengths) - min(lengths) <= 1
        assert [last for _, last in rows] == [order.rows(step + 1, shard)[0] for shard in range(shards)]


@given(st.integers(1, 60), changing, st.integers(1, 5))
def test_an_epoch_draws_as_many_rows_as_there_are_samples(samples: int, sizes: Steps, epochs: int) -> None:
    steps = Drawn(samples, sizes, 3).steps_of(epochs)
    rows = list(itertools.accumulate((sizes.at(step) for step in range(steps)), initial=0))
    assert rows[-1] >= epochs * samples > rows[-2]
    assert Drawn(samples, sizes, 3).steps_per_epoch == Drawn(samples, sizes, 3).steps_of(1)


def test_an_epoch_of_equal_parts_is_one_pass_of_each() -> None:
    order = Drawn(24, Steps.constant(8), 4)
    sampler = PassSampler(1, order, parts([number % 4 for number in range(24)], 4))
    seen = Counter(index for shard in range(4) for index in drawn_by(sampler, shard, order.steps_per_epoch))
    assert seen == Counter(range(24))


@given(owners, st.integers(0, 20))
def test_samplers_have_no_memory(owned: list[int], step: int) -> None:
    """Any worker, at any time, in any order of asking, finds the same samples."""
    order = Drawn(len(owned), Steps.constant(7), 5)
    weighted = [
        SampleSubset(part.samples, numpy.arange(1.0, 1 + len(part.samples))) if len(part.samples) else part
        for part in parts(owned, 5)
    ]
    for kind, divided in ((PassSampler, parts(owned, 5)), (WeightedSampler, weighted)):
        expected = [kind(3, order, divided).indices(step, shard) for shard in range(5)]
        wanderer = kind(3, order, divided)
        for other in (step + 7, 0, step + 1):
            wanderer.indices(other, 0)
        for shard in reversed(range(5)):
            assert wanderer.indices(step, shard) == expected[shard]


def test_shards_and_passes_have_orders_of_their_own() -> None:
    """Also shards whose parts are of one size."""
    order = Drawn(60, Steps.constant(60), 2)
    sampler = PassSampler(1, order, parts([0] * 30 + [1] * 30, 2))
    first, second = sampler.indices(0, 0), [index - 30 for index in sampler.indices(0, 1)]
    assert len({tuple(first), tuple(second), tuple(sampler.indices(1, 0)), tuple(range(30))}) == 4


def test_weights_are_followed() -> None:
    """In 4000 rows within four standard deviations; what has no weight is left out by the division."""
    weights = numpy.array([1.0, 3.0, 6.0])
    whole = SampleSubset(numpy.array([4, 7, 9]), weights)
    sampler = WeightedSampler(5, Drawn(3, Steps.constant(40), 2), (whole, whole))
    seen = Counter(drawn_by(sampler, 0, 100) + drawn_by(sampler, 1, 100))
    assert set(seen) == {4, 7, 9}
    for index, weight in zip((4, 7, 9), weights / 10, strict=True):
        assert seen[index] == pytest.approx(4000 * weight, abs=4 * (4000 * weight * (1 - weight)) ** 0.5)
    assert sampler.indices(0, 0) != sampler.indices(0, 1) != sampler.indices(1, 1)


KNOWN_PASSES = [[4, 0, 2, 6], [7, 7, 1, 8]]
KNOWN_WEIGHTS = [[0, 8, 6, 8], [8, 6, 8, 5]]


def test_known_draws() -> None:
    """The draws belong to every recorded run, so they may not change."""
    order = Drawn(9, Steps.constant(8), 2)
    assert [PassSampler(7, order, parts([0, 1] * 4 + [1], 2)).indices(1, shard) for shard in (0, 1)] == KNOWN_PASSES
    whole = SampleSubset(numpy.arange(9), numpy.arange(1.0, 10.0))
    assert [WeightedSampler(7, order, (whole, whole)).indices(1, shard) for shard in (0, 1)] == KNOWN_WEIGHTS
