"""The output of a program that may never end: one that calls a driver that hangs cannot even be killed.

Its output is small and is taken whole. It does not wait for the end of a program that was given up.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

_LAST_S = 0.5  # in which a program that was killed is usually gone


class Output(NamedTuple):
    """The output of a program. code: the program's exit code; out, err: what it wrote."""

    code: int
    out: str
    err: str


def output_of(command: Sequence[str], limit_s: float) -> Output:
    """Raises TimeoutError, and OSError where there is no such program."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)
        raise TimeoutError(f"{command[0]} did not answer in {limit_s:g} s") from None
    finally:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return Output(process.returncode, out, err)
