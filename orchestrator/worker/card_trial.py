"""A process that tries the GPUs of this machine for its parent, step by step: a card that hangs takes only this process along.

Each message is `[name, answer]`, in the order of `trials`: what torch sees, which cards map each other's memory, and of each
card whether kernels compile and whether its memory can be shared. An answer is None where all is well, else the reason. If CUDA
ends the trials, the last message is `["failed", reason]`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from orchestrator.comm.transports.cuda_memory import CudaDriver
from orchestrator.comm.transports.device_memory import Driver
from orchestrator.common import child
from orchestrator.numerics import cuda
from orchestrator.numerics.device import compiling

_ELEMENTS = 4096  # int64


def main() -> None:
    messages = child.parent()
    try:
        for told in trials(compiles, shares):
            messages.send(json.dumps(told).encode())
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        messages.send(json.dumps(("failed", _said(error))).encode())
    messages.end()


def trials(compiles: Callable[[], None], shares: Callable[[], None]) -> Iterator[tuple[str, Any]]:
    """Try all GPUs of this machine. compiles, shares: try the current card, and raise where it fails."""
    count = torch.cuda.device_count()
    if not count:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # it raises, and says why
    yield "cards", [_uuid(card) for card in range(count)]
    peers = [
        (one, other)
        for one in range(count)
        for other in range(count)
        if one != other and torch.cuda.can_device_access_peer(one, other)
    ]
    yield "peers", peers
    for card in range(count):
        torch.cuda.set_device(card)
        yield "compiles", _tried(compiles)
        yield "shares", _tried(shares)


def compiles() -> None:
    """The kernels of sums, for the current card. Raises CompilationFailed, RuntimeError."""
    torch.zeros(1, device="cuda")  # to load them needs the context that torch makes
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    compiling.Launcher(compiling.compiled(f"sm_{found.major}{found.minor}"))


def shares() -> None:
    """Memory of the current card, by the calls by which workers share it. Raises RuntimeError."""
    share(CudaDriver())


def share(driver: Driver) -> None:
    """Export memory, import it, and read by the second mapping what was written by the first. Raises RuntimeError."""
    size = -(-_ELEMENTS * 8 // driver.granularity) * driver.granularity
    handle = driver.create(size)
    fd = driver.export(handle)
    try:
        taken = driver.take(fd)
    finally:
        os.close(fd)
    own, other = driver.map(handle, size, writable=True), driver.map(taken, size, writable=False)
    written = driver.tensor(driver, own, torch.int64, _ELEMENTS)
    written.copy_(torch.arange(_ELEMENTS))
    driver.settle()
    same = torch.equal(driver.tensor(driver, other, torch.int64, _ELEMENTS), written)
    driver.give_back(taken, other, size)
    driver.give_back(handle, own, size)
    if not same:
        raise RuntimeError("other bytes are read than were written")


def _tried(attempt: Callable[[], None]) -> str | None:
    try:
        attempt()
    except (compiling.CompilationFailed, ImportError, RuntimeError, MemoryError) as error:
        return _said(error)
    return None


def _said(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _uuid(card: int) -> str:
    with torch.cuda.device(card):
        return cuda.uuid()


if __name__ == "__main__":
    main()
