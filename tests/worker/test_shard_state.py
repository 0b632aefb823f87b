"""A run whose shards keep state comes out as the undisturbed one, whoever hosts them and whatever happens to the hosts."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch

from orchestrator.checkpoint.parts import share_of
from orchestrator.worker.model.shard_states import ShardStates
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.elastic import EVERYTHING, Elastic, Fault, Saved, Told, What, drawn, elastic_settings, survive
from tests.worker.runs import Layout
from tests.worker.toys import ERROR_FEEDBACK, ROUNDED

pytestmark = pytest.mark.threads

RICH: dict[str, Any] = {**EVERYTHING, "early_stopping": {}, "checkpoint_every": 2}
LAYOUTS = [
    Layout(2, "ring"),
    Layout(3, "tree"),
    Layout(4, "ring"),
    Layout(2, "parameter_server", servers=2),
    Layout(3, "peer_to_peer"),
]


def told_of(layout: Layout, faults: list[Fault], **how: Any) -> tuple[Told, Elastic]:
    run = Elastic(elastic_settings(p.Batchnorm, layout, **RICH), layout, faults, contribution=ERROR_FEEDBACK, **how)
    return run.run(), run


@functools.cache
def undisturbed() -> Told:
    return told_of(Layout(1), [])[0]


def assert_same(told: Told) -> None:
    whole = undisturbed()
    assert told.digest == whole.digest
    assert all(whole.trace[line["step"]] == line for line in told.trace)
    assert all(whole.metrics[step] == metrics for step, metrics in told.metrics.items())


# ---- the rows themselves


def row(value: float) -> dict[str, torch.Tensor]:
    return {"kept": torch.tensor([value])}


def states_after_a_step() -> ShardStates:
    states = ShardStates(lambda: row(0.0))
    for shard in (0, 1):
        states.stage(shard, row(shard + 1.0))
    states.commit()
    return states


def test_what_is_staged_counts_only_once_the_step_commits() -> None:
    states = states_after_a_step()
    states.stage(0, row(9.0))
    assert states.of(0)["kept"] == 1
    states.discard()
    assert states.staged == ()
    assert states.held == (0, 1)


def test_who_is_a_step_behind_promotes_its_own_staged_rows() -> None:
    states = states_after_a_step()
    states.stage(0, row(9.0))
    states.finalize()
    assert states.staged == (0,)
    states.follow(1, 2)
    assert states.of(0)["kept"] == 9
    assert states.held == (0,)


def test_what_is_staged_before_the_vote_belongs_to_no_step() -> None:
    """A compression has not encoded yet what a shard keeps, and somebody may be ahead who was to go back."""
    states = states_after_a_step()
    states.stage(0, row(9.0))
    assert not states.staged
    states.secure()
    assert list(states.staged) == [0]
    states.commit()
    states.stage(0, row(10.0))
    assert not states.staged
    states.follow(2, 3)
    assert not states.held


@pytest.mark.parametrize(("before", "steps", "held"), [(1, 1, (0, 1)), (1, 3, ()), (3, 1, ())])
def test_rows_of_another_step_are_dropped(before: int, steps: int, held: tuple[int, ...]) -> None:
    states = states_after_a_step()
    states.stage(0, row(9.0))
    states.follow(before, steps)
    assert states.held == held
    assert states.staged == ()


def test_a_row_that_is_not_here_is_no_initial_one_after_the_first_step() -> None:
    states = states_after_a_step()
    with refused("replica.no-shard-state"):
        states.of(2)
    states.follow(1, 0)
    assert states.of(2)["kept"] == 0


def test_rows_that_do_not_fit_are_refused() -> None:
    states = states_after_a_step()
    with refused("checkpoint.shard-tensor-form"):
        states.fitted({3: {"kept": torch.zeros(2)}})
    with refused("checkpoint.shard-tensors"):
        states.fitted({3: {}})


def test_a_writer_writes_its_share_and_all_that_it_alone_has() -> None:
    alike = {name: torch.zeros(1) for name in "abcd"}
    parts = [share_of({**alike, f"own {n}": torch.zeros(1)}, n, 2, {f"own {n}"}) for n in range(2)]
    assert sorted(name for part in parts for name in part) == ["a", "b", "c", "d", "own 0", "own 1"]


# ---- whole runs


def test_the_residual_matters() -> None:
    assert undisturbed().digest != plain().digest


@pytest.mark.parametrize("layout", thinned(LAYOUTS, 6), ids=str)
def test_nothing_happens(layout: Layout) -> None:
    told, run = told_of(layout, [])
    assert (told.generations, run.went_back) == (1, 0)
    assert_same(told)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(23), 23, 8))
def test_a_generation_may_be_called_off_at_any_moment(first: int) -> None:
    """Nobody is lost, so nothing is: those who are a step behind have what they staged."""
    faults = [Fault(first % 2, first + 23 * i, "call off") for i in range(8)]
    told, run = told_of(LAYOUTS[first % len(LAYOUTS)], faults)
    assert told.generations > 1
    assert run.went_back == 0
    assert_same(told)
    assert told.trace == undisturbed().trace


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(23), 23, 8))
def test_members_may_die_at_any_moment(first: int) -> None:
    layout = [Layout(4, "ring"), Layout(4, "tree"), Layout(4, "parameter_server")][first % 3]
    told, run = told_of(layout, [Fault(i, first + 23 * i, "die") for i in range(3)])
    assert sum(ends[-1] == "dead" for ends in told.ends) == 3
    assert run.went_back > 0
    assert_same(told)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(40), 40, 20))
def test_on_the_machine_of_the_driver_it_is_not_lost_with_a_host(first: int) -> None:
    layout = [Layout(4, "ring"), Layout(4, "tree"), Layout(4, "parameter_server")][first % 3]
    told, run = told_of(layout, [Fault(i, first + 31 * i, "die") for i in range(3)], outlives=True)
    assert sum(ends[-1] == "dead" for ends in told.ends) == 3
    assert run.went_back == 0
    assert_same(told)


@pytest.mark.slow
@pytest.mark.parametrize("at", thinned(range(8, 60, 4), 13))
def test_rows_move_to_those_who_join_at_any_moment(at: int) -> None:
    told, run = told_of(Layout(1), [Fault(0, at, "join"), Fault(0, at, "join"), Fault(0, at + 30, "join")])
    assert run.went_back == 0
    assert len(told.ends) > 1
    assert_same(told)


@pytest.mark.slow
@pytest.mark.parametrize("at", thinned(range(0, 40, 3), 14, 7))
@pytest.mark.parametrize("what", thinned(["die", "call off"], 2))
def test_a_handover_of_rows_may_be_interrupted_anywhere(at: int, what: What) -> None:
    joins = [Fault(0, 24, "join"), Fault(0, 24, "join")]
    told, _ = told_of(Layout(2), [*joins, Fault(2, at, what), Fault(1, 24 + 2 * at, "call off")])
    assert_same(told)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_chaos(seed: int) -> None:
    layout, faults, busy_for = drawn(random.Random(seed))
    told, _ = told_of(layout, faults, busy_for=busy_for)
    assert_same(told)


def test_without_a_checkpoint_all_begin_anew() -> None:
    settings = {**RICH, "checkpoint_every": None}
    run = Elastic(
        elastic_settings(p.Batchnorm, Layout(3), **settings),
        Layout(3),
        [Fault(1, 60, "die")],
        contribution=ERROR_FEEDBACK,
    )
    assert_same(run.run())
    assert run.went_back == 1


@pytest.mark.long
@pytest.mark.parametrize("other", [Layout(1), Layout(4, "tree"), Layout(2, "parameter_server")], ids=str)
def test_a_stopped_run_goes_on_with_other_workers(other: Layout) -> None:
    saved = Saved()
    before, _ = told_of(Layout(3), [Fault(1, 26, "stop")], saved=saved)
    assert before.stopped
    assert 1 <= len(before.trace) < len(undisturbed().trace)
    after, _ = told_of(other, [], saved=saved)
    assert before.trace + after.trace == undisturbed().trace
    assert after.digest == undisturbed().digest


@functools.cache
def undisturbed_without() -> Told:
    """Its shards keep nothing."""
    return survive(p.Batchnorm, Layout(1), contribution=ROUNDED, **RICH)


@functools.cache
def plain() -> Told:
    return survive(p.Batchnorm, Layout(1), **RICH)


@pytest.mark.long
@pytest.mark.parametrize("layout", [Layout(3, "ring"), Layout(3, "parameter_server")], ids=str)
def test_a_contribution_that_keeps_nothing_loses_nothing_with_its_host(layout: Layout) -> None:
    whole = undisturbed_without()
    faults = [Fault(1, 40, "die"), Fault(0, 90, "join")]
    run = Elastic(elastic_settings(p.Batchnorm, layout, **RICH), layout, faults, contribution=ROUNDED)
    told = run.run()
    assert whole.digest not in (undisturbed().digest, plain().digest)
    assert (told.digest, run.went_back) == (whole.digest, 0)
    assert told.generations > 1


@pytest.mark.long
def test_a_stopped_run_whose_shards_keep_nothing_goes_on() -> None:
    saved = Saved()
    settings = elastic_settings(p.Batchnorm, Layout(3), **RICH)
    before = Elastic(settings, Layout(3), [Fault(1, 26, "stop")], saved=saved, contribution=ROUNDED).run()
    assert before.stopped
    after = Elastic(settings, Layout(2), [], saved=saved, contribution=ROUNDED).run()
    assert after.digest == undisturbed_without().digest
