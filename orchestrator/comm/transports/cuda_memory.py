"""The driver calls behind `device_memory` on a GPU of NVIDIA, by `cuda.bindings`.

Why not CUDA's IPC handles: they promise nothing about memory whose owner has died, and refuse torch's expandable segments. Why
not torch's symmetric memory: it compares ordinals, where each worker of Ray calls its own card 0, and its kernels wait for
peers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch

from orchestrator.comm.transports.device_memory import DeviceMemoryFull
from orchestrator.numerics.cuda import DriverCalls, answered


class CudaDriver:
    """Implements `device_memory.Driver` for the current device of torch, which this starts."""

    def __init__(self) -> None:
        self._call = DriverCalls()
        self._cuda = driver = self._call.driver
        self._device = torch.cuda.current_device()
        self.device = torch.device("cuda", self._device)
        self._kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._place = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self._call("cuMemGetAllocationGranularity", self._properties(), least))

    def create(self, size_bytes: int) -> Any:
        out_of_memory = self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        answer = self._call.answer("cuMemCreate", size_bytes, self._properties(), 0)
        if answer[0] == out_of_memory:
            torch.cuda.empty_cache()  # what torch keeps for later allocations of its own
            answer = self._call.answer("cuMemCreate", size_bytes, self._properties(), 0)
        if answer[0] == out_of_memory:
            raise DeviceMemoryFull(size_bytes)
        return answered(answer, "cuMemCreate")

    def export(self, handle: Any) -> int:
        fd = int(self._call("cuMemExportToShareableHandle", handle, self._kind, 0))
        os.set_inheritable(fd, False)  # the memory would last as long as a program that this process starts
        return fd

    def take(self, fd: int) -> Any:
        return self._call("cuMemImportFromShareableHandle", fd, self._kind)

    def map(self, handle: Any, size_bytes: int, *, writable: bool) -> int:
        address = 0
        try:
            address = int(self._call("cuMemAddressReserve", size_bytes, 0, 0, 0))
            self._call("cuMemMap", address, size_bytes, 0, handle, 0)
            flags = self._cuda.CUmemAccess_flags
            # Not every driver has memory that is only read; nobody writes into a peer's in either case.
            if writable or not self._opened(address, size_bytes, flags.CU_MEM_ACCESS_FLAGS_PROT_READ):
                self._open(address, size_bytes, flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        except RuntimeError:
            self.give_back(handle, address, size_bytes)
            raise
        return address

    def _opened(self, address: int, size_bytes: int, flags: Any) -> bool:
        try:
            self._open(address, size_bytes, flags)
        except RuntimeError:
            return False
        return True

    def _open(self, address: int, size_bytes: int, flags: Any) -> None:
        """Have this device use that range. Raises RuntimeError."""
        access = self._cuda.CUmemAccessDesc()
        access.location.type, access.location.id = self._place, self._device
        access.flags = flags
        self._call("cuMemSetAccess", address, size_bytes, [access], 1)

    def give_back(self, handle: Any, address: int, size_bytes: int) -> None:
        # Its answers are not looked at: a card that has failed takes all back with the process.
        with contextlib.suppress(RuntimeError):
            # A kernel that still reads what is unmapped ends the process. A recording waits for nothing.
            if not torch.cuda.is_current_stream_capturing():
                self.settle()
        with contextlib.suppress(RuntimeError):
            if address:
                self._call.answer("cuMemUnmap", address, size_bytes)
                self._call.answer("cuMemAddressFree", address, size_bytes)
            self._call.answer("cuMemRelease", handle)

    def tensor(self, owner: object, address: int, dtype: torch.dtype, elements: int) -> torch.Tensor:
        if elements == 0:
            return torch.empty(0, dtype=dtype, device=self.device)
        found = torch.as_tensor(_Interface(owner, address, elements * dtype.itemsize), device=self.device).view(dtype)
        if found.data_ptr() != address:  # a copy, which would never change
            raise RuntimeError("torch takes memory of another GPU for none of this one")
        return found

    def settle(self) -> None:
        torch.cuda.current_stream().synchronize()

    def mark(self) -> Callable[[], None]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.synchronize

    def _properties(self) -> Any:
        properties = self._cuda.CUmemAllocationProp()
        properties.type = self._cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type, properties.location.id = self._place, self._device
        properties.requestedHandleTypes = self._kind
        return properties


class _Interface:
    """Bytes as torch takes them: the tensor keeps this object, and so the owner."""

    def __init__(self, owner: object, address: int, size_bytes: int) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),  # torch takes nothing that calls itself read only
            "version": 3,
            "strides": None,
        }
