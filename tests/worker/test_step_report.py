"""A vote is a maximum: whoever combines the step reports, in whatever order, reads the same consensus."""

from __future__ import annotations

import functools
import math
import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.numerics.grid import ABSENT
from orchestrator.worker.member.heartbeat import Halt
from orchestrator.worker.step_report import Consensus, Requests, Shape, StepReport, from_slots, to_slots

SHAPE = Shape(shards=6, tensors=3, counters=2)
numbers = st.floats(allow_nan=False)


def agree(step_reports: list[StepReport]) -> Consensus:
    vectors = [step_report.encode(SHAPE) for step_report in step_reports]
    return Consensus.decode(functools.reduce(torch.maximum, vectors), SHAPE)


@st.composite
def electorates(draw: st.DrawFn) -> list[StepReport]:
    """Each shard computed by one member; counters agree."""
    hosts = draw(st.lists(st.integers(0, 3), min_size=6, max_size=6))
    computed = [shard for shard in range(6) if draw(st.booleans())]
    counters = draw(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=2))
    step_reports = []
    for member in range(4):
        own = [shard for shard in computed if hosts[shard] == member]
        step_reports.append(
            StepReport(
                magnitudes=draw(st.lists(st.integers(ABSENT, 2**62), min_size=3, max_size=3)),
                present=draw(st.lists(st.booleans(), min_size=3, max_size=3)),
                weights={shard: draw(st.floats(0.5, 100)) for shard in own},
                losses={shard: draw(numbers) for shard in own},
                counters=counters if own else None,
            )
        )
    return step_reports


@given(electorates(), st.randoms(use_true_random=False))
def test_all_is_told_whatever_the_order(step_reports: list[StepReport], shuffler: random.Random) -> None:
    agreed = agree([*step_reports, StepReport()])  # a server has nothing to say
    assert agreed.magnitudes == [max(step_report.magnitudes[i] for step_report in step_reports) for i in range(3)]
    assert agreed.present == [any(step_report.present[i] for step_report in step_reports) for i in range(3)]
    assert agreed.weights == {s: w for step_report in step_reports for s, w in step_report.weights.items()}
    assert agreed.losses == {s: loss for step_report in step_reports for s, loss in step_report.losses.items()}
    assert agreed.disagreeing_counters == []
    spoken = [step_report.counters for step_report in step_reports if step_report.counters is not None]
    assert not spoken or agreed.counters == list(spoken[0])
    assert agreed.failing_shard is None
    assert agreed.requests == Requests()
    shuffler.shuffle(step_reports)
    assert agree(step_reports) == agreed


def test_the_lowest_failing_shard_wins() -> None:
    assert (
        agree(
            [StepReport(failing_shard=3), StepReport(), StepReport(failing_shard=1), StepReport(failing_shard=5)]
        ).failing_shard
        == 1
    )
    assert agree([StepReport(failing_shard=0), StepReport(failing_shard=5)]).failing_shard == 0
    assert agree([StepReport(failing_shard=5), StepReport()]).failing_shard == 5


def test_one_voice_asks_for_an_evaluation() -> None:
    asked = [
        Requests(evaluate=True),
        Requests(halt=Halt.REGROUP, save=True),
        Requests(halt=Halt.STOP),
        Requests(busy=True),
    ]
    for requests in asked:
        assert agree([StepReport(), StepReport(requests=requests), StepReport()]).requests == requests
    together = agree([StepReport(requests=requests) for requests in asked]).requests
    assert together == Requests(evaluate=True, halt=Halt.STOP, save=True, busy=True)


def test_disagreeing_counters_are_named() -> None:
    assert agree([StepReport(counters=[4, 1]), StepReport(counters=[4, -1]), StepReport()]).disagreeing_counters == [1]
    assert agree([StepReport(counters=[0, -5]), StepReport(counters=[1, -5])]).disagreeing_counters == [0]


def test_the_loss_is_the_weighted_mean_rounded_once() -> None:
    agreed = agree(
        [
            StepReport(weights={0: 1.0, 1: 3.0}, losses={0: 1e16, 1: 1.0}),
            StepReport(weights={4: 1.0}, losses={4: -1e16}),
        ]
    )
    assert agreed.total_weight == 5.0
    assert agreed.loss == 3 / 5


def test_nothing_computed_weighs_nothing() -> None:
    assert agree([StepReport(), StepReport()]).total_weight == 0.0


@given(st.dictionaries(st.integers(0, 8), st.floats(), max_size=9))
def test_slots_keep_every_float(values: dict[int, float]) -> None:
    """Also infinities, values that are not numbers, and zeros; only the sign of a zero is dropped."""
    read = from_slots(to_slots(9, values))
    assert sorted(read) == sorted(values)
    for place, value in values.items():
        assert math.isnan(value) == math.isnan(read[place])
        if not math.isnan(value):
            assert read[place].hex() == (value + 0.0).hex()
