"""Launches on two hosts, namespaces of this machine, whose wire or second node is struck (`campaign.wire`).

What is lost with the second host, the first one goes on without; what comes back is used again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from campaign import moments
from campaign.wire import Rule
from tests.cluster.conftest import Hosts, two_hosts

RULES: Final[dict[str, Rule]] = {
    "cut": Rule(cut=(0, 1)),
    "cut one way": Rule(cut=(1,)),
    "slow wire": Rule(delay_s=0.2),
    "lossy wire": Rule(loss=0.1),
    "shuffled frames": Rule(doubles=0.1, shuffle=0.2),
    "jam": Rule(jam=True),
}
LOST: Final = "node lost"
STOPPED: Final = "node stopped"
KINDS: Final = (*RULES, LOST, STOPPED)


class TwoHosts:
    """A `stores.Store`: what goes away and comes back is the wire, or the second node. folder: hidden from the second host;
    told: of the words, in the environment of both."""

    variables: Mapping[str, str]
    has_checkpoints = False  # that are its matter
    met: Mapping[str, int] = MappingProxyType({})

    def __init__(self, kind: str, folder: Path, told: Path) -> None:
        self._kind = kind
        self._stack = contextlib.ExitStack()
        variables = {moments.VARIABLE: str(told), "RAY_worker_niceness": "0"}
        hosts = two_hosts(folder, variables=variables, wire=[sys.executable, "-m", "campaign.wire"])
        self._hosts: Hosts = self._stack.enter_context(hosts)
        self.before = self._hosts.inside
        self.variables = self._hosts.access
        layout = ("cluster.workers={min: 1, max: 4}", "cluster.unreachable_s=2", "cluster.spares=0")
        shared = f"checkpoint.uri={told / 'checkpoints'}"  # which both hosts see
        self.arguments = (f"cluster.address={self._hosts.address}", shared, *layout)

    def go(self) -> None:
        if self._kind == LOST:
            self._hosts.lose_second()
        elif self._kind == STOPPED:
            self._signal_second(signal.SIGSTOP)
        else:
            self._rule(RULES[self._kind])

    def come(self) -> None:
        if self._kind == LOST:
            self._hosts.join()
        elif self._kind == STOPPED:
            self._signal_second(signal.SIGCONT)
        else:
            self._rule(Rule())

    def lacks(self, report: Mapping[str, Any], steps: int) -> list[str]:  # noqa: ARG002
        return []

    def close(self) -> None:
        self._stack.close()

    def _rule(self, rule: Rule) -> None:
        assert self._hosts.wire is not None
        assert self._hosts.wire.stdin is not None
        self._hosts.wire.stdin.write(rule.told())
        self._hosts.wire.stdin.flush()

    def _signal_second(self, number: signal.Signals) -> None:
        pids = subprocess.run(["ip", "netns", "pids", self._hosts.far[0]], check=True, capture_output=True, text=True)
        for pid in pids.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
