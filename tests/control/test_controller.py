"""The controller: whatever happens in whatever order, the run ends once, for the right reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.control.controller import (
    GRACE_S,
    Begin,
    Command,
    Died,
    End,
    Event,
    Failed,
    Finished,
    Interrupt,
    Ready,
    State,
    Tick,
    Withdrew,
    decide,
)
from orchestrator.errors import ClusterUnavailable, Inconsistent, Interrupted, NonFinite, RunFailed, WorkerLost

FACTS = {"steps": 3}


def play(events: list[tuple[float, Event]], workers: int = 2, servers: int = 1) -> tuple[State, list[Command]]:
    """Events with their times, from the start of a run."""
    state = State(workers, servers, started=0.0, start_timeout_s=60.0)
    done: list[Command] = []
    for now, event in events:
        state, commands, _ = decide(state, event, now)
        done += commands
    return state, done


READY: list[tuple[float, Event]] = [(1.0, Ready(0, FACTS)), (1.0, Ready(1, FACTS)), (1.0, Ready(2, {}))]


def end_of(commands: list[Command]) -> Any:
    (end,) = [command for command in commands if isinstance(command, End)]
    return end.error


def test_a_run_begins_when_all_are_ready_and_ends_when_all_are_finished() -> None:
    finished: list[tuple[float, Event]] = [(2.0, Finished(0, "d")), (2.0, Finished(2, None)), (2.0, Finished(1, "d"))]
    state, commands = play(READY + finished)
    assert commands == [Begin(FACTS), End(None)]
    assert state.phase == "ended"


def test_workers_that_prepared_different_runs_do_not_begin() -> None:
    _, commands = play([(0.0, Ready(0, FACTS)), (0.0, Ready(2, {})), (0.0, Ready(1, {"steps": 4}))])
    assert isinstance(end_of(commands), Inconsistent)
    assert "steps" in str(end_of(commands))
    assert not any(isinstance(command, Begin) for command in commands)


def test_a_worker_that_computes_other_bits_is_refused_by_proof() -> None:
    here = {**FACTS, "reference": "a", "machine": {"CPU": "old", "torch": "2"}}
    there = {**FACTS, "reference": "b", "machine": {"CPU": "new", "torch": "2"}}
    _, commands = play([(0.0, Ready(0, here)), (0.0, Ready(2, {})), (0.0, Ready(1, there))])
    assert "compute different bits from the same micro-batch (CPU old and new)" in str(end_of(commands))
    _, commands = play([(0.0, Ready(0, here)), (0.0, Ready(2, {})), (0.0, Ready(1, {**there, "reference": "a"}))])
    assert commands == [Begin(here)]


def test_different_digests_are_an_error() -> None:
    _, commands = play([*READY, (2.0, Finished(0, "a")), (2.0, Finished(1, "b")), (2.0, Finished(2, None))])
    assert isinstance(end_of(commands), Inconsistent)


def test_a_withdrawal_waits_for_its_cause() -> None:
    withdrawn: list[tuple[float, Event]] = [*READY, (5.0, Withdrew(1, "lost contact with member 0"))]
    assert play([*withdrawn, (5.0 + GRACE_S, Tick())])[1] == [Begin(FACTS)]
    _, commands = play([*withdrawn, (5.1, Failed(0, NonFinite("the loss is nan")))])
    assert isinstance(end_of(commands), NonFinite)
    _, commands = play([*withdrawn, (5.1, Died(0, "its process ended"))])
    assert isinstance(end_of(commands), WorkerLost)
    _, commands = play([*withdrawn, (5.1 + GRACE_S, Tick())])
    assert type(end_of(commands)) is RunFailed
    assert "worker 1: lost contact with member 0" in str(end_of(commands))


def test_a_member_that_died_after_finishing_is_no_loss() -> None:
    _, commands = play(
        [*READY, (2.0, Finished(0, "d")), (3.0, Died(0, "")), (4.0, Finished(1, "d")), (4.0, Finished(2, None))]
    )
    assert end_of(commands) is None


def test_a_late_start_names_who_is_late() -> None:
    assert play([READY[0], (60.0, Tick())])[1] == []
    _, commands = play([READY[0], (60.1, Tick())])
    assert isinstance(end_of(commands), ClusterUnavailable)
    assert "worker 1, server 0 not ready after 60 s" in str(end_of(commands))


@pytest.mark.parametrize("events", [[], READY])
def test_an_interruption_ends_any_phase(events: list[tuple[float, Event]]) -> None:
    _, commands = play([*events, (9.0, Interrupt("SIGTERM"))])
    assert isinstance(end_of(commands), Interrupted)


members = st.integers(0, 2)
events_of_a_run = st.one_of(
    st.builds(Ready, members, st.just(FACTS)),
    st.builds(Failed, members, st.builds(NonFinite, st.just("nan"))),
    st.builds(Withdrew, members, st.just("why")),
    st.builds(Died, members, st.just("why")),
    st.builds(Finished, members, st.sampled_from(["d", "e"])),
    st.builds(Interrupt, st.just("SIGINT")),
    st.just(Tick()),
)


@given(st.lists(st.tuples(st.floats(0, 1e4), events_of_a_run), max_size=40))
def test_any_history_begins_and_ends_at_most_once(history: list[tuple[float, Event]]) -> None:
    state, commands = play(sorted(history, key=lambda entry: entry[0]))
    begins = [i for i, command in enumerate(commands) if isinstance(command, Begin)]
    ends = [i for i, command in enumerate(commands) if isinstance(command, End)]
    assert len(begins) <= 1
    assert len(ends) <= 1
    assert ends in ([], [len(commands) - 1])
    assert (state.phase == "ended") == bool(ends)
    if ends and commands[ends[0]] == End(None):
        assert begins == [0]
