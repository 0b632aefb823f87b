"""A safetensors file of weights, written tensor by tensor: nobody has to have them all at once.

The bytes are those that `safetensors.torch.save_file` writes: 8 bytes of length, a JSON header, the values, wide types first.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

# From first to last in a file, with their names there.
_KINDS: Final = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ALIGNMENT: Final = 8


def write_weights(path: Path, likes: Mapping[str, torch.Tensor], read: Callable[[str], torch.Tensor]) -> None:
    """likes: by name, a tensor of the shape and the type of what `read` returns for that name. Raises OSError, and ValueError
    for a type that is not known here."""
    unknown = sorted({str(like.dtype) for like in likes.values()} - {str(dtype) for dtype in _KINDS})
    if unknown:
        raise ValueError(f"weights of type {unknown[0]} cannot be written")
    order = list(_KINDS)
    names = sorted(likes, key=lambda name: (order.index(likes[name].dtype), name))
    fields, end = {}, 0
    for name in names:
        shape, dtype = tuple(likes[name].shape), likes[name].dtype
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        fields[name] = {"dtype": _KINDS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name in names:
            plain = read(name).detach().cpu().contiguous()
            file.write(plain.reshape(-1).view(torch.uint8).numpy().data)
