"""Orders of samples: each sample once per epoch, found at random as in turn, whatever files, batches, shards and blocks."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import Steps
from orchestrator.config.settings import from_yaml
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import ORDERS, permuted, place_of, problems
from tests.products import fewer
from tests.refusals import refused

pytestmark = pytest.mark.slow

SEEDS = st.integers(0, 2**63 - 1)
BATCHES = st.one_of(
    st.integers(1, 40).map(Steps.constant),
    st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 40)).map(
        lambda s: Steps(((0, s[0]), (s[1], s[2])))
    ),
)
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(lambda lengths: sum(lengths) > 0)


@st.composite
def epochs(draw: st.DrawFn) -> Epochs:
    lengths = draw(st.one_of(st.none(), LENGTHS))
    samples = draw(st.integers(1, 200)) if lengths is None else sum(lengths)
    return Epochs(draw(SEEDS), samples, draw(BATCHES), draw(st.integers(1, 9)), lengths)


def _epoch(order: Any, over: Epochs, epoch: int) -> list[list[int]]:
    steps = range(over.steps_of(epoch), over.steps_of(epoch + 1))
    return [order.indices(step, shard) for step in steps for shard in range(over.shards)]


@given(epochs(), st.integers(1, 6), st.integers(1, 40), st.integers(0, 3))
def test_blocks_visit_each_sample_once_in_an_epoch(over: Epochs, files: int, samples: int, epoch: int) -> None:
    found = _epoch(ORDERS["blocks"](over, files=files, samples=samples), over, epoch)
    assert sorted(itertools.chain(*found)) == list(range(over.samples))


@fewer(3)
@given(epochs(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_any_micro_batch_is_found_without_those_before(over: Epochs, files: int, random: Any) -> None:
    walked = ORDERS["blocks"](over, files=files)
    asked = [(step, shard) for step in range(over.steps_of(3)) for shard in range(over.shards)]
    expected = {each: walked.indices(*each) for each in asked}
    random.shuffle(asked)
    wanderer = ORDERS["blocks"](over, files=files)
    assert {each: wanderer.indices(*each) for each in asked} == expected


@given(epochs(), st.integers(0, 3))
def test_runs_of_shards_are_what_they_have_in_an_epoch(over: Epochs, epoch: int) -> None:
    steps = range(over.steps_of(epoch), over.steps_of(epoch + 1))
    ends = [over.run(epoch, shard) for shard in range(over.shards)]
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == over.samples
    for shard, (start, end) in enumerate(ends):
        rows = [over.own_rows(step, shard) for step in steps]
        assert [first for _, first, _ in rows] == [0, *(last for _, _, last in rows[:-1])]
        assert rows[-1][2] == end - start
        whole = [over.rows(step, shard) for step in steps]
        assert [last - first for _, first, last in rows] == [last - first for _, first, last in whole]


@pytest.mark.long
@fewer(3)
@given(st.lists(st.integers(1, 30), min_size=16, max_size=40), st.integers(1, 4), SEEDS)
def test_a_shard_reads_a_share_of_the_files_and_a_block_at_a_time(lengths: list[int], size: int, seed: int) -> None:
    over = Epochs(seed, sum(lengths), Steps.constant(8), 4, lengths)
    order = ORDERS["blocks"](over, files=size)
    ends = numpy.cumsum(lengths)
    read: list[set[int]] = []
    for shard in range(4):
        rows = [order.indices(step, shard) for step in range(over.steps_per_epoch)]
        files = [numpy.searchsorted(ends, row, "right").tolist() for row in rows]
        read.append(set(itertools.chain(*files)))
        for file in read[-1]:
            opened = [step for step, held in enumerate(files) if file in held]
            between = {other for held in files[opened[0] : opened[-1] + 1] for other in held}
            assert len(between) <= 3 * size + 2  # of its block, and of those before and after it within a micro-batch
    shared = sum(len(files) for files in read) - len(set().union(*read))
    assert shared <= 3  # a file lies in two shards' runs where one ends


@given(st.integers(1, 5000), SEEDS)
def test_the_network_permutes(size: int, seed: int) -> None:
    keys = numpy.array([seed, seed ^ 5, 17, 4, seed // 3, 1], numpy.uint64)
    found = permuted(numpy.arange(size), size, keys)
    assert numpy.array_equal(numpy.sort(found), numpy.arange(size))
    for position in {0, size // 2, size - 1}:
        assert place_of(int(found[position]), size, keys) == position


KNOWN = [[6, 9, 7], [8, 1, 3], [5, 10, 11], [4, 2, 0], [9, 11, 1], [3, 4, 8]]


def test_an_order_does_not_change_from_version_to_version() -> None:
    """A rerun years later reads the same."""
    over = Epochs(7, 12, Steps.constant(6), 2, [5, 4, 3])
    order = ORDERS["blocks"](over, files=2)
    assert [order.indices(step, shard) for step in (0, 1, 2) for shard in (0, 1)] == KNOWN


DIGESTS: dict[tuple[str, tuple[int, ...] | None], str] = {
    ("shuffled", None): "f91b5e0306fb33cbe1db07670a73bef6db1e35d535db89ae4cfb6a5852edaaff",
    ("blocks", None): "82524495f0bfcd676d93680ee7a48b94c4ff5ef5931c32a143a42b531b243382",
    ("blocks", (30, 0, 1, 17, 5, 5, 20, 9, 13)): "a4dd5d8800c9f86869abe68fb2992a59d7c2b3d03ef8a7bce4c2de7199b615e0",
}


@pytest.mark.parametrize(("name", "lengths"), DIGESTS)
def test_whole_epochs_stay_as_they_are(name: str, lengths: tuple[int, ...] | None) -> None:
    digest = hashlib.sha256()
    for seed, shards, batches in ((7, 3, ((0, 8),)), (2**63 - 1, 5, ((0, 3), (11, 20)))):
        over = Epochs(seed, 100, Steps(batches), shards, lengths)
        for options in [{}] if name == "shuffled" else [{"files": 3, "samples": 7}, {"files": 2, "samples": 20}]:
            for epoch in (0, 1, 5):
                digest.update(repr(_epoch(ORDERS[name](over, **options), over, epoch)).encode())
    assert digest.hexdigest() == DIGESTS[name, lengths]


def test_epochs_differ_and_neighbours_are_parted() -> None:
    over = Epochs(3, 4000, Steps.constant(40), 4, [100] * 40)
    order = ORDERS["blocks"](over, files=8)
    first, second = (list(itertools.chain(*_epoch(order, over, epoch))) for epoch in (0, 1))
    assert first != second
    assert sum(b == a + 1 for a, b in itertools.pairwise(first)) < 40


def test_memory_does_not_grow_with_the_samples() -> None:
    """A thousand million samples in files, and as many as can be numbered without."""
    import tracemalloc

    lengths = numpy.full(100_000, 10_000)
    for samples, files, most in ((10**9, lengths, 20_000_000), (10**12, None, 100_000), (2**63 - 1, None, 100_000)):
        over = Epochs(1, samples, Steps.constant(64), 4, files)  # type: ignore[arg-type]
        ORDERS["blocks"](over, files=16).indices(0, 2)  # and what it imports
        tracemalloc.start()
        order = ORDERS["blocks"](over, files=16)
        for step in (0, 10**6, 10**8, samples // 64):
            found = order.indices(step, 2)
            assert len({*found}) == len(found) == (16 if step < samples // 64 else len(range(*over.rows(step, 2)[1:])))
            assert all(0 <= index < samples for index in found)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 2_000_000
        assert peak < most


@fewer(3)
@given(st.integers(1, 400), BATCHES, st.integers(1, 9), st.integers(1, 6), st.integers(1, 40), SEEDS)
def test_samples_taken_for_files_are_ordered_as_files_of_that_length(
    samples: int, batches: Steps, shards: int, size: int, each: int, seed: int
) -> None:
    lengths = [min(each, samples - first) for first in range(0, samples, each)]
    named = ORDERS["blocks"](Epochs(seed, samples, batches, shards, lengths), files=size)
    over = Epochs(seed, samples, batches, shards)
    computed = ORDERS["blocks"](over, files=size, samples=each)
    assert [_epoch(computed, over, epoch) for epoch in (0, 3)] == [_epoch(named, over, epoch) for epoch in (0, 3)]


def repeating(over: Epochs) -> Any:
    class Order:
        def indices(self, step: int, shard: int) -> list[int]:
            _, first, last = over.rows(step, shard)
            return [0] * (last - first)

    return Order()


def test_an_order_of_ones_own_is_tried() -> None:
    over = Epochs(1, 83, Steps.constant(16), 2)
    for name in ORDERS:
        assert problems(name, {}, lambda: over, over.steps_per_epoch) == []
    assert problems(f"{__name__}:repeating", {}, lambda: over, over.steps_per_epoch) == [
        f"data.order: {__name__}:repeating does not visit each sample once in an epoch"
    ]


def test_an_order_of_all_samples_goes_with_no_division_of_them() -> None:
    start = "run: {steps: 3}\npipeline: {target: a:B}\noptimizer: {name: sgd, lr: 1}\n"
    assert from_yaml(f"{start}data: {{order: {{name: blocks, files: 4}}}}\n").data.order.options == {"files": 4}
    for other in ("partition: iid", "sampling: balanced", "subset: {name: bagging, member: 0}"):
        with refused("data.order-of-all", "data.order"):
            from_yaml(f"{start}data: {{order: blocks, {other}}}\n")
