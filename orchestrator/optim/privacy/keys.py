"""Keys of one run, from which all its secret bits follow: a pure function of the root, a purpose and some numbers.

The seeds of `numerics.streams` have 32 bits, which can be searched; these keys have 256.
Source: Krawczyk and Eronen, HKDF (RFC 5869); AES-256 in counter mode (NIST SP 800-38A).
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator
from typing import Final

import numpy
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

KEY_BYTES: Final = 32
_PIECE: Final = 1 << 17  # elements of a stream that are made at a time; 1 MiB


class Keys:
    """The keys of one run, all of which follow from one root. root: 256 bits. It is shown by no repr, so that no message, log
    or traceback holds it by accident."""

    __slots__ = ("_root",)

    def __init__(self, root: bytes) -> None:
        assert len(root) == KEY_BYTES
        self._root = root

    def __repr__(self) -> str:
        return "Keys(...)"

    def key(self, purpose: str, *numbers: int) -> bytes:
        """256 bits for this purpose."""
        return HKDFExpand(hashes.SHA256(), KEY_BYTES, _info(purpose, numbers)).derive(self._root)

    def stream(self, purpose: str, *numbers: int) -> Stream:
        """Uniform bits, each used once: one purpose and one set of numbers for each use."""
        return Stream(self.key(purpose, *numbers))

    def hash(self, purpose: str, message: bytes) -> str:
        """A keyed hash, 128 bits in hexadecimal digits: who lacks the key cannot try messages."""
        return hmac.digest(self.key(purpose), message, "sha256")[:16].hex()


class Stream:
    """The bits of AES-256 in counter mode. key: of this stream alone."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def take(self, elements: int) -> NDArray[numpy.uint64]:
        """The next ones."""
        return numpy.frombuffer(self._encryptor.update(bytes(8 * elements)), "<u8")

    def fill(self, into: NDArray[numpy.int64]) -> None:
        """Write the next ones into this memory, which is contiguous."""
        self._encryptor.update_into(bytes(into.nbytes), into.data.cast("B"))

    def pieces(self, elements: int) -> Iterator[tuple[slice, NDArray[numpy.uint64]]]:
        """The next ones with their places among `elements`, as many at a time as a cache holds."""
        for first in range(0, elements, _PIECE):
            place = slice(first, min(first + _PIECE, elements))
            yield place, self.take(place.stop - place.start)


def extract(secret: bytes, purpose: str, about: bytes) -> bytes:
    """A root for this purpose from a secret. about: what it is bound to."""
    return HKDF(hashes.SHA256(), KEY_BYTES, None, _info(purpose, ()) + about).derive(secret)


def _info(purpose: str, numbers: tuple[int, ...]) -> bytes:
    return b"orchestrator\0" + purpose.encode() + b"\0" + struct.pack(f"<{len(numbers)}q", *numbers)
