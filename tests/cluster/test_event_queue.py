"""The lines that a pipeline prints, and how they come to the user."""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.actors.event_queue import EventQueue, Printed


def printed(*written: str) -> tuple[list[Any], int]:
    """The lines that come, and how many characters are kept for the next one."""
    queue = EventQueue()
    stream = Printed(queue, sys.stdout)
    for text in written:
        assert stream.write(text) == len(text)
    lines: Any = stream.buffer
    return [entry["printed"] for entry in queue.unacknowledged()], len(lines._line)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (["a", "b\nc", "\n"], ["ab", "c"]),
        (["\n\n"], ["", ""]),
        (["a\r\nb\r", "\n"], ["a", "b"]),
        (["\r 1%", "\r 2%", "\r100%\n"], ["100%"]),
        ([" 1%\r", " 2%\r", "done\n"], ["done"]),
    ],
)
def test_lines_come_as_a_terminal_shows_them(written: list[str], lines: list[str]) -> None:
    assert printed(*written) == (lines, 0)


def test_a_progress_bar_that_goes_on_for_days_takes_no_memory() -> None:
    """It was one line that grew, and was copied with each change."""
    lines, kept = printed(*[f"\r{number} of many steps" for number in range(10_000)])
    assert lines == []
    assert kept < 30


def test_a_line_without_end_is_cut() -> None:
    lines, kept = printed(*["." * 100] * 1_000)
    assert "".join(lines) + "." * kept == "." * 100_000
    assert len(lines) > 1


def test_it_is_a_stream_as_pythons_own() -> None:
    """Training code sets it up as it is imported, writes bytes, and puts streams of its own in front of it."""
    queue = EventQueue()
    stream = Printed(queue, sys.stdout)
    stream.reconfigure(line_buffering=True)
    stream.writelines(["ä\n", "\udc80\n"])
    stream.buffer.write("€".encode()[:2])
    stream.buffer.write("€".encode()[2:] + b"\xff\n")
    assert (stream.closed, stream.writable(), stream.isatty(), stream.name) == (False, True, False, sys.stdout.name)
    other = io.TextIOWrapper(stream.buffer, encoding="utf-8")
    del stream
    print("of another", file=other, flush=True)
    assert [entry["printed"] for entry in queue.unacknowledged()] == ["ä", "\\udc80", "€\ufffd", "of another"]


def test_who_is_forked_waits_for_no_lock_to_print(tmp_path: Path) -> None:
    queue = EventQueue()
    with (tmp_path / "behind").open("w") as behind:
        stream = Printed(queue, behind)
        with ThreadPoolExecutor(1) as other:
            other.submit(queue._changed.acquire).result()  # as a thread may have done in the moment of the fork
            if not (child := os.fork()):
                print("forked", file=stream)
                os._exit(0)
            other.submit(queue._changed.release).result()
        assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "behind").read_text() == "forked\n"
    assert queue.unacknowledged() == []
