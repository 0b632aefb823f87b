"""A state divided among writers, and one part as a file: divide, copy, write, read.

The copy is laid out as the body of the file that is to be written, so that nothing is serialised afterwards and no second
copy is made. Its memory is used again for the next checkpoint, because the first touch of fresh memory costs several times
the copy.

The file is in the safetensors format: 8 bytes of length, a JSON header, the values. Its header carries the SHA-256 of every
tensor, and the file is named by the SHA-256 of the header. So the name stands for every bit, and yet each bit is hashed only
once: if all cores compute, hashing is most of what a checkpoint costs. A dtype that the format does not have travels as
bytes; the manifest knows what it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import safetensors
import torch

from orchestrator.checkpoint.manifest import Blob, TensorEntry, blob_name, readable
from orchestrator.checkpoint.state import digest
from orchestrator.checkpoint.storage import Storage
from orchestrator.errors import CheckpointDamaged
from orchestrator.numerics import foreach

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_LENGTH_BYTES = 8
_HEADER_ALIGNMENT = 8
_LARGE_BYTES = 2**26
_HASHING = 4  # threads


def divide(sizes: Mapping[str, int], writers: int) -> list[list[str]]:
    """The names for each writer, balanced by bytes, no tensor cut: the largest first, each to who has least so far.

    A pure function of names and sizes, so every member finds the same. A writer may get nothing.
    """
    shares: list[list[str]] = [[] for _ in range(writers)]
    loads = [0] * writers
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += size
    return [sorted(share) for share in shares]


def share_of(
    tensors: Mapping[str, torch.Tensor], part: int, parts: int, own: Set[str] = frozenset()
) -> dict[str, torch.Tensor]:
    """The tensors that writer `part` of `parts` writes. own: names of those that no other writer has."""
    if parts == 1:
        return dict(tensors)
    names = divide({name: tensor.nbytes for name, tensor in tensors.items() if name not in own}, parts)[part]
    return {name: tensors[name] for name in [*names, *sorted(own)]}


@dataclass(frozen=True)
class CheckpointPart:
    """The tensors that one writer puts into a checkpoint, copied into one piece of memory. tensors: views of body, row-major,
    one after the other without gaps."""

    tensors: dict[str, torch.Tensor]
    body: torch.Tensor  # uint8

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy these, which are some of the part's, into their places."""
        if tensors:
            with torch.no_grad():
                foreach.copy([self.tensors[name] for name in tensors], list(tensors.values()))


def host_memory(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8)


class Copier:
    """Owns the memory of one copy. The copy before is overwritten by the next one."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._is_of: Callable[[int], torch.Tensor] = host_memory
        self._plan: list[tuple[str, torch.dtype, torch.Size]] = []
        self._part = CheckpointPart({}, self._memory)

    def copy(
        self,
        tensors: Mapping[str, torch.Tensor],
        later: Set[str] = frozenset(),
        memory: Callable[[int], torch.Tensor] = host_memory,
    ) -> CheckpointPart:
        """Copy the named tensors into one piece of memory. later: names of tensors that only get a place, for the caller to
        fill; memory: makes so many bytes. Raises MemoryError."""
        self._take_from(memory)
        plan = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        if plan != self._plan:
            self._part = self._lay_out(sorted(plan, key=lambda place: (-place[1].itemsize, place[0])))
            self._plan = plan
        self._part.fill({name: tensor for name, tensor in tensors.items() if name not in later})
        return self._part

    def reserve(self, size_bytes: int, memory: Callable[[int], torch.Tensor]) -> None:
        """Have that much for the next copy, made by `memory`. Raises MemoryError."""
        self._take_from(memory)
        self._reserve(size_bytes)

    def _take_from(self, memory: Callable[[int], torch.Tensor]) -> None:
        if memory != self._is_of:
            self._let_go()
            self._is_of = memory

    def _lay_out(self, plan: Sequence[tuple[str, torch.dtype, torch.Size]]) -> CheckpointPart:
        """plan: wide dtypes first, so that each tensor lies at a multiple of its element's size."""
        ends = list(itertools.accumulate(dtype.itemsize * shape.numel() for _, dtype, shape in plan))
        self._reserve(ends[-1] if ends else 0)
        views = {
            name: self._memory[start:end].view(dtype).view(shape)
            for (name, dtype, shape), (start, end) in zip(plan, itertools.pairwise([0, *ends]), strict=True)
        }
        return CheckpointPart(views, self._memory[: ends[-1] if ends else 0])

    def _reserve(self, size_bytes: int) -> None:
        if len(self._memory) < size_bytes:
            self._let_go()  # the old memory goes before the new comes
            try:
                self._memory = self._is_of(size_bytes)
            except RuntimeError as error:  # what torch raises when there is no memory
                raise MemoryError(f"no memory for a copy of {size_bytes} bytes") from error

    def _let_go(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._plan, self._part = [], CheckpointPart({}, self._memory)


def write_part(storage: Storage, part: CheckpointPart) -> Blob:
    """Write one blob. Raises OSError."""
    hashed = _digests(part.tensors)
    entries = {
        name: TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), hashed[name])
        for name, tensor in part.tensors.items()
    }
    header, body = _header(part.tensors, entries), part.body.numpy().data
    blob = Blob(_name(header), len(header) + len(body), entries)
    storage.put(blob.name, [header, body])
    return blob


def read_part(storage: Storage, blob: Blob) -> dict[str, torch.Tensor]:
    """The tensors of a blob, every bit verified. Raises CheckpointDamaged, or OSError when the storage fails."""
    try:
        data = storage.get(blob.name)
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"its file {blob.name} is missing", code="checkpoint.file-missing") from error
    if len(data) != blob.size_bytes:
        raise CheckpointDamaged(
            f"its file {blob.name} has {len(data)} bytes instead of {blob.size_bytes}", code="checkpoint.file-size"
        )
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if _name(data[: _LENGTH_BYTES + length]) != blob.name:
        raise CheckpointDamaged(
            f"its file {blob.name} was altered: the digest of its header is another one",
            code="checkpoint.header-altered",
        )
    try:
        read = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise CheckpointDamaged(
            f"its file {blob.name} is no safetensors file: {error}", code="checkpoint.not-safetensors"
        ) from error
    if read.keys() != blob.tensors.keys():
        raise CheckpointDamaged(
            f"its file {blob.name} holds other tensors than the manifest says", code="checkpoint.other-tensors"
        )
    return _verified({name: _tensor(name, read[name]["data"], entry) for name, entry in blob.tensors.items()}, blob)


def read_some(storage: Storage, blob: Blob, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """These tensors of a blob, every bit of them verified; the others are not read. Raises as `read_part`."""
    found: dict[str, torch.Tensor] = {}
    names = [name for name in blob.tensors if wanted(name)]
    if not names:
        return found
    try:
        header = storage.get(blob.name, 0, _LENGTH_BYTES)
        begin = _LENGTH_BYTES + min(int.from_bytes(header, "little"), blob.size_bytes)
        header = storage.get(blob.name, 0, begin)
        if _name(header) != blob.name:
            raise CheckpointDamaged(
                f"its file {blob.name} was altered: the digest of its header is another one",
                code="checkpoint.header-altered",
            )
        with readable(f"the header of {blob.name}"):
            fields = json.loads(header[_LENGTH_BYTES:])
        for name in names:
            if name not in fields:
                raise CheckpointDamaged(
                    f"its file {blob.name} holds other tensors than the manifest says", code="checkpoint.other-tensors"
                )
            with readable(f"the header of {blob.name}"):
                start, stop = map(int, fields[name]["data_offsets"])
            data = bytearray(storage.get(blob.name, begin + start, begin + stop))
            found[name] = _tensor(name, data, blob.tensors[name])
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"its file {blob.name} is missing", code="checkpoint.file-missing") from error
    return _verified(found, blob)


def _tensor(name: str, data: bytearray, entry: TensorEntry) -> torch.Tensor:
    raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    dtype = vars(torch).get(entry.dtype)
    try:
        assert isinstance(dtype, torch.dtype)
        tensor = raw.view(dtype).view(entry.shape)
    except (AssertionError, RuntimeError, TypeError, OverflowError) as error:
        raise CheckpointDamaged(
            f"the tensor {name!r} is no {entry.dtype} of shape {entry.shape}", code="checkpoint.tensor-form"
        ) from error
    return tensor


def _verified(tensors: dict[str, torch.Tensor], blob: Blob) -> dict[str, torch.Tensor]:
    for name, found in _digests(tensors).items():
        if found != blob.tensors[name].sha256:
            raise CheckpointDamaged(
                f"the tensor {name!r} was altered: its digest is another one", code="checkpoint.tensor-altered"
            )
    return tensors


def _digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The digest of each. Some threads share the work where it is large: one hashes 1 to 2 GB in a second."""
    threads = min(_HASHING, len(os.sched_getaffinity(0)))
    if threads == 1 or sum(tensor.nbytes for tensor in tensors.values()) < _LARGE_BYTES:
        return {name: digest(tensor) for name, tensor in tensors.items()}
    with ThreadPoolExecutor(threads, "digests") as pool:
        return dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))


def _name(header: bytes) -> str:
    return blob_name(hashlib.sha256(header).hexdigest())


def _header(tensors: Mapping[str, torch.Tensor], entries: Mapping[str, TensorEntry]) -> bytes:
    fields: dict[str, Any] = {"__metadata__": {name: entry.sha256 for name, entry in entries.items()}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        known = tensor.dtype in _DTYPES
        fields[name] = {
            "dtype": _DTYPES.get(tensor.dtype, "U8"),
            "shape": list(tensor.shape) if known else [tensor.nbytes],
            "data_offsets": [start, end],
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
