"""How the values of a column or a channel are distributed, in so few numbers that a record can hold them.

A column is what can drift by itself: an element of a vector with few elements, a channel of an image, otherwise all elements
of one part of the items. At most `POINTS` values of each are kept, with how many stand for each: the values themselves if
there are no more different ones, else quantiles in the middles of equal shares. So the share of values up to some point is
known to within 1 / POINTS.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

POINTS = 128
_MOST_COLUMNS, _MOST_IN_VECTOR, _MOST_CHANNELS = 64, 64, 4
_PER_ITEM = 1024  # values of one column taken from one item

Floats = np.ndarray[Any, np.dtype[np.float64]]
Places = np.ndarray[Any, np.dtype[np.intp]]


class Sketches:
    """The sketches of one data set's columns; values are collected item by item."""

    def __init__(self) -> None:
        self._values: dict[str, list[Floats]] = {}
        self._items: dict[str, int] = {}
        self._more: set[str] = set()

    def add(self, name: str, shape: tuple[int, ...], values: Floats, places: Places) -> None:
        """One part of one item. name: of the part; places: of the values among the elements, in row-major order."""
        labels = _columns(name, shape, places)
        if isinstance(labels, str):
            self._keep(labels, values)
            return
        for label in np.unique(labels):
            self._keep(f"{name}[{label}]", values[labels == label])

    def as_dict(self) -> dict[str, Any]:
        """Column -> `items` that it was found in, `values` ascending and how many stand for each, `counts`. Values that are not
        finite are left out."""
        return {name: self._sketch(name) for name in self._values if self._finite(name).size}

    @property
    def left_out(self) -> int:
        """How many columns there are beyond the most that are kept."""
        return len(self._more)

    def _keep(self, column: str, values: Floats) -> None:
        if column not in self._values and len(self._values) >= _MOST_COLUMNS:
            self._more.add(column)
            return
        few = values if values.size <= _PER_ITEM else values[spaced(values.size, _PER_ITEM)]
        self._values.setdefault(column, []).append(few)
        self._items[column] = self._items.get(column, 0) + 1

    def _finite(self, column: str) -> Floats:
        whole = np.concatenate(self._values[column])
        return whole[np.isfinite(whole)]

    def _sketch(self, column: str) -> dict[str, Any]:
        found = np.sort(self._finite(column))
        values, counts = np.unique(found, return_counts=True)
        if values.size > POINTS:
            values = found[((np.arange(POINTS) + 0.5) / POINTS * found.size).astype(np.intp)]
            counts = np.diff(np.arange(POINTS + 1) * found.size // POINTS)
        shown = [float(f"{value:.6g}") for value in values]
        return {"items": self._items[column], "values": shown, "counts": counts.tolist()}


def _columns(name: str, shape: tuple[int, ...], places: Places) -> str | Places:
    """The column that all elements belong to, or the number of each one's."""
    if len(shape) == 1 and 1 < shape[0] <= _MOST_IN_VECTOR:
        return places
    if len(shape) == 3 and 1 < shape[0] <= _MOST_CHANNELS < shape[1]:
        return places // math.prod(shape[1:])
    if len(shape) == 3 and 1 < shape[2] <= _MOST_CHANNELS < shape[1]:
        return places % shape[2]
    return name


def spaced(length: int, limit: int) -> Places:
    """At most `limit` places, evenly spaced from the first on."""
    count = min(length, limit)
    if not count:
        return np.arange(0)
    places = np.arange(count, dtype=np.intp)
    return (
        places * (length // count) + places * (length % count) // count
    )  # their product with `length` may need more bits
