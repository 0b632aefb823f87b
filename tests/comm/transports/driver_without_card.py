"""A process with the true `cuda.bindings` over a driver without a card (`tests/numerics/device/libcuda.cpp`), found by the
loader of libraries. torch has no CUDA, so what it would do there has doubles."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import threading
from types import SimpleNamespace
from typing import Any

import torch
from cuda.bindings import driver

from benchmarks.gpu import bits
from orchestrator.comm.transports.base import Descriptor
from orchestrator.comm.transports.cuda_memory import CudaDriver
from orchestrator.comm.transports.device_memory import DeviceMemoryFull, DeviceRegions
from orchestrator.numerics.device import compiling
from orchestrator.worker import card_trial

CONTEXT = 0x1234
as_tensor, zeros = torch.as_tensor, torch.zeros


def starts(*shape: int, device: Any = None, **more: Any) -> torch.Tensor:
    """Starts CUDA in a thread, as torch does."""
    if device == "cuda":
        driver.cuCtxSetCurrent(CONTEXT)
    return zeros(*shape, **more)


def viewed(source: Any, device: Any = None, **more: Any) -> torch.Tensor:
    if not hasattr(source, "__cuda_array_interface__"):
        return as_tensor(source, device=device, **more)
    said = source.__cuda_array_interface__
    address, _ = said["data"]
    pages = (ctypes.c_char * said["shape"][0]).from_address(address)
    pages.owner = source
    return torch.frombuffer(pages, dtype=torch.uint8)


def pretend() -> None:
    given: dict[str, Any] = {
        "current_device": lambda: 0,
        "current_stream": lambda *_: SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
        "is_current_stream_capturing": lambda: False,
        "empty_cache": lambda: None,
    }
    for name, function in given.items():
        setattr(torch.cuda, name, function)
    for name, function in {"zeros": starts, "as_tensor": viewed}.items():
        setattr(torch, name, function)


def cuda_driver() -> CudaDriver:
    found = CudaDriver()
    found.device = torch.device("cpu")
    return found


def refusal(attempt: Any) -> str:
    try:
        attempt()
    except (RuntimeError, DeviceMemoryFull) as error:
        return str(error)
    return ""


def main() -> None:
    pretend()
    said: dict[str, Any] = {}
    card_trial.share(cuda_driver())
    mine, theirs = DeviceRegions(cuda_driver()), DeviceRegions(cuda_driver())
    region = mine.allocate(1000, torch.float64).fill_(3.0)
    position, offset = mine.locate(region) or (-1, -1)
    memory = [theirs.map_peer(each) for each in mine.descriptors]
    said["trusts"] = theirs.trusts(memory)
    said["read"] = float(memory[position].tensor(torch.float64, offset, 1000).sum())
    said["full"] = refusal(lambda: cuda_driver().create(1 << 50))
    said["too long"] = refusal(lambda: theirs.map_peer(Descriptor(mine.descriptors[position].fd, 1 << 26)))
    del memory
    gc.collect()
    kernels = compiling.Compiled(compiling.Launcher(b"\x7fELF"), 8)
    said["bits"] = bits.rounds(kernels, "cpu", 10, math.inf)
    other = threading.Thread(target=lambda: said.update(thread=bits.rounds(kernels, "cpu", 2, math.inf)))
    other.start()
    other.join()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
