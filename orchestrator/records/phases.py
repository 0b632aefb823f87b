"""The phases of a launch's start, with when each began and how long it took, for the timeline of the run.

    with phases.of("Ray"): ...          # in whichever thread of the launch does it
    phases.recorded()                   # [{"member": "driver", "started": 1795448868.85, "spans": [...]}, ...]

A process has one list of them. If it drives several launches, each has a list of its own (`of_a_launch`). Threads that work
for it take that along (`contextvars.copy_context`). They are noted always, since that costs two clocks each. The form is that
of the spans of `records.times.chrome`. It does not decide what a phase is: the code that does something says so.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

# The line it stands in, what is done, when it began in seconds of the epoch, and how many it took.
_Span = tuple[str, str, float, float]
_T = TypeVar("_T")
COMMAND = "python"  # the phase from when a command was typed
_of_process: list[_Span] = []
_of_launch: ContextVar[list[_Span]] = ContextVar("phases", default=_of_process)


@contextmanager
def of_a_launch() -> Iterator[None]:
    """The phases within the block are those of one launch of several."""
    before = _of_launch.set([])
    try:
        yield
    finally:
        _of_launch.reset(before)


def began(what: str, line: str | None = None) -> None:
    """The time since this process began is a phase."""
    now = time.time()
    note(what, now - process_age(), now, line)


@contextmanager
def of(what: str, line: str | None = None) -> Iterator[None]:
    """The block is a phase. line: where it stands, the name of the thread where nothing is said."""
    began = time.time()
    try:
        yield
    finally:
        note(what, began, time.time(), line)


@contextmanager
def entered(what: str, resource: AbstractContextManager[_T]) -> Iterator[_T]:
    """Entering the resource is a phase; what is done with it is none."""
    began = time.time()
    with resource as found:
        note(what, began, time.time())
        yield found


def note(what: str, began: float, ended: float, line: str | None = None) -> None:
    _of_launch.get().append((line or _thread(), what, began, ended - began))


def since_command() -> float:
    """Seconds since what this launch does was typed; 0, where it was not typed, but called from Python."""
    return process_age() if any(what == COMMAND for _, what, _, _ in _of_launch.get()) else 0.0


def recorded() -> list[dict[str, Any]]:
    """The phases so far, of each line one after another."""
    lines: dict[str, list[tuple[str, float, float]]] = {}
    for line, what, began, seconds in list(_of_launch.get()):
        lines.setdefault(line, []).append((what, began, seconds))
    return [_line(name, sorted(spans, key=lambda span: span[1])) for name, spans in lines.items()]


def process_age() -> float:
    """Seconds since this process began, whatever the wall clock did meanwhile; 0, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return up - ticks / os.sysconf("SC_CLK_TCK")


def _line(name: str, spans: list[tuple[str, float, float]]) -> dict[str, Any]:
    started = spans[0][1]
    spans_told = [[what, None, None, round(began - started, 6), round(seconds, 6)] for what, began, seconds in spans]
    return {"member": name, "started": round(started, 6), "spans": spans_told}


def _thread() -> str:
    thread = threading.current_thread()
    return "driver" if thread is threading.main_thread() else f"driver, {thread.name}"
