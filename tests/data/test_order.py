"""Which samples a micro-batch holds: each sample once in an epoch, dealt evenly, and nothing depends on the workers."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.common.values import Steps
from orchestrator.data.fetching import fetch
from orchestrator.data.order import Epochs, EvaluationBatches
from orchestrator.data.sampling.orders import shuffled

orders = st.builds(
    Epochs,
    seed=st.integers(0, 2**63 - 1),
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 40).map(Steps.constant),
    shards=st.integers(1, 12),
)


def _step(order: Epochs, step: int) -> list[list[int]]:
    """The indices of each shard."""
    sampler = shuffled(order)
    return [sampler.indices(step, shard) for shard in range(order.shards)]


@given(orders, st.integers(0, 3))
@example(Epochs(seed=0, samples=1, batch_size=Steps.constant(40), shards=12), 2)
@example(Epochs(seed=0, samples=5, batch_size=Steps.constant(8), shards=4), 0)
def test_an_epoch_visits_every_sample_once(order: Epochs, epoch: int) -> None:
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    seen = Counter(index for step in steps for shard in _step(order, step) for index in shard)
    assert seen == Counter(range(order.samples))


@given(orders, st.integers(0, 200))
def test_a_step_is_dealt_in_runs_of_nearly_equal_length(order: Epochs, step: int) -> None:
    rows = [order.rows(step, shard) for shard in range(order.shards)]
    assert {epoch for epoch, _, _ in rows} == {step // order.steps_per_epoch}
    assert all(end == start for (_, _, end), (_, start, _) in itertools.pairwise(rows))
    lengths = [end - start for _, start, end in rows]
    assert max(lengths) - min(lengths) <= 1
    assert 1 <= sum(lengths) <= order.batch_size.least
    full = (step + 1) % order.steps_per_epoch != 0
    assert sum(lengths) == order.batch_size.least or not full


@given(orders, st.integers(0, 20))
def test_a_sampler_has_no_memory(order: Epochs, step: int) -> None:
    """Any worker, at any time, in any order of asking, finds the same samples."""
    expected = _step(order, step)
    wanderer = shuffled(order)
    for other in (step + 7, 0, step + 1):
        wanderer.indices(other, 0)
    for shard in reversed(range(order.shards)):
        assert wanderer.indices(step, shard) == expected[shard]


changing = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), max_size=3).flatmap(
    lambda more: st.integers(1, 40).map(
        lambda size: Steps(
            tuple(zip(itertools.accumulate([0, *(n for n, _ in more)]), [size, *(v for _, v in more)], strict=False))
        )
    )
)


@given(st.integers(1, 60), changing)
def test_batches_may_change_with_the_step(samples: int, sizes: Steps) -> None:
    """As if the epochs were walked step by step: each sample once in each."""
    order = Epochs(5, samples, sizes, 40)
    epoch = offset = 0
    for step in range(40):
        length = min(sizes.at(step), samples - offset)
        rows = [order.rows(step, shard) for shard in range(40)]
        assert (rows[0][0], rows[0][1], rows[-1][2]) == (epoch, offset, offset + length)
        lengths = [end - start for _, start, end in rows]
        assert sum(lengths) == length
        assert max(lengths) - min(lengths) <= 1
        offset += length
        if offset == samples:
            epoch, offset = epoch + 1, 0
            assert order.steps_of(epoch) == step + 1


def test_a_last_batch_that_is_not_full_leaves_shards_empty() -> None:
    order = Epochs(seed=3, samples=22, batch_size=Steps.constant(10), shards=5)
    assert order.steps_per_epoch == 3
    assert [len(shard) for shard in _step(order, 2)] == [0, 0, 1, 0, 1]
    assert [len(shard) for shard in _step(order, 3)] == [2] * 5


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order = Epochs(seed=3, samples=30, batch_size=Steps.constant(30), shards=1)
    other = Epochs(seed=4, samples=30, batch_size=Steps.constant(30), shards=1)
    assert len({tuple(_step(order, 0)[0]), tuple(_step(order, 1)[0]), tuple(_step(other, 0)[0])}) == 3


KNOWN = [[9, 10], [19, 8], [7, 13], [16, 3], [11, 17]]


def test_a_known_order() -> None:
    """The order of samples belongs to every recorded run."""
    assert _step(Epochs(seed=7, samples=22, batch_size=Steps.constant(10), shards=5), 1) == KNOWN


@given(st.integers(0, 100), st.integers(1, 30))
def test_evaluation_batches_cover_the_set_in_order(samples: int, rows: int) -> None:
    batches = EvaluationBatches(samples, rows)
    assert [index for batch in batches for index in batch] == list(range(samples))
    assert all(len(batch) == rows for batch in batches[:-1])
    assert not batches or 1 <= len(batches[-1]) <= rows


@given(st.integers(0, 100), st.integers(1, 30), st.integers(1, 6))
def test_each_evaluation_batch_is_of_one_shard_and_they_ascend(samples: int, rows: int, total: int) -> None:
    batches = EvaluationBatches(samples, rows)
    for shards in ([], [total - 1], [*reversed(range(total))][::2], range(total)):
        own = [number for number in range(len(batches)) if number % total in shards]
        assert [*batches.of(shards, total)] == own


def test_no_evaluation_batch_of_very_many_is_kept() -> None:
    batches = EvaluationBatches(10**15, 8)
    assert len(batches) == 10**15 // 8
    assert batches[-1] == range(10**15 - 8, 10**15)
    assert [*itertools.islice(batches.of([3, 1], 4), 3)] == [1, 3, 5]


# --- fetching


class OneByOne:
    def __getitem__(self, index: int) -> int:
        return index * index


class InBatches(OneByOne):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [index * index for index in indices]


@pytest.mark.parametrize("indices", [[3, 1, 2], range(4)])
def test_items_come_in_the_order_asked_for(indices: Any) -> None:
    batched = InBatches()
    assert fetch(OneByOne(), indices, tuple) == fetch(batched, indices, tuple) == tuple(i * i for i in indices)
    assert batched.asked == [list(indices)]  # a plain list, as torch's own loader gives


def test_collate_gets_all_items_of_a_batch() -> None:
    assert fetch(OneByOne(), [2, 3], sum) == 13
