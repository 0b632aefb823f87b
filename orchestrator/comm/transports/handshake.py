"""How two members make sure of each other before the first frame: generation, ranks, one secret. No I/O here.

    dialer                                          acceptor
    HELLO  generation, own rank, rank meant, nonce  ->
                                                    <-  REPLY  verdict, generation, nonce, proof
    OFFER  proof, kind and sizes of own regions (+ fds)  ->
                                                    <-  ANSWER  kind and sizes of own regions (+ fds)

A proof is HMAC-SHA256, keyed with the secret, of the role, the HELLO and the acceptor's nonce. It contains both nonces, so no
proof can be used twice, and the role, so none can be sent back to its author. Nobody learns the secret, and nobody who lacks
it gets a descriptor. It is the same on Unix sockets, where it is cheap, and there the user id has been checked as well.

Each side is a generator that yields what to send and how much to read, and is sent what was read (httpx's `_auth.py` is the
model). So one thread carries on any number of handshakes at once, and a slow or hostile one delays nobody.

Source: challenge-response with a keyed hash, ISO/IEC 9798-4. The handshake does not encrypt, and does not protect what comes
after: somebody who can change packets between the hosts can change gradients, unless the run encrypts (`tls.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Generator
from typing import Final, NamedTuple

from orchestrator.comm.transports.base import HOST, PeerLeft, ProtocolError

MAX_REGIONS: Final = 200  # the kernel passes 253 descriptors at a time
MIN_SECRET_BYTES: Final = 16

_MAGIC: Final = 0x6F726368
_TLS: Final = b"\x16\x03"  # how a handshake of TLS begins
_WELCOME: Final = 0
_OTHER_GENERATION: Final = 1
_UNEXPECTED: Final = 2

# In the machine's byte order, as frames are: a peer of the other one fails at the magic number.
_HELLO: Final = struct.Struct("=Iqii32s")  # magic, generation, dialer, acceptor, nonce
_REPLY: Final = struct.Struct("=Iq32s32s")  # verdict, generation, nonce, proof
_OFFERED: Final = struct.Struct(f"=II{MAX_REGIONS}Q")  # how many, their kind, bytes of each
_OFFER_BYTES: Final = hashlib.sha256().digest_size + _OFFERED.size


class Identity(NamedTuple):
    """The identity of this member in the generation that connects."""

    secret: bytes
    generation: int
    rank: int


class Hello(NamedTuple):
    """The claims of a dialer; nothing of them is proven."""

    generation: int
    dialer: int
    acceptor: int
    raw: bytes


class Step(NamedTuple):
    """Send these bytes (with the descriptors of the own regions, if so), then read that many."""

    send: bytes
    expect_bytes: int
    with_descriptors: bool = False


class Offer(NamedTuple):
    """The regions of a member."""

    kind: int = HOST  # of their memory (`base.SharableRegions`)
    sizes: tuple[int, ...] = ()  # in bytes


def hear() -> Generator[Step, bytes, Hello]:
    """The acceptor's first part: who is calling? The answer depends on the generation, so it is decided outside."""
    raw = yield Step(b"", _HELLO.size)
    magic, generation, dialer, acceptor, _ = _HELLO.unpack(raw)
    if raw.startswith(_TLS):
        raise PermissionError("it speaks TLS, and this member does not: transport.tls has to be the same for all")
    if magic != _MAGIC:
        raise ProtocolError(f"not a member: {raw[:8]!r}")
    return Hello(generation, dialer, acceptor, raw)


def accept(me: Identity, hello: Hello, offer: Offer) -> Generator[Step, bytes, Offer]:
    """The acceptor's second part. Returns what the dialer offers. Raises PermissionError."""
    nonce = secrets.token_bytes(32)
    reply = _REPLY.pack(_WELCOME, me.generation, nonce, _proof(me.secret, b"acceptor", hello.raw, nonce))
    offered = yield Step(reply, _OFFER_BYTES)
    if not hmac.compare_digest(offered[:32], _proof(me.secret, b"dialer", hello.raw, nonce)):
        raise PermissionError(f"the caller as member {hello.dialer} does not know the secret of this run")
    yield Step(_pack(offer), 0, with_descriptors=True)
    return _unpack(offered[32:])


def dial(me: Identity, peer: int, offer: Offer) -> Generator[Step, bytes, Offer]:
    """The dialer's side. Returns what the acceptor offers.

    Raises PermissionError, PeerLeft (it is in another generation), ProtocolError.
    """
    hello = _HELLO.pack(_MAGIC, me.generation, me.rank, peer, secrets.token_bytes(32))
    reply = yield Step(hello, _REPLY.size)
    verdict, generation, nonce, proof = _REPLY.unpack(reply)
    if verdict == _OTHER_GENERATION:
        raise PeerLeft(peer, f"it is in generation {generation}, this member in {me.generation}")
    if verdict == _UNEXPECTED:
        raise ProtocolError(f"member {peer} expects no connection from member {me.rank} in generation {me.generation}")
    if not hmac.compare_digest(proof, _proof(me.secret, b"acceptor", hello, nonce)):
        # Our proof all the same: an honest acceptor learns from it why this failed.
        yield Step(_proof(me.secret, b"dialer", hello, nonce) + _pack(Offer()), 0)
        raise PermissionError(f"the process that answers for member {peer} does not know the secret of this run")
    answer = yield Step(_proof(me.secret, b"dialer", hello, nonce) + _pack(offer), _OFFERED.size, with_descriptors=True)
    return _unpack(answer)


def refusal(me: Identity, hello: Hello) -> bytes:
    """The reply to send before closing on a dialer of another generation, or one that the schedule does not foresee."""
    verdict = _UNEXPECTED if hello.generation == me.generation else _OTHER_GENERATION
    return _REPLY.pack(verdict, me.generation, bytes(32), bytes(32))


def _proof(secret: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + hello + nonce, "sha256")


def _pack(offer: Offer) -> bytes:
    return _OFFERED.pack(len(offer.sizes), offer.kind, *offer.sizes, *[0] * (MAX_REGIONS - len(offer.sizes)))


def _unpack(table: bytes) -> Offer:
    count, kind, *sizes = _OFFERED.unpack(table)
    if count > MAX_REGIONS:
        raise ProtocolError(f"{count} regions announced, at most {MAX_REGIONS} are possible")
    return Offer(kind, tuple(sizes[:count]))
