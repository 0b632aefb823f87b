"""The wires of true processes, for members that are threads: sockets of one host, with regions that peers map, and TCP; and
both, for members of several hosts.

with Sockets("unix", 3) as sockets:
    train(Mlp, Layout(3, stages=2), wire=sockets.transport, regions=sockets.regions)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Self

from orchestrator.comm.transports.base import Transport
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.socket_transport import SocketTransport
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports.memory import Hub
from tests.worker.runs import PATIENCE_S

_SECRET = b"known to the members of this run"


class Sockets:
    """For one generation of so many members. `tcp` shares no regions: all bytes travel. hosts: of each member, which is
    connected over TCP with those of others."""

    def __init__(self, kind: Literal["unix", "tcp"], members: int, hosts: Sequence[int] | None = None) -> None:
        self._kind = kind
        self._hosts = hosts or (0,) * members
        self._listeners = [Listener(_SECRET, "127.0.0.1") for _ in range(members)]
        self._regions: list[SharedRegions] = []

    def regions(self) -> SharedRegions:
        self._regions.append(SharedRegions())
        return self._regions[-1]

    def transport(self, _hub: Hub, rank: int, regions: Any) -> Transport:
        here = self._hosts[rank]
        peers = {
            peer: each.addresses[self._kind if self._hosts[peer] == here else "tcp"]
            for peer, each in enumerate(self._listeners)
            if peer != rank
        }
        shared = regions if self._kind == "unix" else None
        return connect(self._listeners[rank], rank, 0, peers, shared, PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()
        for regions in self._regions:
            regions.close()


class Wires:
    """As `tests.comm.transports.memory.Hub`, for members of several hosts. hosts: of so many members, by rank."""

    def __init__(self, members: int, links: Collection[tuple[int, int]], hosts: Callable[[int], Sequence[int]]) -> None:
        self._links = links
        self._hosts = hosts(members)
        self._listeners = [Listener(_SECRET, "127.0.0.1") for _ in range(members)]
        self._transports: dict[int, SocketTransport] = {}

    def transport(self, rank: int, regions: Any) -> Transport:
        host = self._hosts[rank]
        peers = {
            peer: each.addresses["unix" if self._hosts[peer] == host else "tcp"]
            for peer, each in enumerate(self._listeners)
            if {(rank, peer), (peer, rank)} & set(self._links)
        }
        self._transports[rank] = connect(self._listeners[rank], rank, 0, peers, regions, PATIENCE_S)
        return self._transports[rank]

    def kill(self, rank: int) -> None:
        if rank in self._transports:
            self._transports[rank].abort()
        self.end(rank, None)

    def end(self, rank: int, _state: object) -> None:
        """Nobody waits for it, as the driver sees to; who has connected is not concerned."""
        for listener in self._listeners:
            listener.cancel(0)
        self._listeners[rank].close()
