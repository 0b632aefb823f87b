"""Calls of the CUDA driver: with a double of `cuda.bindings`, and through the true ones over a driver without a card (`make
kernels` brings them). Only `benchmarks.gpu` can show what a card makes of them."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.comm.transports.cuda_memory import CudaDriver
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.common import card_faults, gpu_memory
from orchestrator.numerics import cuda
from orchestrator.numerics.cuda import DriverCalls
from orchestrator.numerics.device.compiling import SOURCE
from tests.projects import REPOSITORY

KERNELS = Path(sys.prefix) / "kernels"
CONTEXT = 7


class Result(enum.IntEnum):
    """Some of CUresult."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_NOT_SUPPORTED = 801


class Bindings(ModuleType):
    """A double of `cuda.bindings.driver`. made: the calls, by name, with what they were given; refused: what some answer."""

    CUresult = Result

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.made: list[tuple[str, tuple[Any, ...]]] = []
        self.refused: dict[str, Callable[..., Result]] = {}
        self.contexts: dict[int, Any] = {}  # by thread

    def __getattr__(self, name: str) -> Any:
        if name in ("CUmemAllocationProp", "CUmemAccessDesc"):
            return lambda: SimpleNamespace(location=SimpleNamespace())
        if not name.startswith("cu"):
            return SimpleNamespace(
                **{each: each for each in NAMES if not each.startswith("CU_MEM_ACCESS")},
                CU_MEM_ACCESS_FLAGS_PROT_READ=1,
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3,
            )
        return lambda *given: self.called(name, given)

    def called(self, name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        self.made.append((name, given))
        if name == "cuCtxSetCurrent":
            self.contexts[threading.get_ident()] = given[0]
        code = self.refused[name](*given) if name in self.refused else Result.CUDA_SUCCESS
        values = {"cuCtxGetCurrent": CONTEXT, "cuMemGetAllocationGranularity": 4096, "cuMemAddressReserve": 1 << 20}
        return (code, values[name]) if name in values else (code,)

    def names(self) -> list[str]:
        return [name for name, _ in self.made]


NAMES = (
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
    "CU_MEM_LOCATION_TYPE_DEVICE",
    "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
    "CU_MEM_ALLOCATION_TYPE_PINNED",
)


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    found, package = Bindings(), ModuleType("cuda.bindings")
    package.driver = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", found)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, **_: zeros(*shape))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    return found


def test_what_the_driver_refuses_is_told_with_the_call_and_by_its_name(bindings: Bindings) -> None:
    """By which the failure of a card, and memory that is full, are known."""
    call = DriverCalls()
    bindings.refused["cuLaunchKernel"] = lambda *_: Result.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(RuntimeError, match=r"refuses cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)") as caught:
        call("cuLaunchKernel")
    fault = card_faults.of(caught.value)
    assert fault is not None
    assert fault.code == "gpu.illegal-access"
    bindings.refused["cuMemMap"] = lambda *_: Result.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(RuntimeError) as caught:
        call("cuMemMap")
    assert gpu_memory.ran_out(caught.value)


def test_each_thread_has_the_context_before_its_first_call(bindings: Bindings) -> None:
    call = DriverCalls()
    threads = [threading.Thread(target=lambda: [call("cuMemUnmap") for _ in range(2)]) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert bindings.names() == ["cuCtxGetCurrent", *["cuCtxSetCurrent", "cuMemUnmap", "cuMemUnmap"] * 2]
    assert set(bindings.contexts.values()) == {CONTEXT}


@pytest.mark.parametrize("step", ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_what_cannot_be_mapped_is_let_go_of(bindings: Bindings, step: str) -> None:
    """Else the memory of a peer that has died would stay charged to who could not map it."""
    driver = CudaDriver()
    bindings.refused[step] = lambda *_: Result.CUDA_ERROR_NOT_SUPPORTED
    with pytest.raises(RuntimeError, match=step):
        driver.map(5, 4096, writable=False)
    assert bindings.made[-1] == ("cuMemRelease", (5,))
    assert ("cuMemUnmap" in bindings.names()) == (step != "cuMemAddressReserve")


@pytest.mark.parametrize("refused", [False, True])
def test_a_peers_memory_is_mapped_read_only_where_the_driver_has_that(bindings: Bindings, refused: bool) -> None:
    driver = CudaDriver()
    if refused:
        bindings.refused["cuMemSetAccess"] = lambda _address, _size, access, _count: (
            Result.CUDA_ERROR_NOT_SUPPORTED if access[0].flags == 1 else Result.CUDA_SUCCESS
        )
    assert driver.map(5, 4096, writable=False) == 1 << 20
    flags = [given[2][0].flags for name, given in bindings.made if name == "cuMemSetAccess"]
    assert flags == ([1, 3] if refused else [1])


def test_nothing_is_unmapped_before_what_was_enqueued_is_done(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = CudaDriver()
    monkeypatch.setattr(driver, "settle", lambda: bindings.made.append(("settled", ())))
    driver.give_back(5, 1 << 20, 4096)
    assert bindings.names()[-4:] == ["settled", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    driver.give_back(5, 1 << 20, 4096)
    assert bindings.names()[-4:-2] == ["cuMemRelease", "cuMemUnmap"]


def test_page_locked_memory_is_unlocked_before_it_is_unmapped(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU would copy to its pages still, where the next region has its address."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: bindings.made.append(("settled", ())))
    mapped: list[bool] = []

    def is_mapped() -> bool:
        return f"\n{address:08x}-" in Path("/proc/self/maps").read_text()

    def unregister(_start: int) -> Result:
        mapped.append(is_mapped())
        return Result.CUDA_SUCCESS

    bindings.refused["cuMemHostUnregister"] = unregister
    regions = SharedRegions()
    region = regions.allocate(1 << 20, torch.uint8)
    address = region.data_ptr()
    cuda.page_lock(address, region.nbytes)
    assert bindings.made[-1] == ("cuMemHostRegister", (address, 1 << 20, 0))
    regions.free(region)
    del region
    assert bindings.made[-2:] == [("settled", ()), ("cuMemHostUnregister", (address,))]
    assert mapped == [True]
    assert not is_mapped()
    cuda.page_unlock(address, 1 << 20)
    assert len(mapped) == 1


def test_memory_may_be_unlocked_while_another_thread_locks_some(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    class Interrupted(int):
        """An address; the other thread gets its turn as it is compared."""

        def __le__(self, other: int) -> bool:
            cuda.page_lock(3 << 20, 16)
            return int(self) <= other

    cuda.page_lock(1 << 20, 16)
    cuda.page_unlock(Interrupted(1 << 20), 16)
    assert bindings.made[-1] == ("cuMemHostUnregister", (1 << 20,))
    cuda.page_unlock(3 << 20, 16)
    assert bindings.made[-1] == ("cuMemHostUnregister", (3 << 20,))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("writes_always", [False, True])
def test_the_true_bindings_pass_on_what_the_driver_expects(tmp_path: Path, writes_always: bool) -> None:
    source = REPOSITORY / "tests" / "numerics" / "device" / "libcuda.cpp"
    options = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{SOURCE.parent}"]
    subprocess.run(["c++", *options, str(source), "-o", str(tmp_path / "libcuda.so.1"), "-ldl"], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{KERNELS}:{REPOSITORY}", "LD_LIBRARY_PATH": str(tmp_path)}
    environment |= {"CARD_WRITES_ALWAYS": "1"} if writes_always else {}
    command = [sys.executable, "-m", "tests.comm.transports.driver_without_card"]
    told = subprocess.run(command, env=environment, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
    said = json.loads(told.splitlines()[-1])
    assert said == {
        "trusts": True,
        "read": 3000.0,
        "full": f"a region of {1 << 50} bytes is needed on the GPU",
        "too long": "CUDA refuses cuMemMap: CUDA_ERROR_INVALID_VALUE (1)",
        "bits": [10, []],
        "thread": [2, []],
    }
