"""Stacks of a process as `faulthandler` writes them, and which line of the user's code holds up a member. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

_FRAME: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_SPIED_FRAME: Final = re.compile(r"    (?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)")
_SPIED_THREAD: Final = re.compile(r"Thread .*\(.*\).*")
_THREAD: Final = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):")
_ENGINE: Final = "/orchestrator/worker/"
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


Thread = tuple[Frame, ...]  # the innermost call first


@dataclass(frozen=True)
class Home:
    """The places at which a process finds its code. project: the user's folder; package: that of orchestrator, which may be
    in it; library: of Python itself, likewise."""

    project: str
    package: str
    library: str

    def is_users(self, frame: Frame) -> bool:
        own = not any(_is_in(frame.file, folder) for folder in (self.package, self.library))
        return own and _is_in(frame.file, self.project) and not any(part in frame.file for part in _INSTALLED)

    def shown(self, frame: Frame) -> Frame:
        """Named from the project's folder, where it is in it."""
        if not _is_in(frame.file, self.project):
            return frame
        return Frame(str(PurePosixPath(frame.file).relative_to(self.project)), frame.line, frame.function)


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip("/") + "/")


def parse(text: str) -> list[Thread]:
    """The threads of a dump, which may break off anywhere."""
    return _parsed(text, _THREAD, _FRAME)


def parse_spied(text: str) -> list[Thread]:
    """The same of what py-spy writes."""
    return _parsed(text, _SPIED_THREAD, _SPIED_FRAME)


def _parsed(text: str, thread: re.Pattern[str], frame: re.Pattern[str]) -> list[Thread]:
    found: list[list[Frame]] = []
    for line in text.splitlines():
        if thread.fullmatch(line):
            found.append([])
        elif found and (read := frame.fullmatch(line)):
            found[-1].append(Frame(read["file"], int(read["line"]), read["function"]))
    return [tuple(frames) for frames in found]


def working(threads: Sequence[Thread]) -> Thread:
    """The one that computes: of all that have to do with steps that with most frames; empty where there is none."""
    return max((thread for thread in threads if any(_ENGINE in frame.file for frame in thread)), key=len, default=())


def held_up_at(threads: Sequence[Thread], home: Home) -> tuple[Frame, bool] | None:
    """The innermost line of the user's code in the thread that computes, or the innermost line at all where none of that is
    there; and whether it is the user's. None where nothing is known of that thread."""
    thread = working(threads)
    if not thread:
        return None
    own = next((frame for frame in thread if home.is_users(frame)), None)
    return (home.shown(thread[0]), False) if own is None else (home.shown(own), True)


def waits_for_card(threads: Sequence[Thread]) -> bool:
    """Whether the thread that computes is in a call of torch that waits for a GPU."""
    return any("/torch/cuda/" in frame.file for frame in working(threads)[:2])


def as_lines(threads: Sequence[Thread], most: int = 60) -> list[list[str]]:
    """For the journal, each thread as lines, the one that computes first, at most so many in all."""
    first = working(threads)
    lines: list[list[str]] = []
    for thread in sorted(threads, key=lambda each: each != first):
        left = most - sum(map(len, lines))
        if left > 0:
            lines.append([str(frame) for frame in thread[:left]])
    return lines
