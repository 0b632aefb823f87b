"""How the data of two runs are distributed, one small picture for each column that differs most; drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from orchestrator.data.drift import LABELS, Drift, Profile, share_up_to
from orchestrator.driver.report.pictures.drawing import as_png, finish, literal

_BEFORE, _AFTER, _INK = "#2f6fb2", "#d9622b", "#1f2933"
_SHOWN, _ACROSS = 6, 3
_BARS = 24
_NAMED = 20  # labels


def draw(path: Path, drift: Drift, profiles: tuple[Profile, Profile], names: tuple[str, str]) -> None:
    """Draw how the data drifted. drift: of these profiles; it `has_picture`. names: of the runs."""
    shown = drift.shifts[:_SHOWN]
    rows = -(-len(shown) // _ACROSS)
    figure = Figure(
        figsize=(3.6 * min(_ACROSS, len(shown)), 0.5 + 2.8 * rows),
        dpi=130,
        facecolor="white",
        layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
    )
    short = [name[:8] for name in names]
    has_classes = all("classes" in each for each in profiles)  # or a column has the name of labels
    for number, shift in enumerate(shown):
        axes = figure.add_subplot(rows, min(_ACROSS, len(shown)), number + 1)
        if shift.column == LABELS and has_classes:
            labels = _labels(axes, profiles, short)
            finish(axes, "share")
            if len(labels) <= _NAMED:
                axes.set_xticks(range(len(labels)), [literal(each) for each in labels])
        else:
            _column(axes, shift.column, profiles, short)
            finish(axes, "share")
        axes.set_title(f"{literal(shift.column)}: PSI {shift.psi:.2g}", loc="left", fontsize=10, color=_INK)
        legend = axes.get_legend()
        if number and legend is not None:
            legend.remove()
    as_png(figure, path)


def _column(axes: Axes, column: str, profiles: tuple[Profile, Profile], names: list[str]) -> None:
    """The shares of values in bars of equal width, from the smallest to the largest value of both."""
    sketches = [profile["columns"][column] for profile in profiles]
    low, high = (pick(pick(each["values"]) for each in sketches) for pick in (min, max))
    edges = np.linspace(low, high if high > low else low + 1.0, _BARS + 1)
    for sketch, name, colour in zip(sketches, names, (_BEFORE, _AFTER), strict=True):
        shares = np.diff(share_up_to(sketch, edges), prepend=0.0)
        shares[1] += shares[0]  # what lies on the first edge
        axes.stairs(shares[1:], edges, color=colour, fill=True, alpha=0.3, label=name)
        axes.stairs(shares[1:], edges, color=colour, linewidth=1.2)


def _labels(axes: Axes, profiles: tuple[Profile, Profile], names: list[str]) -> list[str]:
    """Draw the share of each label as a bar, in the order of their names."""
    counts: list[Mapping[str, Any]] = [profile["classes"] for profile in profiles]
    labels = sorted({*counts[0], *counts[1]}, key=lambda name: (len(name), name))
    for number, (count, name, colour) in enumerate(zip(counts, names, (_BEFORE, _AFTER), strict=True)):
        whole = sum(count.values())
        places = np.arange(len(labels)) + (number - 0.5) * 0.4
        axes.bar(places, [count.get(label, 0) / whole for label in labels], 0.4, color=colour, label=name)
    return labels
