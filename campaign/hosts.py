"""Launches on hosts that are namespaces of this machine, whose wire or last node is struck (`campaign.wire`).

The others go on without a lost host; one that comes back is used again. The driver is on the first host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from campaign import leftovers, moments
from campaign.modes import SERVED
from campaign.plans import Launch
from campaign.wire import Rule
from tests.cluster.conftest import Hosts, some_hosts

BETWEEN: Final = "cut between workers"
RULES: Final[dict[str, Rule]] = {
    "cut": Rule(cut=((0, 1), (1, 0))),
    "cut one way": Rule(cut=((1, 0),)),
    BETWEEN: Rule(cut=((1, 2), (2, 1))),
    "flapping wire": Rule(flaps=True),
    "slow wire": Rule(delay_s=0.2),
    "lossy wire": Rule(loss=0.1),
    "shuffled frames": Rule(doubles=0.1, shuffle=0.2),
    "jam": Rule(jam=True),
}
LOST: Final = "node lost"
STOPPED: Final = "node stopped"
KINDS: Final = (*RULES, LOST, STOPPED)
_UNREACHABLE_S: Final = 2
_LEASE_S: Final = (
    15.0  # after which a worker ends itself that was cut off, and whom nobody has told that it was given up
)
_END_S: Final = 4 * _LEASE_S


class SomeHosts:
    """A `stores.Store`: what goes away and comes back is the wire, or the last node. folder: hidden from all hosts but the
    first; told: of the words, in the environment of all."""

    variables: Mapping[str, str]
    has_checkpoints = False  # that are its matter
    met: Mapping[str, int] = MappingProxyType({})

    def __init__(self, kind: str, launch: Launch, folder: Path, told: Path) -> None:
        self._kind = kind
        mode = launch.played
        self._stack = contextlib.ExitStack()
        variables = {moments.VARIABLE: str(told), "RAY_worker_niceness": "0"}
        wire = [sys.executable, "-m", "campaign.wire"]
        hosts = some_hosts(folder, cpus=rooms(kind, launch), variables=variables, wire=wire, mark=leftovers.mark())
        self._hosts: Hosts = self._stack.enter_context(hosts)
        self.before = self._hosts.inside
        self.variables = self._hosts.access
        self.arguments = (
            f"cluster.address={self._hosts.address}",
            f"checkpoint.uri={told / 'checkpoints'}",  # which all hosts see
            f"cluster.workers={{min: {mode.stages}, max: {mode.workers}}}",
            f"cluster.unreachable_s={_UNREACHABLE_S}",
            f"cluster.lease_s={_LEASE_S:g}",
            "cluster.spares=0",
        )

    def go(self) -> None:
        if self._kind == LOST:
            self._hosts.lose_last()
        elif self._kind == STOPPED:
            self._signal_last(signal.SIGSTOP)
        else:
            self._rule(RULES[self._kind])

    def come(self) -> None:
        if self._kind == LOST:
            self._hosts.join()
        elif self._kind == STOPPED:
            self._signal_last(signal.SIGCONT)
        else:
            self._rule(Rule())

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:  # noqa: ARG002
        """Members that outlive their run."""
        deadline = time.monotonic() + _END_S
        while (left := self._members()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [f"left behind on a host: {name}" for name in left]

    def close(self) -> None:
        self._stack.close()

    def _rule(self, rule: Rule) -> None:
        assert self._hosts.wire is not None
        assert self._hosts.wire.stdin is not None
        self._hosts.wire.stdin.write(rule.told())
        self._hosts.wire.stdin.flush()

    def _signal_last(self, number: signal.Signals) -> None:
        for pid in _inside(self._hosts.names[-1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _members(self) -> list[str]:
        """By what Ray calls them."""
        found = []
        for pid in (pid for name in self._hosts.names for pid in _inside(name)):
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
                found += [title] if title.startswith("ray::MemberActor") else []
        return found


def rooms(kind: str, launch: Launch) -> tuple[int, ...]:
    """How many members each host has room for: all together for those of the launch, and no host for most of them. If workers
    of two hosts are cut from each other, the driver is on a third one."""
    here = 1 if kind == BETWEEN else 0
    some = launch.played.workers + (SERVED in launch.layout) - here
    others = (some - some // 2, some // 2)
    return (here, *others) if here else others


def _inside(name: str) -> list[int]:
    """The processes of a namespace."""
    pids = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
    return [int(pid) for pid in pids.stdout.split()]
