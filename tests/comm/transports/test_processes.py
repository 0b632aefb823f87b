"""Members in processes of their own that die as processes do. Three processes; each costs an import of torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from orchestrator.comm.transports.base import PeerLost, SharableRegions, Transport
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports.process import REGIONS
from tests.comm.transports.worlds import PATIENCE_S, SECRET, TAG
from tests.products import thinned

pytestmark = pytest.mark.slow

Start = Callable[..., tuple["subprocess.Popen[str]", Transport, torch.Tensor]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that does something (process.py) and connect with it: process, transport, own region."""
    listener = Listener(SECRET)
    opened: list[SharableRegions] = []
    processes: list[subprocess.Popen[str]] = []
    transports: list[Transport] = []

    def connected(what: str, memory: str = "host") -> tuple[subprocess.Popen[str], Transport, torch.Tensor]:
        regions = REGIONS[memory]()
        opened.append(regions)
        region = regions.allocate(1000, torch.float32)
        command = [sys.executable, "-m", "tests.comm.transports.process", what, memory]
        root = Path(__file__).parents[3]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        assert process.stdin is not None
        address = heard(process)
        process.stdin.write(json.dumps(listener.addresses["unix"]) + "\n")
        process.stdin.flush()
        transports.append(connect(listener, 0, TAG.generation, {1: address}, regions, PATIENCE_S))
        return process, transports[0], region

    yield connected
    for transport in transports:
        transport.abort()
    for process in processes:
        process.kill()
        process.communicate()  # ends their input, and with it what they forked
    listener.close()
    for regions in opened:
        regions.close()


def heard(process: subprocess.Popen[str]) -> list[str | int]:
    assert process.stdout is not None
    said: list[str | int] = json.loads(process.stdout.readline())
    return said


@pytest.mark.long
@pytest.mark.parametrize("memory", thinned(REGIONS, 2))
def test_after_sigkill_its_words_are_heard_its_loss_is_known_and_nothing_is_left(start: Start, memory: str) -> None:
    before = set(Path("/dev/shm").iterdir())
    process, transport, _ = start("speak", memory)
    heard(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    region = transport.receive(1, TAG, PATIENCE_S).payload
    assert transport.receive(1, TAG, PATIENCE_S).payload.tolist() == [6.0] * 10
    assert transport.receive(1, TAG, PATIENCE_S).note == 7
    with pytest.raises(PeerLost, match="member 1"):
        transport.receive(1, TAG, 1.0)
    assert region.tolist() == [5.0] * 1000, "what a dead member shared stays readable while somebody holds it"
    assert set(Path("/dev/shm").iterdir()) == before


@pytest.mark.long
def test_a_dead_process_is_noticed_though_its_child_holds_the_socket(start: Start) -> None:
    process, transport, _ = start("fork")
    heard(process)
    process.send_signal(signal.SIGKILL)
    for _ in range(3):
        transport.receive(1, TAG, PATIENCE_S)
    with pytest.raises(PeerLost, match="its process has ended"):
        transport.receive(1, TAG, 1.0)


def test_writing_into_a_peers_memory_ends_the_one_who_does_it(start: Start) -> None:
    process, transport, region = start("write")
    transport.send(1, TAG, region)
    with pytest.raises(PeerLost):
        transport.receive(1, TAG, PATIENCE_S)
    assert process.wait(PATIENCE_S) == -signal.SIGSEGV
    assert not region.any()
