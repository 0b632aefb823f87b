"""Losses in virtual time, decided by the controller itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.state import Requirements
from orchestrator.experiments.simulation.conditions import Conditions
from orchestrator.experiments.simulation.losses import Scenario, simulate
from tests.controller.asked import required


def requirements(workers: int) -> Requirements:
    return required(
        shards=8,
        start=workers,
        least=1,
        most=workers,
    )


QUIET = Conditions(detect_s=0.25, start_s=10.0)


def test_an_undisturbed_run_takes_its_steps() -> None:
    outcome = simulate(Scenario(requirements(4), QUIET, 100, lambda _workers: 0.5))
    assert (outcome.steps, outcome.ended) == (100, None)
    assert [outcome.seconds, outcome.goodput] == pytest.approx([50.0, 1.0])


def test_a_loss_costs_its_detection_and_the_step_it_came_into_and_then_fewer_workers_until_one_joins() -> None:
    scenario = Scenario(requirements(4), QUIET, 100, lambda workers: 4.0 / workers, losses=[(10.5, 2)])
    outcome = simulate(scenario)
    assert (outcome.steps, outcome.again, outcome.losses, outcome.joins, outcome.ended) == (100, 0, 1, 1, None)
    slower = 10.0 + 4.0 / 3  # until the new worker is ready, and the step of that moment is done
    assert outcome.lost_s == pytest.approx(0.75, abs=0.01)
    assert outcome.seconds == pytest.approx(100 + 0.75 + slower / 4, abs=1.5)


def test_steps_that_ended_before_a_loss_count_also_where_one_ends_with_it() -> None:
    for moment in (9.0, 10.0, 10.25):
        outcome = simulate(
            Scenario(requirements(4), QUIET, 100, lambda _workers: 0.5, losses=[(moment, 1), (moment, 1)])
        )
        assert (outcome.steps, outcome.losses, outcome.ended) == (100, 2, None)
        assert outcome.lost_s < 1.1, "twice half a step and the detection"
    first = simulate(Scenario(requirements(4), QUIET, 50, lambda _workers: 0.1))
    outcome = simulate(Scenario(requirements(4), QUIET, 100, lambda _workers: 0.1, losses=[(first.seconds, 0)]))
    assert outcome.lost_s < 0.5


def test_every_new_generation_takes_its_regrouping() -> None:
    """One without the lost worker, and one with the new one."""
    losses = [(10.5, 2), (10.6, 0)]
    plain = simulate(Scenario(requirements(4), QUIET, 100, lambda _workers: 1.0, losses=losses[:1]))
    regrouped = replace(QUIET, regroup_s=0.5)
    outcome = simulate(Scenario(requirements(4), regrouped, 100, lambda _workers: 1.0, losses=losses[:1]))
    assert (outcome.steps, outcome.joins, outcome.ended) == (100, 1, None)
    assert outcome.seconds == pytest.approx(plain.seconds + 2 * 0.5)
    both = simulate(Scenario(requirements(4), regrouped, 100, lambda _workers: 1.0, losses=losses))
    assert (both.steps, both.losses, both.ended) == (100, 2, None), "also where one is lost while others regroup"


def test_when_all_are_lost_what_was_done_since_the_checkpoint_is_done_again() -> None:
    scenario = Scenario(requirements(1), QUIET, 40, lambda _workers: 1.0, checkpoint=10, losses=[(17.5, 0)])
    outcome = simulate(scenario)
    assert (outcome.steps, outcome.again, outcome.losses, outcome.ended) == (40, 7, 1, None)
    assert outcome.seconds == pytest.approx(40 + 7 + 0.5 + 0.25 + 10.0, abs=0.01)


def test_steps_that_are_lost_were_as_long_as_their_workers_made_them() -> None:
    """Two are lost at once, and one comes back before the other, for a step that is slow."""
    scenario = Scenario(
        requirements(2),
        replace(QUIET, detect_s=0.0),
        20,
        lambda living: 100.0 / living**4,
        10,
        [(100.0, 0), (100.0, 0)],
    )
    outcome = simulate(scenario)
    assert (outcome.steps, outcome.losses, outcome.ended) == (20, 2, None)
    assert outcome.seconds - outcome.lost_s == pytest.approx(19 * 6.25 + 100.0)


def test_a_run_that_loses_workers_faster_than_it_does_steps_is_given_up() -> None:
    for start_s, failure_s in ((0.0, 1e-4), (1e9, 1e-6)):
        conditions = Conditions(failure_s=failure_s, detect_s=0.0, start_s=start_s)
        outcome = simulate(Scenario(requirements(1), conditions, 10, lambda _workers: 1.0))
        assert outcome.steps < 10
        assert outcome.ended is not None


@given(st.integers(2, 6), st.integers(0, 1000), st.integers(1, 20))
def test_whatever_is_lost_every_step_is_done_or_the_reason_said(workers: int, seed: int, checkpoint: int) -> None:
    conditions = Conditions(failure_s=60.0, detect_s=0.1, start_s=3.0, seed=seed)
    outcome = simulate(Scenario(requirements(workers), conditions, 60, lambda living: workers / living, checkpoint))
    assert (outcome.steps == 60) == (outcome.ended is None)
    assert 0 < outcome.goodput <= 1
    assert outcome == simulate(
        Scenario(requirements(workers), conditions, 60, lambda living: workers / living, checkpoint)
    )


def mesh(workers: int, stages: int) -> Requirements:
    return required(
        shards=8,
        start=workers,
        least=stages,
        most=workers,
        stages=stages,
    )


def test_of_a_model_in_stages_only_the_loss_of_a_stages_last_worker_costs_steps() -> None:
    """Members 0 and 2 host stage 0, members 1 and 3 stage 1."""
    step_s = lambda _workers: 1.0  # noqa: E731
    kept = simulate(Scenario(mesh(4, 2), QUIET, 40, step_s, checkpoint=10, losses=[(17.5, 0), (17.6, 0)]))
    assert (kept.steps, kept.again, kept.losses, kept.ended) == (40, 0, 2, None)
    lost = simulate(Scenario(mesh(4, 2), QUIET, 40, step_s, checkpoint=10, losses=[(17.5, 1), (17.6, 2)]))
    assert (lost.steps, lost.again, lost.losses, lost.ended) == (40, 7, 2, None)


@given(st.integers(2, 3), st.integers(0, 3), st.integers(0, 1000), st.integers(1, 20))
def test_a_mesh_however_ragged_comes_to_its_end(stages: int, more: int, seed: int, checkpoint: int) -> None:
    conditions = Conditions(failure_s=90.0, detect_s=0.1, start_s=3.0, seed=seed)
    outcome = simulate(Scenario(mesh(stages + more, stages), conditions, 60, lambda living: 2.0 / living, checkpoint))
    assert (outcome.steps == 60) == (outcome.ended is None)
    assert outcome.again == 0 or outcome.losses > 0


@pytest.mark.slow
@pytest.mark.long
def test_what_is_taken_for_very_many_is_what_the_controller_has_for_many() -> None:
    """A loss costs its detection and half a step, while another worker is at hand at once."""
    conditions = Conditions(failure_s=1600.0, detect_s=0.5, start_s=0.0, seed=1)
    outcome = simulate(
        Scenario(
            required(
                shards=64,
                start=64,
                least=1,
                most=64,
            ),
            conditions,
            5_000,
            lambda _workers: 1.0,
        )
    )
    assert outcome.losses > 150
    assert outcome.lost_s / outcome.losses == pytest.approx(1.0, rel=0.15)
