"""Disturbances are a function of the seed, and end no run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.plan import Chaos
from orchestrator.controller.events import CallOff, Ready, Start, Stepped
from orchestrator.controller.fault_injection import Fault, Kind, drawn_fault, victim
from orchestrator.controller.state import ControllerState
from orchestrator.driver.report.chaos_report import sentence
from orchestrator.driver.run.fault_injection import FaultInjection
from orchestrator.records.progress import Progress
from tests.controller.reports import finishes, leaves
from tests.controller.test_controller import FACTS, Play, requirements

kinds = st.lists(st.sampled_from(["kill", "pause"]), min_size=1, max_size=2, unique=True)
CHAOS = Chaos(10.0, ("kill", "pause"), 1)
KILL = Fault(0, 5.0, "kill", 7, 0.5)


@given(st.integers(0, 2**63 - 1), st.floats(0.1, 1e4), kinds, st.floats(0.5, 1000.0))
def test_they_come_in_order_and_a_pause_ends_in_time(seed: int, every_s: float, of: list[Kind], step_s: float) -> None:
    found = [drawn_fault(seed, number, every_s, of, step_s) for number in range(6)]
    assert found == [drawn_fault(seed, number, every_s, of, step_s) for number in range(6)]
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    for each in found:
        assert each.kind in of
        assert each.number + 0.75 <= each.at_s / every_s * (1 + 1e-9)
        assert each.at_s <= (each.number + 1) * every_s
        assert 0 < each.pause_s <= min(3.0, step_s / 4)


def running(workers: int, stages: int = 1) -> Play:
    play = Play(requirements(shards=6, start=workers, most=workers, stages=stages, least=stages))
    play(*(Ready(start.member, FACTS, can_restore=True) for start in play.of(Start)))
    play(Stepped(0))
    return play


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32 - 1), st.sampled_from(["kill", "pause"]))
def test_a_kill_leaves_each_stage_a_worker(workers: int, stages: int, pick: int, kind: Kind) -> None:
    workers = max(workers, stages)
    state = running(workers, stages).state
    found = victim(Fault(0, 5.0, kind, pick, 0.5), state)
    hosting = [member.stage for member in state.members.values()]
    if found is not None:
        assert kind == "pause" or hosting.count(found.stage) > 1
    else:
        assert kind == "kill"
        assert all(hosting.count(stage) == 1 for stage in hosting)


def test_nobody_is_disturbed_before_the_last_loss_is_over() -> None:
    play = running(3)
    assert victim(KILL, play.state) is not None
    play(leaves(0, 0, "peer", Progress(1), accuses=1))
    assert play.of(CallOff)
    assert victim(KILL, play.state) is None
    interrupted = replace(running(3).state, interrupted=(1.0, "SIGINT"))
    assert victim(KILL, interrupted) is None
    ending = running(2)
    ending(finishes(0, 0, Progress(9), "d"))
    assert victim(KILL, ending.state) is None


def steps_of(rehearsing: FaultInjection, states: list[tuple[float, ControllerState]]) -> list[Any]:
    return [None if (due := rehearsing.due(state, now)) is None else due[0].number for now, state in states]


def test_time_counts_from_the_first_step_and_what_meets_nobody_waits() -> None:
    rehearsing, whole = FaultInjection(CHAOS, 600.0), running(3).state
    before = replace(whole, steps_seen=0)
    busy = replace(whole, phase="regrouping")
    moments = [
        (0.0, before),
        (100.0, whole),
        (107.0, whole),
        (111.0, busy),
        (111.5, whole),
        (112.0, whole),
        (121.0, whole),
    ]
    assert steps_of(rehearsing, moments) == [None, None, None, None, 0, None, 1]


def test_overdue_disturbances_wait_until_the_death_before_is_known() -> None:
    """After a long recovery several are due at once; together they would leave nobody."""
    rehearsing = FaultInjection(Chaos(1.0, ("kill",), 1), 600.0)
    play = running(3)
    assert rehearsing.due(play.state, 0.0) is None
    due = rehearsing.due(play.state, 50.0)
    assert due is not None
    killed = due[1].id
    assert [rehearsing.due(play.state, now) for now in (50.1, 51.0, 60.0)] == [None] * 3
    again = rehearsing.due(replace(play.state, members=play.state.members.without(killed)), 60.1)
    assert again is not None
    assert again[0].number == 1
    assert again[1].id != killed
    # Nobody else is disturbed while a worker is paused.
    pausing = FaultInjection(Chaos(0.1, ("pause",), 1), 600.0)
    assert pausing.due(play.state, 0.0) is None
    due = pausing.due(play.state, 50.0)
    assert due is not None
    assert pausing.due(play.state, 50.0 + 0.9 * due[0].pause_s) is None
    assert pausing.due(play.state, 50.0 + due[0].pause_s) is not None


def test_it_says_what_was_shown_and_what_was_not() -> None:
    recoveries = [
        {"kind": "lost", "steps_lost": 0},
        {"kind": "joined", "steps_lost": 0},
        {"kind": "lost", "steps_lost": 2},
    ]
    assert sentence({}, recoveries, "r") == ""
    told = sentence({"pause": 1, "kill": 2}, recoveries, "r")
    assert told == (
        "2 kills, 1 pause; 2 recoveries, 2 steps computed again; what members reported of a step was the same each time. "
        "With an undisturbed run it is compared by rerun=r"
    )
    assert "the same each time" not in sentence({"kill": 1}, [], "r", repeats=False)
