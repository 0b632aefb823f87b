"""The lines that a pipeline prints, and how they come to the user."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from orchestrator.cluster.actors.event_queue import EventQueue, Printed


def printed(*written: str) -> tuple[list[Any], int]:
    """The lines that come, and how many characters are kept for the next one."""
    queue = EventQueue()
    stream = Printed(queue, sys.stdout)
    for text in written:
        assert stream.write(text) == len(text)
    return [entry["printed"] for entry in queue.unacknowledged()], len(stream._line)


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
