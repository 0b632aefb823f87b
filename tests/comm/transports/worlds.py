"""The table of transports: each entry connects n members, as threads of this process, and takes all of it down again.

A test that holds for every transport takes the fixture `world` (conftest.py); one that needs threads calls `together`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch

from orchestrator.comm.transports.base import Regions, SharableRegions, Tag, Transport
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.comm.transports.tls import Credentials, make_credentials
from tests.comm.transports import device_double
from tests.comm.transports.memory import Hub, LocalRegions
from tests.numerics.device import host

SECRET = b"known to the members of this run"
CREDENTIALS = make_credentials()
PATIENCE_S = 120.0  # for what has to come; reached only when a test fails
TAG = Tag(generation=1, step=0, attempt=0, phase=0, chunk=0)

T = TypeVar("T")


class Member(NamedTuple):
    transport: Transport
    regions: Regions


class World(Protocol):
    shares: bool
    """A payload in a region is passed by reference."""

    def members(self, count: int) -> list[Member]: ...

    def close(self) -> None: ...


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run each in a thread of its own and give the results in order; the first exception is raised."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


class MemoryWorld:
    shares = True

    def __init__(self) -> None:
        self._members: list[Member] = []

    def members(self, count: int) -> list[Member]:
        hub = Hub(count)
        for rank in range(count):
            regions = LocalRegions()
            self._members.append(Member(hub.transport(rank, regions), regions))
        return self._members

    def close(self) -> None:
        for member in self._members:
            member.transport.abort()
            member.regions.close()


class SocketWorld:
    """kind: of the addresses. With `regions` those that members allocate first are the transport's, which passes them by
    descriptor on one host, and sends from them without a copy between hosts."""

    def __init__(
        self,
        kind: str,
        regions: bool,
        credentials: Credentials | None = None,
        makers: Sequence[Callable[[], SharableRegions]] = (SharedRegions,),
        shares: bool = True,
    ) -> None:
        """makers: of the members' regions, in turn; shares: whether they map each other's."""
        self._credentials = credentials
        self._makers = makers
        self.shares = regions and kind == "unix" and shares
        self._regions = regions
        self._kind = kind
        self._members: list[Member] = []
        self._listeners: list[Listener] = []

    def members(self, count: int) -> list[Member]:
        self._listeners = [Listener(SECRET, "127.0.0.1", self._credentials) for _ in range(count)]
        addresses = {rank: listener.addresses[self._kind] for rank, listener in enumerate(self._listeners)}

        def join(rank: int) -> Member:
            regions = PreparedRegions(self._makers[rank % len(self._makers)])
            peers = {peer: address for peer, address in addresses.items() if peer != rank}
            shared = regions.shared if self._regions else None
            return Member(connect(self._listeners[rank], rank, TAG.generation, peers, shared, PATIENCE_S), regions)

        self._members = together([partial(join, rank) for rank in range(count)])
        return self._members

    def close(self) -> None:
        for member in self._members:
            member.transport.abort()
            member.regions.close()
        for listener in self._listeners:
            listener.close()


class PreparedRegions:
    """Regions that are there before the connection, as a worker's are, and handed out when a test asks for one."""

    def __init__(self, make: Callable[[], SharableRegions] = SharedRegions) -> None:
        self.shared = make()
        self._ready = [self.shared.allocate(1 << 16, torch.uint8) for _ in range(4)]

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return self._ready.pop()[: elements * dtype.itemsize].view(dtype)

    def free(self, region: torch.Tensor) -> None:  # noqa: ARG002
        raise AssertionError("the peers are connected")

    def close(self) -> None:
        self._ready.clear()
        self.shared.close()


def packing_device() -> SharableRegions:
    return device_double.regions(host.kernels())


WORLDS: dict[str, Callable[[], World]] = {
    "memory": MemoryWorld,
    "unix, regions": lambda: SocketWorld("unix", regions=True),
    "unix, regions of a device": lambda: SocketWorld("unix", regions=True, makers=(device_double.regions,)),
    "unix, a device out of reach": lambda: SocketWorld(
        "unix", regions=True, makers=(device_double.regions, device_double.refused), shares=False
    ),
    "unix, a damaging device": lambda: SocketWorld(
        "unix", regions=True, makers=(device_double.damaged, device_double.regions), shares=False
    ),
    "unix, a device and host memory": lambda: SocketWorld(
        "unix", regions=True, makers=(device_double.regions, SharedRegions), shares=False
    ),
    "unix, inline": lambda: SocketWorld("unix", regions=False),
    "tcp, regions": lambda: SocketWorld("tcp", regions=True),
    "tcp, devices and host memory": lambda: SocketWorld(
        "tcp", regions=True, makers=(packing_device, SharedRegions, device_double.regions)
    ),
    "tcp": lambda: SocketWorld("tcp", regions=False),
    "tls, regions": lambda: SocketWorld("tcp", regions=True, credentials=CREDENTIALS),
    "tls": lambda: SocketWorld("tcp", regions=False, credentials=CREDENTIALS),
}
