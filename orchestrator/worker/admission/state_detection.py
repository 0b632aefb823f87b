"""The state that a pipeline keeps between batches, found by looking at it before and after a batch is computed again.

State may matter only later: a curriculum that counts batches, a bank of features that is read once it is full, an augmentation
that is rarely drawn. It changes no bit of the first micro-batches, so computing them again does not expose it. These are
looked at:

    generators  of numpy, `random` and torch, wherever the pipeline, its model, its datasets or their modules hold one
    numbers     in attributes with public names of the pipeline and of the model's layers, in globals, and in containers there
    weights     parameters and buffers of modules that are not within the model
    arrays      other tensors and numpy arrays, and the lengths of containers

Arrays and lengths count where the user has written the class that has them. Objects, classes and functions of the user's count,
too, where the pipeline or its model refers to them: with class attributes, closures and default arguments. Objects of packages
count for themselves, data sets may, and caches change once at most. They are named if a result differs.

Numbers with names that begin with _ count if a result follows from them. One that changes each time is made another one, and
the batch computed once more.

It does not see variables of other modules, which `beginning.py` puts back, files, or what containers with many elements hold.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import random
import threading
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

import numpy
import torch
from torch.utils.data import Dataset

from orchestrator.common.frames import is_base_module, is_users_module
from orchestrator.numerics.byte_layout import bytes_of
from orchestrator.optim import aside

_MOST_OBJECTS = 20_000
_MOST_ITEMS = 100
_MANY_ITEMS = 1000  # of a container where numbers do not matter
_ALL_ITEMS = 20_000  # of the containers that have more than the most
_DEEPEST = 100  # objects within each other; as of a linked list, at whose end nothing is looked at
_MOST_ELEMENTS = 2**20  # of an array
_ALL_ELEMENTS = 2**26  # of the arrays that are looked at
_OPAQUE = (type, types.ModuleType, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_OF_NUMPY = (numpy.random.Generator, numpy.random.BitGenerator, numpy.random.RandomState)
_GENERATORS = (torch.Generator, random.Random, *_OF_NUMPY)
_DRAWS: tuple[Any, ...] = (random.random, numpy.random.rand)
_COMMON = (torch.default_generator, *(each.__self__ for each in _DRAWS))  # seeded for each micro-batch
_BARE = frozenset({type(None), bool, str, bytes})  # nothing is within; most of what an attribute holds is such
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, deque)
_WRITTEN = (*_CONTAINERS, *_GENERATORS, torch.Tensor, numpy.ndarray)
_METHODS = (types.MethodType, types.BuiltinMethodType)
# Objects of Python whose attributes are the user's.
_NAMESPACES = (
    *(types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap, threading.local),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)
_EMPTY = frozenset({list, tuple, dict, set, deque, OrderedDict})  # nor in these, where they are empty
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of a tensor
_METRICS = "torchmetrics"  # a metric that is called with a batch adds up beside, and nothing follows from the sum
# Kinds of values that are state for sure if they change: none, numbers, or arrays and lengths as well.
_NOTHING, _NUMBERS, _ALL = range(3)
OF_DATA: Final = ("train", "validation")
# How far away: near, as a size or a number of repetitions may be; then odd, and behind the end of all that code may count up
# to before it does something else.
AWAY: Final = (1, 1_000_003)

# The remedy for weights outside of the model that change.
_RECIPE = "docs/porting.md, a moving average of the weights"
WITHIN_THE_MODEL: Final = (
    f"have a frozen copy within the model, which the optimizer's step() moves ({_RECIPE}); what is to stay as it is, as a "
    "teacher with batch normalisation, is set to evaluation mode: teacher.eval()"
)

Observations = dict[str, tuple[bool, bytes]]  # by its place: whether it is state for sure; what changes when it does


def look(roots: Mapping[str, Any], model: torch.nn.Module, *, gathers: bool = False) -> Observations:
    """The present state of everything that these objects hold. roots: by name, among them "pipeline" and its model. gathers:
    whether their code may gather what batches gave in lists, which somebody reads at the end of an epoch."""
    return _walked(roots, model, gathers=gathers).found


def _walked(roots: Mapping[str, Any], model: torch.nn.Module, *, gathers: bool, hashes: bool = True) -> _Walk:
    walk = _Walk(model, gathers=gathers, hashes=hashes)
    for name, root in roots.items():
        counts = _NUMBERS if name in OF_DATA else _ALL
        walk.through(name, root, _public(name.rpartition(".")[2], counts), near=True)
    return walk


@contextlib.contextmanager
def another(roots: Mapping[str, Any], model: torch.nn.Module, place: str, away: int) -> Iterator[bool]:
    """Within the block the number at this place is so much larger, if it has a private name; gives whether it has. roots: as
    of `look`."""
    owner, name = _walked(roots, model, gathers=False).private.get(place, (None, ""))
    if owner is None:
        yield False
        return
    number = getattr(owner, name)
    setattr(owner, name, number + away)
    try:
        yield True
    finally:
        setattr(owner, name, number)


def grown(first: Observations, second: Observations, third: Observations) -> dict[str, bool]:
    """The places that changed twice between three looks, and whether each is state for sure. The same batch was computed
    before each look. A cache that is filled, or the last of something, changes once at most."""
    twice = [place for place in third if first.get(place) != second.get(place) != third[place]]
    return {place: third[place][0] for place in twice}


def other(first: Observations, second: Observations) -> list[str]:
    """The places that are new or changed in the second look, first those that are state for sure."""
    changed = [place for place, seen in second.items() if first.get(place) != seen]
    return sorted(changed, key=lambda place: not second[place][0])


class Found(NamedTuple):
    """Each by its place. holders: objects and classes of the user's, objects of packages to which these refer, cells of
    closures, and of what containers and functions hold; weights: parameters and buffers of modules that are not within the
    model; modules: names of those of the user's that define classes and functions there."""

    holders: list[tuple[str, Any]]
    weights: list[tuple[str, torch.Tensor]]
    modules: set[str]


def holders_and_weights(roots: Mapping[str, Any], model: torch.nn.Module) -> Found:
    """Those that the roots refer to."""
    walk = _walked(roots, model, gathers=True, hashes=False)
    return Found(walk.holders + walk.within, walk.weights, walk.modules)


def untrained(roots: Mapping[str, Any], model: torch.nn.Module) -> list[str]:
    """The places of parameters, and of tensors that are to be some, outside of the model that have a gradient, which nobody
    applies."""
    return _walked(roots, model, gathers=True, hashes=False).untrained


def attributes_of(value: Any) -> MutableMapping[str, Any] | None:
    """The attributes of an object as they are, to be read and written; None of one that has none."""
    named: dict[str, Any] | None = getattr(value, "__dict__", None)
    kind: Any = type(value)
    slots = _slots(kind)
    return _WithSlots(value, slots, {} if named is None else named) if slots else named


@functools.cache
def _slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    """Those in `__slots__` of the user's classes among its bases, by name."""
    theirs = (each for each in kind.__mro__ if is_users_module(each.__module__))
    parts = ((name, part) for each in theirs for name, part in vars(each).items())
    return {name: part for name, part in parts if isinstance(part, types.MemberDescriptorType)}


class _WithSlots(MutableMapping[str, Any]):
    """The attributes of an object whose classes have `__slots__`. slots: by name; others: of its dictionary."""

    def __init__(
        self, owner: Any, slots: Mapping[str, types.MemberDescriptorType], others: MutableMapping[str, Any]
    ) -> None:
        self._owner, self._slots, self._others = owner, slots, others

    def __getitem__(self, name: str) -> Any:
        if name not in self._slots:
            return self._others[name]
        try:
            return self._slots[name].__get__(self._owner)
        except AttributeError:  # it has no value
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._slots:
            self._slots[name].__set__(self._owner, value)  # also of a frozen class
        else:
            self._others[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._slots:
            self._slots[name].__delete__(self._owner)
        else:
            del self._others[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in (*self._slots, *self._others) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Walk:
    """A depth-first walk through attributes and small containers that visits each object once."""

    def __init__(self, model: torch.nn.Module, *, gathers: bool, hashes: bool) -> None:
        self.found: Observations = {}
        self.private: dict[str, tuple[Any, str]] = {}  # the owner and the name of each private number
        self.untrained: list[str] = []
        self.holders: list[tuple[str, Any]] = []
        self.within: list[tuple[str, Any]] = []  # cells of what containers, tuples and functions hold
        self.weights: list[tuple[str, torch.Tensor]] = []
        self.modules: set[str] = set()  # names of the user's that define what was met
        self._gathers, self._hashes = gathers, hashes
        self._modules = {id(module) for module in model.modules()}
        self._tensors = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._seen: dict[int, Any] = {}
        self._classes: set[type] = set()
        self._elements = 0
        self._many = 0  # items of the containers that have more than the most
        self._depth = 0

    def through(self, place: str, value: Any, counts: int, *, near: bool) -> None:
        """Look through an object for state, and note it. counts: what here is the pipeline's own; near: whether the user's code
        refers to it."""
        if type(value) in _BARE:
            return
        if isinstance(value, (int, float)):
            if counts and self._hashes:
                self.found[place] = True, repr(value).encode()
            return
        if id(value) in self._seen or len(self._seen) > _MOST_OBJECTS or self._depth >= _DEEPEST:
            return
        self._seen[id(value)] = value
        self._depth += 1
        self._within(place, value, counts, near=near)
        self._depth -= 1

    def _within(self, place: str, value: Any, counts: int, *, near: bool) -> None:
        if isinstance(value, _CONTAINERS):
            base = next(each for each in _CONTAINERS if isinstance(value, each))
            if counts == _ALL and not self._gathers:
                self.found[f"the length of {place}"] = True, str(base.__len__(value)).encode()
            for key, part in self._items(value, base):
                # The arrays of others than tuples are looked at with them.
                if near and (base is tuple or isinstance(part, _CONTAINERS)):
                    self._hold(f"{place}[{key!r}]", part)
                self.through(f"{place}[{key!r}]", part, counts, near=near)
            attributes = None if is_base_module(type(value).__module__) else attributes_of(value)
            if attributes is not None and attributes is not value:  # of a class that derives from a container
                self._into(place, value, attributes, counts, near=near)
        elif is_generator(value):
            self.found[place] = True, printed(state_of(value))
        elif isinstance(value, (torch.Tensor, numpy.ndarray)):
            self._hash(place, value, is_state=counts == _ALL)
        elif isinstance(value, type):
            self._into_class(value)
        elif isinstance(value, _METHODS) and (isinstance(value.__self__, _CONTAINERS) or is_generator(value.__self__)):
            if near:
                self._hold(f"{place}.__self__", value.__self__)
            self.through(f"{place}.__self__", value.__self__, counts, near=near)
        elif (function := _function(value)) is not None:
            self._into_function(place, function, counts)
            if isinstance(value, types.MethodType) and not is_base_module(type(value.__self__).__module__):
                self.through(f"{place}.__self__", value.__self__, counts, near=near)
        elif not isinstance(value, _OPAQUE) and (attributes := attributes_of(value)) is not None:
            self._into(place, value, attributes, counts, near=near)

    def _items(self, container: Any, base: Any) -> Iterable[tuple[Any, Any]]:
        """By Python's own methods: a class of a package may override them with what raises, or makes each item."""
        size = base.__len__(container)
        is_large = size > _MOST_ITEMS
        self._many += size * is_large
        if base is set or (is_large and (self._hashes or size > _MANY_ITEMS or self._many > _ALL_ITEMS)):
            return ()
        items = list(dict.items(container)) if base is dict else list(enumerate(base.__iter__(container)))
        return [each for each in items if not _is_large(each[1])] if is_large else items

    def _into(self, place: str, value: Any, attributes: Mapping[str, Any], counts: int, *, near: bool) -> None:
        kind = type(value)
        is_users = any(is_users_module(each.__module__) for each in kind.__mro__)
        is_theirs = is_users or (near and isinstance(value, _NAMESPACES))
        # Not those of Python, such as a queue that a thread reads.
        if is_theirs or (near and not is_base_module(kind.__module__)):
            self.holders.append((place, value))
        if is_users:
            for each in kind.__mro__:
                self._into_class(each)
        # The user's code may change an object that a package's layer has, as the config of a model of transformers.
        is_layer = id(value) in self._modules and kind.__module__.partition(".")[0] != "torch"
        if place == "pipeline" or id(value) in self._modules:
            own = _ALL if is_users and not _is_metric(kind) else _NUMBERS
        elif counts == _ALL and is_users and not _is_metric(kind) and not isinstance(value, Dataset):
            own = _ALL
        else:
            own = _NOTHING
        if isinstance(value, torch.nn.Module):
            self._weigh(place, value)
            for name, child in value._modules.items():
                self.through(f"{place}.{name}", child, own, near=near)
            for name, tensor in value._parameters.items():
                for kind_of_hook in _HOOKS:
                    self.through(f"{place}.{name}'s hooks", getattr(tensor, kind_of_hook, None), own, near=near)
        if isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                if near:
                    self._hold(f"{place}.{name}", getattr(value, name))
                self.through(f"{place}.{name}", getattr(value, name), counts, near=near)
        for name, part in list(attributes.items()):
            if own == _ALL:
                self._note_private(place, value, name, part)
            if type(part) in _BARE or (type(part) in _EMPTY and not part):  # of a module's attributes most are
                continue
            if name not in ("_parameters", "_buffers", "_modules"):
                counted = own if name.endswith("_hooks") else _public(name, own)
                self.through(f"{place}.{name}", part, counted, near=is_theirs or is_layer)

    def _into_class(self, kind: type) -> None:
        """Through the attributes of a class of the user's, and what its functions hold."""
        if not is_users_module(kind.__module__) or kind in self._classes:
            return
        self._classes.add(kind)
        self.modules.add(kind.__module__)
        self.holders.append((f"{kind.__module__}.{kind.__qualname__}", kind))
        for name, part in list(vars(kind).items()):
            self._note_private(f"{kind.__module__}.{kind.__qualname__}", kind, name, part)
            if not name.startswith("__"):
                self.through(f"{kind.__module__}.{kind.__qualname__}.{name}", part, _public(name, _ALL), near=True)
            elif isinstance(part, types.FunctionType):
                self._into_function(f"{kind.__module__}.{kind.__qualname__}.{name}", part, _ALL)

    def _into_function(self, place: str, function: types.FunctionType, counts: int) -> None:
        """Through what a function of the user's has besides its code."""
        if not is_users_module(function.__module__):
            return
        self.modules.add(function.__module__)
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.holders.append((f"{place}.{name}", cell))
            self.through(f"{place}.{name}", aside.content(cell), _public(name, counts), near=True)
        defaults = function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        held = {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}
        for name, part in held.items():
            self._hold(f"{place}.{name}", part)
        if vars(function):
            self.holders.append((place, function))
        for name, part in {**held, **vars(function)}.items():
            self.through(f"{place}.{name}", part, _public(name, counts), near=True)

    def _hold(self, place: str, part: Any) -> None:
        """Have a part that is no attribute among the holders, in a cell of its own."""
        if isinstance(part, _WRITTEN):
            self.within.append((place, types.CellType(part)))

    def _note_private(self, place: str, owner: Any, name: str, part: Any) -> None:
        if type(part) in (int, float) and name.startswith("_") and not name.startswith("__"):
            self.found[f"{place}.{name}"] = False, repr(part).encode()
            self.private[f"{place}.{name}"] = owner, name

    def _hash(self, place: str, array: Any, *, is_state: bool) -> None:
        if isinstance(array, torch.Tensor):
            self._judge(place, array)
        if not self._hashes:
            return
        elements = array.numel() if isinstance(array, torch.Tensor) else array.size
        if id(array) in self._tensors or elements > _MOST_ELEMENTS or self._elements + elements > _ALL_ELEMENTS:
            return
        content = _content(array)
        if content is not None:
            self._elements += elements
            self.found[place] = is_state, content

    def _weigh(self, place: str, module: torch.nn.Module) -> None:
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in self._tensors:
                self.found[f"{place}.{name}"] = True, f"{id(tensor)} {tensor._version}".encode()
                self.weights.append((f"{place}.{name}", tensor))
                self._judge(f"{place}.{name}", tensor)

    def _judge(self, place: str, tensor: torch.Tensor) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):  # such as one that another stage has
            return
        if id(tensor) not in self._tensors and tensor.is_leaf and tensor.grad is not None:
            self.untrained.append(place)


def is_generator(value: Any) -> bool:
    """Whether it draws random numbers from a state of its own, which nobody seeds for a micro-batch."""
    if not isinstance(value, _GENERATORS) or isinstance(value, random.SystemRandom):
        return False
    return not any(value is each for each in _COMMON)


def _is_large(value: Any) -> bool:
    return any(isinstance(value, each) and each.__len__(value) > _MOST_ITEMS for each in _CONTAINERS)


def _public(name: str, counts: int) -> int:
    return _NOTHING if name.startswith("_") else counts


def _is_metric(kind: type) -> bool:
    return any(each.__module__.partition(".")[0] == _METRICS for each in kind.__mro__)


def _function(value: Any) -> types.FunctionType | None:
    """The function that this is, or that a method or a static one has."""
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        value = value.__func__
    return value if isinstance(value, types.FunctionType) else None


def state_of(generator: Any) -> Any:
    """The state to which a generator of random numbers can be set again."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, numpy.random.BitGenerator):
        return generator.state
    return generator.get_state(legacy=False)


def printed(state: Any) -> bytes:
    """The state of a generator as bytes; that of torch's lies in host memory, so nobody waits for a card."""
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else repr(state).encode()


def _content(array: Any) -> bytes | None:
    """A hash of an array's elements. None if they are not numbers in strided memory; an array on a GPU is copied."""
    if isinstance(array, torch.Tensor):
        if array.layout != torch.strided or array.is_meta or array.is_quantized or array.is_nested:
            return None
        array = bytes_of(array.cpu()).numpy()
    elif array.dtype.hasobject:
        return None
    return hashlib.blake2b(array.tobytes()).digest()
