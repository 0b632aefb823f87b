"""Weights as a safetensors file, made piece by piece: nobody has to have them twice, or all at once.

    Weights   the file of tensors that are here: written, or read in pieces by somebody else; one tensor is copied at a time
    merge     one file of several, each with a part of the tensors: bytes are copied, no tensor is made

The bytes are those that `safetensors.torch.save_file` writes: 8 bytes of length, a JSON header, the values, wide types first.
"""

from __future__ import annotations

import itertools
import json
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import torch

from orchestrator.numerics.byte_layout import bytes_of

# From first to last in a file, with their names there.
_KINDS: Final = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ALIGNMENT: Final = 8
_LENGTH: Final = struct.Struct("<Q")
_PIECE_BYTES: Final = 4 << 20


class _Entry(NamedTuple):
    """A tensor in a file. kind: the name of its type there."""

    kind: str
    shape: tuple[int, ...]
    size_bytes: int


class Weights:
    """The file of these tensors, by name, which stay as they are meanwhile. Raises ValueError for a type not known here."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        unknown = sorted({str(each.dtype) for each in tensors.values()} - {str(dtype) for dtype in _KINDS})
        if unknown:
            raise ValueError(f"weights of type {unknown[0]} cannot be written")
        entries = {name: _Entry(_KINDS[each.dtype], tuple(each.shape), each.nbytes) for name, each in tensors.items()}
        self._tensors = tensors
        self._names = _in_order(entries)
        self._head = _head(entries)
        sizes = [len(self._head), *(entries[name].size_bytes for name in self._names)]
        self._ends = list(itertools.accumulate(sizes))
        self._last: tuple[int, memoryview] | None = None

    def write(self, path: Path) -> None:
        """Raises OSError."""
        with path.open("wb") as file:
            while piece := self.read(file.tell(), _PIECE_BYTES):
                file.write(piece)

    def read(self, offset: int, limit: int) -> bytes:
        """At most so many bytes of the file from here on, empty at its end."""
        piece = bytearray()
        end = min(offset + limit, self._ends[-1])
        while (at := offset + len(piece)) < end:
            number = bisect_right(self._ends, at)
            start = at - (self._ends[number - 1] if number else 0)
            piece += self._content(number)[start : start + end - at]
        return bytes(piece)

    def _content(self, number: int) -> memoryview:
        """The bytes of the header, which is number 0, or of a tensor. The one that was asked for last is kept."""
        if number == 0:
            return memoryview(self._head)
        if self._last is None or self._last[0] != number:
            self._last = number, bytes_of(self._tensors[self._names[number - 1]].cpu()).numpy().data
        return self._last[1]


def merge(parts: Sequence[Path], path: Path) -> None:
    """Each tensor is in one of the parts. Raises OSError."""
    where: dict[str, tuple[Path, int]] = {}
    entries: dict[str, _Entry] = {}
    for part in parts:
        with part.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            fields = json.loads(file.read(length))
        for name, field in fields.items():
            assert name not in entries, f"{name!r} is in two parts"
            start, end = field["data_offsets"]
            entries[name] = _Entry(field["dtype"], tuple(field["shape"]), end - start)
            where[name] = part, _LENGTH.size + length + start
    with path.open("wb") as file:
        file.write(_head(entries))
        for name in _in_order(entries):
            part, start = where[name]
            with part.open("rb") as source:
                source.seek(start)
                _copy(source, file, entries[name].size_bytes)


def _copy(source: BinaryIO, target: BinaryIO, size_bytes: int) -> None:
    while size_bytes:
        piece = source.read(min(size_bytes, _PIECE_BYTES))
        if not piece:
            raise OSError(f"{source.name} ends too early")
        target.write(piece)
        size_bytes -= len(piece)


def _in_order(entries: Mapping[str, _Entry]) -> list[str]:
    order = list(_KINDS.values())
    return sorted(entries, key=lambda name: (order.index(entries[name].kind), name))


def _head(entries: Mapping[str, _Entry]) -> bytes:
    """Its length, and the header."""
    fields, end = {}, 0
    for name in _in_order(entries):
        kind, shape, size_bytes = entries[name]
        start, end = end, end + size_bytes
        fields[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return _LENGTH.pack(len(header)) + header
