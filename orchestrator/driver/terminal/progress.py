"""The progress display on stderr: a bar on a terminal, a plain line now and then otherwise. In a notebook it is below the cell:
a bar where there are ipywidgets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Never, Protocol, TextIO

from tqdm import tqdm

from orchestrator.driver.terminal import notebook
from orchestrator.driver.terminal.console import people, spoken

PLAIN_EVERY_S = 10.0
_LINES_OF_A_RATE = 3
_LEAST_S = 2.0  # reports of many steps may arrive at once, and their times say nothing of the steps


class ProgressDisplay(Protocol):
    def start(self, steps: int) -> None: ...
    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def for_stream(stream: TextIO | None = None) -> ProgressDisplay:
    """The display for `stream` (stderr): a bar on a terminal, plain lines elsewhere."""
    if stream is None and notebook.has_widgets():
        return Bar(people(), in_notebook=True)
    stream = people(stream)
    return Bar(stream) if stream.isatty() else Plain(stream)


def say_obstacles(progress: ProgressDisplay, obstacles: Iterable[str]) -> None:
    """Say what keeps a run from being repeated exactly, each with its remedy."""
    for obstacle in obstacles:
        progress.say(f"note: this run cannot be repeated exactly: {obstacle}")


def rate_and_left(steps: int, seconds: float, left: int) -> str:
    """ ", 66.2 steps/s, 10 s left" from what was reported in some seconds; empty while too little is known."""
    if steps <= 0 or seconds < _LEAST_S:
        return ""
    rate = steps / seconds
    return f", {three_digits(rate)} steps/s" + (f", {duration(left / rate)} left" if left else "")


def three_digits(value: float) -> str:
    """A number above 0 in three digits, without an exponent: "0.0123", "66.2", "11,400"."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A duration in its two largest units: "10 s", "2 min 5 s", "3 h 20 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _numbers(loss: float | None, epsilon: float | None) -> str:
    """Loss and epsilon in words; a private run tells no loss."""
    numbers = {"loss": loss, "epsilon": epsilon}
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None)


class Plain:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps = 0
        self._said_at = time.monotonic()
        # Steps done, and the time, at the first report or the last few lines: a slow start or a standstill soon counts no more.
        self._recent: deque[tuple[int, float]] = deque(maxlen=_LINES_OF_A_RATE)

    def start(self, steps: int) -> None:
        self._steps = steps
        self._said_at = time.monotonic()
        self._recent.clear()

    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None:
        now = time.monotonic()
        if not self._recent:
            self._recent.append((done, now))
        if now - self._said_at >= PLAIN_EVERY_S or done == self._steps:
            self._said_at = now
            before, then = self._recent[0]
            pace = rate_and_left(done - before, now - then, self._steps - done)
            self.say(f"step {done}/{self._steps}, {_numbers(loss, epsilon)}{pace}")
            self._recent.append((done, now))

    def say(self, text: str) -> None:
        print(spoken(text), file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Bar:
    def __init__(self, stream: TextIO, *, in_notebook: bool = False) -> None:
        self._stream = stream
        self._in_notebook = in_notebook
        self._bar: tqdm[Never] | None = None

    def start(self, steps: int) -> None:
        kind: type[tqdm[Never]] = tqdm
        if self._in_notebook:
            from tqdm.auto import tqdm as kind  # type: ignore[assignment]  # a bar of widgets, which it imports
        self._bar = kind(total=steps, file=self._stream, unit="step", dynamic_ncols=True, leave=False, mininterval=0.2)

    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(_numbers(loss, epsilon), refresh=False)
            self._bar.update(done - self._bar.n)

    def say(self, text: str) -> None:
        text = spoken(text)
        if self._bar is None or self._in_notebook:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class SegmentProgress:
    """The progress of a run of which only some ranges of steps are computed: tells how many of those are done."""

    def __init__(self, display: ProgressDisplay, ranges: Sequence[tuple[int, int]]) -> None:
        self._display = display
        self._ranges = ranges

    def start(self, steps: int) -> None:
        self._display.start(self._within(steps))

    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None:
        self._display.step(self._within(done), loss, epsilon)

    def say(self, text: str) -> None:
        self._display.say(text)

    def close(self) -> None:
        self._display.close()

    def _within(self, done: int) -> int:
        return sum(max(0, min(done, end) - first) for first, end in self._ranges)
