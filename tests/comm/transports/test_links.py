"""Poller, link and talk by themselves, at moments that a whole transport meets only by chance."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from orchestrator.comm.transports import frames, links
from orchestrator.comm.transports.base import PeerLost, ProtocolError
from orchestrator.comm.transports.frames import Frame
from orchestrator.comm.transports.handshake import Identity, Offer, accept, dial, hear
from orchestrator.comm.transports.handshake_socket import Handshake
from orchestrator.comm.transports.links import Link, Poller
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports.worlds import PATIENCE_S, SECRET, TAG, SocketWorld, together

FAREWELL = frames.encode(Frame(frames.FAREWELL, TAG))
MESSAGE = frames.encode(Frame(frames.INLINE, TAG, torch.uint8, 3)) + b"abc"


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    with one, other:
        yield one, other


def test_a_stale_event_does_not_reach_the_next_owner_of_the_number(poller: Poller) -> None:
    called: list[str] = []
    events, quiet = [os.eventfd(1) for _ in range(2)], os.eventfd(0)

    def replace(own: int, others: int) -> None:
        called.append("first")
        poller.forget(own)
        poller.forget(others)
        os.dup2(quiet, others)
        poller.watch(others, lambda: called.append("next owner"))

    for own, others in (events, events[::-1]):
        poller.watch(own, lambda own=own, others=others: replace(own, others))  # type: ignore[misc]
    poller.wait(PATIENCE_S)
    assert called == ["first"]
    for fd in (*events, quiet):
        os.close(fd)


@pytest.mark.parametrize("farewell", [True, False])
def test_before_a_death_is_believed_the_socket_is_read(
    poller: Poller, ends: tuple[socket.socket, socket.socket], farewell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, end_of_process = os.pipe()
    monkeypatch.setattr(links, "open_pidfd", lambda _connection: process)
    link = Link(4, ends[0], [], poller)
    os.close(end_of_process)
    ends[1].send(MESSAGE * 3 + (FAREWELL if farewell else b""))
    while not link.ended:
        poller.wait(PATIENCE_S)
    assert len(link.inbox) == 3
    assert link.ended == "its process has ended"
    assert (link.left, link.lost) == (farewell, not farewell)
    link.close()


def test_who_cannot_write_any_more_still_reads_the_last_words(
    poller: Poller, ends: tuple[socket.socket, socket.socket]
) -> None:
    link = Link(4, ends[0], [], poller)
    ends[1].send(MESSAGE + FAREWELL)
    ends[1].close()
    link.write(Frame(frames.INLINE, TAG))
    assert len(link.inbox) == 1
    assert link.left
    link.close()


def test_a_frame_may_come_in_pieces(poller: Poller, ends: tuple[socket.socket, socket.socket]) -> None:
    link = Link(4, ends[0], [], poller)
    for byte in MESSAGE + FAREWELL:
        assert not link.left
        ends[1].send(bytes([byte]))
        link.read()
    assert link.left
    assert bytes(link.inbox[0][1].payload.tolist()) == b"abc"
    link.close()


def test_an_end_in_the_middle_of_a_frame_is_a_loss(poller: Poller, ends: tuple[socket.socket, socket.socket]) -> None:
    link = Link(4, ends[0], [], poller)
    ends[1].send(MESSAGE[:-1])
    ends[1].close()
    link.drain()
    assert link.lost
    assert not link.inbox
    link.close()


def test_descriptors_that_are_received_are_not_inherited(ends: tuple[socket.socket, socket.socket]) -> None:
    me, regions = Identity(SECRET, 1, 0), SharedRegions()
    regions.allocate(10, torch.uint8)
    calling: Handshake[Offer] = Handshake(ends[0], dial(me, 1, Offer(sizes=(10,))), regions.descriptors)
    greeting = Handshake(ends[1], hear())
    assert not calling.advance()
    assert greeting.advance()
    assert greeting.result is not None
    answering = Handshake(ends[1], accept(me._replace(rank=1), greeting.result, Offer()))
    assert not answering.advance()
    assert not calling.advance()
    assert answering.advance()
    assert calling.advance()
    assert (calling.result, answering.result) == (Offer(), Offer(sizes=(10,)))
    assert [os.get_inheritable(fd) for fd in answering.received_fds] == [False]
    answering.close()
    regions.close()


@pytest.mark.parametrize("unreachable_s", [2, 5, 129, 100_000])
def test_between_hosts_silence_ends_a_link_as_soon_as_was_asked_for(
    unreachable_s: int, poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's probes while nothing is under way; by what it tells of what was sent again in vain otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        connection.setblocking(False)
        link = Link(4, connection, [], poller, unreachable_s)
        idle, between, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert 0 <= idle + between * count - unreachable_s < between
        for silent_ms, ended in ((1000 * unreachable_s - 1, False), (1000 * unreachable_s, True)):
            told = bytes([0, 0, 2, *bytes(53)]) + silent_ms.to_bytes(4, "little")
            monkeypatch.setattr(links, "tcp_info", lambda _, told=told: told)
            link.check_reachable()
            assert (link.ended == f"its host has not answered for {unreachable_s} s") == ended
        link.close()


def test_between_hosts_close_waits_until_the_peers_kernel_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    unacknowledged = [70, 70, 0]
    world = SocketWorld("tcp", regions=False)
    member, _ = world.members(2)
    monkeypatch.setattr(links, "_unacknowledged_bytes", lambda _connection: unacknowledged.pop(0))
    member.transport.close()
    assert not unacknowledged
    world.close()


def test_an_abort_during_send_is_not_taken_for_a_loss_of_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = [Listener(SECRET) for _ in range(2)]
    addresses = [listener.addresses["unix"] for listener in listeners]
    member, peer = together(
        [
            lambda: connect(listeners[0], 0, 1, {1: addresses[1]}, None, PATIENCE_S),
            lambda: connect(listeners[1], 1, 1, {0: addresses[0]}, None, PATIENCE_S),
        ]
    )
    aborting = threading.Thread(target=member.abort)
    write = Link.write

    def abort_and_write(link: Link, frame: Frame, payload: torch.Tensor | None = None, *, stays: bool = False) -> None:
        aborting.start()
        with pytest.raises(PeerLost):
            peer.receive(0, TAG, PATIENCE_S)
        write(link, frame, payload, stays=stays)

    monkeypatch.setattr(Link, "write", abort_and_write)
    with pytest.raises(ConnectionAbortedError):
        member.send(1, TAG, torch.ones(1))
    aborting.join()
    peer.abort()
    for listener in listeners:
        listener.close()


@pytest.fixture
def hosts(poller: Poller) -> Iterator[tuple[Link, Link]]:
    """Two links of member 4 with itself, as between hosts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    made = []
    for end in (one, other):
        end.setblocking(False)
        made.append(Link(4, end, [], poller))
    yield made[0], made[1]
    for link in made:
        link.close()


LARGE = torch.arange(3_000_000, dtype=torch.float64)  # more than a kernel buffers, in narrow form too


def inline(payload: torch.Tensor) -> Frame:
    return Frame(frames.INLINE, TAG, payload.dtype, payload.numel())


def received(link: Link, poller: Poller, count: int) -> list[torch.Tensor]:
    while len(link.inbox) < count:
        assert poller.wait(PATIENCE_S)
    return [link.inbox.popleft()[1].payload for _ in range(count)]


def test_what_stays_is_narrowed_when_its_turn_comes(hosts: tuple[Link, Link], poller: Poller) -> None:
    sender, receiver = hosts
    last = torch.ones(1000, dtype=torch.float64)
    for payload in (LARGE, last):
        sender.write(inline(payload), payload, stays=True)
    sent = sender.sent_bytes
    assert not sender.flushed
    assert LARGE.numel() * 4 < sent < LARGE.numel() * 4.1
    last.fill_(3)  # which its owner may not do
    first, second = received(receiver, poller, 2)
    assert torch.equal(first, LARGE)
    assert bool((second == 3).all())
    assert not sender._sending
    assert sent + 4000 <= sender.sent_bytes <= sent + 4016


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float32], ids=str)
def test_what_does_not_stay_is_sent_as_it_was(hosts: tuple[Link, Link], poller: Poller, dtype: torch.dtype) -> None:
    sender, receiver = hosts
    payloads = [LARGE.to(dtype), torch.ones(1000, dtype=dtype), torch.ones(3, dtype=dtype)]
    for payload in payloads:
        sender.write(inline(payload), payload)
        payload.add_(1)
    came = received(receiver, poller, 3)
    assert all(torch.equal(each + 1, payload) for each, payload in zip(came, payloads, strict=True))


def test_an_end_in_the_middle_of_a_narrow_payload_is_a_loss(hosts: tuple[Link, Link], poller: Poller) -> None:
    sender, receiver = hosts
    sender.write(inline(LARGE), LARGE, stays=True)
    assert not sender.flushed
    sender.close()
    while not receiver.ended:
        assert poller.wait(PATIENCE_S)
    assert receiver.lost
    assert not receiver.inbox


def test_bytes_that_are_no_narrow_payload_are_a_fault(hosts: tuple[Link, Link], poller: Poller) -> None:
    sender, receiver = hosts
    sender.write(inline(LARGE[:512]), LARGE[:512])
    while not receiver.inbox:
        assert poller.wait(PATIENCE_S)
    (_, came) = receiver.inbox.popleft()
    assert came.packed is not None
    came.packed.packed[0] = 77
    with pytest.raises(ProtocolError, match=r"2056 bytes that came are not 512 x torch\.float64"):
        _ = came.payload


@pytest.mark.parametrize("elements", [2**60, 2**63, 2**64 - 1])
@pytest.mark.parametrize("kind", [frames.INLINE, frames.REGION])
def test_a_size_that_no_memory_has_ends_the_link(
    poller: Poller, ends: tuple[socket.socket, socket.socket], kind: int, elements: int
) -> None:
    link = Link(4, ends[0], [], poller)
    ends[1].send(frames.encode(Frame(kind, TAG, torch.float64, elements)))
    with pytest.raises(ProtocolError, match="member 4 sent what is no frame"):
        link.read()
    assert link.lost
    link.close()
