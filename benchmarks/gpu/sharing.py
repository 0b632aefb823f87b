"""Memory of the card that processes share, when its owner is killed by SIGKILL in the middle of a kernel.

    python -m benchmarks.gpu.sharing owner|reader FD,FD DRIVER ELEMENTS      one of the processes

The owner fills a region and sends its descriptors; two readers map it, and the owner begins work that does not end. Once it
is killed, the readers have to read what it has written, compute, and give the memory back. Shared memory goes through
`comm.transports.device_memory` and its driver, as in a run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_READERS: Final = 2
_VALUE: Final = 7.0
_AHEAD: Final = 500  # kernels that are enqueued when the owner says that it is busy
_READS: Final = 20


@dataclass(frozen=True)
class Shared:
    """driver: of device memory, as `package.module:name`; elements: of float64."""

    driver: str = "orchestrator.comm.transports.cuda_memory:CudaDriver"
    elements: int = 1 << 24


def outlives_its_owner(shared: Shared, environment: Mapping[str, str], timeout_s: float) -> str:
    """The observation, in a sentence. Raises RuntimeError where anything is not as it has to be."""
    pairs = [socket.socketpair() for _ in range(_READERS)]
    ends = [first.fileno() for first, _ in pairs], [[second.fileno()] for _, second in pairs]
    with contextlib.ExitStack() as stack:
        for pair in pairs:
            for end in pair:
                stack.callback(end.close)
        owner = stack.enter_context(_process("owner", ends[0], shared, environment, timeout_s))
        readers = [stack.enter_context(_process("reader", fds, shared, environment, timeout_s)) for fds in ends[1]]
        for pair in pairs:
            for end in pair:
                end.close()  # so that a process finds out where another one has ended
        try:
            freed = _freed(owner, readers)
        except RuntimeError as error:
            raise RuntimeError(f"{error}{_left_unsaid([owner, *readers])}") from None
    if freed[-1] and int(freed[-1]) < shared.elements * 8:
        raise RuntimeError(f"when the last reader let go, {freed[-1]} bytes came free, not {shared.elements * 8}")
    gained = f"; when the last lets go, {int(freed[-1]) / 2**20:.0f} MiB come free" if freed[-1] else ""
    return (
        f"its owner killed in the middle of a kernel, {_READERS} readers read right {_READS} times and compute{gained}"
    )


def _freed(owner: subprocess.Popen[str], readers: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Have the owner killed, and the readers go on. Returns how many bytes came free as each of them let go."""
    for reader in readers:
        _expect(reader, "mapped")
    _expect(owner, "busy")
    owner.kill()  # SIGKILL
    owner.wait()
    for reader in readers:
        _ask(reader, "read", "read")
    freed = [_ask(reader, "release", "released") for reader in readers]
    for reader in readers:
        _expect(reader, "computed")
    return freed


def _left_unsaid(processes: Sequence[subprocess.Popen[str]]) -> str:
    """The last words of these that nobody has read yet: one may have failed because another one has."""
    for process in processes:
        process.kill()
    said = [process.stdout.read().strip() for process in processes if process.stdout is not None]
    return "".join(f"; {each[-1000:]}" for each in said if each)


@contextmanager
def _process(
    role: str, fds: Sequence[int], shared: Shared, environment: Mapping[str, str], timeout_s: float
) -> Iterator[subprocess.Popen[str]]:
    """It is killed at the end, or when it has taken too long: then who reads from it finds nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.sharing", role, ",".join(map(str, fds)), *map(str, astuple(shared))],
        cwd=REPOSITORY,
        env=environment,
        pass_fds=fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = threading.Timer(timeout_s, process.kill)
    watch.start()
    try:
        yield process
    finally:
        watch.cancel()
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str], word: str, answer: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return _expect(process, answer)


def _expect(process: subprocess.Popen[str], answer: str) -> str:
    """The rest of the line that begins with the word. Raises RuntimeError where the process ends before."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if line.startswith(answer):
            return line.removeprefix(answer).strip()
        said.append(line)
    raise RuntimeError(f"a process that shares memory ended before {answer!r}: {''.join(said).strip()[-1000:]}")


# --- The processes ----------------------------------------------------------------------------------------------------------


def own(sockets: Sequence[socket.socket], regions: Any, elements: int) -> None:
    import torch

    values = regions.allocate(elements, torch.float64).fill_(_VALUE)
    regions.settle()
    descriptors, place = regions.descriptors, regions.locate(values)
    for each in sockets:
        told = json.dumps([[descriptor.size_bytes for descriptor in descriptors], *place])
        socket.send_fds(each, [told.encode()], [descriptor.fd for descriptor in descriptors])
    for each in sockets:
        assert each.recv(1) == b"m"
    number = 0
    while True:
        values.add_(0.0)
        number += 1
        if number == _AHEAD:
            print("busy", flush=True)


def read(owner: socket.socket, regions: Any, elements: int) -> None:
    import torch

    from orchestrator.comm.transports.base import Descriptor

    told, fds, _, _ = socket.recv_fds(owner, 4096, 16)
    sizes, number, offset_bytes = json.loads(told)
    memory = [regions.map_peer(Descriptor(fd, size)) for fd, size in zip(fds, sizes, strict=True)]
    for fd in fds:
        os.close(fd)
    assert regions.trusts(memory), "what the owner has written does not arrive as it is"
    values = memory[number].tensor(torch.float64, offset_bytes, elements)
    _look(values)
    print("mapped", flush=True)
    owner.send(b"m")
    assert sys.stdin.readline() == "read\n"
    for _ in range(_READS):
        _look(values)
        _compute(regions.device)
    print("read", flush=True)
    assert sys.stdin.readline() == "release\n"
    before = _free(regions.device)
    del values, memory
    gc.collect()
    print("released", "" if before is None else _free(regions.device) - before, flush=True)
    _compute(regions.device)
    print("computed", flush=True)


def _look(values: Any) -> None:
    seen = float(values.sum())
    assert seen == _VALUE * len(values), f"the sum is {seen}, not {_VALUE * len(values)}"


def _compute(device: Any) -> None:
    import torch

    ones = torch.ones(256, 256, device=device)
    assert float((ones @ ones).sum()) == 256.0**3


def _free(device: Any) -> Any:
    """Bytes of the card; None where there is none."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if device.type == "cuda" else None


def main(role: str, fds: str, driver: str, elements: str) -> None:
    import torch

    from orchestrator.comm.transports.device_memory import DeviceRegions

    module, _, name = driver.partition(":")
    regions = DeviceRegions(getattr(importlib.import_module(module), name)())
    if regions.device.type == "cpu":
        torch.set_num_threads(1)
    sockets = [socket.socket(fileno=int(fd)) for fd in fds.split(",")]
    if role == "owner":
        own(sockets, regions, int(elements))
    else:
        read(sockets[0], regions, int(elements))


if __name__ == "__main__":
    main(*sys.argv[1:])
