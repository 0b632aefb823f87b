"""Encrypted connections: who is let in, what is said to who is not, and what a member does when a record is cut anywhere."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.comm.transports import tls
from orchestrator.comm.transports.base import DeadlineExceeded, PeerLeft
from orchestrator.comm.transports.socket_transport import SocketTransport
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.comm.transports.tls import Credentials, Tls, TlsSocket, make_credentials
from tests.comm.transports.worlds import CREDENTIALS, PATIENCE_S, SECRET, TAG, together

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
EXPIRED = make_credentials(NOW - timedelta(days=9), NOW - timedelta(days=8))
EARLY = make_credentials(NOW + timedelta(days=8), NOW + timedelta(days=9))
OTHERS = make_credentials()


def test_a_host_with_a_wrong_clock_is_not_turned_away() -> None:
    """Its battery is empty, or it is years ahead."""
    made = x509.load_pem_x509_certificate(CREDENTIALS.certificate)
    assert (made.not_valid_before_utc.year, made.not_valid_after_utc.year) == (1970, 9999)


def side_by_side(*tasks: Callable[[], Any]) -> list[Any]:
    return together(tasks)


def pair(one: Credentials = CREDENTIALS, other: Credentials = CREDENTIALS) -> tuple[TlsSocket, TlsSocket]:
    left, right = socket.socketpair()
    return Tls(one).wrap(left, "dialer", "the acceptor"), Tls(other).wrap(right, "acceptor", "the dialer")


def send(end: TlsSocket, data: bytes) -> None:
    """All of it, as a link does."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[end.send(rest, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            wants = select.POLLOUT if end.waits_to_write in (True, None) else select.POLLIN
            _wait(end, wants)


def read(end: TlsSocket, count: int) -> bytes:
    """So many bytes; fewer at the end of the stream."""
    found = bytearray()
    while len(found) < count:
        piece = bytearray(min(count - len(found), 1 << 15))
        try:
            size = end.recv_into(piece)
        except BlockingIOError:
            _wait(end, select.POLLOUT if end.waits_to_write else select.POLLIN)
            continue
        if not size:
            break
        found += piece[:size]
    return bytes(found)


def _wait(end: TlsSocket, events: int) -> None:
    poll = select.poll()
    poll.register(end.fileno(), events)
    assert poll.poll(PATIENCE_S * 1000)


@pytest.mark.parametrize("size", [1, 16383, 16384, 16385, 3_000_000])
def test_what_is_sent_arrives_however_little_the_kernel_takes(size: int) -> None:
    one, other = pair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = random.Random(size).randbytes(size)
    for sender, reader in ((one, other), (other, one)):
        assert side_by_side(partial(send, sender, data), partial(read, reader, size))[1] == data
    one.close()
    other.close()


def test_bytes_count_as_sent_when_the_kernel_has_their_records() -> None:
    """So who has nothing left to send needs nobody to go on."""
    one, other = pair()
    side_by_side(partial(send, one, b"x"), partial(read, other, 1))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = random.Random(1).randbytes(2_000_000)
    sent = 0
    while True:
        try:
            sent += one.sendmsg((data[sent : sent + 40], data[sent + 40 :]), (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            break
    assert sent < len(data)
    assert read(other, sent) == data[:sent]
    side_by_side(partial(send, one, data[sent:]), partial(read, other, len(data) - sent))
    one.close()
    other.close()


def test_what_was_decrypted_is_known_to_be_there() -> None:
    one, other = pair()
    side_by_side(partial(send, one, b"ab"), partial(read, other, 1))
    assert tls.buffered(other)
    assert read(other, 1) == b"b"
    assert not tls.buffered(other)
    one.close()
    assert read(other, 1) == b""
    other.close()


def test_the_key_is_not_shown() -> None:
    assert "PRIVATE KEY" in CREDENTIALS.key.decode()
    assert "key=" not in repr(CREDENTIALS)  # a certificate may hold the three letters by chance
    assert "PRIVATE KEY" not in repr(CREDENTIALS)


WRONG = {
    "another run's": (OTHERS, "does not have the certificate of this run"),
    "expired": (EXPIRED, "certificate has expired"),
    "of the future": (EARLY, "certificate is not yet valid"),
}


def told_by(act: Callable[[], object]) -> str:
    with pytest.raises(PermissionError) as refused:
        act()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("case", ["expired", "of the future"])
def test_a_certificate_that_does_not_count_now_is_refused_with_the_reason(case: str) -> None:
    one, other = pair(WRONG[case][0], WRONG[case][0])
    with contextlib.ExitStack() as ends:
        ends.callback(one.close)
        ends.callback(other.close)
        said = together([partial(told_by, partial(send, one, b"x")), partial(told_by, partial(read, other, 1))])
    assert said[0] == f"the acceptor does not have the certificate of this run ({WRONG[case][1]})"
    assert said[1].startswith("the dialer refuses this member's certificate (")


def test_a_certificate_that_the_run_has_signed_is_not_the_runs() -> None:
    """Somebody who has the run's key could make one; the chain of trust lets it pass."""
    signed = signed_by(CREDENTIALS)
    one, other = pair()
    acceptor = Tls(signed)
    acceptor._contexts["acceptor"].load_verify_locations(cadata=CREDENTIALS.certificate.decode())
    acceptor._own = ssl.PEM_cert_to_DER_cert(CREDENTIALS.certificate.decode())
    other = acceptor.wrap(other, "acceptor", "the dialer")
    with contextlib.ExitStack() as ends:
        ends.callback(one.close)
        ends.callback(other.close)

        def call() -> str:
            said = told_by(partial(send, one, b"x"))
            one.shutdown(socket.SHUT_RDWR)
            return said

        said, _ = side_by_side(call, partial(quietly, partial(read, other, 1)))
    assert said == "the acceptor does not have the certificate of this run (another one came)"


def quietly(act: Callable[[], object]) -> str:
    with contextlib.suppress(OSError):
        act()
    return ""


def signed_by(run: Credentials) -> Credentials:
    authority = x509.load_pem_x509_certificate(run.certificate)
    authority_key = serialization.load_pem_private_key(run.key, None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a leaf")])
    made = x509.CertificateBuilder(authority.subject, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=1))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    leaf = made.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return Credentials(leaf, key.private_bytes(*form))


class Run:
    """The listeners of two members, of which the second is the one under test, and what it tells."""

    def __init__(self, first: Credentials | None, second: Credentials | None) -> None:
        self.told: list[str] = []
        self._some = threading.Event()
        self.listeners = [
            Listener(SECRET, "127.0.0.1", first),
            Listener(SECRET, "127.0.0.1", second, self._tell),
        ]
        self.transports: list[SocketTransport] = []

    def _tell(self, line: str) -> None:
        self.told.append(line)
        self._some.set()

    def wait_until_told(self) -> None:
        self._some.wait(PATIENCE_S)

    def join(self, rank: int, timeout_s: float = PATIENCE_S) -> SocketTransport:
        peers = {1 - rank: self.listeners[1 - rank].addresses["tcp"]}
        self.transports.append(connect(self.listeners[rank], rank, 1, peers, None, timeout_s))
        return self.transports[-1]

    def close(self) -> None:
        for transport in self.transports:
            transport.abort()
        for listener in self.listeners:
            listener.close()


@pytest.fixture
def make() -> Iterator[Callable[[Credentials | None, Credentials | None], Run]]:
    made: list[Run] = []

    def run(first: Credentials | None, second: Credentials | None) -> Run:
        made.append(Run(first, second))
        return made[-1]

    yield run
    for each in made:
        each.close()


Make = Callable[[Credentials | None, Credentials | None], Run]
# The dialer's certificate, the acceptor's, what the dialer raises, and what the acceptor tells.
NO_MATCH = {
    "another run's certificate": (
        OTHERS,
        CREDENTIALS,
        "the process that answers for member 1 at 127.0.0.1:.* does not have the certificate of this run",
        "refused a connection from 127.0.0.1: who called refuses this member's certificate",
    ),
    "an expired one": (
        EXPIRED,
        EXPIRED,
        r"the process that answers for member 1 at 127.0.0.1:.* \(certificate has expired\)",
        "refused a connection from 127.0.0.1: who called refuses this member's certificate",
    ),
    "plain text to TLS": (
        None,
        CREDENTIALS,
        "lost contact with member 1: it hung up during the handshake",
        "refused a connection from 127.0.0.1: who called does not speak TLS",
    ),
    "TLS to plain text": (
        CREDENTIALS,
        None,
        "hung up before keys were agreed upon: it is gone, or does not speak TLS",
        "refused a connection from 127.0.0.1: it speaks TLS, and this member does not",
    ),
}


@pytest.mark.parametrize("case", NO_MATCH)
def test_who_does_not_match_is_told_why_in_one_line_and_so_is_the_other(make: Make, case: str) -> None:
    dialer, acceptor, raised, told = NO_MATCH[case]
    run = make(dialer, acceptor)

    def call() -> None:
        try:
            with pytest.raises((PermissionError, PeerLeft), match=raised):
                run.join(0)
            run.wait_until_told()  # the acceptor may still be reading why when the dialer is done
        finally:
            run.listeners[1].cancel(1)

    def answer() -> None:
        with pytest.raises((ConnectionAbortedError, DeadlineExceeded)):
            run.join(1)

    together([call, answer])
    assert [line.startswith(told) for line in run.told] == [True], run.told
    assert "\n" not in run.told[0]


def strangers_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def stranger(address: list[str | int], certified: bool) -> None:
    """One who takes any certificate, and has none or calls in plain text."""
    host, port = str(address[1]), int(address[2])
    with socket.create_connection((host, port)) as plain:
        if not certified:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(100))
            plain.settimeout(PATIENCE_S)
            while plain.recv(1000):
                pass
            return
        with (
            contextlib.suppress(ssl.SSLError, OSError),
            strangers_context().wrap_socket(plain) as encrypted,
        ):
            while encrypted.recv(1000):
                pass


@pytest.mark.parametrize("speaks_tls", [True, False], ids=["no certificate", "plain text"])
def test_a_strangers_call_ends_nothing(make: Make, speaks_tls: bool) -> None:
    """It is refused while the members wait for each other, told once however often it calls, and they meet."""
    run = make(CREDENTIALS, CREDENTIALS)
    address = run.listeners[1].addresses["tcp"]
    waiting = threading.Thread(target=run.join, args=(1,))
    waiting.start()
    for _ in range(3):
        stranger(address, speaks_tls)
    run.join(0)
    waiting.join()
    one, other = sorted(run.transports, key=lambda each: 1 in each.links, reverse=True)
    one.send(1, TAG, torch.arange(5))
    assert other.receive(0, TAG, PATIENCE_S).payload.tolist() == [0, 1, 2, 3, 4]
    reason = "has no certificate" if speaks_tls else "does not speak TLS"
    assert run.told == [f"refused a connection from 127.0.0.1: who called {reason}"]
