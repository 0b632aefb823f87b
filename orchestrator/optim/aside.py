"""Bytes that change when a value does, for what an optimizer keeps where no checkpoint finds it: in objects of any class, in
closures of functions, and in variables of the user's modules that these name.

Only two of one process are compared, so an object may stand as its address.
"""

from __future__ import annotations

import inspect
import io
import pickle
import types
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from orchestrator.common.distributions import is_installed
from orchestrator.pipeline import Pipeline

_OPAQUE = (type, types.ModuleType, Pipeline)
_PLAIN = (type(None), bool, int, float, str)
_DATA = (Dataset, DataLoader)
_OF_EACH_LAYER = frozenset(vars(torch.nn.Module()))


def bytes_of(value: Any, known: Set[int], memory: Set[int] = frozenset()) -> bytes | None:
    """known: addresses of what is kept where it belongs, and stands for itself; memory: of storages of tensors, likewise. None
    where nothing can be told."""
    stream = io.BytesIO()
    try:
        _Changes(stream, known, memory).dump(value)
    except Exception:  # of a class that says how it is pickled
        return None
    return stream.getvalue()


def functions_of(kind: type) -> Iterator[types.FunctionType]:
    """Those that the user has written in a class, without its bases."""
    for value in vars(kind).values():
        inner = inspect.unwrap(value)  # of torch.no_grad(), and of what torch puts around a step
        if isinstance(inner, types.FunctionType) and _is_users(inner):
            yield inner


def variables(function: types.FunctionType) -> dict[str, Any]:
    """The variables of its module that a function names, but for flags, which are set once to say that something was said."""
    named = set(_names(function.__code__))
    return {
        name: value
        for name, value in function.__globals__.items()
        if name in named and not isinstance(value, (bool, *_OPAQUE))
    }


def closure(function: types.FunctionType) -> dict[str, Any]:
    """The variables of the functions around it that a function uses, but for flags."""
    held = zip(function.__code__.co_freevars, cells(function), strict=True)
    return {name: value for name, value in held if not isinstance(value, (bool, Dataset, *_OPAQUE))}


def pipelines(values: Iterable[Any]) -> Iterator[Pipeline]:
    return (value for value in values if isinstance(value, Pipeline))


def texts(owner: object) -> dict[str, str]:
    """The numbers and texts in public attributes, by name."""
    return {
        name: repr(value) for name, value in vars(owner).items() if type(value) in _PLAIN and not name.startswith("_")
    }


def others(layer: torch.nn.Module) -> dict[str, Any]:
    """The attributes that `texts` does not have, by name, but for data and what each layer has."""
    told = texts(layer)
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in told and name not in _OF_EACH_LAYER and not isinstance(value, (*_DATA, *_OPAQUE))
    }


def named(owner: object, function: types.FunctionType) -> dict[str, Any]:
    """The attributes of an object that a function names, but for flags and data."""
    names = set(_names(function.__code__))
    return {
        name: value
        for name, value in vars(owner).items()
        if name in names and not isinstance(value, (bool, Dataset, *_OPAQUE))
    }


class _Changes(pickle.Pickler):
    """Tensors by their versions, and without what is kept where it belongs."""

    def __init__(self, stream: io.BytesIO, known: Set[int], memory: Set[int]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._known, self._memory = known, memory

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, (*_OPAQUE, *_DATA)) or id(value) in self._known:
            return id(value)
        if not isinstance(value, torch.Tensor):
            return None
        if value.layout == torch.strided and value.untyped_storage().data_ptr() in self._memory:
            return id(value)
        return id(value), value._version

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return object, (), (id(value), _held_by(value))
        if isinstance(value, types.GeneratorType):
            return object, (), (id(value), value.gi_frame and dict(value.gi_frame.f_locals))
        try:
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:  # a lock, a file, a class that refuses
            return object, (), (id(value), getattr(value, "__dict__", None))


def _held_by(function: types.FunctionType) -> tuple[Any, ...]:
    used = variables(function) if _is_users(function) else {}
    return cells(function), function.__defaults__, function.__kwdefaults__, vars(function), used


def cells(function: types.FunctionType) -> list[Any]:
    """The contents of its closure."""
    return [content(cell) for cell in function.__closure__ or ()]


def content(cell: types.CellType) -> Any:
    """The content of a cell of a closure; None where it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_users(function: types.FunctionType) -> bool:
    """Not of a package: modules of packages have caches and counters of their own."""
    return not function.__module__.startswith("orchestrator.") and not is_installed(function.__code__.co_filename)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
