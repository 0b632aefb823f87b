"""A run whose members fail, at any moment, tells what the undisturbed run tells, to the last bit.

The run has everything that could be lost half-way: batch normalisation and dropout, an evaluation after each step, a plateau
that lowers the rate, early stopping, clipping, Adam's moments, a warm-up, checkpoints.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.pipeline import Pipeline
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.elastic import (
    EVERYTHING,
    Elastic,
    Fault,
    Saved,
    Told,
    What,
    elastic_settings,
    stop_and_go_on,
    survive,
)
from tests.worker.runs import SGD, Layout

pytestmark = pytest.mark.slow

RICH: dict[str, Any] = {**EVERYTHING, "checkpoint_every": 2}
TOPOLOGIES = [
    Layout(2, "ring"),
    Layout(3, "tree"),
    Layout(2, "parameter_server", servers=2),
    Layout(3, "peer_to_peer"),
]


@functools.cache
def undisturbed() -> Told:
    told = survive(p.Batchnorm, Layout(1), **RICH)
    assert told.generations == 1
    assert 3 < len(told.trace) < 7  # it stopped early
    return told


def assert_same(told: Told) -> None:
    whole = undisturbed()
    assert told.trace == whole.trace
    assert told.metrics == whole.metrics
    assert told.digest == whole.digest


@pytest.mark.parametrize("layout", thinned(TOPOLOGIES, 4, 2), ids=str)
def test_nothing_happens(layout: Layout) -> None:
    told = survive(p.Batchnorm, layout, **RICH)
    assert told.generations == 1
    assert_same(told)


PERIOD = 23  # so that few runs meet every moment: each has several, one period apart


@pytest.mark.parametrize("first", thinned(range(PERIOD), PERIOD, 17))
def test_a_generation_may_be_called_off_at_any_moment(first: int) -> None:
    layout = TOPOLOGIES[first % 3]
    faults = [Fault(first % 2, first + PERIOD * i, "call off") for i in range(8)]
    told = survive(p.Batchnorm, layout, faults, **RICH)
    assert told.generations > 1
    assert_same(told)


@pytest.mark.parametrize("first", thinned(range(PERIOD), PERIOD, 12))
def test_members_may_die_at_any_moment(first: int) -> None:
    """Three of them, one after the other; the first is the oldest, the donor of all state transfers."""
    layout = [Layout(4, "ring"), Layout(4, "tree"), Layout(4, "parameter_server")][first % 3]
    told = survive(p.Batchnorm, layout, [Fault(i, first + PERIOD * i, "die") for i in range(3)], **RICH)
    assert sum(ends[-1] == "dead" for ends in told.ends) == 3
    assert_same(told)


JOINS = [Fault(0, 20, "join"), Fault(0, 20, "join")]


@functools.cache
def before_the_handover() -> int:
    """How many things member 0 does before two members join it, whose donor it is."""
    told = survive(p.Batchnorm, Layout(1), JOINS, **RICH)
    assert told.ends == [["regroup", "finished"], ["finished"], ["finished"]]
    assert_same(told)
    return told.entered[0][1]


@pytest.mark.parametrize("at", thinned([*range(0, 66, 8)], 9, 3))
def test_a_donor_may_die_in_a_handover(at: int) -> None:
    _die_in_a_handover(0, at)


@pytest.mark.parametrize("at", thinned([*range(0, 24, 4)], 6, 3))
def test_a_recipient_may_die_in_a_handover(at: int) -> None:
    _die_in_a_handover(2, at)


def _die_in_a_handover(member: int, at: int) -> None:
    """With the donor dies all that the run had, since the recipients are fresh: they begin anew."""
    told = survive(
        p.Batchnorm, Layout(1), [*JOINS, Fault(member, at + (0 if member else before_the_handover()), "die")], **RICH
    )
    assert told.generations == 3
    assert told.ends[member][-1] == "dead"
    assert_same(told)


@pytest.mark.parametrize("at", thinned(range(2, 60, 12), 5))
def test_the_donor_may_die_while_others_have_the_state_too(at: int) -> None:
    told = survive(p.Batchnorm, Layout(2), [*JOINS, Fault(0, before_the_handover() + 16 + at, "die")], **RICH)
    assert told.ends[0][-1] == "dead"
    assert_same(told)


@pytest.mark.parametrize("seed", thinned(range(10), 10, 5))
def test_chaos(seed: int) -> None:
    """Deaths of anybody, servers too, joins, call-offs and checkpoints, whenever it comes; sometimes nobody is left."""
    draw = random.Random(seed)
    topology = draw.choice(["ring", "tree", "parameter_server", "peer_to_peer", "hierarchical"])
    nodes = 2 if topology == "hierarchical" else 1
    servers = draw.choice([1, 2]) if topology == "parameter_server" else None
    layout = Layout(
        draw.randint(1, 4),
        topology,
        arity=draw.choice([2, 3]) if topology == "tree" else None,
        servers=servers,
        nodes=nodes,
    )
    kinds: list[What] = ["die", "die", "join", "call off", "regroup", "save"]
    faults = [Fault(draw.randrange(7), draw.randrange(90), draw.choice(kinds)) for _ in range(12)]
    told = survive_what_is_left(layout, faults, busy_for=draw.choice([0, 0, 3]))
    assert told.digest == undisturbed().digest
    assert all(undisturbed().trace[line["step"]] == line for line in told.trace)
    assert all(undisturbed().metrics[step] == metrics for step, metrics in told.metrics.items())


def survive_what_is_left(layout: Layout, faults: list[Fault], **how: Any) -> Told:
    return Elastic(elastic_settings(p.Batchnorm, layout, **RICH), layout, faults, **how).run()


def test_all_may_die_and_the_last_checkpoint_brings_the_run_back() -> None:
    saved = Saved()
    settings = elastic_settings(p.Batchnorm, Layout(2), **RICH)
    faults = [Fault(0, 60, "die"), Fault(1, 60, "die")]
    told = Elastic(settings, Layout(2), faults, saved=saved).run()
    assert [ends[-1] for ends in told.ends] == ["dead", "dead", "finished", "finished"]
    assert told.trace[0]["step"] == 2  # what came before is not computed again
    assert told.trace == undisturbed().trace[2:]
    assert told.digest == undisturbed().digest
    assert [step for step, _ in saved.complete] == [2, 4, 5]


@pytest.mark.parametrize("at", thinned([12, 40, 70], 3, 1))
def test_all_workers_may_die_before_the_first_checkpoint(at: int) -> None:
    """The servers have heard of steps that are lost, and forget them."""
    settings = {**RICH, "checkpoint_every": None}
    told = survive(p.Batchnorm, Layout(2, "parameter_server"), [Fault(i, at, "die") for i in range(2)], **settings)
    assert [ends[-1] for ends in told.ends] == ["dead", "dead", "finished", "finished", "finished"]
    assert told.ends[2][0] == "peer"
    assert_same(told)


@pytest.mark.parametrize("optimizer", thinned(["sgd", "adamw", "nadam"], 3, 1))
def test_a_stopped_run_goes_on_with_other_workers(optimizer: str) -> None:
    options = {"name": optimizer, "lr": 0.01, **({"momentum": 0.9} if optimizer == "sgd" else {})}
    settings = {**RICH, "optimizer": options, "steps": 4, "early_stopping": {}}
    whole = survive(p.Batchnorm, Layout(1), **settings)
    before, after = stop_and_go_on(p.Batchnorm, 16, **settings)
    assert 1 <= len(before.trace) < 4
    assert before.trace + after.trace == whole.trace
    assert after.digest == whole.digest
    assert {**before.metrics, **after.metrics} == whole.metrics


def test_a_finished_run_that_is_resumed_finishes_at_once() -> None:
    saved, settings = Saved(), elastic_settings(p.Batchnorm, Layout(2), **RICH)
    Elastic(settings, Layout(2), saved=saved).run()
    again = Elastic(settings, Layout(1), saved=saved).run()
    assert again.trace == []
    assert again.digest == undisturbed().digest


def test_a_checkpoint_waits_for_busy_writers_and_the_last_one_is_always_taken() -> None:
    saved = Saved()
    settings = elastic_settings(p.Batchnorm, Layout(2), **{**RICH, "checkpoint_every": 1})
    told = Elastic(settings, Layout(2), saved=saved, busy_for=2).run()
    assert told.digest == undisturbed().digest
    steps = [step for step, _ in saved.complete]
    assert steps[0] == 1
    assert 2 not in steps  # postponed
    assert steps[-1] == len(told.trace)


def test_a_checkpoint_that_stays_is_there_whenever_its_writer_dies() -> None:
    """No later one takes its place."""
    settings = elastic_settings(p.Mlp, Layout(2), None, steps=3)
    settings = replace(settings, checkpoint=replace(settings.checkpoint, archive=1))
    for at in (
        19,
        20,
        21,
        23,
        24,
        25,
        26,
    ):  # in the step behind the first checkpoint, which its writer has not written yet
        saved = Saved()
        Elastic(settings, Layout(2), [Fault(0, at, "die")], saved=saved).run()
        assert {step for step, _ in saved.complete} == {1, 2, 3}, at


def test_a_checkpoint_can_be_asked_for() -> None:
    saved = Saved()
    settings = elastic_settings(p.Batchnorm, Layout(3), **{**RICH, "checkpoint_every": None})
    Elastic(settings, Layout(3), [Fault(2, 20, "save")], saved=saved).run()
    assert len(saved.complete) == 2  # and the one at the end


@functools.cache
def actions_of_two() -> list[int]:
    return survive(p.Batchnorm, Layout(2), **RICH).actions


@pytest.mark.long
@pytest.mark.parametrize("back", range(1, 8))
def test_who_has_finished_can_still_give_its_state(back: int) -> None:
    """Member 1 dies as the last thing it does; the other has finished, or is about to."""
    faults = [Fault(1, actions_of_two()[1] - back, "die"), Fault(0, 30, "join")]
    assert_same(survive(p.Batchnorm, Layout(2), faults, **RICH))


@pytest.mark.parametrize("at", thinned([9, 24, 33], 3, 1))
@pytest.mark.parametrize("layout", thinned([Layout(3, "ring"), Layout(2, "parameter_server")], 2, 1), ids=str)
def test_fast_sums_come_out_the_same_when_the_lost_are_replaced(layout: Layout, at: int) -> None:
    prepared = elastic_settings(p.Batchnorm, layout, **{**RICH, "reduction": "fast", "early_stopping": {}, "steps": 4})
    whole = Elastic(prepared, layout, keeps_width=True).run()
    told = Elastic(prepared, layout, [Fault(1, at, "die")], keeps_width=True).run()
    assert told.generations == 2
    assert (told.trace, told.digest) == (whole.trace, whole.digest)


@pytest.mark.long
def test_loaders_live_through_generations() -> None:
    settings = {**RICH, "loaders": 1, "steps": 4, "early_stopping": {}}
    whole = survive(p.Augmented, Layout(1), **{**settings, "loaders": 0})
    told = survive(
        p.Augmented, Layout(2), [Fault(1, 21, "die"), *(Fault(0, at, "call off") for at in (5, 12))], **settings
    )
    assert told.generations == 4
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


AWKWARD = [
    p.AwkwardBuffers,
    p.LayerDrop,
    p.OwnOptimizer,
    p.NumbersOfNumpy,
    p.RateInATensor,
    p.OfNoClassOfTorchs,
    p.ChannelsLast,
    p.CumulativeBatchnorm,
    p.BatchnormFrozenByLoss,
]


@pytest.mark.parametrize("pipeline", thinned(AWKWARD, 4))
def test_awkward_models_are_handed_over_too(pipeline: type[Pipeline]) -> None:
    settings: dict[str, Any] = {"steps": 3, "optimizer": SGD if Pipeline.optimizer is pipeline.optimizer else None}
    whole = survive(pipeline, Layout(1), **settings)
    told = survive(pipeline, Layout(2), [Fault(0, 17, "join"), Fault(1, 38, "die")], **settings)
    assert told.generations == 3
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)
