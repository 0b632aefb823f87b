"""The laws that every topology obeys. Tests check the topologies of the table, and a launch checks a user's own.

    consensus    both ends of a move tell of it, in the same order, and nobody else does
    exact        each worker, and whoever finishes a chunk, ends with each worker's contribution to it exactly once
    no deadlock  every member reaches the end of its program, with every message received
    no race      nothing is overwritten while a peer may still read it (see `happens_before`)

Only the numbers of members that are asked about are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from orchestrator.comm.topologies import TOPOLOGIES, asks_for_nodes, build_schedule
from orchestrator.comm.topologies.happens_before import races
from orchestrator.comm.topologies.schedule import Schedule, matrix, program

_STEPS = 3  # a result has two copies, by the parity of the step; the third step meets the first one's


def problems(name: str, options: Mapping[str, Any], numbers: Iterable[int]) -> list[str]:
    """The first law that a topology of the user's project breaks for these numbers of workers, as a sentence; none if it
    keeps all."""
    resolved = TOPOLOGIES.resolve(name, options)
    servers = resolved.get("servers", 0)
    counts = [(workers, left) for workers in numbers for left in sorted({min(1, servers), servers})]  # some may be lost
    for workers, left in counts:
        given = {**resolved, "servers": left} if left else resolved
        named = f"{name} with {workers} workers{f' and {left} servers' * bool(left)}"
        if found := TOPOLOGIES.judge(named, partial(_built_broken, name, given, workers, left)):
            return found
    return []


def broken(schedule: Schedule) -> str | None:
    """The law that a schedule breaks, as a predicate; None where it keeps to all. Raises ValueError for an impossible move."""
    if (problem := disagreement(schedule)) is not None:
        return problem
    ones = (1,) * schedule.workers
    try:
        ends = matrix(schedule)
        for rank in range(schedule.members):
            program(schedule, rank)
    except ValueError as error:
        return f"is not exact: {error}"
    for chunk, owner in enumerate(schedule.owners):
        for member in [*range(schedule.workers), owner]:
            if ends[chunk][member] != ones:
                return _not_exact(chunk, member, ends[chunk][member])
    try:
        found = races(schedule, steps=_STEPS)
    except ValueError as error:
        return f"does not end: {error}"
    if found:
        early, late = found[0].early, found[0].late
        return (
            f"has a race: in the memory of member {found[0].owner}, nothing orders member {early.member}'s {early.kind} of the "
            f"{early.region} of chunk {early.chunk} and member {late.member}'s {late.kind} of its {late.region}; every worker "
            "must await every result, and every result every contribution"
        )
    return None


def disagreement(schedule: Schedule) -> str | None:
    programs = {rank: list(schedule.moves_of(rank)) for rank in range(schedule.members)}
    for rank, moves in programs.items():
        if strange := [move for _, move in moves if rank not in (move.source, move.target)]:
            return f"is no consensus: member {rank} tells of {strange[0]}, in which it has no part"
        if any(before > after for (before, _), (after, _) in pairwise(moves)):
            return f"is no consensus: member {rank} does not tell of its moves in the order of rounds"
        if schedule.peers_of(rank) != {end for _, move in moves for end in (move.source, move.target)} - {rank}:
            return f"is no consensus: the peers of member {rank} are not those that its moves name"
        for peer in schedule.peers_of(rank):
            sent = [(number, move) for number, move in moves if move.target == peer]
            if sent != [(number, move) for number, move in programs[peer] if move.source == rank]:
                return f"is no consensus: members {rank} and {peer} tell differently of what the first one sends to the second"
    return None


def _built_broken(name: str, options: Mapping[str, Any], workers: int, servers: int) -> str | None:
    several = (1, 2, 3) if asks_for_nodes(name) else (1,)
    for nodes in {tuple(rank * among // workers for rank in range(workers)) for among in several}:
        if (problem := _broken_on(name, options, workers, servers, nodes)) is not None:
            return problem
    return None


def _broken_on(name: str, options: Mapping[str, Any], workers: int, servers: int, nodes: tuple[int, ...]) -> str | None:
    schedule: object = build_schedule(name, workers, nodes=(*nodes, *range(servers)), **options)
    if not isinstance(schedule, Schedule):
        return f"returns {type(schedule).__name__}; it must be an orchestrator.comm.topologies.Schedule"
    if (schedule.workers, schedule.servers) != (workers, servers):
        return (
            f"is a schedule of {schedule.workers} workers and {schedule.servers} servers; members besides the workers are "
            "counted by an option `servers`"
        )
    return broken(schedule)


def _not_exact(chunk: int, member: int, counts: tuple[int, ...]) -> str:
    worker, times = next((worker, times) for worker, times in enumerate(counts) if times != 1)
    return (
        f"is not exact: member {member} ends with worker {worker}'s contribution to chunk {chunk} {times} times; it must be "
        "once, as each worker's"
    )
