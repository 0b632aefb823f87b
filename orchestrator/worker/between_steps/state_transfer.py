"""One member gives its state to others, over the transport of the new generation and before its first step (rule D1).

    header    JSON: the state's values, name, dtype and shape of each tensor, and what the driver may not have heard yet; the
              note beside its first piece is its length
    tensors   the bytes of each, in the order of the header
    digest    SHA-256 of all that

Everything travels in pieces, and each piece has a deadline of its own, so a large state on a slow wire is no reason to give
up. A donor serves all its recipients piece by piece, so none of them waits for another. The recipient has the state only when
the digest is right; until then nothing of it is in use.

A server is given the run state alone: it has no tensors. The state of a shard goes the same way to its new host, in a stream
of its own; a pair of members may have both streams.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from orchestrator.checkpoint.state import TrainingState
from orchestrator.comm.collectives import STATE_TRANSFER
from orchestrator.comm.transports.base import PeerLost, Tag, Transport
from orchestrator.numerics.byte_layout import bytes_of, of_bytes
from orchestrator.worker.member.generation import Entry

_PIECE_BYTES: Final = 4 << 20
ROWS: Final = 1  # the stream of what shards keep
RUN: Final = 2  # the stream of the state of the run alone


def give(
    transport: Transport,
    generation: int,
    recipients: Sequence[int],
    state: TrainingState,
    entries: list[Entry],
    timeout_s: float,
    stream: int = 0,
) -> None:
    """Send this state to all recipients. Raises what the transport raises."""
    header = of_bytes(_header(state, entries))
    hashed = hashlib.sha256()
    number = 0
    # One at a time, because a tensor that is not in host memory is copied there.
    for payload in itertools.chain([header], (bytes_of(tensor.cpu()) for tensor in state.tensors.values())):
        for piece in _pieces(payload):
            hashed.update(piece.numpy().data)
            _hand(transport, recipients, _tag(generation, stream, number), piece, header.numel(), timeout_s)
            number += 1
    _hand(transport, recipients, _tag(generation, stream, number), of_bytes(hashed.digest()), 0, timeout_s)


def take(
    transport: Transport, generation: int, donor: int, timeout_s: float, stream: int = 0
) -> tuple[TrainingState, list[Entry]]:
    """The state that the donor hands over, in memory of its own, and the entries beside it. Raises what the transport raises,
    and PeerLost if the digest is wrong."""
    source = _Stream(transport, generation, stream, donor, timeout_s)
    first, length = source.next()
    text = source.fill(torch.empty(length, dtype=torch.uint8), first)
    header = json.loads(text.numpy().tobytes())
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype, shape in header["tensors"]:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        source.fill(bytes_of(tensor))
        tensors[name] = tensor
    expected = source.digest()
    came, _ = source.next()
    if came.numpy().tobytes() != expected:
        raise PeerLost(donor, "the state that it sent arrived altered")
    return TrainingState(header["values"], tensors), header["entries"]


def _hand(
    transport: Transport, recipients: Sequence[int], tag: Tag, piece: torch.Tensor, note: int, timeout_s: float
) -> None:
    for recipient in recipients:
        transport.send(recipient, tag, piece, note)
    transport.flush(timeout_s)


class _Stream:
    """The receiving end of a state transfer."""

    def __init__(
        self,
        transport: Transport,  # of this generation
        generation: int,  # its number
        stream: int,  # its number, which tells streams of one donor apart
        donor: int,  # the rank of the member that sends
        timeout_s: float,  # seconds to wait for a piece
    ) -> None:
        self._transport = transport
        self._generation = generation
        self._of = stream
        self._donor = donor
        self._timeout_s = timeout_s
        self._number = 0
        self._hashed = hashlib.sha256()

    def next(self) -> tuple[torch.Tensor, int]:
        tag = _tag(self._generation, self._of, self._number)
        received = self._transport.receive(self._donor, tag, self._timeout_s)
        self._number += 1
        return received.payload, received.note

    def fill(self, memory: torch.Tensor, piece: torch.Tensor | None = None) -> torch.Tensor:
        """uint8 memory with what comes, beginning with `piece` if that has come already."""
        filled = 0
        while filled < memory.numel():
            if piece is None:
                piece, _ = self.next()
            memory[filled : filled + piece.numel()] = piece
            self._hashed.update(piece.numpy().data)
            filled += piece.numel()
            piece = None
        return memory

    def digest(self) -> bytes:
        return self._hashed.digest()


def _header(state: TrainingState, entries: list[Entry]) -> bytes:
    tensors: list[list[Any]] = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in state.tensors.items()
    ]
    return json.dumps({"values": state.values, "tensors": tensors, "entries": entries}).encode()


def _pieces(payload: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, payload.numel(), _PIECE_BYTES):
        yield payload[start : start + _PIECE_BYTES]


def _tag(generation: int, stream: int, number: int) -> Tag:
    return Tag(generation, 0, stream, STATE_TRANSFER, number)
