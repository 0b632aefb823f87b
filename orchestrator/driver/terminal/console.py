"""The standard streams, which may end before the run does: a terminal is closed, `| head` has read enough, a disk is
full."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


class Lasting:
    """A stream to people whose failures are ignored: a closed terminal is no reason to end a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare() -> None:
    """Fill the place of a closed stream (`2>&-`), which would go to the next file that is opened, such as a trace."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    sys.stderr = Lasting(sys.stderr)


def answer(text: str, code: int) -> int:
    """Write the result for programs to stdout, whole. Returns the exit code: `code`, but 1 where that was 0 and the
    text was lost. A reader that closed the pipe early has lost nothing."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again at the exit
        if isinstance(error, BrokenPipeError):
            return code
        print(f"error: standard output could not be written: {error.strerror}", file=sys.stderr)
        return code or 1
    return code
