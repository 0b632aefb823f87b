"""What stands in for an agent of Ray that nobody asks anything: a program of a few milliseconds, where Ray's own takes 0.7 s.

    python -I -S agent.py PORT... --session-dir=FOLDER --node-id=ID ...

Ray's raylet starts an agent for metrics and one for runtime environments, waits until they have noted in its folder which ports
they listen to, and ends with them. This one notes -1 for each PORT, with which Ray's own agents say that they listen to none,
and ends with the raylet. It is run by its path and imports nothing of orchestrator.
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


def outlive(process: int) -> None:
    """Return when the process has ended, which is the parent of this one."""
    try:
        descriptor = os.pidfd_open(process)
    except OSError:  # it has ended, or the kernel has no such descriptors
        while os.getppid() == process:
            time.sleep(_LOOK_S)
        return
    if os.getppid() == process:
        select.select([descriptor], [], [])


def main(arguments: Sequence[str]) -> None:
    raylet = os.getppid()
    given = dict(argument[2:].partition("=")[::2] for argument in arguments if argument.startswith("--"))
    note([name for name in arguments if name.endswith("_port")], given["session-dir"], given["node-id"])
    outlive(raylet)


if __name__ == "__main__":
    main(sys.argv[1:])
