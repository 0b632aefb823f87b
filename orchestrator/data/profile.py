"""A short description of a data set: how many items, of what shapes, which values in which shares, in which classes.

It is for people who compare two runs: the hash says that data differ, this says how. Evenly spaced items are read, and of
each of their parts evenly spaced elements, so it does not see everything. Which ones depends on the data alone and never on
time: equal data have equal profiles. Sums are numpy's, whose order does not depend on threads. An item that cannot be read,
or is of no known kind, is named and left out. The caller keeps the random streams as they were.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from orchestrator.data.files.stream import Stream
from orchestrator.data.sketch import Floats, Places, Sketches, spaced

LIMIT, ELEMENTS = 64, 1 << 16
_MOST_ITEMS, _ALL_ELEMENTS = 512, 1 << 18  # of small items more are read, while all together have so many elements
_FILES = 4  # of a data set in many files so many are looked into: it may be larger than any disk
_MOST_LABELS, _MOST_PARTS, _MOST_CLASSES, _MOST_FAULTS = 1 << 20, 256, 1000, 3
_AT_SITES = "samples are read at their sites only (data.sites), and none was read for this"
_NO_NUMBERS = "a Stream: its samples have no numbers, and none was read for this"


def profile(dataset: Any, limit: int | None = None, *, elements: int = ELEMENTS) -> dict[str, Any]:
    """Plain data: `length`, `sampled`, `unreadable`, `fields` (by name or position: `dtype`, `shape`, `min`, `max`, `mean`,
    `std`) and `columns` (how the values of each column or channel are distributed, see sketch.py). `classes` (label -> how
    many of those `counted`) is there if items are pairs whose second part is a whole number. A data set in files (`Files`)
    has `of_files`: how many were looked into, and how many there are. A Stream has `stream`: live or repeatable.

    dataset: map-style, or a Stream, of which nothing is read; limit: items read at most, None for LIMIT, and more where they
    are small; elements: looked at in each part of an item at most. Never raises for what an item is.
    """
    if isinstance(dataset, Stream):
        return {"length": None, "stream": "live" if dataset.live else "repeatable", "unreadable": [_NO_NUMBERS]}
    try:
        length = len(dataset)
    except Exception as error:  # a data set is the user's code
        return {"length": None, "unreadable": [f"its length: {_said(error)}"]}
    sample = _Sample(elements)
    if length:
        sample.read(dataset, 0)
    most = _items(sample.size) if limit is None else limit
    spread = getattr(dataset, "spread", None)
    for index in _spaced(length, most) if spread is None else spread(most, _FILES):
        if index:
            sample.read(dataset, index)
    found: dict[str, Any] = {"length": length, "sampled": sample.items, "fields": sample.fields(), **sample.columns()}
    files = None if spread is None else dataset.file_lengths
    if files is not None:
        found["of_files"] = [min(_FILES, len(files)), len(files)]
    counts, counted = _labels(dataset) or (sample.labels, sample.labelled)
    if counts and counted and (counted == length or sample.labelled == sample.items) and len(counts) <= _MOST_CLASSES:
        found["classes"] = {str(label): counts[label] for label in sorted(counts)}
        found["counted"] = counted
    return {**found, "unreadable": sample.faults} if sample.faults else found


def at_sites(dataset: Any) -> dict[str, Any]:
    """The profile if samples may not be read here."""
    return {"length": len(dataset), "unreadable": [_AT_SITES]}


class _Sample:
    """The items that were read so far."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self.items = self.labelled = 0
        self.size = 0  # of the largest item, in elements
        self.labels: Counter[int] = Counter()
        self.faults: list[str] = []
        self._fields: dict[str, _Field] = {}
        self._sketches = Sketches()

    def read(self, dataset: Any, index: int) -> None:
        try:
            item = dataset[index]
            with np.errstate(all="ignore"):
                size = 0
                for name, value in itertools.islice(_parts(item), _MOST_PARTS):
                    part = _array(value, self._elements)
                    self._fields.setdefault(name, _Field()).add(*part[:3])
                    if part.array is not None:
                        self._sketches.add(name, part.shape, part.array.reshape(-1), part.places)
                        size += math.prod(part.shape)
                self.size = max(self.size, size)
            label = _label(item)
        except Exception as error:  # an item is the user's, and so is the code that makes it
            if len(self.faults) < _MOST_FAULTS:
                self.faults.append(f"item {index}: {_said(error)}")
            return
        self.items += 1
        if label is not None:
            self.labelled += 1
            self.labels[label] += 1

    def columns(self) -> dict[str, Any]:
        found = {"columns": self._sketches.as_dict()}
        return {**found, "columns_left_out": self._sketches.left_out} if self._sketches.left_out else found

    def fields(self) -> dict[str, dict[str, Any]]:
        return {name: field.as_dict() for name, field in self._fields.items()}


class _Field:
    """Moments of one part of the items, merged item by item (Chan, Golub and LeVeque, 1979)."""

    def __init__(self) -> None:
        self._kinds: dict[str, None] = {}
        self._shapes: dict[tuple[int, ...], None] = {}
        self._count = self._not_finite = 0
        self._mean = self._m2 = 0.0
        self._min, self._max = math.inf, -math.inf

    def add(self, kind: str, shape: tuple[int, ...], array: Floats | None) -> None:
        self._kinds[kind] = None
        if array is None:
            return
        self._shapes[shape] = None
        finite = array[np.isfinite(array)]
        self._not_finite += array.size - finite.size
        if not finite.size:
            return
        count, mean = finite.size, float(finite.mean())
        delta, total = mean - self._mean, self._count + count
        self._m2 += float(np.square(finite - mean).sum()) + delta * delta * self._count * count / total
        self._mean += delta * count / total
        self._count = total
        self._min, self._max = min(self._min, float(finite.min())), max(self._max, float(finite.max()))

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"dtype": " or ".join(self._kinds)}
        if self._shapes:
            shapes = [list(shape) for shape in self._shapes]
            values["shape"] = (
                shapes[0] if len(shapes) == 1 else f"{len(shapes)} different, such as {shapes[0]} and {shapes[1]}"
            )
        if self._count:
            std = math.sqrt(self._m2 / self._count)
            moments = {"min": self._min, "max": self._max, "mean": self._mean, "std": std}
            values |= {name: float(f"{value:.9g}") for name, value in moments.items() if math.isfinite(value)}
        return {**values, "not_finite": self._not_finite} if self._not_finite else values


def _items(size: int) -> int:
    """How many are read. size: elements of the first one; 0 where it cannot be read."""
    return max(LIMIT, min(_MOST_ITEMS, _ALL_ELEMENTS // size)) if size else LIMIT


def _spaced(length: int, limit: int) -> Iterator[int]:
    """At most `limit` indices, evenly spaced from the first on."""
    return (int(index) for index in spaced(length, limit))


def _parts(item: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of an item with their names: `0`, `1`, `image`, `0.mask`; of an item that is one leaf, `item`."""
    if isinstance(item, Mapping):
        below = [(str(key), value) for key, value in item.items()]
    elif isinstance(item, (tuple, list)) and not (item and all(isinstance(part, (int, float)) for part in item)):
        keys = getattr(item, "_fields", None) or range(len(item))
        below = [(str(key), value) for key, value in zip(keys, item, strict=True)]
    else:
        yield name or "item", item
        return
    for key, value in below:
        yield from _parts(value, f"{name}.{key}" if name else key)


class _Part(NamedTuple):
    """The kind of a part of an item, its shape, and in float64 its elements if they are real numbers, or so many of them:
    those at these places."""

    kind: str
    shape: tuple[int, ...] = ()
    array: Floats | None = None
    places: Places = np.arange(0)


def _array(value: Any, most: int) -> _Part:
    """most: elements."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        if value.is_complex():
            return _Part(kind)
        dense = value.detach().to_dense()
        places = spaced(dense.numel(), most)
        few = dense if dense.numel() <= most else torch.take(dense, torch.from_numpy(places))
        return _Part(kind, tuple(value.shape), few.cpu().to(torch.float64).numpy(), places)
    if isinstance(value, (str, bytes)) or value is None:
        return _Part(type(value).__name__)
    array = np.asarray(value)
    kind = type(value).__name__ if array.ndim == 0 else str(array.dtype)
    if array.dtype.kind not in "biuf":
        return _Part(kind)
    places = spaced(array.size, most)
    chosen = array if array.size <= most else np.take(array, places)
    return _Part(kind, array.shape, chosen.astype(np.float64), places)


def _label(item: Any) -> int | None:
    """The second part of a pair, if that is one whole number."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        return None
    label = item[1]
    if isinstance(label, torch.Tensor):
        whole = not label.is_floating_point() and not label.is_complex()
        return int(label) if label.numel() == 1 and label.ndim == 0 and whole else None
    return int(label) if isinstance(label, (int, np.integer)) else None


def _labels(dataset: Any) -> tuple[Counter[int], int] | None:
    """All labels, or evenly spaced ones of very many, where they lie ready as a tensor."""
    if not isinstance(dataset, torch.utils.data.TensorDataset) or len(dataset.tensors) != 2:
        return None
    labels = dataset.tensors[1]
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        return None
    counted = labels[list(_spaced(len(labels), _MOST_LABELS))] if len(labels) > _MOST_LABELS else labels
    return Counter(counted.tolist()), len(counted)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
