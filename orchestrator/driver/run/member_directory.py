"""The addresses of the members, and from them a generation as its members get it: who is connected with whom, who claims shards
where, and who writes checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestrator.config.plan import Exchange
from orchestrator.controller.events import Begin
from orchestrator.controller.rendezvous.schedules import groups_of, schedule_of
from orchestrator.worker.member.generation import INITIAL, Generation
from orchestrator.worker.member.shared_queue import MemoryHandle


class MemberDirectory:
    """The addresses and nodes of the members. here: the driver's node; storage: where checkpoints lie; everywhere:
    every node reaches it."""

    def __init__(self, exchange: Exchange, here: str, storage: str, *, everywhere: bool) -> None:
        self._exchange = exchange
        self.here = here
        self._storage = storage
        self._everywhere = everywhere
        self._addresses: dict[int, dict[str, Any]] = {}
        self._nodes: dict[int, str] = {}
        self._numbers: dict[str | int, int] = {}
        self._has_begun = False

    def add(self, member: int, addresses: dict[str, Any], node: str) -> None:
        self._addresses[member] = addresses
        self._nodes[member] = node

    def node(self, member: int) -> int:
        """The number of its node: members that have the same one share memory. Nobody does where all are connected by TCP."""
        return self._numbers.setdefault(member if self._exchange.by_tcp else self._nodes[member], len(self._numbers))

    def remove(self, member: int) -> None:
        """Forget a member that is gone."""
        self._addresses.pop(member, None)
        self._nodes.pop(member, None)

    def reaches_checkpoints(self, member: int) -> bool:
        return self._everywhere or self._nodes[member] == self.here

    def far(self, members: Sequence[int]) -> list[int]:
        """The members that are not on the driver's machine."""
        return [member for member in members if self._nodes[member] != self.here]

    def generation(self, begin: Begin, checkpoint: int | None) -> Generation:
        """The generation as its members get it. checkpoint: the step of the one to restore, if any."""
        where = None if checkpoint is None else str(checkpoint)
        is_first, self._has_begun = not self._has_begun, True
        return Generation(
            begin,
            schedule_of(begin, self._exchange),
            INITIAL if where is None and begin.forgets else where,
            tuple(rank for rank in range(begin.workers) if self.reaches_checkpoints(begin.members[rank])),
            self._storage,
            groups=groups_of(begin, self._exchange),
            queues=self._places(begin, "board"),
            updates=self._places(begin, "update"),
            is_first=is_first,
        )

    def _places(self, begin: Begin, what: str) -> tuple[MemoryHandle | None, ...]:
        """By worker's rank, the memory in which it shares this with others: that of the first worker on its node. None for a
        worker alone on its node."""
        nodes = begin.nodes[: begin.workers]
        beside = Counter(nodes)
        first: dict[int, int] = {}
        for rank, node in enumerate(nodes):
            first.setdefault(node, rank)

        def place(node: int) -> MemoryHandle | None:
            memory = self._addresses[begin.members[first[node]]].get(what)
            return None if memory is None or beside[node] == 1 else MemoryHandle(first[node], *memory)

        places = {node: place(node) for node in first}
        return tuple(places[node] for node in nodes)

    def peers(self, generation: Generation, rank: int) -> dict[int, Any]:
        """The addresses of all ranks that `rank` is connected with: its links of the schedule and its state transfers."""
        members = generation.begin.members
        peers = sorted(generation.peers_of(rank))
        return {peer: self._address(members[rank], members[peer]) for peer in peers}

    def _address(self, member: int, peer: int) -> Any:
        """A pair is connected by a Unix socket, and so by shared memory, on one node; by TCP between nodes."""
        by_tcp = self._exchange.by_tcp or self._nodes[member] != self._nodes[peer]
        return self._addresses[peer]["tcp" if by_tcp else "unix"]
