"""Gathering as a schedule: every worker's payload reaches every worker once, over the links of a topology.

Payload w is chunk w of the new schedule and worker w owns it; there are only copies. The payloads ride on the moves of the
topology's own schedule, each on those of one chunk. With every add they rise towards that chunk's owner. With every copy they
go where that chunk's result goes, unless the target has had them on their way up. So a move hands on what its source has and
its target has not, and what a member does is still asked of it alone.

A worker's payload rides on the chunk that it owns; then nothing has to rise, and in a ring or from peer to peer it takes the
way of a result. A worker that owns no chunk is given one by rank, so that all servers, and all chunks of a tree, carry their
part.

`spreading` is the same for payloads that not everybody needs: a worker may have several, and each takes only the ways that lead
to somebody who needs it.

The length of a payload is not known here. A server gets only payloads that it has to forward, and that of a lone worker,
which still rises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from orchestrator.comm.topologies.schedule import Move, Schedule


def gathering(schedule: Schedule) -> Schedule:
    """The copy-only schedule of as many chunks as workers; `schedule` has to be exact (`matrix`)."""
    workers = schedule.workers
    return Schedule(schedule.topology, workers, schedule.servers, range(workers), _Gathering(schedule))


def spreading(schedule: Schedule, owned: Sequence[Collection[int]], needed: Mapping[int, Collection[int]]) -> Schedule:
    """The copy-only schedule that brings payloads to those who need them. owned: by worker, its payloads, numbered from 0 on;
    needed: by payload, the workers that need it."""
    owner = {payload: worker for worker, payloads in enumerate(owned) for payload in payloads}
    owners = [owner[payload] for payload in range(len(owner))]
    pattern = _Spreading(gathering(schedule), tuple(map(tuple, owned)), needed)
    return Schedule(schedule.topology, schedule.workers, schedule.servers, owners, pattern)


@dataclass(frozen=True)
class _Spreading:
    """Implements `schedule.Pattern`. whole: where everybody gets everything of each worker, once, and so over a tree."""

    whole: Schedule
    owned: tuple[tuple[int, ...], ...]
    needed: Mapping[int, Collection[int]]

    def peers(self, rank: int) -> Collection[int]:
        return self.whole.peers_of(rank)

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for number, move in self.whole.moves_of(rank):
            beyond = self._beyond[move.chunk][move.target]
            for payload in self.owned[move.chunk]:
                if not beyond.isdisjoint(self.needed[payload]):
                    yield number, Move(move.source, move.target, payload, "copy")

    @cached_property
    def _beyond(self) -> list[dict[int, frozenset[int]]]:
        """By worker and member: whom this worker's payload reaches at and behind that member."""
        found: list[dict[int, frozenset[int]]] = [{} for _ in self.owned]
        for moves in reversed(self.whole.rounds):
            for move in moves:
                behind = found[move.chunk]
                behind[move.target] = behind.get(move.target, frozenset()) | {move.target}
                behind[move.source] = behind.get(move.source, frozenset()) | behind[move.target]
        return found


@dataclass(frozen=True)
class _Gathering:
    """Implements `schedule.Pattern`. carrier: the schedule whose moves the payloads ride on."""

    carrier: Schedule

    def peers(self, rank: int) -> Collection[int]:
        return self.carrier.peers_of(rank)

    def moves(self, rank: int) -> Iterator[tuple[int, Move]]:
        for number, move in self.carrier.moves_of(rank):
            for worker in self._carried(move):
                yield number, Move(move.source, move.target, worker, "copy")

    def _carried(self, move: Move) -> list[int]:
        if move.kind == "add":
            return sorted(self._risen(move.source, move.chunk))
        risen = self._risen(move.target, move.chunk)
        return [worker for worker in self._riders.get(move.chunk, ()) if worker not in risen]

    @cached_property
    def _riders(self) -> dict[int, list[int]]:
        """chunk -> the workers whose payloads ride on it."""
        owned = {owner: chunk for chunk, owner in reversed(list(enumerate(self.carrier.owners)))}
        riders: dict[int, list[int]] = {}
        for worker in range(self.carrier.workers):
            riders.setdefault(owned.get(worker, worker % self.carrier.chunks), []).append(worker)
        return riders

    def _risen(self, member: int, chunk: int) -> set[int]:
        """The riders of the chunk whose payloads `member` has before the chunk is copied: its own, and what came with adds."""
        rising = set(self._riders.get(chunk, ())) - {self.carrier.owners[chunk]}
        below: set[int] = set()
        waiting = [member] if rising else []
        while waiting:
            reached = waiting.pop()
            below.add(reached)
            moves = self.carrier.moves_of(reached)
            waiting += [m.source for _, m in moves if (m.kind, m.target, m.chunk) == ("add", reached, chunk)]
        return rising & below
