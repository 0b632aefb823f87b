"""Memory of a device that peers map: what it adds to the contract of transports and regions, with true descriptors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch

from orchestrator.comm.transports.base import SharableRegions
from orchestrator.comm.transports.device_memory import DeviceRegions
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.socket_transport import SocketTransport
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports.device_double import HostDriver, damaged, refused, regions
from tests.comm.transports.worlds import PATIENCE_S, SECRET, TAG, together
from tests.numerics.device import host

pytestmark = pytest.mark.slow


def pair(
    first: SharableRegions,
    second: SharableRegions,
    told: Callable[[str], None] | None = None,
    kind: str = "unix",
) -> tuple[SocketTransport, SocketTransport]:
    listeners = [Listener(SECRET, "127.0.0.1", tell=told) for _ in range(2)]

    def join(rank: int, own: SharableRegions) -> SocketTransport:
        peers = {1 - rank: listeners[1 - rank].addresses[kind]}
        return connect(listeners[rank], rank, TAG.generation, peers, own, PATIENCE_S)

    one, other = together([partial(join, 0, first), partial(join, 1, second)])
    for listener in listeners:
        listener.close()
    return one, other


def test_a_generation_leaves_nothing_of_its_peers_mapped() -> None:
    drivers = [HostDriver(), HostDriver()]
    mine, theirs = (DeviceRegions(driver) for driver in drivers)
    region = theirs.allocate(1000, torch.float64)
    own = [len(driver.mapped) for driver in drivers]
    for generation in range(3):
        here, there = pair(mine, theirs)
        region.fill_(generation)
        there.send(0, TAG, region[10:20])
        received = here.receive(1, TAG, PATIENCE_S)
        assert received.payload.tolist() == [generation] * 10
        assert len(drivers[0].mapped) == own[0] + 1  # the pattern lies in front of the region
        here.close()
        there.close()
        del received
        gc.collect()
        assert [len(driver.mapped) for driver in drivers] == own
    mine.close()
    theirs.close()
    del region
    gc.collect()
    assert [driver.mapped for driver in drivers] == [{}, {}]


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_who_sends_has_waited_for_the_device(kind: str) -> None:
    driver = HostDriver()
    mine, theirs = DeviceRegions(driver), regions()
    region = mine.allocate(8, torch.float32)
    here, there = pair(mine, theirs, kind=kind)
    for payload in (region, torch.ones(3)):  # a vote says that regions of peers were read
        before = driver.settled
        here.send(1, TAG, payload)
        assert driver.settled > before
        there.receive(0, TAG, PATIENCE_S)
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("other", "told"), [(damaged, "arrives damaged"), (refused, "CUDA_ERROR_NOT_SUPPORTED"), (SharedRegions, "")]
)
def test_where_memory_is_out_of_reach_payloads_travel_and_it_is_told_once(
    other: Callable[[], SharableRegions], told: str
) -> None:
    mine, theirs = regions(), other()
    region = mine.allocate(5, torch.float64)
    lines: list[str] = []
    for _ in range(2):
        here, there = pair(mine, theirs, lines.append)
        assert here.travels(1)
        assert there.travels(0)
        region.copy_(torch.arange(5.0))
        here.send(1, TAG, region, note=7)
        received = there.receive(0, TAG, PATIENCE_S)
        assert (received.payload.tolist(), received.note) == ([0.0, 1.0, 2.0, 3.0, 4.0], 7)
        here.close()
        there.close()
    assert all(told in line for line in lines)
    assert bool(lines) == bool(told)


def test_memory_outlives_its_owner_where_a_peer_has_mapped_it() -> None:
    """As the driver's does: the mapping holds the pages, whoever made them."""
    theirs = regions()
    region = theirs.allocate(100, torch.int64)
    region.copy_(torch.arange(100))
    mine = regions()
    (position, offset) = theirs.locate(region) or (-1, -1)
    mapped = mine.map_peer(theirs.descriptors[position])
    theirs.close()
    del region, theirs
    gc.collect()
    assert mapped.tensor(torch.int64, offset, 100).tolist() == list(range(100))


def test_a_region_that_was_freed_is_gone_for_peers() -> None:
    driver = HostDriver()
    own = DeviceRegions(driver)
    first, second = (own.allocate(10, torch.float32) for _ in range(2))
    assert own.locate(second) == (1, 0)
    own.free(first)
    del first
    gc.collect()
    assert own.locate(second[3:]) == (1, 12)
    assert own.trusts([own.map_peer(each) for each in own.descriptors])  # the pattern was in front of the first
    assert len(driver.mapped) == len(own.descriptors) == 2
    own.free(torch.empty(0))
    with pytest.raises(ValueError, match="outside a region"):
        own.map_peer(own.descriptors[1]).tensor(torch.float32, 0, 1 << 20)


class Counting(HostDriver):
    """begun: of so many messages the copy to host memory is enqueued."""

    begun = 0

    def mark(self) -> Callable[[], None]:
        self.begun += 1
        return super().mark()


def test_messages_for_another_host_are_made_a_little_before_their_turn() -> None:
    """As many as are read while the peer takes nothing, and two more; one whose memory may change at once."""
    driver, elements, count = Counting(), 1 << 16, 40
    mine, theirs = DeviceRegions(driver, host.kernels()), regions(host.kernels())
    region = mine.allocate(count * elements, torch.float64)
    region.copy_(torch.rand(count * elements, dtype=torch.float64))
    here, there = pair(mine, theirs, kind="tcp")
    for start in range(0, count * elements, elements):
        here.send(1, TAG, region[start : start + elements], note=start)
    assert 3 <= driver.begun < count
    later = mine.allocate(elements, torch.float64).fill_(3.0)  # peers know nothing of it
    here.send(1, TAG, later)
    later.zero_()

    def take() -> None:
        for start in range(0, count * elements, elements):
            received = there.receive(0, TAG, PATIENCE_S)
            assert (received.packed is not None, received.note) == (True, start)
            assert torch.equal(received.payload, region[start : start + elements])
        assert bool((there.receive(0, TAG, PATIENCE_S).payload == 3.0).all())

    together([take, lambda: here.flush(PATIENCE_S)])
    assert driver.begun == count + 1
    here.close()
    there.close()


def test_what_comes_lies_in_page_locked_memory_while_little_waits_there() -> None:
    asked: list[int] = []

    class Asked(DeviceRegions):
        def memory_for(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
            asked.append(elements)
            return super().memory_for(elements, dtype)

    here, there = pair(regions(), Asked(HostDriver()), kind="tcp")
    for number in range(40):
        here.send(1, TAG, torch.tensor([number]))
    here.flush(PATIENCE_S)
    while sum(len(link.inbox) for link in there.links.values()) < 40:
        there.poll([TAG.phase + 1], 0.1)
    assert asked == [1] * 16
    assert [int(there.receive(0, TAG, PATIENCE_S).payload) for _ in range(40)] == list(range(40))
    here.close()
    there.close()


def test_a_region_shares_its_granules_with_the_pattern() -> None:
    driver = HostDriver()
    own = DeviceRegions(driver)
    (alone,) = own.descriptors
    region = own.allocate(100, torch.float32)
    (both,) = own.descriptors
    assert both.size_bytes == alone.size_bytes + driver.granularity
    assert own.locate(region) == (0, alone.size_bytes)
    assert region.tolist() == [0.0] * 100
    region.fill_(1.0)
    assert own.trusts([own.map_peer(both)])
