"""The driver calls of a device's memory, on host memory: descriptors, mappings and their ends are true, the device is not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

import torch

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.comm.transports.base import Mapped
from orchestrator.comm.transports.device_memory import DeviceMemoryFull, DeviceRegions
from orchestrator.comm.transports.shared_memory import Mapping
from orchestrator.numerics.device.kernels import Packer


class HostDriver:
    """Implements `device_memory.Driver`. mapped: the addresses that are; settled: how often it was waited."""

    granularity = 1 << 14
    device = torch.device("cpu")

    def __init__(self, *, refuses: bool = False) -> None:
        self.mapped: dict[int, Mapping] = {}
        self.settled = 0
        self._refuses = refuses

    def create(self, size_bytes: int) -> int:
        if size_bytes > available_bytes():
            raise DeviceMemoryFull(size_bytes)
        fd = os.memfd_create("device", os.MFD_CLOEXEC)
        os.truncate(fd, size_bytes)
        return fd

    def export(self, handle: int) -> int:
        return os.dup(handle)

    def take(self, fd: int) -> int:
        if self._refuses:
            raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED")
        return os.dup(fd)

    def map(self, handle: int, size_bytes: int, *, writable: bool) -> int:
        mapping = Mapping(handle, size_bytes, writable)
        self.mapped[mapping.address] = mapping
        return mapping.address

    def give_back(self, handle: int, address: int, size_bytes: int) -> None:
        assert self.mapped.pop(address).size_bytes == size_bytes
        os.close(handle)

    def tensor(self, owner: object, address: int, dtype: torch.dtype, elements: int) -> torch.Tensor:
        if elements == 0:
            return torch.empty(0, dtype=dtype)
        pages = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        pages.owner = owner  # type: ignore[attr-defined]
        return torch.frombuffer(pages, dtype=dtype)

    def settle(self) -> None:
        self.settled += 1

    def mark(self) -> Callable[[], None]:
        return self.settle


def regions(packer: Packer | None = None) -> DeviceRegions:
    return DeviceRegions(HostDriver(), packer)


class Damaged(DeviceRegions):
    """Data that a peer has written arrives changed."""

    def trusts(self, memory: Sequence[Mapped]) -> bool:
        seen = memory[0].tensor(torch.int64, 0, 8)
        return super().trusts(memory) and not seen.any()


def damaged(packer: Packer | None = None) -> DeviceRegions:
    return Damaged(HostDriver(), packer)


def refused(packer: Packer | None = None) -> DeviceRegions:
    return DeviceRegions(HostDriver(refuses=True), packer)
