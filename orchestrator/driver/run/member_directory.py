"""A generation as its members are told of it: who is who, who is connected with whom and how, who writes checkpoints.

The specification is plain data, the same for every member:

    {"number", "topology", "options", "workers", "shards", "state transfers", "restore", "writers", "storage"}
"""

from __future__ import annotations

from typing import Any

from orchestrator.control.events import Begin
from orchestrator.engine.member.generation import Generation
from orchestrator.settings import Settings

_STAND_IN = "peer_to_peer"  # while no server lives: any exact topology gives the same bits


class MemberDirectory:
    """Where the members can be reached. here: the driver's node; storage: where checkpoints lie, None where none are kept;
    everywhere: every node reaches it."""

    def __init__(self, settings: Settings, here: str, storage: str | None, *, everywhere: bool) -> None:
        self._settings = settings
        self._here = here
        self._storage = storage
        self._everywhere = everywhere
        self._addresses: dict[int, dict[str, Any]] = {}
        self._nodes: dict[int, str] = {}

    def add(self, member: int, addresses: dict[str, Any], node: str) -> None:
        self._addresses[member] = addresses
        self._nodes[member] = node

    def reaches_checkpoints(self, member: int) -> bool:
        return self._storage is not None and (self._everywhere or self._nodes[member] == self._here)

    def spec(self, begin: Begin, checkpoint: int | None) -> dict[str, Any]:
        """checkpoint: the one that is restored, if any is."""
        topology = self._settings.topology
        writers = [rank for rank in range(begin.workers) if self.reaches_checkpoints(begin.members[rank])]
        options = {**topology.options, **({"servers": begin.servers} if begin.servers else {})}
        return {
            "number": begin.generation,
            "topology": _STAND_IN if begin.without_servers else topology.name,
            "options": {} if begin.without_servers else options,
            "workers": begin.workers,
            "shards": [list(shards) for shards in begin.shards],
            "state_transfers": [list(pair) for pair in begin.state_transfers],
            "restore": None if checkpoint is None else [begin.restore, str(checkpoint)],
            "writers": writers,
            "storage": self._storage,
        }

    def peers(self, begin: Begin, generation: Generation, rank: int) -> dict[int, Any]:
        """The addresses of all ranks that `rank` is connected with: its links of the schedule and its state transfers."""
        member, peers = begin.members[rank], sorted(generation.peers_of(rank))
        return {peer: self._address(member, begin.members[peer]) for peer in peers}

    def _address(self, member: int, peer: int) -> Any:
        """A pair is connected by a Unix socket, and so by shared memory, on one node; by TCP between nodes."""
        by_tcp = self._settings.transport == "tcp" or self._nodes[member] != self._nodes[peer]
        return self._addresses[peer]["tcp" if by_tcp else "unix"]
