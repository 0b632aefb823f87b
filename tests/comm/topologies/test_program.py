"""The members do what the schedule says, in whatever order they get to run.

The programs run over FIFO channels, one action of one member at a time, the member drawn anew each time. Values are
those of `matrix`: how often each worker's contribution is contained.

Not here: whether a payload may be read where it lies instead of being copied; see test_happens_before.py.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.comm.topologies import (
    Action,
    Add,
    Copy,
    Finish,
    Move,
    Schedule,
    Send,
    build_schedule,
    matrix,
    program,
)
from orchestrator.comm.topologies.schedule import Base, Hold, Vector, held_back, turns
from tests.comm.topologies.cases import NAMES, Case, cases, variants
from tests.comm.topologies.test_matrix import one_chunk


class Machine:
    """Members that run their programs on values; a missing region is a KeyError, a wrong message an AssertionError."""

    def __init__(self, case: Schedule, programs: Sequence[tuple[Action | Hold, ...]]) -> None:
        self.regions: list[dict[tuple[str, int], Vector]] = [{} for _ in programs]
        for worker in range(case.workers):
            unit = tuple(int(worker == other) for other in range(case.workers))
            self.regions[worker].update({("contribution", chunk): unit for chunk in range(case.chunks)})
        self.todo = [deque(actions) for actions in programs]
        self.channels: dict[tuple[int, int], deque[tuple[Send, Vector]]] = {}
        self.held: dict[tuple[int, int], list[Vector]] = {}
        self.passes = 0  # over the memory of a chunk, to add up or to finish

    def ready(self) -> list[int]:
        return [rank for rank, todo in enumerate(self.todo) if todo and self._can(rank, todo[0])]

    def advance(self, rank: int) -> None:
        action, own = self.todo[rank].popleft(), self.regions[rank]
        match action:
            case Send(peer, chunk, region):
                self.channels.setdefault((rank, peer), deque()).append((action, own[region, chunk]))
            case Add(peer, chunk, base):
                self._hold(rank, peer, chunk)
                own["partial", chunk] = self._sum(rank, chunk, base)
            case Hold(peer, chunk):
                self._hold(rank, peer, chunk)
            case Finish(chunk, base):
                own["result", chunk] = self._sum(rank, chunk, base)
            case Copy(peer, chunk):
                sent, payload = self.channels[peer, rank].popleft()
                assert sent.chunk == chunk
                assert sent.region == "result"
                own["result", chunk] = payload

    def _hold(self, rank: int, peer: int, chunk: int) -> None:
        sent, payload = self.channels[peer, rank].popleft()
        assert sent.chunk == chunk
        assert sent.region != "result"
        self.held.setdefault((rank, chunk), []).append(payload)

    def _sum(self, rank: int, chunk: int, base: Base) -> Vector:
        self.passes += 1
        own = [] if base == "nothing" else [self.regions[rank][base, chunk]]
        return tuple(map(sum, zip(*own, *self.held.pop((rank, chunk), []), strict=True)))

    def _can(self, rank: int, action: Action | Hold) -> bool:
        return not isinstance(action, Hold | Add | Copy) or bool(self.channels.get((action.peer, rank)))


def stays(travelling: Collection[int], rank: int, peer: int) -> bool:
    """The same for both members of a pair."""
    return (rank + peer) * abs(rank - peer) not in travelling


def check_results(case: Case, machine: Machine, choose: Random) -> None:
    """Run it to its end."""
    plan = case.schedule
    while ready := machine.ready():
        machine.advance(choose.choice(ready))
    assert not any(machine.todo), "deadlock"
    assert not any(machine.channels.values()), "messages that nobody received"
    assert not machine.held, "payloads that nobody read"
    for chunk, ends in enumerate(matrix(plan)):
        expected = {rank: end for rank, end in enumerate(ends) if any(end) and chunk in case.only}
        got = {rank: own["result", chunk] for rank, own in enumerate(machine.regions) if ("result", chunk) in own}
        assert got == expected


@settings(derandomize=True)
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_every_interleaving_ends_with_the_results_of_the_matrix(case: Case, seed: int) -> None:
    plan = case.schedule
    machine = Machine(plan, [program(plan, rank, case.only) for rank in range(plan.members)])
    check_results(case, machine, Random(seed))


@settings(derandomize=True)
@given(case=cases(), seed=st.integers(0, 2**32 - 1), travelling=st.sets(st.integers(0, 36)) | st.just(range(99)))
def test_what_is_held_back_is_added_all_the_same(case: Case, seed: int, travelling: Collection[int]) -> None:
    """It is, whichever pairs of members let payloads stay. A member does with its messages what it does otherwise."""
    plan = case.schedule
    held, passes = [], 0
    for rank in range(plan.members):
        ordered = turns(plan, rank, case.only)
        found = held_back(ordered, partial(stays, travelling, rank))
        held.append(tuple(chain.from_iterable(found)))
        for before, after in zip(chain.from_iterable(ordered), held[-1], strict=True):
            assert (after.chunk, getattr(after, "peer", None)) == (before.chunk, getattr(before, "peer", None))
            assert after == before or isinstance(before, Add | Finish)
            passes += isinstance(before, Add | Finish)
    machine = Machine(plan, held)
    check_results(case, machine, Random(seed))
    assert machine.passes <= passes


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 17])
def test_each_result_comes_once_and_only_the_owner_makes_it(name: str, workers: int) -> None:
    for plan in variants(name, workers):
        programs = [program(plan, rank) for rank in range(plan.members)]
        finished = Counter(
            (a.chunk, rank) for rank, actions in enumerate(programs) for a in actions if type(a) is Finish
        )
        assert finished == Counter(enumerate(plan.owners))
        for worker in range(workers):
            results = Counter(action.chunk for action in programs[worker] if isinstance(action, Finish | Copy))
            assert results == Counter(range(plan.chunks))


@settings(derandomize=True)
@given(case=cases())
def test_only_drops_actions_and_changes_none(case: Case) -> None:
    for rank in range(case.schedule.members):
        kept = tuple(action for action in program(case.schedule, rank) if action.chunk in case.only)
        assert program(case.schedule, rank, case.only) == kept


def test_a_program_reads_like_its_topology() -> None:
    assert program(build_schedule("ring", 2), 0) == (
        Send(1, 1, "contribution"),
        Add(1, 0, "contribution"),
        Finish(0, "partial"),
        Send(1, 0, "result"),
        Copy(1, 1),
    )
    assert program(build_schedule("parameter_server", 2), 2) == (
        Add(0, 0, "nothing"),
        Add(1, 0, "partial"),
        Finish(0, "partial"),
        Send(0, 0, "result"),
        Send(1, 0, "result"),
    )
    assert program(build_schedule("ring", 1), 0) == (Finish(0, "contribution"),)
    assert program(build_schedule("ring", 2), 0, only=()) == ()


def test_what_is_added_to_a_chunk_is_read_at_once() -> None:
    assert held_back(turns(build_schedule("peer_to_peer", 3), 0), lambda _: True)[1][:3] == (
        Hold(2, 0),
        Hold(1, 0),
        Finish(0, "contribution"),
    )
    inner = chain.from_iterable(held_back(turns(build_schedule("tree", 7), 1, only=[0]), lambda _: True))
    assert [*inner][:3] == [Hold(3, 0), Add(4, 0, "contribution"), Send(0, 0, "partial")]
    (server,) = held_back(turns(build_schedule("parameter_server", 2), 2)[1:2], lambda _: True)
    assert server[:3] == (Hold(0, 0), Hold(1, 0), Finish(0, "nothing"))


def test_what_does_not_stay_is_added_when_it_comes_and_the_last_with_the_finish() -> None:
    for name, rank, first in (("peer_to_peer", 0, Add(2, 0, "contribution")), ("parameter_server", 3, None)):
        ordered = turns(build_schedule(name, 3), rank)
        found = held_back(ordered, lambda _: False)
        adds = [action for action in found[1] if isinstance(action, Hold | Add | Finish)]
        assert first in (None, adds[0])
        assert isinstance(adds[-2], Hold)
        assert adds[-1] == Finish(0, "partial")
        assert sum(isinstance(action, Hold) for action in adds) == 1
    mixed = held_back(turns(build_schedule("peer_to_peer", 5), 0), lambda peer: peer != 3)
    assert mixed[1][:5] == (
        Add(4, 0, "contribution"),
        Add(3, 0, "partial"),
        Hold(2, 0),
        Hold(1, 0),
        Finish(0, "partial"),
    )


ADD, COPY = Move(1, 0, 0, "add"), Move(0, 1, 0, "copy")


@pytest.mark.parametrize(
    ("wrong", "rank", "message"),
    [
        (one_chunk((COPY,), (ADD,)), 0, r"round 0: member 0 has no result of chunk 0 to send to 1"),
        (one_chunk((ADD, COPY)), 0, r"round 0: member 0 has no result of chunk 0 to send to 1"),
        (one_chunk((ADD,), workers=1, servers=1), 1, r"round 0: member 1 has no sum of chunk 0 to send to 0"),
        (one_chunk((ADD,), (COPY,), (COPY,)), 1, r"round 2: member 1 gets a second result of chunk 0, from 0"),
        (one_chunk(workers=1, servers=1, owner=1), 1, r"server 1 owns chunk 0 but receives no add of it"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_with_its_numbers(wrong: Schedule, rank: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        program(wrong, rank)
    with pytest.raises(ValueError, match=message):
        matrix(wrong)


def test_an_owner_is_not_sent_the_result_it_makes() -> None:
    early = one_chunk((ADD,), (COPY,), (Move(1, 2, 0, "copy"),), (Move(2, 0, 0, "copy"),), workers=3)
    with pytest.raises(ValueError, match=r"round 3: member 0 gets a second result of chunk 0, from 2"):
        program(early, 0)


def test_members_and_chunks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no member 3 in this schedule; members are 0 to 2"):
        program(build_schedule("ring", 3), 3)
    with pytest.raises(ValueError, match=r"no chunks \[4, 7\] in this schedule; chunks are 0 to 3"):
        program(build_schedule("tree", 3), 0, only=[7, 0, 4])
