"""A process that runs a module of this package for its parent, with a pipe to it and one back.

It is started as Python starts it, which takes a second or two to import torch. Another way of starting it is given by the
process of a worker (`cluster.forkserver.children`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Protocol


class Child(Protocol):
    """input: what it reads from its standard input; output: what it writes to its standard output."""

    input: IO[bytes]
    output: IO[bytes]

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def close(self) -> int | None:
        """Close both pipes and wait for its end. The exit code, a signal's number below zero; None where nobody knows it."""


Start = Callable[[str], Child]  # runs the `main` of a module


class Started:
    def __init__(self, module: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.input, self.output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> int:
        self._process.communicate()
        return self._process.returncode
