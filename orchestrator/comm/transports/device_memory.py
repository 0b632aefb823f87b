"""Memory of a GPU that peers of the same host read in place: another `Regions` for the same transport and the same schedules.

Each region is physical memory of the device with a file descriptor, which goes to a peer through a Unix socket as a memfd
does. A peer maps it read only. The memory lives as long as anybody has it mapped, so a member that is killed in the middle of
a kernel takes nothing from those that read. Its pages go when the last of them lets go, at the end of the generation.

Order: a message says that a payload is there, so its sender first waits for what it has enqueued (`settle`); so a kernel here
never waits for another process. Work that a receiver enqueues after `receive` runs after the work that the message told of.
Its next message says that it has read, because that message waits as well (rules C1, C4 and C7).

Trust: copies between cards arrive damaged on some machines, though the driver offers them. So the first region of each member
holds a known pattern, which a peer compares before it relies on anything (`trusts`).

To a peer that cannot map it, on another host or beside another card, a payload travels as bytes (`device_wire`).

Source: NVIDIA, "CUDA Driver API", virtual memory management. Accesses are not ordered here.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch

from orchestrator.comm.transports.base import DEVICE, Descriptor, Mapped
from orchestrator.comm.transports.device_wire import MOST_BYTES, Enqueuing, Leaving, memory_for
from orchestrator.comm.transports.region_index import RegionIndex
from orchestrator.numerics.device.kernels import Operations, Packer

_PROBE_ELEMENTS: Final = 4096  # int64
_PROBE_BYTES: Final = 8 * _PROBE_ELEMENTS
_PROBE_FACTOR: Final = 0x9E37_79B9_7F4A_7C15 - 2**64  # spreads a count over all bits: Knuth, TAOCP 3, section 6.4


class DeviceMemoryFull(MemoryError):
    """The device has not enough free memory. size_bytes: that were wanted."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a region of {size_bytes} bytes is needed on the GPU")


class Driver(Enqueuing, Protocol):
    """The calls of a device's driver for regions. Sizes are multiples of `granularity`, in bytes."""

    granularity: int
    device: torch.device

    def create(self, size_bytes: int) -> Any:
        """A handle of new memory. Raises DeviceMemoryFull where there is none."""

    def export(self, handle: Any) -> int:
        """A file descriptor of it, which is the caller's."""

    def take(self, fd: int) -> Any:
        """A handle of the memory of a descriptor, which stays the caller's. Raises RuntimeError where it cannot be had here."""

    def map(self, handle: Any, size_bytes: int, *, writable: bool) -> int:
        """The address. Raises RuntimeError, having let go of the handle."""

    def give_back(self, handle: Any, address: int, size_bytes: int) -> None:
        """Unmap it and let go of the handle, when what was enqueued is done with it. From any thread."""

    def tensor(self, owner: object, address: int, dtype: torch.dtype, elements: int) -> torch.Tensor:
        """A view of that memory: [elements]. It keeps `owner` alive."""

    def settle(self) -> None:
        """Wait until all that this thread has enqueued is done."""


class DeviceMapping:
    """Implements `base.Mapped`: memory of a device in this process, unmapped when it and all its tensors are gone."""

    def __init__(self, driver: Driver, handle: Any, size_bytes: int, *, writable: bool) -> None:
        self.address = driver.map(handle, size_bytes, writable=writable)
        self.size_bytes = size_bytes
        self._driver = driver
        # Not at exit: the driver takes all back with the process.
        weakref.finalize(self, driver.give_back, handle, self.address, size_bytes).atexit = False

    def tensor(self, dtype: torch.dtype, offset_bytes: int, elements: int) -> torch.Tensor:
        """A view: [elements]. Raises ValueError when that is not inside the region."""
        if not 0 <= offset_bytes <= offset_bytes + elements * dtype.itemsize <= self.size_bytes:
            raise ValueError(f"{elements} x {dtype} at {offset_bytes} is outside a region of {self.size_bytes} bytes")
        return self._driver.tensor(self, self.address + offset_bytes, dtype, elements)


class DeviceRegions:
    """Implements `base.SharableRegions` on a device; one thread allocates and closes."""

    kind = DEVICE

    def __init__(self, driver: Driver, packer: Packer | None = None) -> None:
        """packer: of payloads for other hosts; None: operations of torch."""
        self._driver = driver
        self._packer = packer or Operations()
        self.device = driver.device
        self._descriptors: list[Descriptor] = []
        self._mappings: list[DeviceMapping] = []
        self._index = RegionIndex()
        self._begin()

    @property
    def descriptors(self) -> tuple[Descriptor, ...]:
        return tuple(self._descriptors)

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A new zeroed 1-D tensor on the device. Raises DeviceMemoryFull when the memory is not there now."""
        if elements == 0:
            return torch.empty(0, dtype=dtype, device=self.device)
        size_bytes = elements * dtype.itemsize
        if not self._bare or len(self._mappings) > 1:
            return self._add(size_bytes).tensor(dtype, 0, elements).zero_()
        mapping = self._begin(size_bytes)  # the pattern by itself would take a granule
        self._remove(0)
        return mapping.tensor(dtype, _PROBE_BYTES, elements).zero_()

    def locate(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        return self._index.locate(tensor)

    def free(self, region: torch.Tensor) -> None:
        """The others move up in `descriptors`, so nobody may be connected."""
        found = self.locate(region)
        if found is None:
            return
        self.settle()
        position, _ = found
        if position == 0:
            self._begin()
            self._descriptors.insert(1, self._descriptors.pop())
            self._mappings.insert(1, self._mappings.pop())
        self._remove(position)

    def _begin(self, size_bytes: int = 0) -> DeviceMapping:
        """A new region with the pattern, in front of so many bytes."""
        mapping = self._add(_PROBE_BYTES + size_bytes)
        mapping.tensor(torch.int64, 0, _PROBE_ELEMENTS).copy_(_pattern())
        self._bare = not size_bytes
        self.settle()  # a peer may look at it at once
        return mapping

    def _add(self, size_bytes: int) -> DeviceMapping:
        """A new region, in granules."""
        driver = self._driver
        size_bytes = -(-size_bytes // driver.granularity) * driver.granularity
        handle = driver.create(size_bytes)
        mapping = DeviceMapping(driver, handle, size_bytes, writable=True)
        self._descriptors.append(Descriptor(driver.export(handle), size_bytes))
        self._mappings.append(mapping)
        self._index.add(mapping.address, size_bytes)
        return mapping

    def _remove(self, position: int) -> None:
        os.close(self._descriptors.pop(position).fd)
        del self._mappings[position]
        self._index = RegionIndex()
        for mapping in self._mappings:
            self._index.add(mapping.address, mapping.size_bytes)

    def map_peer(self, descriptor: Descriptor) -> Mapped:
        """Raises RuntimeError where this process cannot have that memory."""
        handle = self._driver.take(descriptor.fd)
        return DeviceMapping(self._driver, handle, descriptor.size_bytes, writable=False)

    def trusts(self, memory: Sequence[Mapped]) -> bool:
        """Whether this process reads the same bytes that the peer has written."""
        seen = memory[0].tensor(torch.int64, 0, _PROBE_ELEMENTS)
        # By a kernel, as sums read it: the driver may make a copy to host memory on another way.
        return torch.equal((seen + 0).cpu(), _pattern())

    def settle(self) -> None:
        self._driver.settle()

    def leaving(self, payload: torch.Tensor, *, packs: bool) -> Leaving | None:
        if not 0 < payload.numel() * payload.itemsize <= MOST_BYTES:
            return None
        if payload.device.type == "cpu" and self.locate(payload) is None:
            return None
        return Leaving(payload, self._driver, self._packer if packs else None)

    def memory_for(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return memory_for(elements, dtype, self.device)

    def close(self) -> None:
        """Give the memory back; its pages go once no tensor here and no mapping of a peer holds them."""
        descriptors, self._descriptors = self._descriptors, []
        self._mappings, self._index = [], RegionIndex()
        for descriptor in descriptors:
            os.close(descriptor.fd)


def _pattern() -> torch.Tensor:
    return torch.arange(1, _PROBE_ELEMENTS + 1) * _PROBE_FACTOR
