"""Things that a campaign makes beside its results carry its mark, by which the next one removes what dead ones have left.

A campaign that is killed removes nothing: its processes, network namespaces, small disks and folders stay. The mark has the
number of its process and when that began, which no two have. A thing without a mark, or with that of a living campaign, is
left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

VARIABLE: Final = "ORCHESTRATOR_CAMPAIGN"  # the mark, in the environment of all processes that a campaign starts
TEMPORARY: Final = "temporary"  # in a folder: a link to one with a shorter name, which goes with it
PLACES: Final = ("/tmp", "/dev/shm")
_NAMESPACES: Final = Path("/run/netns")
_MARK: Final = re.compile(r"campaign-(\d+)-([0-9a-f]+)(?![0-9a-z_])")
_PATIENCE_S: Final = 30.0


def mark() -> str:
    """The mark of this process, at the beginning of a name."""
    return f"campaign-{os.getpid()}-{began(os.getpid()):x}"


def began(pid: int) -> int | None:
    """When this process began, in ticks of the kernel; None where none lives."""
    try:
        state, *figures = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(figures[18])


def is_left(name: str) -> bool:
    """Whether it begins with the mark of a campaign that is dead."""
    found = _MARK.match(name)
    return found is not None and began(int(found[1])) != int(found[2], 16)


def begin() -> list[str]:
    """Mark what this process starts from now on; returns what was left of dead campaigns, and is gone now."""
    os.environ[VARIABLE] = mark()
    return clean()


def clean(places: Sequence[str] = PLACES) -> list[str]:
    """places: where folders are looked for. Two that clean at one time are not in each other's way."""
    told = [f"{count} processes" for count in [_end_processes()] if count]
    for name in filter(is_left, _names(_NAMESPACES)):
        told.append(f"network namespace {name}")
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    folders = [Path(place) / name for place in places for name in _names(Path(place)) if is_left(name)]
    for folder in filter(_is_own, folders):
        told.append(str(folder))
        for mounted in reversed(list(_mounted_below(folder))):
            subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            shutil.rmtree((folder / TEMPORARY).readlink(), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    return told


def _end_processes() -> int:
    """Until none is left; returns how many there were."""
    seen: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and (pids := set(_left_processes())):
        seen |= pids
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return len(seen)


def _left_processes() -> Iterator[int]:
    for pid in map(int, filter(str.isdigit, _names(Path("/proc")))):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            marks = [each.partition(b"=")[2].decode() for each in variables if each.startswith(f"{VARIABLE}=".encode())]
            if pid != os.getpid() and any(map(is_left, marks)) and began(pid) is not None:
                yield pid


def _names(folder: Path) -> Iterable[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))  # noqa: PTH208
    return []


def _is_own(folder: Path) -> bool:
    """Another user might have put a link there."""
    with contextlib.suppress(OSError):
        return not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    return False


def _mounted_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        path = line.split()[1]
        if path.startswith(f"{folder}/"):
            yield path
