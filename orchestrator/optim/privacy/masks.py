"""Pairwise masks: each worker adds to its sum what its peers take off theirs, so that only the sum of all can be read.

    shared(a, b)  = X25519(own private key, the other's public key)            once in a generation
    mask(a, b)    = AES-CTR keyed with HKDF(shared, generation, step, attempt, both public keys)
    masked(a)     = sum of a + masks with those of higher rank - masks with those of lower rank     modulo 2**64

In the sum of all workers every mask stands once with each sign, so it is the plain sum, to the bit. Private keys are made anew
in each generation and forgotten with it: when a worker is lost the step is repeated under other masks, so no mask has to be
revealed, and none is ever used twice. With a mask used for two attempts their difference would show what changed.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (2017), section 4, without the
sharing of secrets, which is for members that drop out within a sum.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy
import torch
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from orchestrator.errors import Inconsistent
from orchestrator.optim.privacy.keys import Keys, Stream, extract

PUBLIC_BYTES = 32


class KeyPair:
    """A worker's, for one generation."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def __repr__(self) -> str:
        return "KeyPair(...)"

    def agree(self, rank: int, publics: Sequence[bytes], generation: int) -> Masks:
        """Agree with each other worker on a key. publics: of all workers, by rank. Raises Inconsistent for one that is no
        key."""
        roots: dict[int, Keys] = {}
        for peer, public in enumerate(publics):
            if peer == rank:
                continue
            both = b"".join(publics[each] for each in sorted((rank, peer)))
            try:
                shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
            except (ValueError, InvalidKey) as error:
                raise Inconsistent(
                    f"the public key of worker rank {peer} is not a key of X25519",
                    "look for who can change messages between workers",
                    code="privacy.public-key",
                ) from error
            roots[peer] = Keys(extract(shared, "masks", struct.pack("<q", generation) + both))
        return Masks(rank, roots)


class Masks:
    """Those of one worker in one generation. roots: shared with each peer, by its rank."""

    def __init__(self, rank: int, roots: dict[int, Keys]) -> None:
        self._rank = rank
        self._roots = roots
        self._last: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return "Masks(...)"

    def add(self, step: int, attempt: int, total: torch.Tensor) -> None:
        """Mask a sum (int64, contiguous). Raises Inconsistent where these masks were used."""
        if self._last is not None and (step, attempt) <= self._last:
            raise Inconsistent(
                f"the masks of step {step}, attempt {attempt}, are asked for again",
                "this is a fault of orchestrator",
                code="privacy.mask-again",
            )
        self._last = step, attempt
        masked = total.numpy()
        for peer, root in self._roots.items():
            change = numpy.add if self._rank < peer else numpy.subtract
            stream: Stream = root.stream("mask", step, attempt)
            for place, bits in stream.pieces(total.numel()):
                change(masked[place], bits.view(numpy.int64), out=masked[place])
