"""Hosts as network namespaces of one machine: a bridge, and a wire from it to each of them.

    with wired(2, "1gbit") as network:
        network.start(0, [sys.executable, "-m", "benchmarks.wired"])

Each wire (a veth pair) carries at most the given rate in each direction (tc's token bucket at both ends), and where the
kernel has netem, each direction delays by a time of its own. At any end of the block, the processes inside are killed and the
namespaces are gone. Needs root, ip and tc.

It does not divide the processors of the machine among the hosts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.conftest import end_all_inside

_QUEUE = ("burst", "1mb", "latency", "50ms")


@dataclass
class Network:
    """names: of the namespaces, by host. hub: the namespace of the bridge. notes: what the kernel did not give."""

    names: list[str]
    hub: str
    notes: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, host: int, command: Sequence[str], variables: Mapping[str, str] | None = None, **pipes: Any
    ) -> subprocess.Popen[str]:
        """A process on a host, which sees its own mounts. variables: its environment, in place of this process's."""
        inside = ["ip", "netns", "exec", self.names[host], "unshare", "--mount", *command]
        process = subprocess.Popen(inside, env=variables, text=True, **pipes)
        self.processes.append(process)
        return process

    def limit(self, rate: str, delay: str | None = None) -> None:
        """Limit each direction of each wire, from now on. delay: of each direction; a kernel without netem adds none, and a
        note says so."""
        for host, name in enumerate(self.names):
            for space, end in ((name, interface(host)), (self.hub, f"port{host}")):
                on_end = ("tc", "-n", space, "qdisc", "replace", "dev", end)
                if delay is not None and not self.notes and not self._delay(on_end, delay):
                    self.notes.append("this kernel has no netem, so the wires delay nothing")
                delayed = delay is not None and not self.notes
                above = ("parent", "1:") if delayed else ("root",)
                _run(*on_end, *above, "handle", "2:", "tbf", "rate", rate, *_QUEUE)

    def _delay(self, on_end: Sequence[str], delay: str) -> bool:
        command = [*on_end, "root", "handle", "1:", "netem", "delay", delay, "limit", "100000"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


def address_of(host: int) -> str:
    return f"10.79.0.{host + 1}"


def interface(host: int) -> str:
    """The name of a host's end of its wire."""
    return f"wire{host}"


def here() -> int:
    """The host on which this process is; 0 outside of all."""
    return min((host for host, _, _ in _counters()), default=0)


def traffic() -> tuple[int, int]:
    """Bytes that this host has sent and received over its wire so far, headers included; none outside of all hosts."""
    return next(((sent, received) for _, sent, received in _counters()), (0, 0))


def _counters() -> Iterator[tuple[int, int, int]]:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.strip().partition(":")
        if name.startswith("wire"):
            columns = [int(each) for each in figures.split()]
            yield int(name.removeprefix("wire")), columns[8], columns[0]


@contextlib.contextmanager
def wired(hosts: int, rate: str, delay: str | None = None) -> Iterator[Network]:
    if os.geteuid():
        sys.exit("network namespaces need root: run this as root")
    mark = f"hosts-{os.getpid()}"
    network = Network([f"{mark}-{host}" for host in range(hosts)], f"{mark}-hub")
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _build(network)
        network.limit(rate, delay)
        yield network
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # a second one would leave namespaces behind
        _take_down(network)
        for number, handler in before.items():
            signal.signal(number, handler)


def _build(network: Network) -> None:
    for name in (network.hub, *network.names):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", network.hub, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", network.hub, "link", "set", "bridge", "up")
    for host, name in enumerate(network.names):
        end, port = interface(host), f"port{host}"
        _run(
            *("ip", "link", "add", end, "netns", name, "type", "veth"),
            *("peer", "name", port, "netns", network.hub),
        )
        _run("ip", "-n", network.hub, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", name, "addr", "add", f"{address_of(host)}/24", "dev", end)
        _run("ip", "-n", name, "link", "set", end, "up")


def _take_down(network: Network) -> None:
    for name in network.names:
        end_all_inside(name)
    for process in network.processes:
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()
    for name in (*network.names, network.hub):
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}; this needs root, and ip and tc of iproute2")
