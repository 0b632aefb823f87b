"""Turns of a host: one process at a time has each, and a process that ends gives it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from orchestrator.cluster.actors.host_turns import HostTurns

HOLDER = """
import os, sys, time
from orchestrator.cluster.actors.host_turns import HostTurns
assert HostTurns({secret!r}).take(0) is not None
if not os.fork():  # as a pipeline's own loaders do
    print(os.getpid(), flush=True)  # it runs, so it has let go of what it got with the fork
time.sleep(600)
"""


def test_a_turn_is_one_processs_until_it_is_given_back() -> None:
    secret = os.urandom(16)
    mine, others = HostTurns(secret), HostTurns(secret)
    give_back = mine.take(0)
    assert give_back is not None
    assert others.take(0) is None
    another = others.take(1)
    elsewhere = HostTurns(os.urandom(16)).take(0)
    assert another is not None
    assert elsewhere is not None, "another run has turns of its own"
    give_back()
    again = others.take(0)
    assert again is not None
    for each in (another, elsewhere, again):
        each()


def test_who_is_killed_in_its_turn_blocks_nobody_and_neither_do_its_children() -> None:
    secret = os.urandom(16)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(secret=secret)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert HostTurns(secret).take(0) is None
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
            os.kill(child, 0)
            give_back = HostTurns(secret).take(0)
            assert give_back is not None
            give_back()
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)
