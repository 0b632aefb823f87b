"""The wire format: one fixed header per frame, then the payload's bytes if they travel with it.

A frame is a payload (INLINE: its bytes follow; PACKED: they follow in the packed form of `numerics.lossless_packing`; REGION:
it lies in the sender's region `region` at `offset`), a TRUST: whether the sender has mapped the receiver's regions and reads
there what was written, or a FAREWELL: the sender leaves the generation and sends nothing more.
Everything is in the machine's byte order and nothing is pickled.

Nothing is negotiated. Both ends run the same code of the same run; the magic number catches a stream that slipped and a peer
of the other byte order.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import torch

from orchestrator.comm.transports.base import ProtocolError, Tag
from orchestrator.numerics import lossless_packing

INLINE: Final = 1
REGION: Final = 2
FAREWELL: Final = 3
PACKED: Final = 4
TRUST: Final = 5

# The index is the code on the wire: append only.
DTYPES: Final = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8,
    torch.bfloat16, torch.float16, torch.int16, torch.int8, torch.bool,
)  # fmt: skip
_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}

# magic, kind, dtype, region | generation, step | attempt, phase, chunk, piece | offset or narrow bytes, elements | note
_HEADER: Final = struct.Struct("=IBBHqqiiiiQQq")
_MAGIC: Final = 0x6F726366
_KINDS: Final = (INLINE, REGION, FAREWELL, PACKED, TRUST)
HEADER_BYTES: Final = _HEADER.size


class Frame(NamedTuple):
    """The fields of a header."""

    kind: int  # INLINE, REGION, FAREWELL, PACKED or TRUST
    tag: Tag  # what the message is
    dtype: torch.dtype = torch.uint8  # of the payload's elements
    elements: int = 0  # of the payload
    note: int = 0  # 64 bits beside the payload, signed; of a TRUST 1 or 0
    region: int = 0  # of a REGION, the number of the sender's region
    offset_bytes: int = 0  # of a REGION, where in it the payload lies
    packed_bytes: int = 0  # of a PACKED one, how many bytes follow


def encode(frame: Frame) -> bytes:
    """Raises TypeError for a dtype that has no code, struct.error for a number that does not fit its field."""
    code = _CODES.get(frame.dtype)
    if code is None:
        raise TypeError(f"{frame.dtype} cannot be sent; these can: {', '.join(map(str, DTYPES))}")
    payload = frame.packed_bytes or frame.offset_bytes, frame.elements, frame.note
    return _HEADER.pack(_MAGIC, frame.kind, code, frame.region, *frame.tag, *payload)


def decode(header: bytes | bytearray) -> Frame:
    """Raises ProtocolError for anything that `encode` did not write."""
    magic, kind, code, region, *tag, extent, elements, note = _HEADER.unpack(header)
    if magic != _MAGIC or kind not in _KINDS or code >= len(DTYPES):
        raise ProtocolError(f"no frame starts with {bytes(header[:8])!r}")
    frame = Frame(kind, Tag(*tag), DTYPES[code], elements, note, region)
    if kind != PACKED:
        return frame._replace(offset_bytes=extent)
    if frame.dtype not in lossless_packing.DTYPES or not lossless_packing.least_bytes(
        elements
    ) <= extent <= lossless_packing.most_bytes(elements):
        raise ProtocolError(f"{elements} x {frame.dtype} are never narrowed to {extent} bytes")
    return frame._replace(packed_bytes=extent)


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a 1-D contiguous tensor, without a copy; writing there writes the tensor."""
    view: Any = tensor.detach().view(torch.uint8).numpy()
    return memoryview(view)
