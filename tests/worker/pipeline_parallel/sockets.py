"""The wires of true processes, for members that are threads: sockets of one host, with regions that peers map, and TCP.

with Sockets("unix", 3) as sockets:
    train(Mlp, Layout(3, stages=2), wire=sockets.transport, regions=sockets.regions)
"""

from __future__ import annotations

from typing import Any, Literal, Self

from orchestrator.comm.transports.base import Transport
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports.memory import Hub
from tests.worker.runs import PATIENCE_S

_SECRET = b"known to the members of this run"


class Sockets:
    """For one generation of so many members. `tcp` shares no regions: all bytes travel."""

    def __init__(self, kind: Literal["unix", "tcp"], members: int) -> None:
        self._kind = kind
        self._listeners = [Listener(_SECRET, "127.0.0.1") for _ in range(members)]
        self._regions: list[SharedRegions] = []

    def regions(self) -> SharedRegions:
        self._regions.append(SharedRegions())
        return self._regions[-1]

    def transport(self, _hub: Hub, rank: int, regions: Any) -> Transport:
        peers = {peer: each.addresses[self._kind] for peer, each in enumerate(self._listeners) if peer != rank}
        shared = regions if self._kind == "unix" else None
        return connect(self._listeners[rank], rank, 0, peers, shared, PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()
        for regions in self._regions:
            regions.close()
