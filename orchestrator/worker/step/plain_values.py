"""Numbers, texts and frozen parameters that code has changed along the run, and their first values, which a worker that joins
has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

_PLAIN: Final = (type(None), bool, int, float, str)
_ABSENT: Final = object()


class PlainValues:
    """Numbers, texts and None in attributes of some objects, and which parameters require a gradient, as they are when this is
    made. Names that begin with _ are caches."""

    def __init__(self, objects: Iterable[tuple[str, Any]], parameters: Iterable[tuple[str, torch.Tensor]] = ()) -> None:
        """objects, parameters: each with its name in messages."""
        held = [(place, vars(each)) for place, each in objects]
        self._kept = [(place, attributes, _plain(attributes)) for place, attributes in held]
        # Looked at before each step, so in flat loops.
        self._sizes = [(attributes, len(attributes)) for _, attributes in held]
        self._values = [(attributes, name, value) for _, attributes, kept in self._kept for name, value in kept.items()]
        self._flags = [(place, each, each.requires_grad) for place, each in parameters]

    def changed(self) -> list[str]:
        """The places of those that differ now, or are new."""
        others = any(now.get(name, _ABSENT) is not value for now, name, value in self._values)
        flags = [f"{place}.requires_grad" for place, each, flag in self._flags if each.requires_grad is not flag]
        if not others and all(len(now) == size for now, size in self._sizes):
            return flags
        return [*flags, *(f"{place}.{name}" for place, now, kept in self._kept for name in _names(now, kept))]

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Within the block they are as they were, and afterwards as they were found."""
        found = [(now, kept, {name: now[name] for name in _names(now, kept)}) for _, now, kept in self._kept]
        flags = [each.requires_grad for _, each, _ in self._flags]
        try:
            for _, each, flag in self._flags:
                each.requires_grad_(flag)
            for now, kept, others in found:
                _put_back(now, kept, others)
            yield
        finally:
            for (_, each, _), flag in zip(self._flags, flags, strict=True):
                each.requires_grad_(flag)
            for now, kept, others in found:
                _put_back(now, kept, _names(now, kept))
                now.update(others)


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if type(value) in _PLAIN and not name.startswith("_")}


def _names(now: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """The names of values that differ, or are new. One that has another place now, as a layer has, is none."""
    changed = [name for name, value in kept.items() if name in now and _differ(now[name], value)]
    return [*changed, *(_plain(now).keys() - kept.keys())]


def _differ(one: Any, other: Any) -> bool:
    return one is not other and (type(one) is not type(other) or one != other)


def _put_back(now: dict[str, Any], kept: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name in kept:
            now[name] = kept[name]
        else:
            del now[name]
