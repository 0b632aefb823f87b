"""`sums.cu` on the card at hand: compiled by NVRTC in half a second, launched on torch's current stream.

Why CUDA C by NVRTC and not Triton: a worker needs no C compiler and no headers of Python, and what it compiles is one small
file, which is kept for later processes. Numbers arrive as float64, and roundings stand in the source. A C++ compiler runs the
same source on a processor, so its bits are tested where no card is. Both packages come with torch's build for CUDA.
Source: NVIDIA, "NVRTC" and "CUDA Driver API", module and execution control; by `cuda.bindings`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.common import file_cache
from orchestrator.numerics.compiled import inverts
from orchestrator.numerics.cuda import DriverCalls, answered
from orchestrator.numerics.device.kernels import SIZE_BYTES, Adder, moved, packed_room
from orchestrator.numerics.exact import start_of
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.numerics.levels import Rounding
from orchestrator.numerics.lossless_packing import PackedVector, blocks_of

SOURCE: Final = Path(__file__).with_name("sums.cu")
_THREADS: Final = 256  # of a block: its warps hide the memory's latency, and a piece keeps all of them busy
_WARPS: Final = _THREADS // 32  # of a block; each packs elements by itself
_BLOCKS: Final = 16  # of kernels whose blocks take several pieces each, for each multiprocessor
_TABLES: Final = 64  # of addresses that are kept: gradients often lie where those of a shard before lay
_POINTER, _DOUBLE, _INT, _LONG = ctypes.c_void_p, ctypes.c_double, ctypes.c_int, ctypes.c_longlong
ADD: Final = (*[_POINTER] * 7, _DOUBLE, _INT)
PARTS: Final = 8  # of a sum, that a kernel adds up in one pass
JOIN: Final = (*[_POINTER] * PARTS, _INT, _POINTER, _LONG)
FINISH: Final = (*[_POINTER] * PARTS, _INT, _POINTER, _POINTER, _DOUBLE, _DOUBLE, _LONG, _LONG)
DIFFER: Final = (*[_POINTER] * 4, _DOUBLE, _DOUBLE, _LONG)
ABSORB: Final = (*[_POINTER] * 5, _LONG)
QUANTIZE: Final = (_POINTER, _INT, _DOUBLE, _INT, _INT)
MEASURE: Final = (_POINTER, _LONG, _INT, _POINTER)
PLACE: Final = (_POINTER, _LONG, _POINTER, _POINTER)
PACK: Final = (_POINTER, _LONG, _INT, *[_POINTER] * 3)
UNPACK: Final = (_POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER)
KINDS: Final = {
    "add": ADD,
    "add_plain": ADD,
    "join": JOIN,
    "finish": FINISH,
    "differ": DIFFER,
    "absorb": ABSORB,
    "quantize": QUANTIZE,
    "measure": MEASURE,
    "place": PLACE,
    "pack": PACK,
    "unpack": UNPACK,
}


class CompilationFailed(Exception):
    """No kernels can be had here; the message says why."""


def compiled(architecture: str, kind: str = "cubin") -> bytes:
    """The code of `sums.cu` for an architecture such as "sm_90", as cubin or ptx. Needs no GPU. Raises CompilationFailed.

    A card may be newer than NVRTC: then the ptx of the newest architecture before it, which the driver compiles for the card.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompilationFailed(f"cuda.bindings is not installed: {error}") from error
    try:
        program = answered(nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), b"sums.cu", 0, [], []))
        architecture, kind = _target(architecture, kind, answered(nvrtc.nvrtcGetSupportedArchs()))
    except RuntimeError as error:  # the library itself was not found
        raise CompilationFailed(f"NVRTC cannot be loaded: {error}") from error
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
        log = b" " * answered(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CompilationFailed(f"NVRTC cannot compile sums.cu for {architecture}: {log.decode(errors='replace')}")
    size_of, get = (
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        if kind == "cubin"
        else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    )
    code: bytes = b" " * int(answered(size_of(program)))
    answered(get(program, code))
    return code


def _target(architecture: str, kind: str, known: Sequence[int]) -> tuple[str, str]:
    """The architecture and the kind of code to ask for. known: by NVRTC, as numbers such as 90. Pure."""
    wanted = int(re.sub(r"\D", "", architecture))
    older = [number for number in known if number < wanted]
    return (architecture, kind) if wanted in known or not older else (f"compute_{max(older)}", "ptx")


class Launcher:
    """Starts the kernels of a module on torch's current stream."""

    def __init__(self, code: bytes) -> None:
        self._call = DriverCalls()
        self._module = self._call("cuModuleLoadData", code)
        self._functions = {name: self._call("cuModuleGetFunction", self._module, name.encode()) for name in KINDS}
        self._card = torch.cuda.current_device()  # torch looks for CUDA each time that it is not told

    def __call__(self, name: str, blocks: int, values: Sequence[int | float], kinds: Sequence[Any]) -> None:
        stream = torch.cuda.current_stream(self._card).cuda_stream
        packed = (tuple(values), tuple(kinds))
        self._call("cuLaunchKernel", self._functions[name], blocks, 1, 1, _THREADS, 1, 1, 0, stream, packed, 0)


class Compiled:
    """Implements `Kernels`. launch: starts a kernel by its name; most_blocks: of a kernel whose blocks take
    several pieces each."""

    dtype = torch.float64

    def __init__(self, launch: Any, most_blocks: int) -> None:
        self._launch = launch
        self._most_blocks = most_blocks

    def adder(self, layout: Layout, total: torch.Tensor) -> Adder:
        return _Adding(self._launch, layout, total)

    def join(self, parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
        elements = into.numel()
        if not elements:
            return
        blocks = min(-(-elements // BLOCK), self._most_blocks)
        self._launch("join", blocks, (*_listed(parts[:PARTS]), start_of(into), elements), JOIN)
        for start in range(PARTS, len(parts), PARTS - 1):
            listed = _listed([into, *parts[start : start + PARTS - 1]])
            self._launch("join", blocks, (*listed, start_of(into), elements), JOIN)

    def finish(
        self,
        parts: Sequence[torch.Tensor],
        divisor: float,
        result: torch.Tensor,
        first_block: int,
        fingerprint: torch.Tensor,
    ) -> None:
        blocks = result.numel() // BLOCK
        if not blocks:
            return
        if len(parts) > PARTS:
            total = torch.empty_like(parts[0])
            self.join(parts[: 1 - PARTS], total)
            parts = [total, *parts[1 - PARTS :]]
        divisors = float(divisor), 1.0 / divisor if inverts(divisor) else 0.0
        values = (*_listed(parts), start_of(result), start_of(fingerprint), *divisors, blocks, first_block)
        self._launch("finish", min(blocks, self._most_blocks), values, FINISH)

    def differ(
        self,
        after: torch.Tensor,
        before: torch.Tensor,
        divisor: int,
        lsb: float,
        into: torch.Tensor,
        strange: torch.Tensor,
    ) -> None:
        elements = after.numel()
        if elements:
            places = tuple(map(start_of, (after, before, into, strange)))
            values = (*places, float(divisor), 1 / lsb, elements)
            self._launch("differ", min(-(-elements // BLOCK), self._most_blocks), values, DIFFER)

    def absorb(self, update: torch.Tensor, sums: Sequence[torch.Tensor], fingerprint: torch.Tensor) -> None:
        blocks = update.numel() // BLOCK
        if blocks:
            first, second, third = *map(start_of, sums), *[0] * (3 - len(sums))
            values = (start_of(update), first, second, third, start_of(fingerprint), blocks)
            self._launch("absorb", min(blocks, self._most_blocks), values, ABSORB)

    def quantize(self, rows: Sequence[Rounding], levels: float, *, keeps: bool) -> None:
        found = [row for row in rows if row.values.numel()]
        if not found:
            return
        firsts = [0, *accumulate(-(-row.values.numel() // BLOCK) for row in found)]
        table = [
            number
            for row, first in zip(found, firsts, strict=False)
            for number in (
                *(start_of(row.values, torch.float32), start_of(row.total), row.values.numel(), first),
                *numpy.array([row.factor, row.back]).view(numpy.int64).tolist(),
            )
        ]
        bits, there = 8 * found[0].total.itemsize, moved(table, found[0].values)
        self._launch("quantize", firsts[-1], (start_of(there), len(found), levels, bits, int(keeps)), QUANTIZE)

    def pack(self, values: torch.Tensor, into: torch.Tensor) -> None:
        elements, integers = values.numel(), int(values.dtype == torch.int64)
        assert into.numel() >= packed_room(elements)
        heads, places = values.new_empty((2, blocks_of(elements)), dtype=torch.int64)
        blocks, size = self._blocks(elements), into[:SIZE_BYTES]
        start, first, second = map(start_of, (values, heads, places))
        self._launch("measure", blocks, (start, elements, integers, first), MEASURE)
        self._launch("place", 1, (first, elements, second, start_of(size)), PLACE)
        at = start_of(into) + SIZE_BYTES
        self._launch("pack", blocks, (start, elements, integers, first, second, at), PACK)

    def unpack(self, packed: PackedVector, base: torch.Tensor | None, into: torch.Tensor) -> None:
        elements, on_card = packed.elements, into.device.type == "cuda"
        assert (into.numel(), into.dtype) == (elements, packed.dtype)
        places = torch.empty(blocks_of(elements), dtype=torch.int64, pin_memory=on_card)
        packed.locate(places)
        there = [each.to(into.device, non_blocking=on_card) for each in (packed.packed, places)]
        integers = int(packed.dtype == torch.int64)
        at, to = 0 if base is None else start_of(base, packed.dtype), start_of(into)
        self._launch("unpack", self._blocks(elements), (*map(start_of, there), elements, integers, at, to), UNPACK)

    def _blocks(self, elements: int) -> int:
        """The number of blocks of a kernel whose warps pack."""
        return max(1, min(-(-blocks_of(elements) // _WARPS), self._most_blocks))


def _listed(parts: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The addresses of the parts of a sum, of at most PARTS, and their number."""
    return (*map(start_of, parts), *[0] * (PARTS - len(parts)), len(parts))


class _Tables(NamedTuple):
    """Addresses of tensors, for a kernel that takes many. there: on the device; addresses: to be written there."""

    there: Sequence[torch.Tensor]
    addresses: list[tuple[int, ...]]


class _Adding:
    """Implements `Adder`."""

    def __init__(self, launch: Any, layout: Layout, total: torch.Tensor) -> None:
        self._launch = launch
        self._layout = layout
        self._total = total
        pieces = [
            (number, start, slot.offset + start, min(BLOCK, slot.elements - start))
            for number, slot in enumerate(layout.slots)
            for start in range(0, slot.elements, BLOCK)
        ]
        self._count = len(pieces)
        device = total.device
        self._slots = torch.tensor([piece[0] for piece in pieces], dtype=torch.int32, device=device)
        self._places = torch.tensor([piece[1:] for piece in pieces], dtype=torch.int64, device=device)
        self._tables: dict[tuple[int, ...], torch.Tensor] = {}
        self._recorded: _Tables | None = None  # of the recording that is being made

    @contextmanager
    def recording(self, shards: int) -> Iterator[object]:
        # Made before, since what a recording makes may lie where it had something else a moment ago. Filled behind it, since
        # it would copy them from host memory each time that it is done again.
        there = self._total.new_empty((shards, len(self._layout.slots)), dtype=torch.int64)
        recorded = self._recorded = _Tables(there.unbind(), [])
        try:
            yield there
        finally:
            self._recorded = None
        for table, addresses in zip(recorded.there, recorded.addresses, strict=True):
            table.copy_(moved(addresses, self._total))

    def __call__(
        self,
        tensors: Sequence[torch.Tensor | None],
        weight: float | torch.Tensor,
        anchors: torch.Tensor,
        largest: torch.Tensor,
        *,
        fresh: bool,
    ) -> None:
        if not self._count:
            return
        late, known = (start_of(weight), 0.0) if isinstance(weight, torch.Tensor) else (0, float(weight))
        addresses = self._table(tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors))
        tables = addresses, self._places, self._slots, anchors, self._total, largest
        values = (*map(start_of, tables), late, known, int(fresh))
        self._launch("add" if self._total.dtype == torch.float64 else "add_plain", self._count, values, ADD)

    def _table(self, addresses: tuple[int, ...]) -> torch.Tensor:
        if self._recorded is not None:
            self._recorded.addresses.append(addresses)
            return self._recorded.there[len(self._recorded.addresses) - 1]
        if addresses not in self._tables:
            if len(self._tables) == _TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[addresses] = moved(addresses, self._total)
        return self._tables[addresses]


@cache
def for_this_card() -> Compiled:
    """The kernels for the current device, on which torch has started CUDA. Raises CompilationFailed."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    launch = launcher(f"sm_{properties.major}{properties.minor}")
    return Compiled(launch, _BLOCKS * properties.multi_processor_count)


def launcher(architecture: str) -> Launcher:
    """A launcher of the code that an earlier process has kept, or of newly compiled code if there is none that this card
    takes. To compile would add half a second to each worker's start. Raises CompilationFailed."""
    made_by = f"{architecture} {torch.version.cuda}"  # whose build brings NVRTC
    name = f"sums-{hashlib.sha256(SOURCE.read_bytes() + made_by.encode()).hexdigest()[:32]}.cubin"
    kept = file_cache.read(file_cache.folders(__file__), name)
    if kept is not None:
        with contextlib.suppress(RuntimeError):  # such as of a driver that is older now
            return Launcher(kept)
    code = compiled(architecture)
    file_cache.keep(file_cache.folders(__file__), name, code)
    return Launcher(code)
