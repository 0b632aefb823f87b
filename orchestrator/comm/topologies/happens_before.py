"""Rule C1 as a check: is every access to a member's memory ordered before, or after, every write to it?

Without a copy on the wire, a receive reads the sender's region where it lies. The sender goes on meanwhile, so it could
write there too early. Nothing keeps it from that but the messages: an access happens before another if the members'
programs and the edges from each send to its receive lead from the one to the other (Lamport 1978). Two accesses of one
slot, one of them a write, that are ordered neither way are a race.

One member's step: a worker writes its contribution to every chunk, runs its program, and reads all of its results (the
optimizer). There is no barrier between steps. Programs do not branch and channels are FIFO, so each receive has one matching
send whatever the timing: all executions have the same order, and walking one of them decides for all. Each access carries its
member's clock, and vector clocks tell whether it came before (FastTrack, Flanagan and Freund 2009). Only the last access of
one kind by one member to one slot is kept: if that one is ordered, so are those before it.

A member reads what is added to a chunk late, when it has all of it (`schedule.held_back`), or at once, if payloads do not stay
where they are. So here it reads late, and writes its sum early and late. A late read must not see what the owner has written
since it sent the message. If these accesses are ordered, so are those of any mixture.

Values are not looked at, nor messages between members that are not moves of the schedule (notices, maxima, heartbeats). Those
can only add order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.comm.topologies.schedule import (
    Action,
    Add,
    Copy,
    Finish,
    Hold,
    Region,
    Schedule,
    Send,
    held_back,
    turns,
)

Layout = Callable[[Region, int, int], Hashable]
"""The place in which a member keeps a region's chunk in a step. Equal answers are the same memory."""


def separate(region: Region, chunk: int, _step: int) -> Hashable:
    """The layout of members: three regions, one copy of each."""
    return (region, chunk)


@dataclass(frozen=True)
class Access:
    member: int
    kind: Literal["read", "write"]
    region: Region
    chunk: int
    step: int


@dataclass(frozen=True)
class Race:
    """Two accesses to the memory of `owner` that nothing orders; `late` came second in the execution walked."""

    owner: int
    early: Access
    late: Access


Event = Access | Action | Hold
Sent = tuple[int, Send, int, list[int]]  # its sender, and its step and the sender's clock


def races(
    schedule: Schedule, layout: Layout = separate, only: Collection[int] | None = None, steps: int = 4
) -> list[Race]:
    """The races of `steps` steps; at most one for each access and each other member and kind. Empty: there is none.

    Raises ValueError where the members wait for each other for ever, or for another message than the one that comes.
    """
    return _Walk(schedule, layout, only, steps).races()


class _Walk:
    """One execution: each member goes as far as it can, in turn, until all are done."""

    def __init__(self, schedule: Schedule, layout: Layout, only: Collection[int] | None, steps: int) -> None:
        members = range(schedule.members)
        chunks = sorted(range(schedule.chunks) if only is None else only)
        self.layout = layout
        self.found: list[Race] = []
        self.clocks = [[1 if other == rank else 0 for other in members] for rank in members]
        self.history: dict[Hashable, dict[tuple[int, str], tuple[int, Access]]] = {}
        self.channels: dict[tuple[int, int], deque[Sent]] = {}
        self.held: dict[tuple[int, int], list[Sent]] = {}  # by member and chunk: not read yet
        self.lives = [_life(schedule, rank, chunks, steps) for rank in members]

    def races(self) -> list[Race]:
        waiting: dict[int, tuple[int, Event]] = {}
        running = set(range(len(self.lives)))
        while running:
            progress = False
            for rank in sorted(running):
                while True:
                    event = waiting.pop(rank, None) or next(self.lives[rank], None)
                    if event is None:
                        running.discard(rank)
                        break
                    if not self._happen(rank, *event):
                        waiting[rank] = event
                        break
                    progress = True
            if running and not progress:
                raise ValueError(f"deadlock: {_awaited(waiting)}")
        return self.found

    def _happen(self, rank: int, step: int, event: Event) -> bool:
        """Whether the event could happen; a receive waits for its message."""
        match event:
            case Access():
                self._access(rank, event)
            case Send(peer, _, _):
                self.channels.setdefault((rank, peer), deque()).append((rank, event, step, self.clocks[rank].copy()))
                self.clocks[rank][rank] += 1  # what comes after the send is not known to its receiver
            case Finish(chunk, base):
                self._read_held(rank, chunk)
                if base != "nothing":
                    self._access(rank, Access(rank, "read", base, chunk, step))
                self._access(rank, Access(rank, "write", "result", chunk, step))
            case Hold(peer, _) | Add(peer, _, _) | Copy(peer, _):
                if not self.channels.get((peer, rank)):
                    return False
                self._receive(rank, step, event)
        return True

    def _receive(self, rank: int, step: int, event: Hold | Add | Copy) -> None:
        message = self.channels[event.peer, rank].popleft()
        _, sent, sent_in, clock = message
        if (sent.chunk, sent_in) != (event.chunk, step):
            raise ValueError(
                f"member {rank} awaits chunk {event.chunk} from {event.peer}, which sends chunk {sent.chunk}"
            )
        self.clocks[rank] = list(map(max, self.clocks[rank], clock))
        if isinstance(event, Hold):
            self.held.setdefault((rank, event.chunk), []).append(message)
        else:
            self._read(rank, message)
        if isinstance(event, Add):
            self._read_held(rank, event.chunk)
            if event.base != "nothing":
                self._access(rank, Access(rank, "read", event.base, event.chunk, step))
        region: Region = "result" if isinstance(event, Copy) else "partial"
        self._access(rank, Access(rank, "write", region, event.chunk, step))

    def _read_held(self, rank: int, chunk: int) -> None:
        for message in self.held.pop((rank, chunk), []):
            self._read(rank, message)

    def _read(self, rank: int, message: Sent) -> None:
        """The payload of a message, as it was when that was sent."""
        owner, sent, step, clock = message
        self._access(owner, Access(rank, "read", sent.region, sent.chunk, step), clock)

    def _access(self, owner: int, access: Access, known: Sequence[int] | None = None) -> None:
        """known: of what the access has to come after, by member; None: all that its member knows of."""
        slot = (owner, self.layout(access.region, access.chunk, access.step))
        history = self.history.setdefault(slot, {})
        own = self.clocks[access.member]
        known = own if known is None else known
        for (member, kind), (when, earlier) in history.items():
            if known[member] < when and "write" in (kind, access.kind):
                self.found.append(Race(owner, earlier, access))
        history[access.member, access.kind] = (own[access.member], access)


def _awaited(waiting: Mapping[int, tuple[int, Event]]) -> str:
    receives = [(rank, event) for rank, (_, event) in sorted(waiting.items()) if isinstance(event, Hold | Add | Copy)]
    return ", ".join(f"member {rank} awaits chunk {event.chunk} from {event.peer}" for rank, event in receives)


def _life(schedule: Schedule, rank: int, chunks: list[int], steps: int) -> Iterator[tuple[int, Event]]:
    actions = [action for turn in held_back(turns(schedule, rank, chunks), lambda _: True) for action in turn]
    chunks_of_worker = chunks if rank < schedule.workers else []
    for step in range(steps):
        for chunk in chunks_of_worker:
            yield step, Access(rank, "write", "contribution", chunk, step)
        for action in actions:
            yield step, action
        for chunk in chunks_of_worker:
            yield step, Access(rank, "read", "result", chunk, step)
