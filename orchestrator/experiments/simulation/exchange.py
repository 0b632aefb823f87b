"""One exchange of a schedule over a network, in virtual time: members hand over and take, with a core for each, and do
nothing else (`discrete_events.py`).

All messages are played where there are not too many. If there are (a ring of 100,000 has 2 * 10**10) and all members do
alike, as in a ring and from peer to peer, only one member's are played, its peers in step. So are those of one host where all
hosts have as many members and do alike. The result is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, repeat

from orchestrator.comm.topologies import Move, Schedule
from orchestrator.errors import UsageError
from orchestrator.experiments.simulation.conditions import Conditions, Network
from orchestrator.experiments.simulation.discrete_events import Flight, Link, Simulation, Task, messages

SOME_MOVES = 200_000  # more are played only where members differ
MOST_MOVES = 4_000_000


@dataclass(frozen=True)
class Exchanged:
    """The time of one exchange."""

    seconds: float  # until the last member has the result
    sent: float  # bytes out of the member that sends most
    link: float  # bytes over the busiest link, one way
    busy_s: float  # processor time of all members together
    played: bool = True  # whether all moves were played
    wire: float = 0.0  # bytes out of the host that sends most to others


def exchange(schedule: Schedule, up: float, down: float, network: Network) -> Exchanged:
    """Simulate the exchange of one step. up, down: bytes of the whole vector as sums, and as results. Raises UsageError
    where there are too many moves."""
    if schedule.members == 1:
        return Exchanged(0.0, 0.0, 0.0, 0.0)
    moves = schedule.workers * sum(1 for _ in schedule.moves_of(0))
    if moves > SOME_MOVES and network.hosts == 1 and all_alike(schedule):
        return alike(schedule, up, down, network)
    if moves > SOME_MOVES and network.hosts > 1 and hosts_alike(schedule, network.hosts):
        return host_alike(schedule, up, down, network)
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


def alike(schedule: Schedule, up: float, down: float, network: Network) -> Exchanged:
    """One member's messages, to itself: the k-th that it takes leaves its peer when its own k-th leaves."""

    def to_itself(tasks: Iterator[Task]) -> Iterator[Task]:
        sent, taken = count(), count()
        for task in tasks:
            if task.sends is not None:
                yield task._replace(sends=Move(0, 0, next(sent), "add"))
            else:
                yield task._replace(takes=Move(0, 0, next(taken), "add"))

    sizes = chunk_sizes(schedule, up, down)
    simulation = Simulation([to_itself(messages(schedule, 0, sizes, network))], Conditions(network), [0])
    simulation.run()
    links = defaultdict[Link, float](float)
    for _, move in schedule.moves_of(0):
        if move.source == 0:
            links[0, move.target] += sizes[move.kind]
    busy_s = schedule.members * simulation.busy_s
    return Exchanged(simulation.ready[0], sum(links.values()), max(links.values(), default=0.0), busy_s, played=False)


def hosts_alike(schedule: Schedule, hosts: int) -> bool:
    """Whether every host has as many members, and the next host's do what its own do, with the next members; looked at of
    some."""
    each, rest = divmod(schedule.workers, hosts)
    if schedule.servers or rest:
        return False
    some = {0, 1, hosts // 3, hosts // 2, hosts - 1}
    return all(len({_turned_shape(schedule, host * each + place) for host in some}) == 1 for place in range(each))


def _turned_shape(schedule: Schedule, rank: int) -> int:
    """As `_shape`, and how far away each peer is."""
    workers = schedule.workers
    return hash(
        tuple(
            (number, move.kind, (move.source - rank) % workers, (move.target - rank) % workers)
            for number, move in schedule.moves_of(rank)
        )
    )


def host_alike(schedule: Schedule, up: float, down: float, network: Network) -> Exchanged:
    """The messages of the first host's members, to each other and to the host itself: what a member takes from a member of
    another host leaves when its own to as distant a one leaves."""
    each = schedule.workers // network.hosts
    sizes = chunk_sizes(schedule, up, down)

    def folded(move: Move) -> Move:
        """Another host's members count after the first one's; alike messages come in their order."""
        beyond = each * (move.source // each != move.target // each)
        return Move(
            move.source % each, move.target % each + beyond, (move.target - move.source) % schedule.workers, "add"
        )

    def of(rank: int) -> Iterator[Task]:
        for task in messages(schedule, rank, sizes, network):
            if task.sends is not None:
                yield task._replace(sends=folded(task.sends))
            elif task.takes is not None:
                yield task._replace(takes=folded(task.takes))

    programs = [*map(of, range(each)), *repeat(iter(()), each)]
    simulation = Simulation(programs, Conditions(network), [0] * each + [1] * each)
    simulation.run()
    links, sent, wire = defaultdict[Link, float](float), defaultdict[int, float](float), 0.0
    for rank in range(each):
        for _, move in schedule.moves_of(rank):
            if move.source == rank:
                size = sizes[move.kind]
                links[rank, move.target] += size
                sent[rank] += size
                wire += size * (move.target >= each)
    seconds, busy_s = max(simulation.ready[:each]), network.hosts * simulation.busy_s
    return Exchanged(seconds, max(sent.values()), max(links.values()), busy_s, played=False, wire=wire)


def play(
    schedule: Schedule, up: float, down: float, network: Network, *, seen: bool = False
) -> tuple[Exchanged, list[Flight]]:
    """All members' messages, and with `seen` the flight of each."""
    sizes, nodes = chunk_sizes(schedule, up, down), network.nodes(schedule.workers, schedule.servers)
    programs = [messages(schedule, rank, sizes, network) for rank in range(schedule.members)]
    simulation = Simulation(programs, Conditions(network), nodes)
    simulation.run(seen=seen)
    sent, wires = defaultdict[int, float](float), defaultdict[int, float](float)
    for (source, target), size in simulation.links.items():
        sent[source] += size
        if nodes[source] != nodes[target]:
            wires[nodes[source]] += size
    most, link, wire = (max(each.values(), default=0.0) for each in (sent, simulation.links, wires))
    return Exchanged(max(simulation.ready), most, link, simulation.busy_s, wire=wire), simulation.flights


def chunk_sizes(schedule: Schedule, up: float, down: float) -> dict[str, float]:
    """Bytes of a chunk by the kind of its move."""
    return {"add": up / schedule.chunks, "copy": down / schedule.chunks}
