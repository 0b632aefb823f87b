"""Memory of one member that peers of the same host read in place: one sealed memfd per region.

Why memfds: they have no name, so a member killed with SIGKILL leaves nothing behind; a peer gets a descriptor through
a Unix socket (`sockets.py`) and maps it. Why all pages are taken at creation, and the file sealed against shrinking:
a memory that is full is a MemoryError then and not a SIGBUS in the middle of a step (rule C3).

Why libc's mmap and not Python's: `mmap.mmap` keeps a duplicate of the descriptor for as long as the mapping lives,
and `torch.frombuffer` warns about a read-only one. Here a mapping is a ctypes array that tensors keep alive: the
descriptor is closed at once, the pages are unmapped when the last tensor of them is gone, and nobody can unmap them
under a tensor.

Peers map read only. To write into a peer's memory is a fault of ours, and it ends in SIGSEGV at the line that did it
(faulthandler shows it) rather than in wrong gradients at somebody else's.

Source: memfd_create(2), "File sealing" in fcntl(2). Linux only. Accesses are not ordered here. A peer may read what a message
told it about, while the schedule says that the owner does not write (rules C1 and C4).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Sequence

import torch

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.comm.transports.base import HOST, Descriptor, Mapped
from orchestrator.comm.transports.region_index import RegionIndex
from orchestrator.common.kernel_calls import has_fixed_size, memory_file, seal_size
from orchestrator.numerics import cuda

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """The pages of one memfd in this process, as tensors; unmapped when the mapping and all its tensors are gone."""

    def __init__(self, fd: int, size_bytes: int, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size_bytes, protection, mmap.MAP_SHARED, fd, 0)
        if address in (None, _MAP_FAILED) and ctypes.get_errno() == errno.ENOMEM:
            raise MemoryError(
                f"a shared region of {size_bytes} bytes cannot be mapped: no addresses are left (ulimit -v)"
            )
        if address in (None, _MAP_FAILED):
            raise OSError(ctypes.get_errno(), f"cannot map a region of {size_bytes} bytes")
        self.address: int = address
        self.size_bytes = size_bytes
        self._pages = (ctypes.c_char * size_bytes).from_address(address)
        # Not at exit: a tensor may outlive the interpreter's last lines, and the kernel unmaps everything anyway.
        weakref.finalize(self._pages, _unmap, address, size_bytes).atexit = False

    def tensor(self, dtype: torch.dtype, offset_bytes: int, elements: int) -> torch.Tensor:
        """A view: [elements]. Raises ValueError when that is not inside the region."""
        if not 0 <= offset_bytes <= offset_bytes + elements * dtype.itemsize <= self.size_bytes:
            raise ValueError(f"{elements} x {dtype} at {offset_bytes} is outside a region of {self.size_bytes} bytes")
        if elements == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._pages, dtype=dtype, count=elements, offset=offset_bytes)


class SharedRegions:
    """Implements `base.SharableRegions` in host memory; one thread allocates and closes."""

    kind = HOST

    def __init__(self) -> None:
        self._descriptors: list[Descriptor] = []
        self._mappings: list[Mapping] = []
        self._index = RegionIndex()

    @property
    def descriptors(self) -> tuple[Descriptor, ...]:
        """In the order of allocation, so that `locate` gives indices into it; they stay this object's."""
        return tuple(self._descriptors)

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A new zeroed 1-D tensor, its start on a page boundary. Raises MemoryError when it is not there *now*."""
        if elements == 0:
            return torch.empty(0, dtype=dtype)
        size_bytes = elements * dtype.itemsize
        fd = _allocated_memfd(size_bytes)
        try:
            mapping = Mapping(fd, size_bytes, writable=True)
            seal_size(fd)
        except BaseException:
            os.close(fd)
            raise
        self._index.add(mapping.address, size_bytes)
        self._mappings.append(mapping)
        self._descriptors.append(Descriptor(fd, size_bytes))
        return mapping.tensor(dtype, 0, elements)

    def locate(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        return self._index.locate(tensor)

    def free(self, region: torch.Tensor) -> None:
        """Its pages go when no tensor here and no mapping of a peer holds them. The others move up in `descriptors`, so nobody
        may be connected."""
        found = self.locate(region)
        if found is None:
            return
        position, _ = found
        os.close(self._descriptors.pop(position).fd)
        del self._mappings[position]
        self._index.remove(position)

    def map_peer(self, descriptor: Descriptor) -> Mapped:
        return map_peer(descriptor)

    def trusts(self, memory: Sequence[Mapped]) -> bool:  # noqa: ARG002
        return True

    def settle(self) -> None:
        """Nothing to wait for: writes to host memory are done when they return."""

    def leaving(self, payload: torch.Tensor, *, packs: bool) -> None:
        """All lies in host memory."""

    def memory_for(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype)

    def close(self) -> None:
        """Give the memory back: descriptors now, pages once no tensor here and no mapping of a peer holds them."""
        descriptors, self._descriptors = self._descriptors, []
        self._mappings, self._index = [], RegionIndex()
        for descriptor in descriptors:
            os.close(descriptor.fd)


def _unmap(address: int, size_bytes: int) -> None:
    cuda.page_unlock(address, size_bytes)
    _libc.munmap(address, size_bytes)


def map_peer(descriptor: Descriptor) -> Mapping:
    """Map a peer's region read only; the descriptor stays the caller's. Raises ValueError if it could shrink."""
    size_bytes = os.fstat(descriptor.fd).st_size
    sealed = has_fixed_size(descriptor.fd)
    if not sealed or not 0 < descriptor.size_bytes <= size_bytes:
        raise ValueError(f"a region of {descriptor.size_bytes} bytes needs a sealed file, got {size_bytes}, {sealed=}")
    return Mapping(descriptor.fd, descriptor.size_bytes, writable=False)


def _allocated_memfd(size_bytes: int) -> int:
    # The kernel would try, and let the OOM killer choose a victim, so the question is asked before.
    available = available_bytes()
    if size_bytes > available:
        raise MemoryError(f"a shared region of {size_bytes} bytes is needed, {available} bytes of memory are available")
    fd = memory_file("orchestrator")
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise MemoryError(f"a shared region of {size_bytes} bytes cannot be had: {error.strerror}") from error
        raise
    return fd
