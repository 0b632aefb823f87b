"""The pictures themselves, by matplotlib's objects and its Agg backend: pyplot and its global state stay out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Circle, FancyBboxPatch, Patch
from matplotlib.ticker import MaxNLocator

from orchestrator.comm.pipeline_schedules import Span, bubble
from orchestrator.comm.topologies import Schedule
from orchestrator.driver.report.few import IN_A_PICTURE, few
from orchestrator.driver.report.pictures.places import Point, place_members
from orchestrator.driver.report.pictures.series import Series, columns, is_loss, wants_logarithm

_INK, _FAINT, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
_TRAINING, _VALIDATION = "#2f6fb2", "#d9622b"
_OTHERS = ("#2f8f6b", "#8a5fb5", "#b58a1f", "#c2457e", "#4a9aa8", "#6b6b6b")
_WORKER, _SERVER = "#2f6fb2", "#d9622b"
_RADIUS = 0.34
_BOX = "\N{WHITE SQUARE}"
_LONGEST, _LONGEST_TITLE = 60, 120  # characters of a text
_LABELLED = 12  # shards
_LEGIBLE = 0.012  # of the width, which a number needs
_INCHES = 0.55  # for the distance of two members


def curves(losses: Series, metrics: dict[str, Series], title: str, path: Path) -> None:
    """Training loss with the validation loss above, the other metrics below. losses: at least one point."""
    number = sum(not is_loss(name) for name in metrics)
    others = few({name: series for name, series in metrics.items() if not is_loss(name)}, IN_A_PICTURE)
    metrics = {**few({name: metrics[name] for name in metrics if is_loss(name)}, len(_OTHERS)), **others}
    figure = blank(9, 6.4 if others else 4.4)
    upper = figure.add_subplot(2 if others else 1, 1, 1)
    entitle(upper, title)
    _training(upper, losses)
    validation = [series for name, series in metrics.items() if is_loss(name)]
    for name, series in metrics.items():
        if is_loss(name):
            _points(upper, name, series, _VALIDATION)
    if wants_logarithm(losses, *validation):
        upper.set_yscale("log")
    finish(upper, "loss")
    if others:
        lower = figure.add_subplot(2, 1, 2, sharex=upper)
        for place, (name, series) in enumerate(others.items()):
            _points(lower, name, series, _OTHERS[place % len(_OTHERS)])
        finish(lower, "metrics" if number == len(others) else f"{len(others)} of {number:,} metrics")
    if len(losses) == 1:
        upper.set_xlim(losses[0][0] - 0.5, losses[0][0] + 0.5)
    figure.axes[-1].set_xlabel("step", color=_INK)
    as_png(figure, path)


def clocks(shards: list[Series], staleness: Series, title: str, path: Path) -> None:
    """Draw each shard's clock above, and below how far each update was ahead of the slowest. shards: one line each."""
    figure = blank(9, 6.4)
    upper = figure.add_subplot(2, 1, 1)
    entitle(upper, title)
    for number, series in enumerate(shards):
        seen = columns(series)
        label = f"shard {number}" if len(shards) <= _LABELLED else None
        colour = _OTHERS[number % len(_OTHERS)]
        upper.plot([each.step for each in seen], [each.mean for each in seen], color=colour, linewidth=1.2, label=label)
    finish(upper, "clock")
    lower = figure.add_subplot(2, 1, 2, sharex=upper)
    seen = columns(staleness)
    steps, highs = [each.step for each in seen], [each.high for each in seen]
    lower.fill_between(steps, [each.low for each in seen], highs, color=_TRAINING, alpha=0.18, linewidth=0)
    lower.plot(
        steps, [each.mean for each in seen], color=_TRAINING, linewidth=1.4, label="updates ahead of the slowest shard"
    )
    finish(lower, "staleness")
    lower.set_xlabel("updates of all shards", color=_INK)
    as_png(figure, path)


def topology(schedule: Schedule, path: Path) -> None:
    """Members and the links between them. Workers are round, servers square."""
    places = place_members(schedule)
    left, right = min(x for x, _ in places.values()) - 0.8, max(x for x, _ in places.values()) + 0.8
    low, high = min(y for _, y in places.values()) - 0.8, max(y for _, y in places.values()) + 0.8
    middle, width = (left + right) / 2, max(right - left, 6.0)
    header = 1.3
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "orchestrator"}):
        figure = Figure(figsize=(_INCHES * width, _INCHES * (high - low + header)), facecolor="white")
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(middle - width / 2, middle + width / 2)
        axes.set_ylim(low, high + header)
        axes.set_aspect("equal")
        _links(axes, schedule, places)
        _members(axes, schedule, places)
        _heading(axes, schedule, middle - width / 2 + 0.4, high + header)
        figure.savefig(path, metadata={"Date": None, "Title": _caption(schedule)})


def pipeline(spans: Sequence[Span], in_seconds: bool, title: str, path: Path) -> None:
    """A line for each member, the first stage above: its forwards and backwards in one step, each with the number of its shard;
    what stays white is the bubble. in_seconds: or else in the time of a forward."""
    lines = sorted({(span.task.stage, span.rank) for span in spans})
    row = {rank: number for number, (_, rank) in enumerate(lines)}
    end = max(span.end for span in spans)
    figure = blank(11, 1.7 + 0.42 * len(lines))
    axes = figure.add_subplot()
    waiting = f"bubble {bubble(tuple(spans)):.0%}"
    entitle(axes, f"{title}: one step, {waiting}")
    for kind, colour in (("forward", _TRAINING), ("backward", _VALIDATION)):
        chosen = [span for span in spans if span.task.kind == kind]
        axes.barh(
            [row[span.rank] for span in chosen],
            [span.end - span.start for span in chosen],
            left=[span.start for span in chosen],
            height=0.8,
            color=colour,
            edgecolor="white",
            linewidth=0.6,
            label=kind,
        )
    for span in spans:
        if (span.end - span.start) / end > _LEGIBLE:
            middle = (span.start + span.end) / 2
            axes.text(middle, row[span.rank], str(span.task.shard), ha="center", va="center", color="white", fontsize=7)
    axes.set_yticks(range(len(lines)), [f"stage {stage}, worker {rank}" for stage, rank in lines])
    axes.invert_yaxis()
    finish(axes, "")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
    axes.grid(False, axis="y")
    axes.set_xlabel("seconds" if in_seconds else "time, in forwards", color=_INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="center left", bbox_to_anchor=(1, 0.5))
    as_png(figure, path)


def partition(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str, path: Path) -> None:
    """Stacked bars: the samples of each client, by label. counts: by client, then by label."""
    figure = blank(9, 4.4)
    axes = figure.add_subplot()
    entitle(axes, title)
    clients, below = range(len(counts)), [0] * len(counts)
    colours = matplotlib.colormaps["tab20" if len(labels) > 10 else "tab10"]
    for number, label in enumerate(labels):
        heights = [row[number] for row in counts]
        axes.bar(clients, heights, bottom=below, width=0.85, color=colours(number), label=literal(label), linewidth=0)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    finish(axes, "samples")
    axes.grid(False, axis="x")
    axes.set_xlabel("client", color=_INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="center left", bbox_to_anchor=(1, 0.5))
    as_png(figure, path)


def blank(width: float, height: float) -> Figure:
    """In inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
    return Figure(figsize=(width, height), dpi=130, facecolor="white", layout=layout)


def literal(text: str, most: int = _LONGEST) -> str:
    """The text as it is drawn: no formula between two dollars, a box for what the font lacks, of which it would warn, and no
    more than `most` characters of it, which leave room for axes."""
    known = _characters()
    if len(text) > most:
        text = f"{text[: most // 2]}...{text[3 - most // 2 :]}"
    return "".join(each if ord(each) in known or each == "\n" else _BOX for each in text).replace("$", r"\$")


@functools.cache
def _characters() -> frozenset[int]:
    """Those of the font in which pictures are written, of its bold letters, too."""
    fonts = (get_font(findfont(FontProperties(weight=weight))) for weight in ("normal", "bold"))
    return frozenset.intersection(*(frozenset(font.get_charmap()) for font in fonts))


def entitle(axes: Axes, title: str) -> None:
    axes.set_title(literal(title, _LONGEST_TITLE), loc="left", fontsize=13, fontweight="bold", color=_INK, pad=12)


def as_png(figure: Figure, path: Path) -> None:
    """Write the picture. `savefig` draws twice where margins are found by what is drawn, the first time to find them."""
    FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]


def _training(axes: Axes, losses: Series) -> None:
    seen = columns(losses)
    steps = [column.step for column in seen]
    if len(seen) < len(losses):
        lows, highs = [column.low for column in seen], [column.high for column in seen]
        axes.fill_between(steps, lows, highs, color=_TRAINING, alpha=0.18, linewidth=0, label="its range")
    marker = "o" if len(seen) <= 20 else ""
    means = [column.mean for column in seen]
    axes.plot(steps, means, color=_TRAINING, linewidth=1.4, marker=marker, markersize=5, label="train/loss")


def _points(axes: Axes, name: str, series: Series, colour: str) -> None:
    steps, values = [step for step, _ in series], [value for _, value in series]
    marker = "o" if len(series) <= 60 else ""
    axes.plot(
        steps,
        values,
        color=colour,
        linewidth=1.6,
        marker=marker,
        markersize=6,
        markeredgecolor="white",
        label=literal(name),
    )
    text = f"{values[-1]:.4g}"
    axes.annotate(
        text,
        (steps[-1], values[-1]),
        (6, 6),
        textcoords="offset points",
        fontsize=9,
        color=colour,
        annotation_clip=False,
    )


def finish(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.03)
    axes.tick_params(colors=_FAINT, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9, labelcolor=_INK)


def _links(axes: Axes, schedule: Schedule, places: dict[int, Point]) -> None:
    links = sorted(schedule.links())
    crowded = len(links) > 4 * schedule.members
    ends = [(places[a], places[b]) for a, b in links]
    axes.add_collection(
        LineCollection(
            ends, colors=_FAINT, linewidths=0.5 if crowded else 1.6, alpha=0.35 if crowded else 0.8, zorder=1
        )
    )


def _members(axes: Axes, schedule: Schedule, places: dict[int, Point]) -> None:
    workers: list[Patch] = [Circle(places[member], _RADIUS) for member in range(schedule.workers)]
    servers = [_box(places[member]) for member in range(schedule.workers, schedule.members)]
    for patches, colour in ((workers, _WORKER), (servers, _SERVER)):
        axes.add_collection(PatchCollection(patches, facecolor=colour, edgecolor="white", linewidth=1.5, zorder=2))
    style: dict[str, Any] = {
        "ha": "center",
        "va": "center_baseline",
        "color": "white",
        "fontsize": 10,
        "fontweight": "bold",
    }
    for member, (x, y) in places.items():
        number = member if member < schedule.workers else member - schedule.workers
        axes.text(x, y, str(number), zorder=3, **style)


def _box(centre: Point) -> Patch:
    side = 2 * _RADIUS - 0.16
    corner = (centre[0] - side / 2, centre[1] - side / 2)
    return FancyBboxPatch(corner, side, side, boxstyle="round,pad=0.05,rounding_size=0.1")


def _heading(axes: Axes, schedule: Schedule, left: float, top: float) -> None:
    axes.text(left, top - 0.55, schedule.topology.replace("_", " "), fontsize=13, fontweight="bold", color=_INK)
    counts = [(schedule.workers, "worker", _WORKER), (schedule.servers, "server", _SERVER)]
    for line, (number, role, colour) in enumerate(count for count in counts if count[0]):
        text = f"{number} {role}{'s' * (number > 1)}"
        axes.text(left + 1.7 * line, top - 1.05, text, fontsize=10, color=colour)


def _caption(schedule: Schedule) -> str:
    return f"{schedule.topology}: {schedule.workers} workers, {schedule.servers} servers, {len(schedule.links())} links"
