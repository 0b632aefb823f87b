"""The state that shards keep, as bytes that can be gathered: the length of a header, the header (JSON), then the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch

from orchestrator.comm.collectives import FALLBACKS, Exchange
from orchestrator.numerics.byte_layout import bytes_of, of_bytes
from orchestrator.optim.transforms import State
from orchestrator.worker.model import snapshot

_LENGTH_BYTES = 8


def encode(rows: Mapping[int, State]) -> torch.Tensor:
    """uint8, for `Exchange.gather`."""
    tensors = snapshot.named_rows(rows)
    header = json.dumps([[n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in tensors.items()]).encode()
    length = len(header).to_bytes(_LENGTH_BYTES, "little")
    return torch.cat([of_bytes(length + header), *(bytes_of(tensor.cpu()) for tensor in tensors.values())])


def decode(payload: torch.Tensor) -> dict[int, dict[str, torch.Tensor]]:
    """The rows, in memory of their own."""
    length = int.from_bytes(payload[:_LENGTH_BYTES].numpy().tobytes(), "little")
    at = _LENGTH_BYTES + length
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype, shape in json.loads(payload[_LENGTH_BYTES:at].numpy().tobytes()):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        raw = bytes_of(tensor)
        raw.copy_(payload[at : at + raw.numel()])
        tensors[name] = tensor
        at += raw.numel()
    return snapshot.rows_of(tensors)


def fallback_rows(
    exchange: Exchange, number: int, fallbacks: Sequence[Sequence[int]], own: Mapping[int, State]
) -> dict[int, State]:
    """In a replay, where hosts are others: what lost shards go on with, as they did then; nothing for a server. fallbacks:
    (lost, fallback) pairs in order, of which a later one may have an earlier one's lost shard for a fallback; number: of the
    rest; own: what the shards keep that are hosted here."""
    if not fallbacks:
        return {}
    concerned = {shard for pair in fallbacks for shard in pair}
    rows: dict[int, State] = {}
    for payload in exchange.gather(number, 0, FALLBACKS, encode({s: row for s, row in own.items() if s in concerned})):
        rows.update(decode(payload))
    if rows:
        for lost, fallback in fallbacks:
            rows[lost] = rows[fallback]
    return {lost: rows[lost] for lost, _ in fallbacks if lost in own}
