"""A vote is a maximum: whoever combines the ballots, in whatever order, reads the same agreement."""

from __future__ import annotations

import functools
import math
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.engine.ballots import Agreement, Ballot, Shape, Wishes, from_slots, to_slots
from orchestrator.engine.pulse import Halt
from orchestrator.numerics.grid import ABSENT

SHAPE = Shape(shards=6, tensors=3, counters=2)
numbers = st.floats(allow_nan=False)


def agree(ballots: list[Ballot]) -> Agreement:
    vectors = [ballot.encode(SHAPE) for ballot in ballots]
    return Agreement.decode(functools.reduce(torch.maximum, vectors), SHAPE)


@st.composite
def electorates(draw: st.DrawFn) -> list[Ballot]:
    """Each shard computed by one member; counters agree."""
    hosts = draw(st.lists(st.integers(0, 3), min_size=6, max_size=6))
    computed = [shard for shard in range(6) if draw(st.booleans())]
    counters = draw(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=2))
    ballots = []
    for member in range(4):
        own = [shard for shard in computed if hosts[shard] == member]
        ballots.append(
            Ballot(
                magnitudes=draw(st.lists(st.integers(ABSENT, 2**62), min_size=3, max_size=3)),
                present=draw(st.lists(st.booleans(), min_size=3, max_size=3)),
                weights={shard: draw(st.floats(0.5, 100)) for shard in own},
                losses={shard: draw(numbers) for shard in own},
                counters=counters if own else None,
            )
        )
    return ballots


@settings(max_examples=100)
@given(electorates(), st.randoms(use_true_random=False))
def test_all_is_told_whatever_the_order(ballots: list[Ballot], shuffler: random.Random) -> None:
    agreed = agree([*ballots, Ballot()])  # a server has nothing to say
    assert agreed.magnitudes == [max(ballot.magnitudes[i] for ballot in ballots) for i in range(3)]
    assert agreed.present == [any(ballot.present[i] for ballot in ballots) for i in range(3)]
    assert agreed.weights == {s: w for ballot in ballots for s, w in ballot.weights.items()}
    assert agreed.losses == {s: loss for ballot in ballots for s, loss in ballot.losses.items()}
    assert agreed.disagreeing_counters == []
    spoken = [ballot.counters for ballot in ballots if ballot.counters is not None]
    assert not spoken or agreed.counters == list(spoken[0])
    assert agreed.failing_shard is None
    assert agreed.wishes == Wishes()
    shuffler.shuffle(ballots)
    assert agree(ballots) == agreed


def test_the_lowest_failing_shard_wins() -> None:
    assert (
        agree([Ballot(failing_shard=3), Ballot(), Ballot(failing_shard=1), Ballot(failing_shard=5)]).failing_shard == 1
    )
    assert agree([Ballot(failing_shard=0), Ballot(failing_shard=5)]).failing_shard == 0
    assert agree([Ballot(failing_shard=5), Ballot()]).failing_shard == 5


def test_one_voice_asks_for_an_evaluation() -> None:
    asked = [Wishes(evaluate=True), Wishes(halt=Halt.REGROUP, save=True), Wishes(halt=Halt.STOP), Wishes(busy=True)]
    for wishes in asked:
        assert agree([Ballot(), Ballot(wishes=wishes), Ballot()]).wishes == wishes
    together = agree([Ballot(wishes=wishes) for wishes in asked]).wishes
    assert together == Wishes(evaluate=True, halt=Halt.STOP, save=True, busy=True)


def test_disagreeing_counters_are_named() -> None:
    assert agree([Ballot(counters=[4, 1]), Ballot(counters=[4, -1]), Ballot()]).disagreeing_counters == [1]
    assert agree([Ballot(counters=[0, -5]), Ballot(counters=[1, -5])]).disagreeing_counters == [0]


def test_the_loss_is_the_weighted_mean_rounded_once() -> None:
    agreed = agree(
        [Ballot(weights={0: 1.0, 1: 3.0}, losses={0: 1e16, 1: 1.0}), Ballot(weights={4: 1.0}, losses={4: -1e16})]
    )
    assert agreed.total_weight == 5.0
    assert agreed.loss == 3 / 5


def test_nothing_computed_weighs_nothing() -> None:
    assert agree([Ballot(), Ballot()]).total_weight == 0.0


@given(st.dictionaries(st.integers(0, 8), st.floats(), max_size=9))
def test_slots_keep_every_float(values: dict[int, float]) -> None:
    """Also infinities, values that are not numbers, and zeros; only the sign of a zero is dropped."""
    read = from_slots(to_slots(9, values))
    assert sorted(read) == sorted(values)
    for place, value in values.items():
        assert math.isnan(value) == math.isnan(read[place])
        if not math.isnan(value):
            assert read[place].hex() == (value + 0.0).hex()
