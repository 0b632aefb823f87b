"""Gathering over every topology: each worker ends with each worker's payload, once, whatever the order of the members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.comm.topologies import Copy, Send, build_schedule, matrix, program
from orchestrator.comm.topologies.gathering import gathering, spreading
from orchestrator.comm.topologies.schedule import Action
from tests.comm.topologies.cases import NAMES, Case, cases, variants
from tests.comm.topologies.test_by_rank import counted
from tests.comm.topologies.test_program import Machine


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_worker_ends_with_every_payload_once(name: str) -> None:
    for workers in (*range(1, 18), 33):
        for schedule in variants(name, workers):
            gathered = gathering(schedule)
            assert gathered.links() <= schedule.links()
            assert all(move.kind == "copy" for moves in gathered.rounds for move in moves)
            for worker, ends in enumerate(matrix(gathered)):
                unit = tuple(int(worker == other) for other in range(workers))
                assert ends[:workers] == [unit] * workers


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 17])
def test_nobody_is_sent_what_it_has(name: str, workers: int) -> None:
    for schedule in variants(name, workers):
        gathered = gathering(schedule)
        programs = [program(gathered, rank) for rank in range(gathered.members)]
        for worker in range(workers):
            came = Counter(action.chunk for action in programs[worker] if isinstance(action, Copy))
            assert came == Counter(other for other in range(workers) if other != worker)
        for server in programs[workers:]:
            came = Counter(action.chunk for action in server if isinstance(action, Copy))
            assert all(times == 1 for times in came.values())
            if workers > 1:  # a lone worker's payload rises to a server for nobody
                assert came.keys() == {action.chunk for action in server if isinstance(action, Send)}


@settings(derandomize=True)
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_no_order_of_the_members_deadlocks_or_mixes_payloads_up(case: Case, seed: int) -> None:
    choose, gathered = Random(seed), gathering(case.schedule)
    machine = Machine(gathered, [program(gathered, rank) for rank in range(gathered.members)])
    while ready := machine.ready():
        machine.advance(choose.choice(ready))
    assert not any(machine.todo), "deadlock"
    assert not any(machine.channels.values()), "messages that nobody received"
    for worker, ends in enumerate(matrix(gathered)):
        assert [own["result", worker] for own in machine.regions[: gathered.workers]] == ends[: gathered.workers]


@settings(derandomize=True)
@given(case=cases(), data=st.data())
def test_who_needs_a_payload_gets_it_once_and_nobody_else_but_on_the_way(case: Case, data: st.DataObject) -> None:
    workers = case.schedule.workers
    counts = data.draw(st.lists(st.integers(0, 2), min_size=workers, max_size=workers).filter(any))
    numbers = iter(data.draw(st.permutations(range(sum(counts)))))
    owned = [[next(numbers) for _ in range(count)] for count in counts]
    anybody = st.sets(st.integers(0, workers - 1))
    needed = {payload: data.draw(anybody) for payloads in owned for payload in payloads}
    schedule = spreading(case.schedule, owned, needed)
    assert schedule.links() <= case.schedule.links()
    programs = [program(schedule, rank) for rank in range(schedule.members)]
    machine, choose = Machine(schedule, programs), Random(data.draw(st.integers(0, 99)))
    while ready := machine.ready():
        machine.advance(choose.choice(ready))
    assert not any(machine.todo), "deadlock"
    assert not any(machine.channels.values()), "messages that nobody received"
    for payload, needing in needed.items():
        came, sent = (_acting(programs, kind, payload) for kind in (Copy, Send))
        assert needing - {schedule.owners[payload]} <= came
        assert came - needing <= sent


def _acting(programs: Sequence[Sequence[Action]], kind: type[Copy] | type[Send], payload: int) -> set[int]:
    """The ranks that copy, or send, this payload."""
    mine = ((rank, action) for rank, actions in enumerate(programs) for action in actions)
    return {rank for rank, action in mine if isinstance(action, kind) and action.chunk == payload}


def test_servers_share_the_payloads() -> None:
    gathered = gathering(build_schedule("parameter_server", 6, servers=3))
    forwarded = [sum(isinstance(action, Copy) for action in program(gathered, server)) for server in (6, 7, 8)]
    assert forwarded == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "peer_to_peer"])
def test_a_member_of_many_asks_for_its_own_moves_only(name: str) -> None:
    schedule, counting = counted(build_schedule(name, 10_000))
    program(gathering(schedule), 5_000)
    assert counting.count == 4 * 9_999
