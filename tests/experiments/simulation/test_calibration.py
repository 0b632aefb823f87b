"""Conditions are found again from the times that they would give, and the best layout is chosen by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.topologies import TOPOLOGIES, build_schedule
from orchestrator.experiments.simulation.calibration import (
    Layout,
    Measured,
    Model,
    calibrate,
    measured,
    predicted,
)
from orchestrator.experiments.simulation.candidates import Candidate, candidates, choose, numbers_of_workers, table
from orchestrator.experiments.simulation.conditions import Conditions, Network
from orchestrator.experiments.simulation.cores import messages_of

MODEL = Model(8, (3e5, 1.5e5), {})
NAMES = list(TOPOLOGIES)


def as_measured(layout: Layout, conditions: Conditions, fixed_s: float = 0.0) -> Measured:
    """The reports of members under these conditions. fixed_s: seconds of the update that are spent while computing."""
    schedule = build_schedule(layout.topology, layout.workers)
    crowded = 0 < conditions.cores < layout.workers
    exchange = messages_of(schedule) * conditions.network.message_s / layout.workers + conditions.vote_s * (
        schedule.members > 1
    )
    slowed = conditions.slowed(layout.workers)
    compute = conditions.compute_s * MODEL.shards / layout.workers
    busy = {
        "compute": slowed * (compute + fixed_s) + conditions.switch_s * crowded,
        "wait": exchange / 2,
        "exchange": exchange / 2,
        "update": slowed * (conditions.update_s - fixed_s),
        "report": 0.0,
    }
    wall = predicted(MODEL, layout, conditions)
    process, fixed = sum(busy.values()) + conditions.background_s, fixed_s / (compute + fixed_s)
    return Measured(layout, wall, busy, process, conditions.others * wall, 100, fixed)


@pytest.mark.slow
@given(
    compute=st.floats(1e-4, 1e-1),
    update=st.floats(1e-5, 1e-2),
    fixed=st.floats(0, 1),
    message=st.floats(1e-6, 1e-3),
    contention=st.floats(1, 2),
    background=st.floats(0, 1e-3),
    others=st.floats(0, 0.2),
    latency=st.floats(0, 1e-3),
    topology=st.sampled_from(NAMES),
)
def test_two_runs_tell_the_conditions(
    compute: float,
    update: float,
    fixed: float,
    message: float,
    contention: float,
    background: float,
    others: float,
    latency: float,
    topology: str,
) -> None:
    true = Conditions(
        network=Network(latency, 1e12, message), compute_s=compute, contention=contention, update_s=update, cores=2
    )
    true = replace(true, background_s=background, others=others)
    points = [as_measured(layout, true, fixed * update) for layout in (Layout("ring", 1), Layout(topology, 2))]
    found = calibrate(MODEL, points, 2, 0.0)
    assert (found.compute_s, found.contention, found.update_s) == pytest.approx((compute, contention, update))
    assert (found.network.message_s, found.background_s) == pytest.approx((message, background), abs=1e-9)
    assert (found.others, found.vote_s, found.switch_s) == pytest.approx((others, 0.0, 0.0), abs=1e-9)
    # A little later a task may find another order of the queue, which moved the step by 5 % at most in 12,000 draws, and
    # by more than 2 % in a dozen of them.
    layout = Layout(topology, 2)
    expected = pytest.approx(predicted(MODEL, layout, true), rel=0.1, abs=1e-6)
    assert predicted(MODEL, layout, found) == expected
    slow = [replace(each, wall_s=3 * each.wall_s, driver_s=3 * each.driver_s) for each in points]
    assert predicted(MODEL, layout, calibrate(MODEL, slow, 2, 0.0)) == expected


@pytest.mark.slow
@given(vote=st.floats(0, 1e-3), switch=st.floats(0, 1e-3), contention=st.floats(1, 2))
def test_a_third_run_on_more_workers_than_cores_tells_what_that_costs_and_votes_from_messages(
    vote: float, switch: float, contention: float
) -> None:
    true = Conditions(network=Network(0.0, 1e12, 1e-4), vote_s=vote, switch_s=switch, contention=contention, cores=2)
    points = [as_measured(Layout("ring", workers), true) for workers in (1, 2, 4)]
    found = calibrate(MODEL, points, 2, 0.0)
    assert (found.vote_s, found.network.message_s) == pytest.approx((vote, 1e-4), abs=1e-9)
    assert found.contention == pytest.approx(contention)
    crowded = Layout("ring", 4)  # of which some delay may be shorter and cost a step no less
    assert predicted(MODEL, crowded, found) == pytest.approx(predicted(MODEL, crowded, true), rel=0.02)


def test_what_is_done_once_in_a_step_is_told_from_its_micro_batches() -> None:
    steps = [
        ["compute", step, shard, 0.0, 1.0 + 0.5 * (shard == 0) + 1.5 * (shard == 3)]
        for step in range(1, 4)
        for shard in range(4)
    ]
    spans = [{"member": "worker 0", "spans": [*steps, ["compute", 0, 0, 0.0, 99.0], ["wait", 1, None, 0.0, 9.0]]}]
    found = measured(Layout("ring", 1), [window(1, 1, compute=6.0)], 0.0, spans)
    assert found is not None
    assert found.fixed == pytest.approx(2.0 / 6.0)
    few = measured(Layout("ring", 1), [window(1, 1, compute=6.0)], 0.0, [{"member": "worker 0", "spans": steps[:2]}])
    assert few is not None
    assert few.fixed == 0.0


def window(first: int, steps: int, member: str = "worker 0", **seconds: float) -> dict[str, Any]:
    return {"member": member, "first": first, "steps": steps, "seconds": seconds, "busy": dict(seconds), "process": 1.0}


def test_a_step_is_the_median_of_its_windows_and_the_first_step_is_none() -> None:
    windows = [
        window(0, 1, compute=0.001),
        window(1, 4, compute=4.0, exchange=4.0),
        window(5, 2, compute=2.0, exchange=1.0),
        window(7, 1, compute=0.1, evaluate=5.0),
        window(1, 9, "server 1", exchange=0.1),
    ]
    found = measured(Layout("ring", 1), windows)
    assert found is not None
    assert (found.wall_s, found.busy_s["compute"], found.busy_s["exchange"], found.steps) == (1.75, 1.0, 0.75, 6)
    assert measured(Layout("ring", 1), windows[:1]) is None
    only = measured(Layout("ring", 1), windows[3:4])
    assert only is not None
    assert only.wall_s == 0.1, "an evaluation is no part of a step"


def test_with_one_worker_nothing_is_known_of_messages_and_nothing_needs_to_be() -> None:
    true = Conditions(network=Network(0.0, 1e12), compute_s=1e-3, update_s=1e-4, cores=1)
    found = calibrate(MODEL, [as_measured(Layout("ring", 1), true)], 1, 0.0)
    assert found.network.message_s == 0.0
    assert predicted(MODEL, Layout("ring", 1), found) == pytest.approx(8.1e-3)


def test_as_many_workers_are_tried_as_have_something_to_do() -> None:
    assert numbers_of_workers(8, 2) == [1, 2]
    assert numbers_of_workers(3, 100) == [1, 2, 3]
    assert numbers_of_workers(64, 100) == [*range(1, 17), 32, 64]
    assert numbers_of_workers(5, 0) == [1]


def _layouts() -> list[Layout]:
    return [Layout(name, number) for name in NAMES for number in range(1, 5)]


def test_of_cheap_messages_all_workers_are_best_and_of_dear_ones_a_single_one() -> None:
    for message, workers in ((1e-6, 4), (1.0, 1)):
        conditions = Conditions(network=Network(0.0, 1e12, message), compute_s=1e-2, update_s=1e-4, cores=4)
        found = candidates(MODEL, NAMES, range(1, 5), [0], dict.fromkeys(_layouts(), conditions).__getitem__)
        assert len(found) == 1 + 3 * len(NAMES)
        assert found == sorted(found, key=lambda each: each.predicted_s)
        assert choose(found, NAMES).candidate.layout.workers == workers


def test_of_layouts_that_are_as_good_the_plainest_is_taken_and_what_was_measured_decides() -> None:
    plain, other, late = Layout("ring", 2), Layout("tree", 4, 1), Layout("tree", 2)
    choice = choose([Candidate(other, 1.0), Candidate(late, 1.005), Candidate(plain, 1.01)], ["ring", "tree"])
    assert choice.candidate.layout == plain
    assert "which is as good, and not as plain" in choice.reason
    told = [Candidate(other, 1.0, 3.0), Candidate(late, 1.005, 2.0), Candidate(plain, 1.01)]
    choice = choose(told, ["ring", "tree"])
    assert choice.candidate.layout == late
    assert (
        choice.reason == "a step is measured to take 2e+03 ms, with 4 workers, topology tree and 1 loader each 3e+03 ms"
    )
    assert [len(line.split()) for line in table(told).splitlines()] == [7, 5, 5, 4]
