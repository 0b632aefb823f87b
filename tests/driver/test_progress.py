"""The display: a bar on a terminal, plain lines elsewhere, and no line is lost."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Callable

import pytest

from orchestrator.driver.terminal import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain_lines(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> list[str]:
    """The lines of 1,000 steps, with a clock that goes so many seconds in each."""
    clock = [0.0]
    monkeypatch.setattr("orchestrator.driver.terminal.progress.time.monotonic", lambda: clock[0])
    stream = io.StringIO()
    display = progress.for_stream(stream)
    display.start(1000)
    for done in range(1, 1001):
        clock[0] += seconds(done)
        display.step(done, 1 / done)
    display.close()
    return stream.getvalue().splitlines()


def test_plain_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_lines(monkeypatch, lambda _: 0.03) == [
        "step 334/1000, loss 0.002994, 33.3 steps/s, 20 s left",
        "step 668/1000, loss 0.001497, 33.3 steps/s, 10 s left",
        "step 1000/1000, loss 0.001, 33.3 steps/s",
    ]


def test_a_standstill_is_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = plain_lines(monkeypatch, lambda done: 90.0 if done == 100 else 0.1)
    assert lines[0].endswith(", 0.992 steps/s, 15 min 7 s left")
    assert lines[3] == "step 403/1000, loss 0.002481, 10 steps/s, 1 min 0 s left"


def test_in_a_notebook_it_is_below_the_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.driver.terminal.notebook.is_here", lambda: True)
    monkeypatch.setattr("orchestrator.driver.terminal.notebook.has_widgets", lambda: False)
    display = progress.for_stream()
    display.start(2)
    display.step(2, 0.5)
    out, err = capsys.readouterr()
    assert (out, err) == ("step 2/2, loss 0.5\n", "")


def test_of_segments_it_tells_how_much_of_them_is_done() -> None:
    stream = io.StringIO()
    display = progress.SegmentProgress(progress.for_stream(stream), [(100, 150), (400, 450)])
    display.start(3000)
    for done in (101, 150, 401):
        display.step(done, 0.5)
    assert stream.getvalue() == ""
    display.step(450, 0.5)
    assert stream.getvalue() == "step 100/100, loss 0.5\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_nothing_is_said_about_a_rate_that_is_not_known() -> None:
    assert progress.rate_and_left(0, 10.0, 5) == ""
    assert progress.rate_and_left(24, 0.004, 0) == ""  # reports that arrived at once


def everything(descriptor: int) -> str:
    """The text of a pseudo-terminal until its other end is closed: it comes piece by piece."""
    pieces = []
    with contextlib.suppress(OSError):
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
    os.close(descriptor)
    return b"".join(pieces).decode()


def test_a_terminal_shows_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real pseudo-terminal of 100 columns, and a clock that goes at ten steps a second."""
    clock = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with open(theirs, "w", encoding="utf-8") as stream:
        display = progress.for_stream(stream)
        display.start(100)
        for done in range(1, 51):
            clock[0] += 0.1
            display.step(done, 0.5)
        display.close()
    last = [line for line in everything(ours).split("\r") if line.strip()][-1]
    assert "50/100" in last
    assert "00:05<00:05" in last
    assert "10.00step/s, loss 0.5]" in last
    assert len(last) <= 100


def test_a_bar_shows_steps_rate_and_loss_and_goes_away() -> None:
    stream = Terminal()
    display = progress.for_stream(stream)
    display.say("before")
    display.start(10)
    display.step(10, 0.5)
    display.say("between")
    display.close()
    display.say("after")
    shown = stream.getvalue()
    assert all(line in shown for line in ("before\n", "between\n", "after\n"))
    assert "0/10" in shown
