"""A picture of where the time of a run went: what a step took along the run above, each worker's time below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from orchestrator.driver.report.pictures.drawing import as_png, blank, entitle, finish
from orchestrator.records.times import IN_WORDS, KINDS, Seconds, by_member, per_step

_INK = "#1f2933"
_COLOURS = {
    "compute": "#2f6fb2",
    "wait": "#d5dae1",
    "exchange": "#d9622b",
    "update": "#2f8f6b",
    "evaluate": "#8a5fb5",
    "checkpoint": "#b58a1f",
    "report": "#4a9aa8",
    "connect": "#8c8c8c",
}
_COLUMNS = 120
_MOST_BARS = 32  # of more members only the first are shown


def draw(windows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw how members spent their time. windows: lines of times.jsonl, of workers and servers; at least one."""
    workers = [window for window in windows if window["member"].startswith("worker ")]
    members = by_member(windows)
    present = [kind for kind in KINDS if any(seconds[kind] > 0 for seconds in members.values())]
    bars = 0.32 * min(len(members), _MOST_BARS) + 0.6
    figure = blank(9, 3.4 + bars)
    grid = figure.add_gridspec(2, 1, height_ratios=(2.8, bars))
    upper, lower = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    entitle(upper, f"{title}: where time goes")
    _along_the_run(upper, per_step(workers, _COLUMNS), present)
    _by_member(lower, members, present)
    as_png(figure, path)


def _along_the_run(axes: Axes, columns: Sequence[tuple[float, Seconds]], present: Sequence[str]) -> None:
    if len(columns) == 1:  # as wide as the run
        columns = [(0.0, columns[0][1]), (2 * columns[0][0], columns[0][1])]
    steps = [step for step, _ in columns]
    for kind, (low, high) in _stacked([seconds for _, seconds in columns], present).items():
        lower, upper = ([1e3 * value for value in side] for side in (low, high))
        axes.fill_between(steps, lower, upper, color=_COLOURS[kind], linewidth=0, label=IN_WORDS[kind])
    finish(axes, "ms per step")
    axes.set_xlabel("step", color=_INK)
    axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        style: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": _INK}
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), **style)


def _by_member(axes: Axes, members: Mapping[str, Seconds], present: Sequence[str]) -> None:
    names = list(members)[:_MOST_BARS]
    for kind, (low, high) in _stacked([members[name] for name in names], present).items():
        widths = [end - start for start, end in zip(low, high, strict=True)]
        axes.barh(range(len(names)), widths, left=low, color=_COLOURS[kind], height=0.8)
    axes.invert_yaxis()
    finish(axes, "")
    axes.set_yticks(range(len(names)), names)
    axes.grid(False, axis="y")
    more = len(members) - len(names)
    axes.set_xlabel("seconds" + (f" (and {more} members more)" if more else ""), color=_INK)


def _stacked(each: Sequence[Seconds], present: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """The lower and the upper edge of each kind when they stand on each other."""
    found, low = {}, [0.0] * len(each)
    for kind in present:
        high = [start + seconds[kind] for start, seconds in zip(low, each, strict=True)]
        found[kind], low = (low, high), high
    return found
