"""Answers that do not depend on what else is asked: a model is called with tiles of a fixed number of rows.

The number of rows decides which code computes a product of matrices, and so the bits of a row. Its place among them decides,
too: elements behind the last full vector take other code (a sigmoid of 8 rows of 37 values shows it). So all calls have
`ROWS` rows, and the place of a row in its tile is a hash of the row: whatever is asked with it, it goes the same way through
the same code. Rows of the same place are in several tiles, equal ones in one, and places that nobody has are filled up with
another row.

Whether rows depend on each other by what the model computes is tried (`tried`). If the rows beside a row change its rounding,
as in a mixture of experts, each row is a tile of its own.

    inputs     a tensor or array of rows, a list of rows of several shapes, or mappings and tuples of them; what has no rows
               (a number, a text) goes to every tile
    answers    tensors or arrays of rows, lists of one number or text per row, or mappings, lists and tuples of them

Rows of several shapes are tiled apart: nothing is padded, so nobody's answer depends on how long the others are.

It does not choose how the model is computed (threads, arithmetic), and calls it from one thread only.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from orchestrator.numerics.batches import copied
from orchestrator.numerics.byte_layout import bytes_of, same_bits

ROWS = 8  # of a tile
EXAMPLES = 12  # rows that a trial wants: not those of a tile, so that a model that counts its rows is found out
_NEAR = 1e-3  # of the largest answer: what is further apart is not rounding
_DEPENDS = "the answer to a row depends on the rows beside it, by more than rounding"
_SINGLE = (str, int, float, bool, type(None))

Call = Callable[[Any], Any]
Path = tuple[Any, ...]


class NotByRows(Exception):
    """Inputs or answers are not one for each row; the text says what is there instead."""


@dataclass(frozen=True)
class InvarianceTrial:
    """The result of a trial. rows: of a tile; None where the inputs have to stay together. why: a sentence, None with whole
    tiles; detail: figures or an error, which are of samples."""

    rows: int | None
    why: str | None = None
    detail: str | None = None


def batch_invariant(call: Call, inputs: Any, rows: int) -> Any:
    """The answers to all rows. Raises NotByRows, and what `call` raises."""
    number = count(inputs)
    if not number:
        return call(inputs)
    hashes = _hashes(inputs, number)
    pieces: list[Any] = []
    found: dict[bytes, int] = {}  # where the answer to a row is in all the pieces
    for group in _groups(inputs, number):
        for batch in _fixed_batches({hashes[row]: row for row in group}, rows):
            used = sorted(batch)
            filled = [batch.get(place, batch[used[0]]) for place in range(rows)]
            pieces.append(_rows_of(call(_taken(inputs, filled)), rows, used))
            found |= {hashes[batch[place]]: len(found) + index for index, place in enumerate(used)}
    return _joined(pieces, [found[each] for each in hashes])


def _fixed_batches(group: Mapping[bytes, int], rows: int) -> list[dict[int, int]]:
    """Which row stands in which place, tile by tile. group: rows by their hashes."""
    tiles: list[dict[int, int]] = []
    filled = [0] * rows
    for hashed, row in group.items():
        place = hashed[0] % rows
        if filled[place] == len(tiles):
            tiles.append({})
        tiles[filled[place]][place] = row
        filled[place] += 1
    return tiles


def _hashes(inputs: Any, number: int) -> list[bytes]:
    """A hash of each row. It depends neither on the order of the parts nor on whether rows come as a tensor or as a list."""
    found = [hashlib.blake2b(digest_size=16) for _ in range(number)]
    named = {_named(path): part for path, part in parts(inputs) if _has_rows(part)}
    for _, part in sorted(named.items()):
        for hashed, (shape, row) in zip(found, _bytes_of_rows(part), strict=True):
            hashed.update(repr(tuple(shape)).encode())
            hashed.update(row)
    return [each.digest() for each in found]


def _bytes_of_rows(part: Any) -> Iterator[tuple[Any, Any]]:
    """The shape of each row, and what is in it."""
    if isinstance(part, torch.Tensor):
        yield from ((part.shape[1:], row) for row in bytes_of(part).numpy().reshape(len(part), -1))
    elif type(part) is list:
        yield from ((row.shape, bytes_of(row).numpy()) for row in part)
    else:
        yield from ((part.shape[1:], repr(numpy.asarray(row).tolist()).encode()) for row in part)


def count(inputs: Any) -> int:
    """The rows. Raises NotByRows where the parts have several numbers of them, or none has any."""
    numbers = {_named(path): len(part) for path, part in parts(inputs) if _has_rows(part)}
    if not numbers:
        raise NotByRows("the inputs have no rows")
    if len(set(numbers.values())) > 1:
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise NotByRows(f"the parts of the inputs have several numbers of rows: {text}")
    return next(iter(numbers.values()))


def tried(call: Call, inputs: Any) -> InvarianceTrial:
    """Whether rows can be answered by tiles. inputs: true ones, `EXAMPLES` rows where there are as many."""
    try:
        return _tried(call, inputs)
    except NotByRows as error:
        return InvarianceTrial(None, "predict() of the pipeline does not give one answer for each row", str(error))


def _tried(call: Call, inputs: Any) -> InvarianceTrial:
    number = count(inputs)
    if number < 2:
        return InvarianceTrial(None, "there are not two samples to try it with")
    whole = call(copied(inputs))  # which the user's code may change in place
    for path, part in parts(whole, lists=True):
        _checked(part, number, f" ({_named(path)})" if path else "")
    if not _same(whole, call(copied(inputs))):
        return InvarianceTrial(
            None, "its answers are others each time, as of a model that draws random numbers or keeps state"
        )
    apart = _distance(whole, batch_invariant(call, inputs, ROWS))
    if apart.is_rounding and _is_apart(call, inputs):
        return InvarianceTrial(ROWS)
    try:
        alone = _distance(whole, batch_invariant(call, inputs, 1))
    except NotByRows:
        raise
    except Exception as error:  # of the user's code, as of statistics that take two rows
        return InvarianceTrial(None, _DEPENDS, f"alone: {error}")
    if alone.is_rounding:
        return InvarianceTrial(1, "the rows beside a row change its bits, so rows are answered one by one")
    return InvarianceTrial(None, _DEPENDS, str(alone))


def _is_apart(call: Call, inputs: Any) -> bool:
    """Whether rows have the bits among others that they have alone: with one other, with some, with all."""
    number = count(inputs)
    rows = range(number)
    alone = [batch_invariant(call, _taken(inputs, [row]), ROWS) for row in rows]
    some = [[(row + further) % number for further in range(size)] for size in (2, 5) for row in rows]
    for chosen in [*some, list(rows)]:
        found = batch_invariant(call, _taken(inputs, chosen), ROWS)
        answers = (_rows_of(found, len(chosen), [at]) for at in range(len(chosen)))
        if not all(itertools.starmap(_same, zip(answers, (alone[row] for row in chosen), strict=True))):
            return False
    return True


def parts(tree: Any, path: Path = (), *, lists: bool = False) -> Iterator[tuple[Path, Any]]:
    """(path, part) of each part that is no mapping and no tuple. With `lists`, for answers, a list is a part only if it holds
    single values."""
    if isinstance(tree, Mapping):
        for key, each in tree.items():
            yield from parts(each, (*path, key), lists=lists)
    elif _contains(tree, lists=lists):
        for number, each in enumerate(tree):
            yield from parts(each, (*path, number), lists=lists)
    else:
        yield path, tree


def mapped(function: Callable[[Any], Any], tree: Any, *, lists: bool = True) -> Any:
    """The same mappings and tuples of what the function gives for what is in them; of answers also lists, but for those of
    single values."""
    if isinstance(tree, Mapping):
        return {key: mapped(function, each, lists=lists) for key, each in tree.items()}
    if _contains(tree, lists=lists):
        return made_like(tree, (mapped(function, each, lists=lists) for each in tree))
    return function(tree)


def made_like(tree: Any, items: Iterable[Any]) -> Any:
    """A list, a tuple or a named tuple as the first one, of these items; a tuple for torch's own, such as the one of max()."""
    if isinstance(tree, list):
        return list(items)
    make = getattr(type(tree), "_make", tuple)
    return make(items)


def _groups(inputs: Any, number: int) -> Iterable[list[int]]:
    """The rows of one shape each, in the order of their first."""
    lists = [part for _, part in parts(inputs) if type(part) is list]
    if not lists:
        return [list(range(number))]
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in range(number):
        found.setdefault(tuple(tuple(each[row].shape) for each in lists), []).append(row)
    return found.values()


def _taken(inputs: Any, indices: Sequence[int]) -> Any:
    """These rows, copied to where torch puts its tensors: where a row lies in memory changes bits, too."""
    return mapped(lambda part: _picked(part, indices) if _has_rows(part) else part, inputs, lists=False)


def _picked(part: Any, indices: Sequence[int]) -> Any:
    if isinstance(part, torch.Tensor):
        return part[torch.tensor(indices)].contiguous()
    if type(part) is not list:
        return part[list(indices)]
    rows = [part[index] for index in indices]
    is_even = isinstance(rows[0], torch.Tensor) and len({row.shape for row in rows}) == 1
    return torch.stack(rows) if is_even else rows


def _rows_of(answer: Any, rows: int, indices: Sequence[int]) -> Any:
    """Some of the rows of an answer, which has so many. Raises NotByRows."""
    return mapped(lambda part: _picked(_checked(part, rows), indices), answer)


def _has_rows(part: Any) -> bool:
    return type(part) is list or (isinstance(part, (torch.Tensor, numpy.ndarray)) and part.ndim > 0)


def _contains(tree: Any, *, lists: bool) -> bool:
    """Whether it is a tuple, or a list of more than one value per row."""
    return isinstance(tree, tuple) or (
        lists and type(tree) is list and not all(isinstance(each, _SINGLE) for each in tree)
    )


def _checked(part: Any, rows: int, named: str = "") -> Any:
    """A part of an answer, which has so many rows. Raises NotByRows."""
    if _has_rows(part) and len(part) == rows:
        return part
    what = f"of shape {tuple(part.shape)}" if hasattr(part, "shape") else f"of type {type(part).__name__}"
    raise NotByRows(f"asked with {rows} {'rows' if rows > 1 else 'row'}, a part of the answer{named} is {what}")


def _joined(pieces: Sequence[Any], places: Sequence[int]) -> Any:
    """One answer of those to pieces; places: where in them each row is."""
    first = pieces[0]
    if isinstance(first, Mapping):
        return {key: _joined([piece[key] for piece in pieces], places) for key in first}
    if _contains(first, lists=True):
        return made_like(first, (_joined([piece[at] for piece in pieces], places) for at in range(len(first))))
    if type(first) is list or len({tuple(piece.shape[1:]) for piece in pieces}) > 1:
        rows = [row for piece in pieces for row in piece]
        return [rows[place] for place in places]
    return _picked(torch.cat(list(pieces)) if isinstance(first, torch.Tensor) else numpy.concatenate(pieces), places)


@dataclass(frozen=True)
class _Distance:
    """How far the answers of two ways to ask are apart, at most. largest: of the answers there."""

    most: float = 0.0
    largest: float = 0.0
    near: float = _NEAR

    @property
    def is_rounding(self) -> bool:
        return self.most <= self.near * self.largest

    def __str__(self) -> str:
        if math.isinf(self.most):
            return "alone a row has another answer than among others"
        return f"by up to {self.most:.2g} where answers are up to {self.largest:.2g}"


def _distance(left: Any, right: Any) -> _Distance:
    """The distance of the parts that are furthest apart."""
    a, b = ([part for _, part in parts(each, lists=True)] for each in (left, right))
    if len(a) != len(b):
        return _Distance(math.inf)
    return max(map(_part_distance, a, b), key=lambda each: (not each.is_rounding, each.most), default=_Distance())


def _part_distance(left: Any, right: Any) -> _Distance:
    if _same(left, right):
        return _Distance()
    both = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    if not both or not left.is_floating_point() or left.shape != right.shape or left.dtype != right.dtype:
        return _Distance(math.inf)
    x, y = left.double(), right.double()
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, x - y).abs()
    most = math.inf if bool(apart.isnan().any()) else apart.max().item()
    largest = x[x.isfinite()].abs().max().item() if bool(x.isfinite().any()) else 0.0
    return _Distance(most, largest, max(_NEAR, 8 * torch.finfo(left.dtype).eps))


def _same(left: Any, right: Any) -> bool:
    """Bit for bit."""
    a, b = (list(parts(each, lists=True)) for each in (left, right))
    return len(a) == len(b) and all(x[0] == y[0] and _same_part(x[1], y[1]) for x, y in zip(a, b, strict=True))


def _same_part(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and same_bits(left, right)
    if isinstance(left, numpy.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return bool(left.tolist() == right.tolist() if left.dtype.kind == "O" else left.tobytes() == right.tobytes())
    return bool(left == right)


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "the inputs"
