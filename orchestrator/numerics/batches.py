"""The tensors in a batch of any structure: found, replaced, and told apart from all else in it.

Followed are mappings, lists, tuples, named tuples and dataclasses. An object with a method `to` is moved by itself.
"""

from __future__ import annotations

import copy
import dataclasses
import struct
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_FIXED = frozenset({types.NoneType, bool, int, float, complex, str, bytes})  # types of values that nobody can change


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, but for those in objects that are moved by themselves."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif callable(getattr(batch, "to", None)):
        return
    elif isinstance(batch, Mapping):
        for _, value in batch.items():
            yield from tensors_of(value)
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            yield from tensors_of(each)
    elif _has_fields(batch):
        for field in dataclasses.fields(batch):
            yield from tensors_of(getattr(batch, field.name, None))


def mapped(batch: Any, each: Callable[[torch.Tensor], torch.Tensor], whole: Callable[[Any], Any]) -> Any:
    """The batch with other tensors. each: gives one for each tensor, in the order of `tensors_of`; whole: gives another object
    for one that has a method `to`. All else stays as it is."""
    if isinstance(batch, torch.Tensor):
        return each(batch)
    if callable(getattr(batch, "to", None)):
        return whole(batch)
    if isinstance(batch, Mapping):
        found = {key: mapped(value, each, whole) for key, value in batch.items()}
        return found if type(batch) is dict else _with_items(batch, found)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(part, each, whole) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(mapped(part, each, whole) for part in batch)
    if not _has_fields(batch):
        return batch
    other = copy.copy(batch)  # not `replace`, which calls __init__ again
    for field in dataclasses.fields(batch):
        if hasattr(batch, field.name):
            object.__setattr__(other, field.name, mapped(getattr(batch, field.name), each, whole))
    return other


def copied(batch: Any) -> Any:
    """The batch in memory of its own, which its maker does not write again; tensors lie there as before, for kernels may depend
    on it. Objects that cannot be copied stay as they are."""
    return _copy(batch, {})


def _copy(value: Any, made: dict[int, Any]) -> Any:
    """made: copies, by the identity of what was copied. `deepcopy` takes a hundred times as long for a list of numbers."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, torch.Tensor):
        found: Any = _copied(value)
    elif kind in (list, tuple):
        found = kind(value) if _FIXED.issuperset(map(type, value)) else kind(_copy(each, made) for each in value)
    elif kind is dict:
        found = {key: _copy(each, made) for key, each in value.items()}
    else:
        found = _copy_of_object(value, made)
    made[id(value)] = found
    return found


def _copy_of_object(value: Any, made: dict[int, Any]) -> Any:
    for tensor in tensors_of(value):
        if id(tensor) not in made:
            made[id(tensor)] = _copied(tensor)
    try:
        return copy.deepcopy(value, dict(made))
    except Exception:  # of classes of the user's
        return mapped(value, lambda tensor: made[id(tensor)], lambda whole: whole)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or torch.ops.aten.is_non_overlapping_and_dense(tensor) or not tensor.numel():
        return tensor.clone()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in sizes)
    return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride(), 0)


def taken_apart(batch: Any) -> tuple[list[torch.Tensor], Any] | None:
    """The tensors of a batch, and all else in it as something that can be compared and hashed. Two batches with the same rest
    differ in the values of tensors alone. Follows lists, tuples and plain dicts; None where something else is in it that may
    hold tensors or cannot be hashed."""
    tensors: list[torch.Tensor] = []

    def shape_of(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            tensors.append(part)
            return torch.Tensor, tuple(part.shape), part.dtype, part.stride()
        if type(part) is dict:
            return dict, tuple((key, shape_of(value)) for key, value in part.items())
        if isinstance(part, (list, tuple)):
            return type(part), tuple(map(shape_of, part))
        if isinstance(part, float):
            return type(part), struct.pack("=d", part)  # 0.0 and -0.0 are equal, and NaN is not
        if part is None or isinstance(part, (bool, int, str, bytes)):
            return type(part), part
        raise TypeError(type(part).__name__)

    try:
        shape = shape_of(batch)
        hash(shape)
    except TypeError:
        return None
    return tensors, shape


def rebuilt(batch: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A batch like this one, of these tensors. batch: as `taken_apart` takes it."""
    left = iter(tensors)
    return mapped(batch, lambda _: next(left), lambda part: part)


def _has_fields(batch: Any) -> bool:
    return dataclasses.is_dataclass(batch) and not isinstance(batch, type)


def _with_items(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same kind; a plain dict where that cannot be copied, or its copy not changed."""
    try:
        other: Any = copy.copy(batch)
        other.update(items)
    except (AttributeError, TypeError):
        return items
    return other
