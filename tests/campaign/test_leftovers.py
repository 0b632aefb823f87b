"""Leftovers of dead campaigns are gone after the next one has begun; what living ones have is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from campaign import leftovers

# A campaign that makes a process, a folder and a link, says their names, and waits.
_CAMPAIGN = """
import os, subprocess, sys, tempfile, time
from campaign import leftovers
os.environ[leftovers.VARIABLE] = leftovers.mark()
folder = tempfile.mkdtemp(prefix=f"{leftovers.mark()}-", dir=sys.argv[1])
other = tempfile.mkdtemp(prefix="t-", dir=sys.argv[1])
os.symlink(other, f"{folder}/{leftovers.TEMPORARY}")
started = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(started.pid, folder, other, flush=True)
time.sleep(600)
"""


class Campaign:
    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CAMPAIGN, str(place)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        pid, *folders = self.process.stdout.readline().split()
        self.started, self.folders = int(pid), [Path(folder) for folder in folders]

    @property
    def has(self) -> list[bool]:
        return [leftovers.began(self.started) is not None, *(folder.exists() for folder in self.folders)]

    def close(self) -> None:
        os.kill(self.started, signal.SIGKILL)
        self.kill()

    def kill(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.slow
def test_what_a_dead_campaign_has_left_is_gone_and_a_living_one_keeps_all(tmp_path: Path) -> None:
    dead, living = Campaign(tmp_path), Campaign(tmp_path)
    try:
        dead.kill()
        assert dead.has == [True] * 3
        told = leftovers.clean([str(tmp_path)])
        assert dead.has == [False] * 3
        assert living.has == [True] * 3
        assert "1 processes" in told
        assert str(dead.folders[0]) in told
        assert leftovers.clean([str(tmp_path)]) == []
    finally:
        living.close()


def test_a_mark_is_of_a_process_and_not_of_its_number_alone() -> None:
    own, pid = leftovers.mark(), os.getpid()
    assert not leftovers.is_left(f"{own}-abc")
    assert leftovers.is_left(f"campaign-{pid}-{(leftovers.began(pid) or 0) + 1:x}-abc")


@pytest.mark.parametrize("name", ["campaign-2nw9t0e2", "campaign-12-x", "t-1-1", "orchestrator-12-a", "campaign-1"])
def test_what_has_no_mark_is_nobodys(name: str) -> None:
    assert not leftovers.is_left(name)
