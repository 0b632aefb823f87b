"""TLS 1.3 between hosts, by a certificate that is made for one run: to links and handshakes a socket that never blocks.

    credentials = make_credentials()                       # the driver, once per run; told to members through Ray
    connection = Tls(credentials).wrap(socket, "acceptor", "who called")    # a member, per connection

Both sides present the run's certificate and trust no other. Each compares the peer's certificate with it, so one that its key
has signed is refused too. Each connection agrees on new keys (ECDHE), so the certificate's key does not decrypt recorded
traffic.

Records are made in memory (`ssl.MemoryBIO`) and travel by the socket's own calls, so that whoever owns the poller waits, and
no signal is raised by a closed connection. `send` counts bytes as sent when their records are with the kernel; when it
raises BlockingIOError, or takes less than it was given, the next call brings the same bytes once more, as after any partial
write.

Source: RFC 8446. A connection does not hide how much is sent and when, and does not renew keys (section 5.5 advises it after
2^24.5 records, some 390 GB over one connection, for a safety margin of 2^-57).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from orchestrator.common.kernel_calls import memory_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_READ_BYTES: Final = 1 << 18
_RECORDS_BYTES: Final = 1 << 17  # of what is sent, turned into records at once
_RECORD_BYTES: Final = 1 << 14
# A peer has to show this very certificate, whose run ends: its dates would only turn away a host whose clock is wrong.
_BEGINS: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENDS: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # "no well-defined expiration date", RFC 5280, 4.1.2.5
_MESSAGES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "does not have the certificate of this run ({})",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "has no certificate",
    "WRONG_VERSION_NUMBER": "does not speak TLS",
    "HTTP_REQUEST": "does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "does not speak TLS 1.3",
}

Side = Literal["dialer", "acceptor"]


@dataclass(frozen=True)
class Credentials:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_credentials(begins: datetime = _BEGINS, ends: datetime = _ENDS) -> Credentials:
    """Signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a run of orchestrator")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Credentials(certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(*form))


class Tls:
    """The contexts with which a member encrypts its connections."""

    def __init__(self, credentials: Credentials) -> None:
        self._own = ssl.PEM_cert_to_DER_cert(credentials.certificate.decode())
        self._contexts: dict[Side, ssl.SSLContext] = {
            "dialer": _context(ssl.PROTOCOL_TLS_CLIENT, credentials),
            "acceptor": _context(ssl.PROTOCOL_TLS_SERVER, credentials),
        }

    def wrap(self, connection: socket.socket, side: Side, peer: str) -> TlsSocket:
        """Takes the socket over, which does not block. peer: who is at the other end, for messages."""
        return TlsSocket(connection, self._contexts[side], self._own, side, peer)


class TlsSocket(socket.socket):
    """A connection in TLS. Its first call of `send` or `recv_into` begins to agree upon keys, and each goes on with that."""

    def __init__(
        self,
        connection: socket.socket,  # taken over
        context: ssl.SSLContext,  # with the run's certificate and key
        own: bytes,  # the run's certificate, in DER, which the peer has to show too
        side: Side,  # which one this is
        peer: str,  # the name of the other end, for messages
    ) -> None:
        family, kind, protocol = connection.family, connection.type, connection.proto
        super().__init__(family, kind, protocol, fileno=connection.detach())
        self.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=side == "acceptor")
        self._own = own
        self._peer = peer
        self._agreed = False
        self._records: deque[memoryview] = deque()  # not with the kernel yet
        self._recorded = 0  # bytes of the caller that lie in them
        self._read = bytearray(_READ_BYTES)

    @property
    def waits_to_write(self) -> bool | None:
        """While keys are agreed upon: whether that goes on when the socket takes more, not when something comes. None after."""
        return None if self._agreed else bool(self._records)

    @property
    def buffered(self) -> bool:
        """Something has been read from the kernel and not been taken from here; the poller does not know of that."""
        return self._tls.pending() > 0 or self._incoming.pending > 0

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        return self.sendmsg((data,), (), flags)

    def sendmsg(
        self, buffers: Iterable[ReadableBuffer], _ancillary: Any = (), flags: int = 0, _address: Any = None, /
    ) -> int:
        self._agree(flags)
        rest = [view for each in buffers if (view := memoryview(each).cast("B")).nbytes]
        sent = 0
        while True:
            try:
                self._write_records(flags)
            except BlockingIOError:
                if sent:
                    return sent
                raise
            taken = _skip(rest, self._recorded)
            self._recorded -= taken
            sent += taken
            if not rest:
                return sent
            self._record(rest)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:  # noqa: ARG002
        self._agree()
        into = memoryview(buffer).cast("B")
        while True:
            try:
                return int(self._tls.read(nbytes or into.nbytes, into))
            except ssl.SSLWantReadError:
                if not self._fetch():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLError as error:
                raise self._refused(error) from error

    def recvmsg(self, size: int, _ancillary: int = 0, _flags: int = 0, /) -> tuple[bytes, list[Any], int, None]:
        data = bytearray(size)
        count = self.recv_into(data)
        return bytes(data[:count]), [], 0, None

    def _agree(self, flags: int = 0) -> None:
        """Go on until both sides have agreed upon keys and proven that they have the certificate. Raises BlockingIOError until
        then, PermissionError, ConnectionResetError."""
        while not self._agreed:
            self._write_records(flags)
            try:
                self._tls.do_handshake()
                self._agreed = True
            except ssl.SSLWantReadError:
                self._write_records(flags)
                self._hear()
            except ssl.SSLError as error:
                raise self._refused(error) from error
            if self._agreed and self._tls.getpeercert(binary_form=True) != self._own:
                raise PermissionError(
                    f"{self._peer} {_MESSAGES['CERTIFICATE_VERIFY_FAILED'].format('another one came')}"
                )

    def _hear(self) -> None:
        """Read on, before keys are agreed upon."""
        try:
            goes_on = self._fetch()
        except ConnectionResetError:
            goes_on = False
        if not goes_on:
            said = "before keys were agreed upon: it is gone, or does not speak TLS"
            raise ConnectionResetError(f"{self._peer} hung up {said}")

    def _refused(self, error: ssl.SSLError) -> Exception:
        """The error to raise, after the other side has been told."""
        with contextlib.suppress(OSError):
            self._write_records(0)
        reason = error.reason or ""
        if "ALERT" in reason or "CERTIFICATE_REQUIRED" in reason:
            return PermissionError(f"{self._peer} refuses this member's certificate ({_words(error)})")
        why = _MESSAGES.get(reason)
        if why is None and self._agreed:
            return ConnectionResetError(f"{self._peer} sent what is no record of TLS ({_words(error)})")
        return PermissionError(f"{self._peer} {(why or 'does not speak TLS ({})').format(_words(error))}")

    def _record(self, rest: list[memoryview]) -> None:
        """Turn the first of what is to be sent into records. A short head travels in one record with what follows it."""
        if len(rest) > 1 and rest[0].nbytes < _RECORD_BYTES:
            self._encrypt(memoryview(b"".join((rest[0], rest[1][: _RECORD_BYTES - rest[0].nbytes]))))
        else:
            self._encrypt(rest[0][:_RECORDS_BYTES])

    def _encrypt(self, data: memoryview) -> None:
        while data.nbytes:
            count = self._tls.write(data)
            self._recorded += count
            data = data[count:]

    def _write_records(self, flags: int) -> None:
        if self._outgoing.pending:
            self._records.append(memoryview(self._outgoing.read()))
        while self._records:
            sent = super().send(self._records[0], flags)
            self._records[0] = self._records[0][sent:]
            if not self._records[0].nbytes:
                self._records.popleft()

    def _fetch(self) -> bool:
        """Read records from the kernel; False at the end of the stream. Raises BlockingIOError."""
        count = super().recv_into(self._read)
        self._incoming.write(memoryview(self._read)[:count])
        return count > 0


def buffered(connection: socket.socket) -> bool:
    """Whether there is more to read than the poller knows of."""
    return isinstance(connection, TlsSocket) and connection.buffered


def waits_to_write(connection: socket.socket, sending: bool) -> bool:
    """Whether a handshake goes on when the socket takes more. sending: it has something to send."""
    first = connection.waits_to_write if isinstance(connection, TlsSocket) else None
    return sending if first is None else first


def _skip(buffers: list[memoryview], count: int) -> int:
    """Take so many bytes away, or all that there are; returns how many."""
    left = count
    while buffers and left >= buffers[0].nbytes:
        left -= buffers.pop(0).nbytes
    if left and buffers:
        buffers[0] = buffers[0][left:]
        return count
    return count - left


def _words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return (error.reason or str(error)).lower().replace("_", " ")


def _context(protocol: Any, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # all members have one certificate
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.certificate.decode())
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no connection is resumed
    fd = memory_file("orchestrator-certificate")
    try:  # ssl takes keys from files only; this one has no name
        os.write(fd, credentials.certificate + credentials.key)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context
