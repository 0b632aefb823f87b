"""The state that a pipeline keeps between batches, found by looking at it before and after a batch is computed again.

State that matters only later (a curriculum that counts batches, an augmentation that is rarely drawn) changes no bit of the
first micro-batches, so computing them again does not expose it. These are looked at:

    generators  of numpy, `random` and torch, wherever the pipeline, its model, its datasets or their modules hold one
    numbers     in attributes with public names of the pipeline and of the model's layers, in globals, and in containers there
    weights     parameters and buffers of modules that are not within the model
    arrays      other tensors and numpy arrays: caches are such, so they are only named where a result differs

It does not see closures, globals of other modules, files, or containers with many elements.
"""

from __future__ import annotations

import hashlib
import random
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

from orchestrator.numerics.byte_layout import bytes_of

_MOST_OBJECTS = 20_000
_MOST_ITEMS = 100
_MOST_ELEMENTS = 2**20  # of an array
_ALL_ELEMENTS = 2**26  # of the arrays that are looked at
_OPAQUE = (type, types.ModuleType, types.FunctionType, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
_BARE = frozenset({type(None), bool, str, bytes, type})  # nothing is within; most of what an attribute holds is such
_EMPTY = frozenset({list, tuple, dict, set, OrderedDict})  # nor in these, where they are empty

Observations = dict[str, tuple[bool, bytes]]  # by its place: whether it is state for sure; what changes when it does


def look(roots: Mapping[str, Any], model: torch.nn.Module) -> Observations:
    """The present state of everything that these objects hold. roots: by name, among them "pipeline" and its model."""
    walk = _Walk(model)
    for name, root in roots.items():
        walk.through(name, root, counts=not name.rpartition(".")[2].startswith("_"))
    return walk.found


def grown(first: Observations, second: Observations, third: Observations) -> dict[str, bool]:
    """The places that changed twice between three looks, and whether each is state for sure. The same batch was computed
    before each look. A cache that is filled, or the last of something, changes once at most."""
    twice = [place for place in third if first.get(place) != second.get(place) != third[place]]
    return {place: third[place][0] for place in twice}


class _Walk:
    """A depth-first walk through attributes and small containers that visits each object once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.found: Observations = {}
        self._modules = {id(module) for module in model.modules()}
        self._tensors = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._seen: dict[int, Any] = {}
        self._elements = 0

    def through(self, place: str, value: Any, *, counts: bool) -> None:
        """Look through an object for state, and note it. counts: whether a number here is one of the pipeline's own."""
        if type(value) in _BARE:
            return
        if isinstance(value, (int, float)):
            if counts:
                self.found[place] = True, repr(value).encode()
            return
        if id(value) in self._seen or len(self._seen) > _MOST_OBJECTS:
            return
        self._seen[id(value)] = value
        if isinstance(value, (list, tuple, dict)):
            for key, part in _items(value):
                self.through(f"{place}[{key!r}]", part, counts=counts)
        elif isinstance(value, _GENERATORS):
            self.found[place] = True, _state(value)
        elif isinstance(value, (torch.Tensor, numpy.ndarray)):
            self._hash(place, value)
        elif hasattr(value, "__dict__") and not isinstance(value, _OPAQUE):
            self._into(place, value)

    def _into(self, place: str, value: Any) -> None:
        own = place == "pipeline" or id(value) in self._modules
        if isinstance(value, torch.nn.Module):
            self._weigh(place, value)
            for name, child in value._modules.items():
                self.through(f"{place}.{name}", child, counts=False)
        for name, part in list(vars(value).items()):
            if type(part) in _BARE or (type(part) in _EMPTY and not part):  # of a module's attributes most are
                continue
            if name not in ("_parameters", "_buffers", "_modules"):
                self.through(f"{place}.{name}", part, counts=own and not name.startswith("_"))

    def _hash(self, place: str, array: Any) -> None:
        elements = array.numel() if isinstance(array, torch.Tensor) else array.size
        if id(array) in self._tensors or elements > _MOST_ELEMENTS or self._elements + elements > _ALL_ELEMENTS:
            return
        content = _content(array)
        if content is not None:
            self._elements += elements
            self.found[place] = False, content

    def _weigh(self, place: str, module: torch.nn.Module) -> None:
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in self._tensors:
                self.found[f"{place}.{name}"] = True, f"{id(tensor)} {tensor._version}".encode()


def _items(container: Any) -> Iterator[tuple[Any, Any]]:
    if len(container) <= _MOST_ITEMS:
        yield from list(container.items()) if isinstance(container, dict) else enumerate(container)


def _state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return repr(generator.getstate()).encode()
    if isinstance(generator, numpy.random.Generator):
        return repr(generator.bit_generator.state).encode()
    return repr(generator.get_state(legacy=False)).encode()


def _content(array: Any) -> bytes | None:
    """A hash of an array's elements. None if they are not numbers in strided memory; an array on a GPU is copied."""
    if isinstance(array, torch.Tensor):
        if array.layout != torch.strided or array.is_meta or array.is_quantized:
            return None
        array = bytes_of(array.cpu()).numpy()
    elif array.dtype.hasobject:
        return None
    return hashlib.blake2b(array.tobytes()).digest()
