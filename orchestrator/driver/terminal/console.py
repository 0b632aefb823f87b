"""The standard streams, which may end before the run does, or stand still: a terminal is closed or stopped by Ctrl-S, `| head`
has read enough, a disk is full."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
from pathlib import Path
from typing import Any, Final, TextIO, cast

from orchestrator.driver.terminal import notebook

_PATIENCE_S: Final = 2.0  # with whoever reads slowly; less than a lease, in which the driver has to be heard of
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)|[^\x1b]+|\x1b")
_CHUNK: Final = select.PIPE_BUF // 4  # characters, which a stream that takes any takes without waiting


class Lasting:
    """A stream to people. Its failures are ignored: a closed terminal is no reason to end a run. Neither is a terminal that
    takes nothing: text that it does not take within two seconds is left out, and so is all that follows until it takes
    something again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._left_out = 0  # characters
        try:
            self._descriptor = None if isinstance(stream, Lasting) else stream.fileno()
        except (OSError, ValueError, AttributeError):
            self._descriptor = None  # it is no file, and never waits

    def write(self, text: str) -> int:
        if self._left_out and self._takes():
            self._put(f"({self._left_out} characters were left out here: nobody took them)\n")
            self._left_out = 0
        for start in range(0, len(text), _CHUNK):
            if not self._takes():
                self._left_out += len(text) - start
                break
            self._put(text[start : start + _CHUNK])
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            if self._descriptor is not None:
                self._stream.flush()

    def _takes(self) -> bool:
        if self._descriptor is None:
            return True
        try:
            return bool(select.select([], [self._descriptor], [], 0.0 if self._left_out else _PATIENCE_S)[1])
        except (OSError, ValueError):  # it is closed, and a write fails at once
            return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def people(stream: TextIO | None = None) -> TextIO:
    """The stream to people: stderr, in a notebook stdout, since it colours the other one as an error. stream: another one."""
    if stream is None and notebook.is_here():
        return sys.stdout
    _fill()
    return cast(TextIO, Lasting(stream or sys.stderr))


def _fill() -> None:
    """A program without a terminal, such as a service, may have no streams, and Ray refuses to start then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def plain(text: str, kept: str = "") -> str:
    """The text as it can be shown. A character that is not printable, such as one that moves the cursor or turns the
    direction of writing, is written as Python escapes it. kept: characters that stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in text)


def shown(text: str) -> str:
    """The same of a text of several lines: what others have written in it can neither hide nor do anything."""
    return plain(text, "\n\t")


def spoken(text: str) -> str:
    """The same of what a run says while it goes on, whose pipeline may print in colours."""
    return _COLOUR.sub(lambda found: found[0] if found[1] else shown(found[0]), text) if "\x1b" in text else shown(text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def tell(text: str) -> None:
    """A message to people, on stderr."""
    print(shown(text), file=sys.stderr, flush=True)


def was_typed() -> bool:
    """Whether this process is a command of ours. A program or a notebook may have launched a run, too."""
    script = Path(sys.argv[0])
    return script.name == "orchestrator" or script.parts[-2:] == ("orchestrator", "__main__.py")


def prepare() -> None:
    """Fill the place of a closed stream (`2>&-`), which would go to the next file that is opened, such as a trace."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":  # a terminal that knows few letters
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = Lasting(sys.stderr)


def answer(text: str, code: int) -> int:
    """Write the result for programs to stdout, whole. Returns the exit code: `code`, but 1 where that was 0 and the
    text was lost. A reader that closed the pipe early has lost nothing."""
    try:
        print(shown(text), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail again at the exit
        if isinstance(error, BrokenPipeError):
            return code
        print(f"error: standard output could not be written: {error.strerror}", file=sys.stderr)
        return code or 1
    return code
