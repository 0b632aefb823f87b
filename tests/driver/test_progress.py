"""The display: a bar on a terminal, plain lines elsewhere, and no line is lost."""

from __future__ import annotations

import io

import pytest

from orchestrator.driver import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("orchestrator.driver.progress.time.monotonic", lambda: clock[0])
    stream = io.StringIO()
    display = progress.for_stream(stream)
    display.start(1000)
    for done in range(1, 1001):
        clock[0] += 0.03
        display.step(done, 1 / done)
    display.close()
    assert stream.getvalue().splitlines() == [
        "step 334/1000, loss 0.002994",
        "step 668/1000, loss 0.001497",
        "step 1000/1000, loss 0.001",
    ]


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
