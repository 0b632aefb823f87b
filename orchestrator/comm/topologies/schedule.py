"""A topology as data: rounds of moves, what they compute, and what each member does about them.

A schedule says who hands which chunk of the vector to whom, and whether the receiver adds it to a sum or takes it as
the result. The same object is executed, simulated, drawn and checked:

    matrix(schedule)         runs it on the identity matrix: an exact topology gives ones for every worker and chunk
    program(schedule, rank)  what one member does, in order: sends never wait, so no order of the members can deadlock
    turns(schedule, rank)    the same, as far as it can be done piece by piece
    held_back(turns, stays)  the same, in which what is added to a chunk is read all at once

A topology answers for one member at a time (`Pattern`), and `program` costs what that member does, not all moves.

Memory: a member's own contribution, its partial sums and its results are three regions. The only writes are an Add into
`partial`, a Finish or a Copy into `result`, and the worker's own next contribution. The messages alone ensure that no peer
can still be reading what is overwritten (`tests/comm/topologies/test_happens_before.py`).

Source: the idea of communication as data is that of tinygrad's `schedule/allreduce.py`.

A schedule knows no tensors, element types, sizes, transports or time. It need not be exact; `matrix` tells whether it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol

Base = Literal["contribution", "partial", "nothing"]
Region = Literal["contribution", "partial", "result"]
Vector = tuple[int, ...]
Kind = Literal["add", "copy"]


class Move(NamedTuple):
    """`source` hands `chunk` to `target`: its sum so far to be added, or its result to be copied. Many are made, and a tuple
    is made fastest."""

    source: int
    target: int
    chunk: int
    kind: Kind


class Pattern(Protocol):
    """The statement of a topology: who talks with whom, and when. It is asked member by member and answers for what it costs
    that member; all moves of a ring of 100,000 are 2 * 10**10."""

    def peers(self, rank: int) -> Collection[int]:
        """The members that `rank` talks with."""

    def moves(self, rank: int) -> Iterable[tuple[int, Move]]:
        """The moves from or to `rank`, each with its round, rounds in order. In one round it first sends and then receives,
        in this order. Source and target list the moves between them in the same order."""


@dataclass(frozen=True)
class Schedule:
    """Rounds of moves between members; every payload is the source's value from before the round.

    Ranks 0..workers-1 contribute one vector each. Ranks workers..members-1 are servers: they start with nothing and
    need no result. `owners[chunk]` is the member that turns the sum into the result, after the last add aimed at it.
    Raises ValueError for an owner outside these numbers; for a move, when it is asked for.
    """

    topology: str
    workers: int
    servers: int
    owners: Sequence[int]
    pattern: Pattern

    def __post_init__(self) -> None:
        require_positive(workers=self.workers, chunks=self.chunks)
        if self.servers < 0:
            raise ValueError(f"servers is {self.servers}; use 0 for a schedule without servers")
        for chunk, owner in enumerate(self.owners):
            if not 0 <= owner < self.members:
                raise ValueError(f"chunk {chunk} is owned by member {owner}; members are 0 to {self.members - 1}")

    @property
    def members(self) -> int:
        return self.workers + self.servers

    @property
    def chunks(self) -> int:
        return len(self.owners)

    def moves_of(self, rank: int) -> Iterator[tuple[int, Move]]:
        """The moves from or to `rank`, each with its round, made while they are asked for."""
        self._require_member(rank)
        members, chunks = range(self.members), range(self.chunks)
        for number, move in self.pattern.moves(rank):
            if move.kind not in ("add", "copy"):
                raise ValueError(f"round {number}: {move} is of no known kind; use 'add' or 'copy'")
            if move.source not in members or move.target not in members or move.source == move.target:
                raise ValueError(f"round {number}: {move} needs two different members of 0 to {self.members - 1}")
            if move.chunk not in chunks:
                raise ValueError(f"round {number}: {move} needs a chunk of 0 to {self.chunks - 1}")
            yield number, move

    def peers_of(self, rank: int) -> frozenset[int]:
        """The members that `rank` talks with."""
        self._require_member(rank)
        return frozenset(self.pattern.peers(rank))

    @cached_property
    def rounds(self) -> tuple[tuple[Move, ...], ...]:
        """All moves, round by round: for drawings and laws. A member needs only its own."""
        rounds: list[list[Move]] = []
        for rank in range(self.members):
            for number, move in self.moves_of(rank):
                if move.source == rank:
                    rounds.extend([] for _ in range(len(rounds), number + 1))
                    rounds[number].append(move)
        return tuple(map(tuple, rounds))

    def links(self) -> frozenset[tuple[int, int]]:
        """The pairs of members that ever talk, the smaller rank first."""
        pairs = ((rank, peer) for rank in range(self.members) for peer in self.peers_of(rank))
        return frozenset((min(pair), max(pair)) for pair in pairs)

    def _require_member(self, rank: int) -> None:
        if not 0 <= rank < self.members:
            raise ValueError(f"there is no member {rank} in this schedule; members are 0 to {self.members - 1}")


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `chunk` to `peer`; the payload lies in `region` now. Never waits."""

    peer: int
    chunk: int
    region: Region


@dataclass(frozen=True, slots=True)
class Add:
    """Receive `chunk` from `peer`: partial = base + payload, and between them what is held of the chunk. From `nothing` the
    partial is the payload."""

    peer: int
    chunk: int
    base: Base


@dataclass(frozen=True, slots=True)
class Hold:
    """Receive `chunk` from `peer`, whose payload is read by the next Add or Finish of the chunk. In no `program`; see
    `held_back`."""

    peer: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The owner turns the sum that lies in `base`, and what is held of the chunk, into the result."""

    chunk: int
    base: Base


@dataclass(frozen=True, slots=True)
class Copy:
    """Receive `chunk` from `peer`: result = payload."""

    peer: int
    chunk: int


Action = Send | Add | Finish | Copy


def matrix(schedule: Schedule) -> list[list[Vector]]:
    """The results of all members: `[chunk][member][worker]`, how often the member's result contains the worker's
    contribution.

    A member without a result holds zeros.
    Raises ValueError when a move has nothing to hand over or a result comes twice.
    """
    workers = range(schedule.workers)
    unit = {worker: tuple(int(worker == other) for other in workers) for worker in workers}
    sums = {(chunk, worker): unit[worker] for chunk in range(schedule.chunks) for worker in workers}
    results: dict[tuple[int, int], Vector] = {}
    last = _last_adds(schedule)
    _finish(schedule, [chunk for chunk in last if last[chunk] < 0], sums, results)
    for number, moves in enumerate(schedule.rounds):
        _round(number, moves, sums, results)
        _finish(schedule, [chunk for chunk in last if last[chunk] == number], sums, results)
    zeros = (0,) * schedule.workers
    return [
        [results.get((chunk, member), zeros) for member in range(schedule.members)] for chunk in range(schedule.chunks)
    ]


def program(schedule: Schedule, rank: int, only: Collection[int] | None = None) -> tuple[Action, ...]:
    """The actions of member `rank`, in order: in each round first its sends, then its receives, both as listed.

    `only` keeps the actions of these chunks and drops the others', for models too small to fill all of them.
    Raises ValueError when this member would send what it does not have, get a result twice or finish nothing.
    """
    return tuple(action for turn in turns(schedule, rank, only) for action in turn)


def turns(schedule: Schedule, rank: int, only: Collection[int] | None = None) -> tuple[tuple[Action, ...], ...]:
    """The `program`, cut before the receives of each round. So a turn holds the receives of one round at most, and the sends
    of one, the next. If chunks travel in pieces, a turn is done piece by piece: a piece that has come is handed on while the
    rest comes. Sender and receiver use the same order of pieces."""
    chunks = range(schedule.chunks)
    kept = frozenset(chunks if only is None else only)
    unknown = sorted(chunk for chunk in kept if chunk not in chunks)
    if unknown:
        raise ValueError(f"there are no chunks {unknown} in this schedule; chunks are 0 to {schedule.chunks - 1}")
    return tuple(_Member(schedule, rank, kept).turns())


def held_back(turns: Sequence[Sequence[Action]], stays: Callable[[int], bool]) -> tuple[tuple[Action | Hold, ...], ...]:
    """These turns with as few passes over memory as can be: an Add is a Hold where the chunk is added to again before anybody
    is handed it, or finished. stays: whether payloads of this peer stay where they are until then. One that does not is held
    only if its chunk is finished at once."""
    found: list[list[Action | Hold]] = [list(turn) for turn in turns]
    following: dict[int, Action] = {}  # by chunk: what is done next with it
    readers: dict[int, tuple[list[Action | Hold], int]] = {}  # by chunk: where what reads the held payloads stands
    for turn in reversed(found):
        for place, action in reversed([*enumerate(turn)]):
            assert not isinstance(action, Hold)
            if isinstance(action, Add) and _waits(action, following.get(action.chunk), stays):
                turn[place] = Hold(action.peer, action.chunk)
                of_turn, at = readers[action.chunk]
                reader = of_turn[at]
                assert isinstance(reader, Add | Finish)
                of_turn[at] = replace(reader, base=action.base)
            elif isinstance(action, Add | Finish):
                readers[action.chunk] = turn, place
            following[action.chunk] = action
    return tuple(map(tuple, found))


def _waits(action: Add, following: Action | None, stays: Callable[[int], bool]) -> bool:
    """Whether this payload can wait for what is done next with its chunk."""
    if isinstance(following, Finish):
        return stays(action.peer) or action.base != "nothing"
    return isinstance(following, Add) and stays(action.peer) and stays(following.peer)


def require_positive(**numbers: int) -> None:
    """Raises ValueError for the first number below 1, by name."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} is {number}; use 1 or more")


class _Member:
    """The place of one member's value of each chunk while the rounds go by; it needs to know nothing of the others."""

    def __init__(self, schedule: Schedule, rank: int, kept: Collection[int]) -> None:
        start: Base = "contribution" if rank < schedule.workers else "nothing"
        self.schedule = schedule
        self.rank = rank
        self.moves = [numbered for numbered in schedule.moves_of(rank) if numbered[1].chunk in kept]
        self.base: dict[int, Base] = dict.fromkeys(kept, start)
        self.has_result: set[int] = set()
        self.awaited = Counter(move.chunk for _, move in self.moves if move.target == rank and move.kind == "add")

    def turns(self) -> Iterator[tuple[Action, ...]]:
        turn: list[Action] = [
            self.finish(chunk)
            for chunk in sorted(self.base)
            if self.schedule.owners[chunk] == self.rank and not self.awaited[chunk]
        ]
        for number, group in groupby(self.moves, key=itemgetter(0)):
            moves = [move for _, move in group]
            turn += [self.send(number, move) for move in moves if move.source == self.rank]
            yield tuple(turn)
            turn = [action for move in moves if move.target == self.rank for action in self.receive(number, move)]
        yield tuple(turn)

    def send(self, number: int, move: Move) -> Send:
        region: Region
        if move.kind == "copy":
            if move.chunk not in self.has_result:
                raise _nothing_to_send(number, move)
            region = "result"
        else:
            base = self.base[move.chunk]
            if base == "nothing":
                raise _nothing_to_send(number, move)
            region = base
        return Send(move.target, move.chunk, region)

    def receive(self, number: int, move: Move) -> Iterator[Action]:
        if move.kind == "copy":
            if move.chunk in self.has_result:
                raise _second_result(number, move)
            self.has_result.add(move.chunk)
            yield Copy(move.source, move.chunk)
            return
        yield Add(move.source, move.chunk, self.base[move.chunk])
        self.base[move.chunk] = "partial"
        self.awaited[move.chunk] -= 1
        if self.schedule.owners[move.chunk] == self.rank and not self.awaited[move.chunk]:
            yield self.finish(move.chunk)

    def finish(self, chunk: int) -> Finish:
        base = self.base[chunk]
        if base == "nothing":
            raise _nothing_to_finish(chunk, self.rank)
        self.has_result.add(chunk)
        return Finish(chunk, base)


def _round(
    number: int, moves: tuple[Move, ...], sums: dict[tuple[int, int], Vector], results: dict[tuple[int, int], Vector]
) -> None:
    # All payloads are read before anything is written: that is what a round means.
    payloads = []
    for move in moves:
        payload = (sums if move.kind == "add" else results).get((move.chunk, move.source))
        if payload is None:
            raise _nothing_to_send(number, move)
        payloads.append(payload)
    for move, payload in zip(moves, payloads, strict=True):
        place = (move.chunk, move.target)
        if move.kind == "add":
            sums[place] = _plus(sums[place], payload) if place in sums else payload
        elif place in results:
            raise _second_result(number, move)
        else:
            results[place] = payload


def _finish(
    schedule: Schedule,
    chunks: list[int],
    sums: dict[tuple[int, int], Vector],
    results: dict[tuple[int, int], Vector],
) -> None:
    for chunk in chunks:
        place = (chunk, schedule.owners[chunk])
        if place not in sums:
            raise _nothing_to_finish(*place)
        results[place] = sums[place]


def _last_adds(schedule: Schedule) -> dict[int, int]:
    """The round of the last add that each chunk's owner receives; -1 where it receives none."""
    last = dict.fromkeys(range(schedule.chunks), -1)
    for number, moves in enumerate(schedule.rounds):
        for move in moves:
            if move.kind == "add" and move.target == schedule.owners[move.chunk]:
                last[move.chunk] = number
    return last


def _plus(left: Vector, right: Vector) -> Vector:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _nothing_to_send(number: int, move: Move) -> ValueError:
    missing = "sum" if move.kind == "add" else "result"
    return ValueError(
        f"round {number}: member {move.source} has no {missing} of chunk {move.chunk} to send to {move.target}; "
        "it must have got one in an earlier round"
    )


def _second_result(number: int, move: Move) -> ValueError:
    return ValueError(
        f"round {number}: member {move.target} gets a second result of chunk {move.chunk}, from {move.source}; "
        "each member takes each result once"
    )


def _nothing_to_finish(chunk: int, owner: int) -> ValueError:
    return ValueError(f"server {owner} owns chunk {chunk} but receives no add of it; send it the contributions")
