"""The progress of a sweep on stderr: a table that stays in its place on a terminal, a line for each trial that has ended
elsewhere. Trials report from threads of their own."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from orchestrator.common.figures import aligned
from orchestrator.driver.terminal.console import people
from orchestrator.experiments.search.outlook import TrialRung

_DRAWN_EVERY_S = 0.2
_RANKED = 10  # trials in the table of the best
_WARNINGS = ("warning:", "ALARM")


@dataclass
class TrialRow:
    """A run of a trial, as the board shows it."""

    number: int  # of the trial
    point: Mapping[str, Any]  # settings of the trial
    done: int = 0  # steps that are done
    steps: int = 0  # number of its steps; 0 while that is not known
    loss: float | None = None  # of the last step; None before the first
    value: float | None = None  # of the objective; None before the end, and where it failed


@dataclass
class Seen:
    """The state of the board."""

    metric: str  # of the objective
    trials: int  # how many there will be
    direction: str = "minimize"  # whether small values are good ("minimize"), or large ones
    noun: str = "trial"  # what a trial is called
    running: dict[TrialRung, TrialRow] = field(default_factory=dict)  # runs that go on, by trial and rung
    ended: int = 0  # how many trials have ended
    failed: int = 0  # how many trials have failed
    best: TrialRow | None = None  # run with the best value so far; None before the first value

    def better(self, row: TrialRow) -> bool:
        if row.value is None:
            return False
        if self.best is None or self.best.value is None:
            return True
        order = (row.value, row.number), (self.best.value, self.best.number)
        if self.direction == "maximize":
            order = (-row.value, row.number), (-self.best.value, self.best.number)
        return order[0] < order[1]


def show_point(point: Mapping[str, Any]) -> str:
    """By the last part of its keys where these differ: "lr=0.0012, hidden=64"."""
    short = [key.rpartition(".")[2] for key in point]
    names = short if len(set(short)) == len(short) else list(point)
    return ", ".join(f"{name}={_short(value)}" for name, value in zip(names, point.values(), strict=True))


def table(seen: Seen, width: int) -> list[str]:
    """The lines of the table, none longer than the width."""
    rows: list[tuple[str, ...]] = [(seen.noun, "step", "loss", "settings")]
    for place in sorted(seen.running):
        row = seen.running[place]
        loss = "" if row.loss is None else f"{row.loss:.4g}"
        rows.append(
            (str(row.number), f"{row.done}/{row.steps}" if row.steps else "starting", loss, show_point(row.point))
        )
    lines = aligned(rows).split("\n") if seen.running else []
    return [line[:width] for line in [*lines, summary(seen)]]


def summary(seen: Seen) -> str:
    failed = f", {seen.failed} failed" if seen.failed else ""
    best = ""
    if seen.best is not None and seen.best.value is not None:
        best = f"; best: {seen.noun} {seen.best.number}, {seen.metric} {seen.best.value:.4g}, {show_point(seen.best.point)}"
    return f"{seen.ended} of {seen.trials} {seen.noun}s{failed}{best}"


class TrialBoard:
    """Shows what trials report. stream: stderr if none is given."""

    def __init__(self, seen: Seen, stream: TextIO | None = None) -> None:
        self._stream = people(stream)
        self._live = self._stream.isatty()
        self._seen = seen
        self._lock = threading.Lock()
        self._drawn = 0  # lines that stand below
        self._drawn_at = 0.0
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        with self._lock:
            self._print(text)

    def said_by(self, place: TrialRung, text: str) -> None:
        """Only warnings of a trial are for people: its outcome stands in the table."""
        with self._lock:
            if text.startswith(_WARNINGS) and text not in self._said:
                self._said.add(text)
                self._print(f"{self._seen.noun} {place[0]}: {text}")

    def begins(self, place: TrialRung, point: Mapping[str, Any], steps: int) -> None:
        with self._lock:
            self._seen.running[place] = TrialRow(place[0], point, steps=steps)
            self._draw(now=True)

    def step(self, place: TrialRung, done: int, loss: float | None) -> None:
        with self._lock:
            row = self._seen.running.get(place)
            if row is not None:
                row.done, row.loss = done, loss
                self._draw()

    def ends(self, place: TrialRung, value: float | None, why: str | None, *, last: bool) -> None:
        """Show that a run of a trial has ended. last: whether it was the run of the trial's last rung, with which it can be
        the best."""
        with self._lock:
            row = self._seen.running.pop(place)
            row.value = value
            self._seen.failed += value is None
            news = ""
            self._seen.ended += last or value is None
            if last and self._seen.better(row):
                self._seen.best, news = row, ", the best so far"
            came = (
                f"failed: {(why or '').splitlines()[0]}" if value is None else f"{self._seen.metric} {value:.4g}{news}"
            )
            steps = f", {row.done} steps" if row.done else ""
            self._print(f"{self._seen.noun} {row.number}{steps}: {came} ({show_point(row.point)})")

    def leaves(self, place: TrialRung) -> None:
        """The run of a trial was ended from outside."""
        with self._lock:
            self._seen.running.pop(place, None)

    def knows(self, place: TrialRung, value: float | None, point: Mapping[str, Any], *, last: bool) -> None:
        """Take in a run that had ended before this process began."""
        row = TrialRow(place[0], point, value=value)
        self._seen.failed += value is None
        if last and self._seen.better(row):
            self._seen.best = row

    def counts(self, ended: int) -> None:
        """How many trials have come to their end."""
        with self._lock:
            self._seen.ended = ended
            self._draw(now=True)

    def close(self) -> None:
        with self._lock:
            self._erase()
            self._live = False

    def _print(self, text: str) -> None:
        self._erase()
        print(text, file=self._stream, flush=True)
        self._draw(now=True)

    def _draw(self, *, now: bool = False) -> None:
        if not self._live or (not now and time.monotonic() - self._drawn_at < _DRAWN_EVERY_S):
            return
        self._erase()
        lines = table(self._seen, max(20, shutil.get_terminal_size().columns - 1))
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._drawn, self._drawn_at = len(lines), time.monotonic()

    def _erase(self) -> None:
        """Up to where the table begins, and clear from there (ECMA-48, CUU and ED)."""
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0


@dataclass
class TrialDisplay:
    """The display of one run of a trial; a `ProgressDisplay`."""

    board: TrialBoard
    place: TrialRung

    def start(self, steps: int) -> None:
        pass

    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None:  # noqa: ARG002
        self.board.step(self.place, done, loss)

    def say(self, text: str) -> None:
        self.board.said_by(self.place, text)

    def close(self) -> None:
        pass


def ranked(trials: Sequence[Mapping[str, Any]], direction: str) -> str:
    """The best trials of a report as a table."""
    whole = [each for each in trials if each["value"] is not None and each["status"] == "finished"]
    sign = 1 if direction == "minimize" else -1
    whole.sort(key=lambda each: (sign * each["value"], each["number"]))
    rows = [("trial", "value", "run", "digest", "settings")]
    rows += [
        (
            str(each["number"]),
            f"{each['value']:.6g}",
            str(each["run_id"])[:8],
            str(each["digest"])[:12],
            show_point(each["settings"]),
        )
        for each in whole[:_RANKED]
    ]
    return aligned(rows)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
