"""The messages that `simulate` plays are those of true runs of many members, in their order, and take as long."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.comm.collectives import SUM, VOTE
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.topologies.schedule import Move, Pattern, Schedule
from orchestrator.comm.topologies.voting import vote_schedule
from orchestrator.experiments.simulation.conditions import Network
from orchestrator.experiments.simulation.discrete_events import messages
from orchestrator.experiments.simulation.exchange import play
from tests.virtual_cluster.many import STEPS, Act, Many

NETWORK = Network(latency_s=50e-6, message_s=7e-6)
NO_BYTES = {"add": 0.0, "copy": 0.0}  # only latency and messages count


@dataclass(frozen=True)
class Filled:
    """A pattern without the chunks that are empty, which a small model leaves."""

    whole: Pattern
    chunks: Collection[int]

    def peers(self, rank: int) -> Collection[int]:
        return self.whole.peers(rank)

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        return ((number, move) for number, move in self.whole.moves(rank) if move.chunk in self.chunks)


def simulated(schedule: Schedule, rank: int) -> list[Act]:
    found = []
    for task in messages(schedule, rank, NO_BYTES, NETWORK):
        if task.sends is not None:
            found.append(Act(True, task.sends.target, task.sends.chunk))
        elif task.takes is not None:
            found.append(Act(False, task.takes.source, task.takes.chunk))
    return found


class Call(NamedTuple):
    """A collective call as it is simulated: the acts of each rank, and how long it takes."""

    acts: dict[int, list[Act]]
    seconds: float


@functools.cache  # the calls of a generation are alike
def simulated_call(topology: str, members: int, phase: int, chunks: frozenset[int]) -> Call:
    schedule = vote_schedule(members)
    if phase == SUM:
        plain = build_schedule(topology, members)
        schedule = replace(plain, pattern=Filled(plain.pattern, chunks))
    acts = {rank: simulated(schedule, rank) for rank in range(members)}
    return Call(acts, play(schedule, 0.0, 0.0, NETWORK)[0].seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "topology", "lost"),
    [
        (23, "tree", 0),
        (9, "ring", 1),
        pytest.param(21, "tree", 2, marks=pytest.mark.long),
        pytest.param(100, "ring", 10, marks=pytest.mark.long),
        pytest.param(256, "tree", 0, marks=pytest.mark.long),
        pytest.param(1000, "tree", 1, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
        pytest.param(1000, "ring", 1, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_what_is_simulated_is_what_a_run_does(tmp_path: Path, workers: int, topology: str, lost: int) -> None:
    run = Many(workers, topology, lost)
    (outcome,) = run.live(tmp_path).outcomes
    assert outcome is not None
    assert (outcome.error, outcome.steps) == (None, STEPS)
    assert [each["steps_lost"] for each in outcome.recoveries if each["kind"] == "lost"] == [0] * bool(lost)
    whole = set()
    for call, acts in run.traffic.acts.items():
        if call.phase not in (VOTE, SUM):
            continue
        members = run.members[call.generation]
        chunks = frozenset(act.chunk for own in acts.values() for act in own)
        expected, seconds = simulated_call(topology, members, call.phase, chunks)
        if lost and any(acts[rank] != expected[rank] for rank in range(members)):  # a loss has interrupted it
            assert all(acts[rank] == expected[rank][: len(acts[rank])] for rank in range(members))
            continue
        assert acts == {rank: own for rank, own in expected.items() if own}
        clocks = run.traffic.seconds(call, NETWORK.message_s, NETWORK.latency_s)
        assert seconds == pytest.approx(clocks, rel=1e-12)
        whole.add((call.step, call.phase))
    first = 1 if lost else 0  # whoever is behind gets the state of the step that the loss has cut short
    assert whole >= {(step, phase) for step in range(first, STEPS) for phase in (VOTE, SUM)}
