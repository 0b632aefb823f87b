"""Whether the data of two runs are distributed alike: their profiles compared, column by column and label by label.

    PSI    sum over tenths of a's values of (share in b - share in a) * ln(share in b / share in a); up to 0.1 counts as none,
           from 0.2 on as drift (Siddiqi, "Credit Risk Scorecards", 2006, chapter 8)
    KS     the largest difference of the shares of values up to a point, with the probability to see as large a one by chance
           when both come from one distribution (scipy's). It is of the items, since elements of an item are not independent.

A column has drifted when its PSI says so, or when KS is at least `KS_FROM` and hardly chance: with many items the smallest
difference is no chance, and yet of no consequence. Labels are compared by their shares (PSI, and the chi-squared test).

It reads no data. scipy is imported only if there is something to compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from orchestrator.data.sketch import Floats

PSI_FROM, KS_FROM, CHANCE_TO = 0.2, 0.1, 0.001
LABELS = "labels"
_TENTHS = np.arange(1, 10) / 10
_LEAST_SHARE = 1e-4  # so that a logarithm exists where one side has nothing
_NAMED = 3
_LINES = 2 * _NAMED  # of a kind, in a sentence on all

Profile = Mapping[str, Any]


@dataclass(frozen=True)
class Shift:
    """How one column, or the labels, differ."""

    column: str  # its name, or LABELS
    psi: float  # the population stability index
    statistic: float  # KS; for labels the largest change of a share
    chance: float  # the probability to see as large a one by chance
    drifted: bool  # whether the difference is of consequence
    text: str  # for people

    def as_dict(self) -> dict[str, Any]:
        return {key: _rounded(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Drift:
    """How the data of two runs differ. shifts: the largest PSI first; only_a, only_b: columns that the other has not."""

    shifts: tuple[Shift, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def drifted(self) -> tuple[Shift, ...]:
        return tuple(shift for shift in self.shifts if shift.drifted)

    @property
    def is_any(self) -> bool:
        return bool(self.drifted or self.only_a or self.only_b)

    @property
    def has_picture(self) -> bool:
        """Whether something differs, and a column is in both, which a picture needs."""
        return self.is_any and bool(self.shifts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "drifted": [shift.column for shift in self.drifted],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "columns": [shift.as_dict() for shift in self.shifts],
        }

    @property
    def text(self) -> str:
        """In a sentence, or a line for each column."""
        if not self.is_any:
            largest = (
                f"; the largest PSI is {self.shifts[0].psi:.2g}, of {self.shifts[0].column}" if self.shifts else ""
            )
            return f"the data are distributed alike in {len(self.shifts)} columns{largest}"
        shifted = _listed([shift.text for shift in self.drifted], "and {} more")
        gone = _listed([f"{column} is gone" for column in self.only_a], "and {} more are gone")
        new = _listed([f"{column} is new" for column in self.only_b], "and {} more are new")
        return "the data have drifted:" + "".join(f"\n  {line}" for line in [*shifted, *gone, *new])


def _listed(lines: Sequence[str], others: str) -> list[str]:
    """The first of them, and how many others there are."""
    rest = len(lines) - _LINES
    return [*lines[:_LINES], *([others.format(rest)] if rest > 0 else [])]


def compare(a: Profile, b: Profile) -> Drift | None:
    """From a to b; None where the profiles tell of no distributions, as those of older versions do not."""
    if "columns" not in a or "columns" not in b:
        return None
    labels = "classes" in a and "classes" in b
    mine, theirs = (_columns(each, without_labels=labels) for each in (a, b))
    shifts = [_column(name, mine[name], theirs[name]) for name in mine if name in theirs]
    if labels:
        shifts.append(_labels(a["classes"], b["classes"]))
    shifts.sort(key=lambda shift: (-shift.psi, shift.column))
    return Drift(tuple(shifts), tuple(sorted(mine.keys() - theirs.keys())), tuple(sorted(theirs.keys() - mine.keys())))


def share_up_to(sketch: Mapping[str, Any], points: Floats) -> Floats:
    """The share of a sketch's values up to each point."""
    counts = np.concatenate([[0.0], np.cumsum(np.asarray(sketch["counts"], dtype=np.float64))])
    found: Floats = counts[np.searchsorted(_values(sketch), points, side="right")] / counts[-1]
    return found


def _columns(profile: Profile, *, without_labels: bool) -> dict[str, Any]:
    return {name: sketch for name, sketch in profile["columns"].items() if not (without_labels and name == "1")}


def _column(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Shift:
    if a == b:  # and no import, which takes a second
        return Shift(name, 0.0, 0.0, 1.0, drifted=False, text=f"{name}: the same")
    from scipy.stats import kstwo

    points = np.union1d(_values(a), _values(b))
    ks = float(np.abs(share_up_to(a, points) - share_up_to(b, points)).max())
    both = a["items"] * b["items"] / (a["items"] + b["items"])
    chance = float(kstwo.sf(ks, max(1, round(both))))
    counts = np.asarray(a["counts"], dtype=np.float64)
    reached = np.cumsum(counts) / counts.sum()
    edges = np.unique(_values(a)[np.searchsorted(reached, _TENTHS - 1e-9)])
    psi = _psi(_shares(a, edges), _shares(b, edges))
    drifted = psi >= PSI_FROM or (ks >= KS_FROM and chance <= CHANCE_TO)
    before, after = (np.interp(0.5, share_up_to(each, _values(each)), _values(each)) for each in (a, b))
    text = f"{name}: median {before:.4g} -> {after:.4g}, PSI {psi:.2g}, KS {ks:.2g} (by chance: {_chance(chance)})"
    return Shift(name, psi, ks, chance, drifted, text)


def _labels(a: Mapping[str, int], b: Mapping[str, int]) -> Shift:
    if a == b:
        return Shift(LABELS, 0.0, 0.0, 1.0, drifted=False, text=f"{LABELS}: the same shares")
    from scipy.stats import chi2_contingency

    names = sorted({*a, *b}, key=lambda name: (len(name), name))
    table = np.array([[each.get(name, 0) for name in names] for each in (a, b)], dtype=np.float64)
    shares = table / table.sum(axis=1, keepdims=True)
    chance = float(chi2_contingency(table).pvalue) if len(names) > 1 else 1.0
    changes = shares[1] - shares[0]
    psi, largest = _psi(*shares), float(np.abs(changes).max())
    order = [index for index in np.argsort(-np.abs(changes), kind="stable") if changes[index]][:_NAMED]
    said = ", ".join(f"{names[index]} {shares[0][index]:.1%} -> {shares[1][index]:.1%}" for index in order)
    drifted = psi >= PSI_FROM or (largest >= KS_FROM and chance <= CHANCE_TO)
    text = f"{LABELS}: {said or 'the same shares'}, PSI {psi:.2g} (by chance: {_chance(chance)})"
    return Shift(LABELS, psi, largest, chance, drifted, text)


def _values(sketch: Mapping[str, Any]) -> Floats:
    return np.asarray(sketch["values"], dtype=np.float64)


def _shares(sketch: Mapping[str, Any], edges: Floats) -> Floats:
    """The shares of values up to the first edge, between the edges, and above the last."""
    up_to: Floats = np.concatenate([[0.0], share_up_to(sketch, edges), [1.0]])
    return np.diff(up_to)


def _psi(a: Floats, b: Floats) -> float:
    mine, theirs = np.maximum(a, _LEAST_SHARE), np.maximum(b, _LEAST_SHARE)
    return float(((theirs - mine) * np.log(theirs / mine)).sum())


def _chance(chance: float) -> str:
    return f"{chance:.2g}" if chance >= 1e-6 else "under 1e-6"


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def named(drift: Drift) -> Sequence[str]:
    """The columns that drifted, came or went, for a tag."""
    return [*(shift.column for shift in drift.drifted), *drift.only_a, *drift.only_b]
