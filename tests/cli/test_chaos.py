"""Disturbed at random moments, every run ends as if nobody had touched it: a few seeds here, any number by `chaos.py`.

python -m tests.cli.chaos 0-99         what to run after a change of the controller, the driver or the engine
"""

from __future__ import annotations

import pytest

from tests.cli import chaos
from tests.projects import Done, Project

SEEDS = range(64)
OF_ALL = (12, 25)  # digits at servers, which are killed; characters in a ring, whose driver is killed, too


def test_a_plan_is_a_function_of_its_seed() -> None:
    for seed in SEEDS:
        assert chaos.plan(seed) == chaos.plan(seed)
    assert len({chaos.plan(seed) for seed in SEEDS}) == len(SEEDS)


def test_plans_strike_in_the_order_of_steps_and_before_the_end() -> None:
    for plan in map(chaos.plan, SEEDS):
        steps = [blow.step for blow in plan.blows]
        assert steps
        assert steps == sorted(steps)
        assert steps[-1] < chaos.STEPS[plan.pipeline]


def test_plans_leave_steps_between_blows_so_that_no_micro_batch_looks_like_poison() -> None:
    for plan in map(chaos.plan, SEEDS):
        assert all(second.step - first.step >= 30 for first, second in zip(plan.blows, plan.blows[1:], strict=False))
        assert all(blow.count == 1 and blow.echo is None for blow in plan.blows if blow.what == "stop")


def test_eight_plans_have_every_topology_with_every_pipeline() -> None:
    found = {(plan.pipeline, plan.layout[0]) for plan in map(chaos.plan, range(8))}
    assert found == {(pipeline, f"topology={name}") for pipeline in chaos.PLANNED for name in chaos.TOPOLOGIES}


def test_plans_do_everything_to_everybody_and_resume_on_other_layouts() -> None:
    blows = [blow for plan in map(chaos.plan, SEEDS) for blow in plan.blows]
    assert {blow.what for blow in blows} == {"kill", "stop", "crash"}
    assert {blow.whom for blow in blows} == {"worker", "server", "spare", "joiner", "driver"}
    assert {blow.echo for blow in blows} == {None, "lost", "generation", "started"}
    assert all((blow.what == "crash") == bool(blow.again) for blow in blows)


@pytest.fixture(scope="module")
def short(digits: Project) -> dict[str, Done]:
    """The results of the runs when nobody disturbs them."""
    return {pipeline: chaos.undisturbed(digits, pipeline) for pipeline in chaos.PLANNED}


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("seed", OF_ALL)
def test_a_disturbed_run_ends_as_if_nobody_had_touched_it(digits: Project, short: dict[str, Done], seed: int) -> None:
    plan = chaos.plan(seed)
    done, run = chaos.disturb(digits, plan)
    chaos.check(digits, done, run, short[plan.pipeline])
