"""The handshake as a protocol, without sockets: two generators, and somebody in between."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from orchestrator.comm.transports.base import DEVICE, HOST, PeerLost, ProtocolError
from orchestrator.comm.transports.handshake import Hello, Identity, Offer, Step, accept, dial, hear, refusal

SECRET = b"known to the members of this run"
DIALER = Identity(SECRET, 4, 0)
ACCEPTOR = Identity(SECRET, 4, 1)

Wire = Callable[[str, bytes], bytes]
"""What becomes of a message, by its name."""


def untouched(_name: str, message: bytes) -> bytes:
    return message


def heard(message: bytes) -> Hello:
    protocol = hear()
    next(protocol)
    try:
        protocol.send(message)
    except StopIteration as end:
        hello: Hello = end.value
        return hello
    raise AssertionError("a hello is one message")


def result_of(protocol: Generator[Step, bytes, Offer], message: bytes) -> Offer:
    try:
        protocol.send(message)
    except StopIteration as end:
        sizes: Offer = end.value
        return sizes
    raise AssertionError("the protocol wants more")


def shake(dialer: Identity, acceptor: Identity, wire: Wire = untouched) -> tuple[Offer, Offer]:
    """The offers that (dialer, acceptor) were told."""
    calling = dial(dialer, 1, Offer(DEVICE, (10, 20)))
    hello = next(calling)
    answering = accept(acceptor, heard(wire("hello", hello.send)), Offer(HOST, (30,)))
    reply = next(answering)
    offer = calling.send(wire("reply", reply.send))
    assert len(offer.send) == reply.expect_bytes
    answer = answering.send(wire("offer", offer.send))
    assert answer.with_descriptors
    return result_of(calling, wire("answer", answer.send)), result_of(answering, b"")


def flipped(name: str, place: int) -> Wire:
    def wire(what: str, message: bytes) -> bytes:
        changed = bytearray(message)
        if what == name:
            changed[place] ^= 1
        return bytes(changed)

    return wire


def test_each_learns_the_others_regions() -> None:
    assert shake(DIALER, ACCEPTOR) == (Offer(HOST, (30,)), Offer(DEVICE, (10, 20)))


def test_the_secret_itself_never_travels() -> None:
    said: list[bytes] = []

    def listen(_name: str, message: bytes) -> bytes:
        said.append(message)
        return message

    shake(DIALER, ACCEPTOR, listen)
    assert len(said) == 4
    assert not any(SECRET in message for message in said)


@pytest.mark.parametrize("place", range(4, 24), ids=lambda place: f"hello[{place}]")
def test_who_changes_what_the_dialer_claims_is_caught(place: int) -> None:
    with pytest.raises(PermissionError, match="does not know the secret"):
        shake(DIALER, ACCEPTOR, flipped("hello", place))


@pytest.mark.parametrize("place", [12, 43, 44, -1], ids=["nonce", "nonce's end", "proof", "proof's end"])
def test_who_changes_the_reply_is_caught(place: int) -> None:
    with pytest.raises(PermissionError, match="does not know the secret"):
        shake(DIALER, ACCEPTOR, flipped("reply", place))


@pytest.mark.parametrize("place", [0, 31])
def test_who_changes_the_dialers_proof_is_caught(place: int) -> None:
    with pytest.raises(PermissionError, match="the caller as member 0 does not know"):
        shake(DIALER, ACCEPTOR, flipped("offer", place))


def test_without_the_secret_no_descriptor_is_sent_either_way() -> None:
    calling = dial(DIALER._replace(secret=b"of another run, and guessed"), 1, Offer(HOST, (10,)))
    answering = accept(ACCEPTOR, heard(next(calling).send), Offer(HOST, (30,)))
    offer = calling.send(next(answering).send)
    assert not offer.with_descriptors
    with pytest.raises(PermissionError, match="the caller as member 0 does not know"):
        answering.send(offer.send)
    with pytest.raises(PermissionError, match="the process that answers for member 1 does not know"):
        calling.send(b"")


def test_a_recorded_offer_is_worth_nothing_the_next_time() -> None:
    recorded: dict[str, bytes] = {}

    def record(name: str, message: bytes) -> bytes:
        recorded[name] = message
        return message

    shake(DIALER, ACCEPTOR, record)
    answering = accept(ACCEPTOR, heard(recorded["hello"]), Offer(HOST, (30,)))
    next(answering)
    with pytest.raises(PermissionError):
        answering.send(recorded["offer"])


def test_a_proof_sent_back_to_its_author_is_worth_nothing() -> None:
    calling = dial(DIALER, 1, Offer())
    answering = accept(ACCEPTOR, heard(next(calling).send), Offer())
    reply = next(answering)
    with pytest.raises(PermissionError):
        answering.send(reply.send[-32:] + bytes(reply.expect_bytes - 32))


def test_a_refusal_says_why() -> None:
    calling = dial(DIALER, 1, Offer())
    hello = heard(next(calling).send)
    assert (hello.generation, hello.dialer, hello.acceptor) == (4, 0, 1)
    with pytest.raises(PeerLost, match="member 1: it is in generation 9, this member in 4"):
        calling.send(refusal(ACCEPTOR._replace(generation=9), hello))
    calling = dial(DIALER, 1, Offer())
    next(calling)
    with pytest.raises(ProtocolError, match="member 1 expects no connection from member 0 in generation 4"):
        calling.send(refusal(ACCEPTOR, hello))


def test_who_speaks_something_else_is_no_member() -> None:
    with pytest.raises(ProtocolError, match="not a member: b'GET / HT'"):
        heard(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\n\r\n"[:52])


def test_a_table_with_too_many_regions_is_a_fault() -> None:
    def wire(name: str, message: bytes) -> bytes:
        return b"\xff" + message[1:] if name == "answer" else message

    with pytest.raises(ProtocolError, match="255 regions announced, at most 200"):
        shake(DIALER, ACCEPTOR, wire)
