"""Simulated step times by topology and mode, as bars: what is computed, exchanged and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from orchestrator.experiments.simulation.report import SimulatedRow

_INK, _GRID = "#1f2933", "#e4e7eb"
_PARTS = (("compute", "#2f6fb2"), ("exchange", "#d9622b"), ("wait and update", "#b8bfc7"))


def draw(path: Path, rows: Sequence[SimulatedRow], title: str) -> None:
    """Raises OSError."""
    height = 1.2 + 0.42 * len(rows)
    figure = Figure(
        figsize=(9, height), dpi=130, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    )
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(1, 1, 1)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=12)
    places = list(range(len(rows)))[::-1]
    parts = [
        [min(row.compute_s, row.step_s) for row in rows],
        [min(row.exchange_s, max(0.0, row.step_s - row.compute_s)) for row in rows],
    ]
    parts.append([max(0.0, row.step_s - a - b) for row, a, b in zip(rows, *parts, strict=True)])
    left = [0.0] * len(rows)
    for (name, colour), seconds in zip(_PARTS, parts, strict=True):
        axes.barh(
            places, [1e3 * each for each in seconds], 0.7, [1e3 * each for each in left], color=colour, label=name
        )
        left = [before + each for before, each in zip(left, seconds, strict=True)]
    axes.set_yticks(places, [f"{row.topology}, {row.mode}" for row in rows], color=_INK)
    axes.set_xlabel("ms in a step", color=_INK)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    figure.savefig(path)
