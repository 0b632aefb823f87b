"""A stand-in for an agent of Ray that nobody asks anything: a program of a few milliseconds, while Ray's own takes 0.7 s.

    python -I -S agent.py DRIVER PORT... --session-dir=FOLDER --node-id=ID ...

Ray's raylet starts an agent for metrics and one for runtime environments, waits until they have noted in its folder which
ports they listen to, and ends with them. This one notes -1 for each PORT, with which Ray's own agents say that they listen to
none, and ends with the raylet, its parent, or with the process DRIVER: a raylet may be gone before this program has begun. It
is run by its path and imports nothing of orchestrator. This is true of the versions of Ray in `common.tested_versions.RAY`;
with others Ray's own agents run.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence

_LOOK_S = 1.0


def note(names: Sequence[str], folder: str, node: str) -> None:
    """As ray._raylet.persist_port does it: whole or not at all."""
    for name in names:
        place = os.path.join(folder, f"{name}_{node}")  # noqa: PTH118 (pathlib takes as long as all the rest)
        with open(f"{place}.unfinished", "w") as file:
            file.write("-1")
        os.replace(f"{place}.unfinished", place)  # noqa: PTH105


def wait_for_one(processes: Sequence[int]) -> None:
    """Return when one of these processes has ended."""
    try:
        descriptors = [os.pidfd_open(process) for process in processes]
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # the system has no such descriptors
        while all(_lives(process) for process in processes):
            time.sleep(_LOOK_S)
        return
    select.select(descriptors, [], [])


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def main(arguments: Sequence[str]) -> None:
    raylet, driver, names = os.getppid(), int(arguments[0]), arguments[1:]
    given = dict(argument[2:].partition("=")[::2] for argument in arguments if argument.startswith("--"))
    note([name for name in names if name.endswith("_port")], given["session-dir"], given["node-id"])
    wait_for_one([raylet, driver])


if __name__ == "__main__":
    main(sys.argv[1:])
