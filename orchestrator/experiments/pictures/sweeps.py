"""Pictures of a sweep: its history, how much each key matters, and trials as lines across the axes of the space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from orchestrator.driver.report.pictures.drawing import as_png, blank, finish
from orchestrator.experiments.search.space import Choice, Dimension, Range, Space

_INK, _BEST, _TRIALS, _PRUNED = "#1f2933", "#d9622b", "#2f6fb2", "#a9b4c0"
_PAPER = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_TEXT: dict[str, Any] = {"fontsize": 8, "color": _INK, "va": "center"}
Trials = Sequence[Mapping[str, Any]]  # of the report


def history(trials: Trials, metric: str, direction: str, title: str, path: Path) -> None:
    """The value of each trial, and the best one so far; those that were pruned in grey."""
    figure, axes = _figure(title, (9, 4.4))
    whole = [(each["number"], each["value"]) for each in trials if each["status"] == "finished"]
    pruned = [(each["number"], each["value"]) for each in trials if each["status"] == "pruned"]
    for points, colour, label in ((pruned, _PRUNED, "pruned"), (whole, _TRIALS, "trials")):
        if points:
            numbers, values = [number for number, _ in points], [value for _, value in points]
            axes.scatter(numbers, values, s=28, color=colour, label=label, zorder=3)
    better = min if direction == "minimize" else max
    so_far = [(number, better(value for _, value in whole[: place + 1])) for place, (number, _) in enumerate(whole)]
    numbers, best = [number for number, _ in so_far], [value for _, value in so_far]
    axes.step(numbers, best, where="post", color=_BEST, linewidth=1.6, label="best so far")
    values = [value for _, value in whole]
    if min(values) > 0 and max(values) / min(values) > 30:
        axes.set_yscale("log")
    finish(axes, metric)
    axes.set_xlabel("trial", color=_INK)
    as_png(figure, path)


def importance(shares: Mapping[str, float], title: str, path: Path) -> None:
    """Bars: which part of the differences between trials each key accounts for."""
    figure, axes = _figure(title, (9, 1.6 + 0.45 * len(shares)))
    names = list(reversed(list(shares)))
    axes.barh(names, [shares[name] for name in names], color=_TRIALS, height=0.6)
    for place, name in enumerate(names):
        axes.text(shares[name] + 0.01, place, f"{shares[name]:.2f}", va="center", color=_INK, fontsize=9)
    axes.set_xlim(0, 1.1)
    axes.grid(True, axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.set_xlabel("importance", color=_INK)
    as_png(figure, path)


def parallel(space: Space, trials: Trials, metric: str, direction: str, title: str, path: Path) -> None:
    """One line for each trial across one axis for each key, coloured by its value: good ones dark."""
    whole = [each for each in trials if each["status"] == "finished"]
    figure, axes = _figure(title, (max(6.0, 2.2 * (len(space) + 1)), 4.8))
    values = [each["value"] for each in whole]
    norm = Normalize(min(values), max(values))
    colours = matplotlib.colormaps["viridis" if direction == "minimize" else "viridis_r"]
    places = range(len(space))
    for each in sorted(whole, key=lambda one: one["value"], reverse=direction == "minimize"):
        heights = [_height(space[key], each["settings"][key]) for key in space]
        axes.plot(
            places, heights, color=colours(norm(each["value"])), linewidth=1.6, alpha=0.85, marker="o", markersize=4
        )
    for place, (key, dimension) in enumerate(space.items()):
        axes.axvline(place, color="#7b8794", linewidth=0.9, zorder=0)
        for height, label in _ticks(dimension):
            axes.annotate(label, (place, height), (4, 0), textcoords="offset points", bbox=_PAPER, **_TEXT)
        axes.annotate(key, (place, 1.06), ha="center", fontsize=9, color=_INK, annotation_clip=False)
    axes.set_ylim(-0.05, 1.12)
    axes.set_xlim(-0.3, len(space) - 0.4 if len(space) > 1 else 0.6)
    axes.set_axis_off()
    figure.colorbar(ScalarMappable(norm, colours), ax=axes, label=metric, pad=0.08)
    as_png(figure, path)


def members(whole: Mapping[str, Any], title: str, path: Path) -> None:
    """For each metric its members as dots, their mean as a line, and the whole; also the whole on those samples on which
    members disagree least and most."""
    names = list(whole["metrics"])
    figure = blank(3.6 * len(names) + 0.8, 3.8)
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=_INK)
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        columns: list[tuple[str, list[float | None]]] = [
            ("members", [each[name] for each in whole["of_members"]]),
            ("whole", [whole["metrics"][name]]),
            ("agreed on", [whole["agreed"].get(name)]),
            ("not agreed on", [whole["disagreed"].get(name)]),
        ]
        for x, (_, values) in enumerate(columns):
            there = [value for value in values if value is not None]
            colour = _TRIALS if x == 0 else _BEST if x == 1 else _PRUNED
            axes.scatter([x] * len(there), there, s=36, color=colour, zorder=3)
        mean = whole["mean_of_members"][name]
        if mean is not None:
            axes.hlines(mean, -0.3, 0.3, color=_TRIALS, linewidth=1.4)
        axes.set_xticks(range(len(columns)), [label for label, _ in columns], rotation=20)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        finish(axes, name)
    as_png(figure, path)


def _height(dimension: Dimension, value: Any) -> float:
    """From 0 to 1."""
    if isinstance(dimension, Choice):
        place = next(number for number, other in enumerate(dimension.choices) if Choice((other,)).holds(value))
        return place / max(1, len(dimension.choices) - 1)
    low, high, value = (math.log(each) if dimension.log else each for each in (dimension.low, dimension.high, value))
    return float((value - low) / (high - low)) if high > low else 0.5


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    if isinstance(dimension, Range):
        return [(_height(dimension, value), f"{value:.4g}") for value in dict.fromkeys(dimension.ends)]
    return [(_height(dimension, value), str(value)) for value in dimension.choices]


def _figure(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = blank(*size)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=14)
    return figure, axes
