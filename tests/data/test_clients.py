"""Which client a slot plays, and which samples its local steps take."""

from __future__ import annotations

from collections import Counter

import numpy
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import Span, Steps
from orchestrator.data.clients import ClientSampler
from orchestrator.data.division import SampleSubset
from orchestrator.data.drawn import Drawn
from tests.refusals import refused

SIZES = st.lists(st.integers(0, 12), min_size=3, max_size=12).filter(lambda sizes: sum(map(bool, sizes)) >= 3)
LOCALS = st.one_of(
    st.builds(lambda n: Span(steps=n), st.integers(1, 7)), st.builds(lambda n: Span(epochs=n), st.integers(1, 3))
)


def sampler(sizes: list[int], local: Span, slots: int = 3, rows: int = 8, *, weighted: bool = False) -> ClientSampler:
    """A sampler of clients with so many samples each, numbered through."""
    ends = numpy.cumsum(sizes)
    parts = [
        SampleSubset(numpy.arange(end - size, end), numpy.ones(size) if weighted and size else None)
        for size, end in zip(sizes, ends, strict=True)
    ]
    return ClientSampler(5, Drawn(sum(sizes), Steps.constant(rows), slots), parts, local)


def owner(sizes: list[int], sample: int) -> int:
    return int(numpy.searchsorted(numpy.cumsum(sizes), sample, side="right"))


@given(SIZES, LOCALS, st.integers(0, 5), st.booleans())
def test_a_slot_reads_what_its_client_owns_and_as_long_as_it_says(
    sizes: list[int], local: Span, round_: int, weighted: bool
) -> None:
    found = sampler(sizes, local, weighted=weighted)
    for slot in range(3):
        client, steps = found.client(round_, slot), found.local_steps(round_, slot)
        batches = [found.indices(round_ * found.steps_per_round + nth, slot) for nth in range(found.steps_per_round)]
        assert [bool(batch) for batch in batches] == [nth < steps for nth in range(found.steps_per_round)]
        assert {owner(sizes, sample) for batch in batches for sample in batch} <= {client}


@given(SIZES, st.integers(1, 3), st.integers(0, 5))
def test_epochs_take_each_sample_of_the_client_as_often(sizes: list[int], epochs: int, round_: int) -> None:
    found = sampler(sizes, Span(epochs=epochs))
    for slot in range(3):
        client, first = found.client(round_, slot), round_ * found.steps_per_round
        count = Counter(
            sample for step in range(first, first + found.steps_per_round) for sample in found.indices(step, slot)
        )
        lengths = {len(found.indices(step, slot)) for step in range(first, first + found.local_steps(round_, slot))}
        assert max(lengths, default=0) <= 8 * (slot + 1) // 3 - 8 * slot // 3
        assert max(lengths, default=0) - min(lengths, default=0) <= 1
        assert count == {sample: epochs for sample in range(sum(sizes)) if owner(sizes, sample) == client}


@given(SIZES, st.integers(1, 7), st.integers(0, 5))
def test_local_steps_are_full_and_take_samples_nearly_equally_often(sizes: list[int], steps: int, round_: int) -> None:
    found = sampler(sizes, Span(steps=steps))
    assert found.steps_per_round == steps
    for slot in range(3):
        batches = [found.indices(round_ * steps + nth, slot) for nth in range(found.local_steps(round_, slot))]
        assert {len(batch) for batch in batches} <= {8 * (slot + 1) // 3 - 8 * slot // 3}
        if batches:
            count = Counter(sample for batch in batches for sample in batch)
            most = max(count.values())
            missing = sizes[found.client(round_, slot)] > len(count)
            assert min(count.values()) >= most - 1
            assert most == 1 or not missing


@given(SIZES.filter(lambda sizes: len(sizes) > 3), st.integers(0, 50))
def test_clients_are_drawn_without_replacement_and_never_empty(sizes: list[int], round_: int) -> None:
    found = sampler(sizes, Span(steps=1))
    played = [found.client(round_, slot) for slot in range(3)]
    assert len(set(played)) == 3
    assert all(sizes[client] for client in played)
    assert played == [sampler(sizes, Span(epochs=2)).client(round_, slot) for slot in range(3)]


def test_each_client_is_drawn_about_equally_often() -> None:
    found = sampler([2] * 10, Span(steps=1))
    count = Counter(found.client(round_, slot) for round_ in range(1000) for slot in range(3))
    assert set(count) == set(range(10))
    assert max(count.values()) < 1.25 * min(count.values())


def test_with_as_many_clients_as_slots_each_plays_itself() -> None:
    found = sampler([4, 0, 5], Span(epochs=1))
    assert [found.client(7, slot) for slot in range(3)] == [0, 1, 2]
    assert [found.local_steps(7, slot) for slot in range(3)] == [2, 0, 2]


def test_more_slots_than_clients_with_samples_are_refused() -> None:
    with refused("data.empty-clients"):
        sampler([4, 0, 5, 0], Span(epochs=1))
