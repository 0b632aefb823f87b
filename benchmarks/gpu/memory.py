"""How much of a device's memory is taken, by whatever process: looked at every few milliseconds by a process of its own.

    python -m benchmarks.gpu.memory cuda      prints the most since the last answer, for each line that it reads

The memory of the looking process is part of every answer, and goes away when two of them are compared.
"""

from __future__ import annotations

import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.gpu.runs import REPOSITORY, environment

_LOOK_S: Final = 0.01


class Watch:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def most(self) -> int:
        """Bytes that were taken, at most, since the last call or the beginning."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def watching(device: str) -> Iterator[Watch]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.memory", device],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        watch = Watch(process)
        watch.most()  # it is there
        yield watch
    finally:
        process.kill()
        process.communicate()


def taken(device: str) -> int:
    """Bytes, at this moment."""
    if device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    said = Path("/proc/meminfo").read_text()
    total_kb, available_kb = (
        int(each) for each in re.findall(r"^(?:MemTotal|MemAvailable):\s+(\d+)", said, re.MULTILINE)
    )
    return 1024 * (total_kb - available_kb)


def main(device: str) -> None:
    most = taken(device)
    while True:
        asked, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        most = max(most, taken(device))
        if asked:
            if not sys.stdin.readline():
                return
            print(most, flush=True)
            most = 0


if __name__ == "__main__":
    main(sys.argv[1])
