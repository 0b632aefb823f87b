"""One exchange of a schedule over a network, in virtual time.

A message leaves when its source has what it sends and has sent what came before; it goes out and comes in at the bandwidth
of its ends, one message after the other, and is there a latency later. Who takes it has taken those before it, in the order of
the schedule, which is what a member does (`comm.topologies.schedule.program`). Between two hosts the ends are the hosts'.

All moves are played where there are not too many. Where there are (a ring of 100,000 has 2 * 10**10) and all members do alike,
as in a ring and from peer to peer, only one member's are, its peers in step with it: the result is the same.

Source: the linear cost of a message, Hockney, "The communication challenge for MPP" (1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from orchestrator.comm.topologies import Move, Schedule
from orchestrator.errors import UsageError
from orchestrator.experiments.simulation.conditions import Network

SOME_MOVES = 200_000  # more are played only where members differ
MOST_MOVES = 4_000_000


@dataclass(frozen=True)
class Exchanged:
    """What one exchange takes."""

    seconds: float  # until the last member has the result
    sent: float  # bytes out of the member that sends most
    link: float  # bytes over the busiest link, one way
    messages: int  # sent and taken by the member that handles most
    busy_s: float  # processor time of all members together
    played: bool = True  # whether all moves were played
    wire: float = 0.0  # bytes out of the host that sends most to others


@dataclass(frozen=True)
class Flight:
    """A message in virtual time, for a picture: from `left` to `came`."""

    move: Move
    left: float
    came: float


def exchange(schedule: Schedule, up: float, down: float, network: Network) -> Exchanged:
    """up, down: bytes of the whole vector as sums, and as results. Raises UsageError where there are too many moves."""
    if schedule.members == 1:
        return Exchanged(0.0, 0.0, 0.0, 0, 0.0)
    moves = schedule.workers * sum(1 for _ in schedule.moves_of(0))
    if moves > SOME_MOVES and network.hosts == 1 and all_alike(schedule):
        return alike(schedule, up, down, network)
    if moves > MOST_MOVES:
        raise UsageError(
            f"topology {schedule.topology} with {schedule.workers:,} workers makes {moves:,} moves, and its members differ",
            "simulate fewer workers",
            code="simulation.moves",
        )
    return play(schedule, up, down, network)[0]


def all_alike(schedule: Schedule) -> bool:
    """Whether members send and take as many messages of each kind in each round; looked at of some."""
    if schedule.servers:
        return False
    ranks = {0, 1, schedule.workers // 3, schedule.workers // 2, schedule.workers - 1}
    return len({_shape(schedule, rank) for rank in ranks}) == 1


def _shape(schedule: Schedule, rank: int) -> int:
    return hash(tuple((number, move.kind, move.source == rank) for number, move in schedule.moves_of(rank)))


def play(schedule: Schedule, up: float, down: float, network: Network) -> tuple[Exchanged, list[Flight]]:
    """All moves, round by round. Messages of one member are taken in the order of their rounds."""
    members, sizes = schedule.members, _sizes(schedule, up, down)
    ready = [0.0] * members  # when it has done what comes before, in its program
    ways = _Ways(network, network.nodes(schedule.workers, schedule.servers))
    out_free, in_free = dict[_End, float](), dict[_End, float]()
    sent, handled = [0.0] * members, [0] * members
    links: dict[tuple[int, int], float] = {}
    wires: dict[_End, float] = {}
    flights: list[Flight] = []
    taken = 0.0
    for moves in schedule.rounds:
        start = list(ready)
        departures = []
        for move in moves:
            start[move.source] += network.message_s
            way = ways.of(move)
            left = max(start[move.source], out_free.get(way.out, 0.0))
            out_free[way.out] = left + sizes[move.kind] / way.bandwidth
            departures.append((left, move))
        came: dict[Move, float] = {}
        for left, move in sorted(departures, key=itemgetter(0)):  # what leaves first comes in first
            size, way = sizes[move.kind], ways.of(move)
            arrival = max(left + way.latency_s, in_free.get(way.into, 0.0)) + size / way.bandwidth
            in_free[way.into] = arrival
            came[move] = arrival
            if way.between:
                wires[way.out] = wires.get(way.out, 0.0) + size
            sent[move.source] += size
            handled[move.source] += 1
            handled[move.target] += 1
            links[move.source, move.target] = links.get((move.source, move.target), 0.0) + size
            taken += size
            if members <= 64:
                flights.append(Flight(move, left, arrival))
        ready = start  # having handed over what it sends
        for move, arrival in sorted(came.items(), key=itemgetter(1)):
            cost = network.message_s + sizes[move.kind] * network.byte_s
            ready[move.target] = max(ready[move.target], arrival) + cost
    busy = sum(handled) * network.message_s + taken * network.byte_s
    most, wire = (max(amounts.values(), default=0.0) for amounts in (links, wires))
    return Exchanged(max(ready), max(sent), most, max(handled), busy, wire=wire), flights


_End = tuple[str, int]  # of a way: a member's own, or its host's


class _Way(NamedTuple):
    out: _End
    into: _End
    latency_s: float
    bandwidth: float
    between: bool


@dataclass(frozen=True)
class _Ways:
    """What each message passes. nodes: the host of each member."""

    network: Network
    nodes: Sequence[int]

    def of(self, move: Move) -> _Way:
        source, target, network = self.nodes[move.source], self.nodes[move.target], self.network
        if source == target:
            ends = ("member", move.source), ("member", move.target)
            return _Way(*ends, network.latency_s, network.bandwidth, between=False)
        return _Way(("host", source), ("host", target), network.wire_latency_s, network.wire_bandwidth, between=True)


def alike(schedule: Schedule, up: float, down: float, network: Network) -> Exchanged:
    """One member's moves, as if all others did alike, each in step with it."""
    sizes = _sizes(schedule, up, down)
    now = out = 0.0
    messages = 0
    links: dict[int, float] = {}
    taken = 0.0
    for _, group in groupby(schedule.moves_of(0), key=lambda numbered: numbered[0]):
        moves = [move for _, move in group]
        sends = [sizes[move.kind] for move in moves if move.source == 0]
        takes = [sizes[move.kind] for move in moves if move.target == 0]
        now = _round(now, sends, takes, network)
        out, messages, taken = out + sum(sends), messages + len(moves), taken + sum(takes)
        for move in moves:
            if move.source == 0:
                links[move.target] = links.get(move.target, 0.0) + sizes[move.kind]
    busy = schedule.members * (messages * network.message_s + taken * network.byte_s)
    return Exchanged(now, out, max(links.values(), default=0.0), messages, busy, played=False)


def _round(now: float, sends: Sequence[float], takes: Sequence[float], network: Network) -> float:
    """When a member has taken what comes in a round that all begin now: the k-th message that it takes is one that another
    sends as its k-th."""
    left = wire = now
    arrivals: list[float] = []
    handed = now
    in_free = now
    for number, size in enumerate(takes):
        sending = sends[number] if number < len(sends) else size
        handed += network.message_s
        left = max(handed, wire)
        wire = left + sending / network.bandwidth
        in_free = max(left + network.latency_s, in_free) + size / network.bandwidth
        arrivals.append(in_free)
    ready = now + len(sends) * network.message_s
    for arrival, size in zip(arrivals, takes, strict=True):
        ready = max(ready, arrival) + network.message_s + size * network.byte_s
    return ready


def _sizes(schedule: Schedule, up: float, down: float) -> dict[str, float]:
    """Of one chunk, in bytes."""
    return {"add": up / schedule.chunks, "copy": down / schedule.chunks}
