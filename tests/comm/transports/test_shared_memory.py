"""Regions: what every implementation promises, and what memfds add."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from orchestrator.comm.transports.base import Descriptor, Regions
from orchestrator.comm.transports.frames import DTYPES
from orchestrator.comm.transports.shared_memory import Mapping, SharedRegions, map_peer
from tests.comm.transports import device_double
from tests.comm.transports.memory import LocalRegions


@pytest.fixture(params=[LocalRegions, SharedRegions, device_double.regions])
def regions(request: pytest.FixtureRequest) -> Iterator[Regions]:
    made: Regions = request.param()
    yield made
    made.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("elements", [0, 1, 1000, 5000])
def test_a_region_is_one_dimensional_zero_and_starts_on_a_page(
    regions: Regions, elements: int, dtype: torch.dtype
) -> None:
    first, second = regions.allocate(elements, dtype), regions.allocate(elements, dtype)
    for tensor in (first, second):
        assert (tensor.shape, tensor.dtype) == ((elements,), dtype)
        assert not tensor.any()
        assert elements == 0 or tensor.data_ptr() % 4096 == 0
    first.fill_(1)
    assert bool(first.all())
    assert not second.any()


def test_memory_that_is_not_there_is_an_error_now(regions: Regions) -> None:
    with pytest.raises(MemoryError, match="region"):
        regions.allocate(1 << 44, torch.float64)


def test_close_is_safe_twice(regions: Regions) -> None:
    regions.allocate(1, torch.float32)
    regions.close()
    regions.close()


def test_locate_finds_what_lies_inside_and_nothing_else() -> None:
    regions = SharedRegions()
    tensors = [regions.allocate(1000, torch.float32) for _ in range(5)]
    for index, tensor in enumerate(tensors):
        assert regions.locate(tensor) == (index, 0)
        assert regions.locate(tensor[10:20]) == (index, 40)
        assert regions.locate(tensor[999:]) == (index, 3996)
        assert regions.locate(tensor[10:20].view(torch.uint8)[1:3]) == (index, 41)
        assert regions.locate(tensor[5:5]) is None
    assert regions.locate(torch.ones(10)) is None
    assert regions.locate(torch.empty(0)) is None
    assert SharedRegions().locate(tensors[0]) is None
    regions.close()
    assert regions.locate(tensors[0]) is None


def test_a_peer_sees_every_byte_and_each_later_change() -> None:
    regions = SharedRegions()
    own = regions.allocate(1000, torch.int32)
    mapping = map_peer(regions.descriptors[0])
    view = mapping.tensor(torch.int32, 40, 5)
    own.copy_(torch.arange(1000))
    assert view.tolist() == [10, 11, 12, 13, 14]
    assert mapping.tensor(torch.int32, 0, 1000).equal(own)
    regions.close()
    own[10] = -1
    assert view[0].item() == -1, "the pages live as long as anybody's tensor of them"


@pytest.mark.parametrize(("offset_bytes", "elements"), [(0, 11), (4, 10), (-4, 1), (40, 1), (0, -1), (44, 0)])
def test_a_view_outside_the_region_is_refused(offset_bytes: int, elements: int) -> None:
    regions = SharedRegions()
    regions.allocate(10, torch.float32)
    with pytest.raises(ValueError, match="outside a region of 40 bytes"):
        map_peer(regions.descriptors[0]).tensor(torch.float32, offset_bytes, elements)
    regions.close()


def test_pages_and_descriptors_go_when_they_are_not_used() -> None:
    def kept() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("memfd:orchestrator")
        return maps, len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    maps, fds = kept()
    regions = SharedRegions()
    own = regions.allocate(1000, torch.float32)
    part = own[10:]
    mapping: Mapping | None = map_peer(regions.descriptors[0])
    assert kept() == (maps + 2, fds + 1)
    mapping = None
    assert kept() == (maps + 1, fds + 1)
    regions.close()
    assert kept() == (maps + 1, fds)
    del own
    assert kept() == (maps + 1, fds)
    del part
    assert kept() == (maps, fds)
    assert mapping is None


def test_a_file_that_could_shrink_or_is_too_short_is_refused() -> None:
    regions = SharedRegions()
    regions.allocate(1000, torch.uint8)
    sealed = regions.descriptors[0].fd
    with pytest.raises(PermissionError):
        os.ftruncate(sealed, 10)
    loose = os.memfd_create("loose", os.MFD_CLOEXEC)
    os.ftruncate(loose, 1000)
    for fd, size_bytes in [(loose, 1000), (sealed, 1001), (sealed, 0)]:
        with pytest.raises(ValueError, match=f"a region of {size_bytes} bytes"):
            map_peer(Descriptor(fd, size_bytes))
    os.close(loose)
    regions.close()


def test_a_refusal_of_the_kernel_is_a_memory_error_and_leaves_no_descriptor() -> None:
    fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(MemoryError, match="a shared region of 8192 bytes cannot be had: File too large"):
            SharedRegions().allocate(8192, torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(os.listdir("/proc/self/fd")) == fds  # noqa: PTH208


@pytest.mark.long
def test_a_tensor_may_outlive_the_interpreter() -> None:
    code = """
import torch
from orchestrator.comm.transports.shared_memory import SharedRegions
regions = SharedRegions()
torch.kept = regions.allocate(1000, torch.float32).fill_(1)
import atexit
atexit.register(lambda: print(torch.kept.sum().item()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000.0\n", "")
