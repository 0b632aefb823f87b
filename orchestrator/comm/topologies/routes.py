"""How what one worker sends reaches all others, over the links of a topology: for replicas that run free.

Without servers each worker's messages follow a tree of shortest ways from it: in a ring they go round on both sides, in a tree
to all neighbours but the sender, from peer to peer directly. With servers a message is cut into as many slices as there are
servers; slice s goes to server s, and from it to all other workers. Every slice reaches every other worker once.

If several shortest ways lead to a member, one that comes from its own node is taken. So a message crosses the wire to a node
as seldom as shortest ways allow.

Messages of different origins have no order. `orchestrator.comm.synchronization` says when a replica may go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from orchestrator.comm.topologies.schedule import Schedule


class Routes:
    """The ways over the links of one schedule. slices: into how many parts a message is cut."""

    def __init__(self, schedule: Schedule, nodes: Sequence[int] = ()) -> None:
        """nodes: by rank, servers too, equal for those that share memory; none: all do."""
        self._nodes = tuple(nodes) or (0,) * schedule.members
        self.workers = schedule.workers
        self.members = schedule.members
        self.peers = {rank: tuple(sorted(schedule.peers_of(rank))) for rank in range(schedule.members)}
        servers = range(schedule.workers, schedule.members)
        linked = all(server in self.peers[worker] for server in servers for worker in range(schedule.workers))
        self.slices = len(servers) if servers and linked else 1
        self._by_server = bool(servers) and linked
        only = all(peer >= schedule.workers for worker in range(schedule.workers) for peer in self.peers[worker])
        # Whether server s is told all of slice s, and nobody else reads what workers have for it.
        self.held = self._by_server and only and tuple(schedule.owners) == tuple(servers)

    def onward(self, member: int, origin: int, part: int) -> tuple[int, ...]:
        """To whom `member` hands on the slice `part` of what `origin` sent; where it is the origin: to whom first."""
        if not self._by_server:
            return self._children[origin].get(member, ())
        server = self.workers + part
        if member == origin:
            return (server,)
        return tuple(worker for worker in range(self.workers) if worker != origin) if member == server else ()

    def before(self, member: int, origin: int) -> int:
        """The member from which this one has what `origin` sent, where that is not cut into slices."""
        return next(each for each in range(self.members) if member in self.onward(each, origin, 0))

    def relays(self, member: int) -> tuple[tuple[int, int], ...]:
        """(origin, slice) of all that passes through `member` on its way to others."""
        pairs = ((origin, part) for origin in range(self.workers) for part in range(self.slices))
        return tuple((o, part) for o, part in pairs if o != member and self.onward(member, o, part))

    @cached_property
    def _children(self) -> list[dict[int, tuple[int, ...]]]:
        return [self._shortest(origin) for origin in range(self.workers)]

    def _shortest(self, origin: int) -> dict[int, tuple[int, ...]]:
        """member -> whom it hands on to, in a tree of shortest ways from the origin; nothing is sent to where it ends in a
        server."""
        parent: dict[int, int] = {origin: origin}
        reached = [origin]
        while reached:
            found: dict[int, int] = {}
            for member in reached:
                for peer in self.peers[member]:
                    if peer not in parent and (peer not in found or self._is_nearer(peer, member, found[peer])):
                        found[peer] = member
            parent.update(found)
            reached = list(found)
        needed = set(range(self.workers))
        for worker in range(self.workers):
            while worker not in (origin, parent.get(worker)):
                worker = parent[worker]
                needed.add(worker)
        children: dict[int, list[int]] = {}
        for member, before in parent.items():
            if member != origin and member in needed:
                children.setdefault(before, []).append(member)
        return {member: tuple(sorted(found)) for member, found in children.items()}

    def _is_nearer(self, peer: int, member: int, other: int) -> bool:
        """Whether only the first of these two shares memory with the peer."""
        return self._nodes[peer] == self._nodes[member] != self._nodes[other]
