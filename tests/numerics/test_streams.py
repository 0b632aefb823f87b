"""All randomness is a function of (seed, purpose, step, shard): law 1."""

from __future__ import annotations

import random
import threading

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.numerics.streams import permutation, seed_of, seed_others, seeded, seeded_for_torch, seeded_with

Draw = tuple[float, float, float]


def _draw() -> Draw:
    return float(torch.rand(())), random.random(), float(numpy.random.random())


def test_known_seeds() -> None:
    """They belong to the identity of every recorded run, so no version may give others."""
    assert [
        seed_of(0, "compute"),
        seed_of(0, "compute", 1, 0),
        seed_of(0, "compute", 0, 1),
        seed_of(1, "compute"),
        seed_of(2**63 - 1, "samples", 123456, 789),
        seed_of(0, "order", 3),
    ] == [4055428766, 1937758735, 1702083370, 3055671687, 688690101, 2823373460]


def test_a_known_order() -> None:
    assert permutation(1, "order", 2, 10).tolist() == [8, 0, 7, 3, 1, 9, 6, 5, 4, 2]


def test_neighbours_have_seeds_of_their_own() -> None:
    """32 bits collide by chance once in 4e9 pairs; 4,000 of these seeds make 8e6 pairs."""
    seeds = [
        seed_of(seed, purpose, step, shard)
        for seed in range(4)
        for purpose in ("samples", "compute")
        for step in range(25)
        for shard in range(20)
    ]
    assert len(set(seeds)) >= len(seeds) - 1
    assert all(0 <= seed < 2**32 for seed in seeds)


@settings(max_examples=40)
@given(st.integers(0, 2**63 - 1), st.sampled_from(["samples", "compute"]), st.integers(0, 2**40), st.integers(0, 2**20))
def test_all_generators_follow_the_stream(seed: int, purpose: str, step: int, shard: int) -> None:
    draws = []
    for before in (1, 2):
        torch.manual_seed(before)
        random.seed(before)
        numpy.random.seed(before)
        with seeded(seed, purpose, step, shard):
            draws.append(_draw())
    assert draws[0] == draws[1]


def test_the_others_are_seeded_by_themselves_where_no_code_runs() -> None:
    with seeded_with(3):
        whole = _draw()
    random.seed(1)
    numpy.random.seed(1)
    left = random.getstate()
    with seeded_for_torch(3):
        assert random.getstate() == left
        seed_others(3)
        assert _draw() == whole


@pytest.mark.parametrize(
    "other", [(6, "compute", 2, 3), (5, "samples", 2, 3), (5, "compute", 3, 3), (5, "compute", 2, 4)]
)
def test_every_part_of_the_name_counts(other: tuple[int, str, int, int]) -> None:
    with seeded(5, "compute", 2, 3):
        one = _draw()
    with seeded(*other):
        assert all(a != b for a, b in zip(one, _draw(), strict=True))


def test_dropout_follows_the_stream() -> None:
    masks = []
    for _ in range(2):
        with seeded(1, "compute", 9, 9):
            masks.append(torch.nn.functional.dropout(torch.ones(1000), 0.5))
    assert torch.equal(*masks)


def test_threads_take_turns() -> None:
    """Generators belong to the process: while one thread is in its stream, no other may draw."""
    expected = {}
    for shard in range(4):
        with seeded(0, "compute", 0, shard):
            expected[shard] = [_draw() for _ in range(50)]
    found: dict[int, list[Draw]] = {}
    barrier = threading.Barrier(4)

    def work(shard: int) -> None:
        barrier.wait()
        with seeded(0, "compute", 0, shard):
            found[shard] = [_draw() for _ in range(50)]

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_streams_may_be_nested() -> None:
    with seeded(0, "compute"), seeded(0, "samples"):
        inner = _draw()
    with seeded(0, "samples"):
        assert _draw() == inner


@given(st.integers(0, 2**63 - 1), st.integers(0, 50), st.integers(0, 60))
@settings(max_examples=40)
def test_a_permutation_depends_on_its_arguments_only(seed: int, epoch: int, elements: int) -> None:
    torch.manual_seed(0)
    one = permutation(seed, "order", epoch, elements)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(permutation(seed, "order", epoch, elements), one)
    assert sorted(one.tolist()) == list(range(elements))
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)  # the process's generator was left alone


def test_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(permutation(0, "order", epoch, 30).tolist()) for epoch in range(50)}
    assert len(orders) == 50
