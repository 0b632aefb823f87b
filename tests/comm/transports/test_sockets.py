"""Properties of sockets only: who may connect, which generation, what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.comm.transports import frames, sockets
from orchestrator.comm.transports.base import DeadlineExceeded, PeerLeft, PeerLost, ProtocolError
from orchestrator.comm.transports.handshake import MAX_REGIONS
from orchestrator.comm.transports.handshake_socket import Handshake
from orchestrator.comm.transports.links import Link
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.socket_transport import SocketTransport
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports.worlds import PATIENCE_S, SECRET, TAG, together

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", ["unix", "tcp"])


class Members:
    """Listeners of a run; `connect` makes member `rank` connect with the others of `group`, or with all."""

    def __init__(self, kind: str, count: int) -> None:
        self.listeners = [Listener(SECRET, "127.0.0.1") for _ in range(count)]
        self.kind = kind
        self.transports: list[SocketTransport] = []

    def connect(
        self, rank: int, generation: int = 1, regions: SharedRegions | None = None, timeout_s: float = PATIENCE_S
    ) -> SocketTransport:
        peers = {peer: listener.addresses[self.kind] for peer, listener in enumerate(self.listeners) if peer != rank}
        transport = connect(self.listeners[rank], rank, generation, peers, regions, timeout_s)
        self.transports.append(transport)
        return transport

    def close(self) -> None:
        for transport in self.transports:
            transport.abort()
        for listener in self.listeners:
            listener.close()


Make = Callable[[str, int], Members]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Members] = []

    def members(kind: str, count: int) -> Members:
        made.append(Members(kind, count))
        return made[-1]

    yield members
    for each in made:
        each.close()


def failure(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def event_of(owner: object, method: str) -> threading.Event:
    """Set once `owner.method` has been called."""
    event, original = threading.Event(), getattr(owner, method)

    def call_and_tell(*arguments: object) -> None:
        original(*arguments)
        event.set()

    setattr(owner, method, call_and_tell)
    return event


def open_fds() -> dict[str, str]:
    fds = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            fds[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the one that read the folder
            continue
    return fds


def mapped_regions() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:orchestrator")


@KINDS
def test_nothing_is_left_after_fifty_generations(make: Make, kind: str) -> None:
    members = make(kind, 2)
    regions = [SharedRegions() for _ in range(2)]
    mine = [each.allocate(10, torch.float32) for each in regions]
    fds, mappings = open_fds(), mapped_regions()
    for generation in range(50):
        first, second = together([partial(members.connect, rank, generation, regions[rank]) for rank in range(2)])
        for _ in range(2):
            first.send(1, TAG, mine[0])
        second.receive(0, TAG, PATIENCE_S)  # and the other is still in the inbox
        (first.abort if generation % 2 else first.close)()
        second.close()
    assert open_fds() == fds
    assert mapped_regions() == mappings
    for each in regions:
        each.close()
    assert len(open_fds()) == len(fds) - 2
    assert mapped_regions() == mappings  # the tensors still hold them
    mine.clear()
    assert mapped_regions() == mappings - 2


@KINDS
def test_no_descriptor_is_inherited(make: Make, kind: str) -> None:
    before = open_fds()
    members = make(kind, 2)
    regions = SharedRegions()
    regions.allocate(10, torch.float32)
    together([partial(members.connect, rank, regions=regions) for rank in range(2)])
    new = set(open_fds()) - set(before)
    assert len(new) > 8
    assert not any(os.get_inheritable(int(fd)) for fd in new)
    regions.close()


def test_addresses_travel_as_json(make: Make) -> None:
    addresses = make("unix", 1).listeners[0].addresses
    assert json.loads(json.dumps(addresses)) == addresses
    assert set(addresses) == {"unix", "tcp"}


@KINDS
def test_another_secret_is_refused_by_both(make: Make, kind: str) -> None:
    members = make(kind, 2)
    members.listeners[1].secret = b"known to the members of another run"

    def answer() -> Exception | None:
        select.select(members.listeners[1].sockets, [], [])  # until somebody calls
        return failure(lambda: members.connect(1, timeout_s=0.5))

    errors = together([lambda: failure(lambda: members.connect(0)), answer])
    assert [type(error) for error in errors] == [PermissionError, PermissionError]
    assert "the process that answers for member 1 does not know the secret" in str(errors[0])
    assert "the caller as member 0 does not know the secret" in str(errors[1])


def test_another_user_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    members = make("unix", 2)
    monkeypatch.setattr(sockets, "peer_credentials", lambda _connection: (1, os.geteuid() + 1))
    with pytest.raises(PermissionError, match="another user"):
        members.connect(0)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, this one 5"):
        Listener(b"short")


@pytest.mark.parametrize("address", [["unix", 5], ["tcp", "localhost"], ["carrier pigeon", "x"], []])
def test_what_is_no_address_is_refused(make: Make, address: list[str | int]) -> None:
    with pytest.raises(ValueError, match="an address is"):
        connect(make("unix", 1).listeners[0], 0, 1, {1: address}, None, PATIENCE_S)


def test_too_many_regions_are_refused(make: Make) -> None:
    regions = SharedRegions()
    for _ in range(MAX_REGIONS + 1):
        regions.allocate(1, torch.uint8)
    with pytest.raises(ValueError, match="201 regions; a peer can be given 200"):
        make("unix", 1).connect(0, regions=regions)
    regions.close()


def test_as_many_regions_as_are_allowed_are_shared(make: Make) -> None:
    members, regions = make("unix", 2), SharedRegions()
    tensors = [regions.allocate(1, torch.int64) for _ in range(MAX_REGIONS)]
    first, second = together([lambda: members.connect(0, regions=regions), lambda: members.connect(1)])
    for tensor in tensors:
        first.send(1, TAG, tensor)
    views = [second.receive(0, TAG, PATIENCE_S).payload for _ in tensors]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert [view.item() for view in views] == list(range(MAX_REGIONS))
    regions.close()


def test_a_region_that_came_after_the_connection_is_copied(make: Make) -> None:
    members, regions = make("unix", 2), SharedRegions()
    regions.allocate(1, torch.float32)
    first, second = together([lambda: members.connect(0, regions=regions), lambda: members.connect(1)])
    late = regions.allocate(3, torch.float32)
    first.send(1, TAG, late)
    late.fill_(1)
    assert second.receive(0, TAG, PATIENCE_S).payload.tolist() == [0, 0, 0]
    regions.close()


@KINDS
def test_a_caller_of_an_earlier_generation_is_refused_and_disturbs_nobody(make: Make, kind: str) -> None:
    members = make(kind, 2)

    def call_early_then_in_time() -> SocketTransport:
        with pytest.raises(PeerLost, match="it is in generation 2, this member in 1"):
            members.connect(0, 1)
        return members.connect(0, 2)

    first, second = together([call_early_then_in_time, lambda: members.connect(1, 2)])
    first.send(1, TAG, torch.ones(1))
    assert second.receive(0, TAG, PATIENCE_S).payload.item() == 1


@KINDS
def test_a_caller_of_a_later_generation_is_kept_until_then(make: Make, kind: str) -> None:
    members = make(kind, 2)
    listener = members.listeners[1]

    def call_off() -> None:
        kept.wait()
        listener.cancel(1)

    def follow() -> SocketTransport:
        with pytest.raises(ConnectionAbortedError):
            members.connect(1, 1)
        return members.connect(1, 2)

    kept = event_of(listener, "keep")
    first, second, _ = together([lambda: members.connect(0, 2), follow, call_off])
    assert first is not None
    assert second is not None
    first.send(1, TAG, torch.ones(1))
    assert second.receive(0, TAG, PATIENCE_S).payload.item() == 1


@KINDS
def test_callers_that_are_no_members_disturb_nobody(make: Make, kind: str) -> None:
    members = make(kind, 2)
    listening = members.listeners[1].sockets[0 if kind == "unix" else 1]
    with contextlib.ExitStack() as strangers:
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n" * 10, b"hcro"):
            stranger = strangers.enter_context(socket.socket(listening.family, socket.SOCK_STREAM))
            stranger.connect(listening.getsockname())
            stranger.send(words)
        together([partial(members.connect, rank) for rank in range(2)])


def test_a_member_that_is_not_expected_is_refused_and_disturbs_nobody(make: Make) -> None:
    members = make("unix", 3)
    last = members.listeners[2]

    def call_uninvited() -> SocketTransport:
        with pytest.raises(ProtocolError, match="member 2 expects no connection from member 0 in generation 1"):
            connect(members.listeners[0], 0, 1, {2: last.addresses["unix"]}, None, PATIENCE_S)
        return connect(members.listeners[1], 1, 1, {2: last.addresses["unix"]}, None, PATIENCE_S)

    def wait_for_another() -> SocketTransport:
        return connect(last, 2, 1, {1: members.listeners[1].addresses["unix"]}, None, PATIENCE_S)

    members.transports += together([call_uninvited, wait_for_another])


def test_cancel_ends_the_wait_for_that_generation_and_not_the_next(make: Make) -> None:
    members = make("unix", 2)
    members.listeners[1].cancel(0)
    threading.Timer(0.0, members.listeners[1].cancel, [1]).start()
    with pytest.raises(ConnectionAbortedError, match="generation 1 was called off"):
        members.connect(1, 1)
    with pytest.raises(ConnectionAbortedError, match="generation 1 was called off"):
        members.connect(1, 1)
    together([partial(members.connect, rank, 2) for rank in range(2)])


@KINDS
def test_a_peer_that_listens_no_more_is_lost_at_once(make: Make, kind: str) -> None:
    members = make(kind, 2)
    members.listeners[1].close()
    with pytest.raises(PeerLost, match=r"member 1: .*refused"):
        members.connect(0)


@KINDS
def test_a_peer_that_ends_before_it_answers_is_lost(make: Make, kind: str) -> None:
    members = make(kind, 2)
    listener = members.listeners[1]

    def end() -> Exception | None:
        select.select(listener.sockets, [], [])  # until somebody calls
        return failure(listener.close)

    lost, _ = together([lambda: failure(lambda: members.connect(0)), end])
    assert isinstance(lost, PeerLost)
    assert lost.peer == 1


@KINDS
def test_a_caller_that_is_kept_learns_when_the_listener_ends(make: Make, kind: str) -> None:
    members = make(kind, 2)
    listener = members.listeners[1]
    kept = event_of(listener, "keep")

    def end() -> Exception | None:
        with pytest.raises(ConnectionAbortedError):
            members.connect(1, 1)
        return failure(listener.close)

    def call_off() -> None:
        kept.wait()
        listener.cancel(1)

    lost, _, _ = together([lambda: failure(lambda: members.connect(0, 2)), end, call_off])
    assert isinstance(lost, PeerLost)
    assert lost.peer == 1


def test_a_peer_that_gives_up_is_lost_to_who_still_connects(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    members = make("unix", 3)  # the third never comes
    linked = threading.Barrier(3)
    adopt = SocketTransport.adopt

    def adopt_and_tell(transport: SocketTransport, link: Link) -> None:
        adopt(transport, link)
        threading.Thread(target=linked.wait).start()

    def call_off() -> None:
        linked.wait()
        members.listeners[0].cancel(1)

    monkeypatch.setattr(SocketTransport, "adopt", adopt_and_tell)
    first, second, _ = together(
        [lambda: failure(lambda: members.connect(0)), lambda: failure(lambda: members.connect(1)), call_off]
    )
    assert isinstance(first, ConnectionAbortedError)
    assert isinstance(second, PeerLeft)  # it is alive
    assert second.peer == 0


@KINDS
def test_who_gives_up_before_it_has_heard_the_answer_is_not_accused(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acceptor has its link by then."""
    members = make(kind, 2)
    adopt, read = SocketTransport.adopt, Handshake._receive
    linked = threading.Event()

    def adopt_and_tell(transport: SocketTransport, link: Link) -> None:
        adopt(transport, link)
        linked.set()

    def give_up(talk: Handshake[Any]) -> None:
        if talk.offered:
            assert linked.wait(PATIENCE_S)
            members.listeners[0].cancel(1)
            raise BlockingIOError
        read(talk)

    monkeypatch.setattr(SocketTransport, "adopt", adopt_and_tell)
    monkeypatch.setattr(Handshake, "_receive", give_up)
    gone, told = together(
        [
            lambda: failure(lambda: members.connect(0)),
            lambda: failure(lambda: members.connect(1).receive(0, TAG, PATIENCE_S)),
        ]
    )
    assert isinstance(gone, ConnectionAbortedError)
    assert isinstance(told, PeerLeft)


@KINDS
def test_who_gives_up_before_it_has_heard_the_offer_is_not_accused(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = make(kind, 2)
    send = Handshake._send
    over = threading.Event()

    def send_too_late(talk: Handshake[Any]) -> None:
        if talk._last:
            members.listeners[1].cancel(1)
            assert over.wait(PATIENCE_S)
        send(talk)

    def answer() -> Exception | None:
        try:
            return failure(lambda: members.connect(1))
        finally:
            over.set()

    monkeypatch.setattr(Handshake, "_send", send_too_late)
    told, gone = together([lambda: failure(lambda: members.connect(0)), answer])
    assert isinstance(gone, ConnectionAbortedError)
    assert isinstance(told, PeerLeft)


def test_flush_has_a_deadline(make: Make) -> None:
    members = make("unix", 2)
    first, _ = together([partial(members.connect, rank) for rank in range(2)])
    first.send(1, TAG, torch.ones(1_000_000))
    with pytest.raises(DeadlineExceeded) as raised:
        first.flush(0.05)
    assert raised.value.peer == 1


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_deadline_in_the_middle_of_a_payload_leaves_everything_as_it_was(make: Make, kind: str) -> None:
    """And so does a call-off, for which waits are cut into slices."""
    members = make(kind, 2)
    sender, receiver = together([partial(members.connect, rank) for rank in range(2)])
    payload = torch.arange(5_000_000, dtype=torch.float64)  # more than a kernel buffers
    sender.send(1, TAG, payload)
    with pytest.raises(DeadlineExceeded):
        receiver.receive(0, TAG, 0.05)
    with pytest.raises(DeadlineExceeded):
        sender.flush(0.0)

    def receive() -> torch.Tensor:
        return receiver.receive(0, TAG, PATIENCE_S).payload

    def flush() -> torch.Tensor:
        sender.flush(PATIENCE_S)
        return payload

    came, sent = together([receive, flush])
    assert torch.equal(came, sent)


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(frames.HEADER_BYTES),
        frames.encode(frames.Frame(frames.REGION, TAG, torch.float32, 1, region=9)),
        frames.encode(frames.Frame(frames.REGION, TAG, torch.float32, 1000)),
        frames.encode(frames.Frame(frames.REGION, TAG, torch.float32, 1, offset_bytes=40)),
    ],
    ids=["no frame", "no such region", "too long", "outside"],
)
def test_what_is_no_frame_is_a_fault_and_ends_the_link(
    make: Make, garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, regions = make("unix", 2), SharedRegions()
    regions.allocate(10, torch.float32)
    first, second = together([partial(members.connect, rank, regions=regions) for rank in range(2)])
    monkeypatch.setattr(frames, "encode", lambda _frame: garbage)
    first.send(1, TAG, torch.empty(0))
    with pytest.raises(ProtocolError, match="member 0 sent what is no frame"):
        second.receive(0, TAG, PATIENCE_S)
    with pytest.raises(PeerLost, match="no frame"):
        second.receive(0, TAG, PATIENCE_S)
    regions.close()


def test_secrets_of_any_length_from_sixteen_bytes_work(make: Make) -> None:
    members = make("tcp", 2)
    for size in (16, 1000):
        secret = secrets.token_bytes(size)
        for listener in members.listeners:
            listener.secret = secret
        for transport in together([partial(members.connect, rank, size) for rank in range(2)]):
            transport.close()


def test_one_look_brings_all_that_has_come(make: Make) -> None:
    members = make("unix", 2)
    sender, receiver = together([partial(members.connect, rank) for rank in range(2)])
    for note in range(50):
        sender.send(1, TAG, torch.ones(3), note)
    assert [received.note for _, _, received in receiver.poll([TAG.phase], 0.0)] == list(range(50))


def test_a_peer_whose_host_answers_no_call_is_lost_long_before_the_deadline(make: Make) -> None:
    """A call that the kernel of its host drops, as one on a wire that is cut: here its queue of callers is full."""
    members = make("tcp", 1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        address = ["tcp", *full.getsockname()]
        with pytest.raises(PeerLost, match="has not answered for 2 s"):
            connect(members.listeners[0], 0, 1, {1: address}, None, PATIENCE_S, unreachable_s=2)
