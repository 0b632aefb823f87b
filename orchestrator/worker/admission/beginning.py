"""The user's objects as they were before the first step, to compute a micro-batch as a worker does that joins.

A worker that joins, and one of a run that goes on, has the pipeline as it was built, and has computed none of the steps before.
So nothing may follow from what an earlier step, an evaluation, or a schedule left in an object. Admission sees the first step
alone. Within `restored` the objects refer to what they did before that step; what is computed there has to be the same.

Attributes are looked at of the pipeline, and of other objects, layers, functions and classes that the user has written. So are
those of objects of packages and of namespaces to which these refer. Variables of closures, of the modules of pipeline and
model and of those of the user's that these import, hooks of layers, and defaults of functions are, too. Lists, dictionaries
and sets there count with their items, and so do those within them. An `itertools.count` and an iterator of a list count by
where they stand. A function of the user's that has cached more is one with an empty cache. Open files, threads, pools of these
and modules stay as they are.

A tensor, an array or a generator of random numbers that has been written in place gets its former content, wherever else it
is referred to, and afterwards the present one again. This is so of small ones in memory of their own: in other memory may be
what somebody else reads, as a batch. Once another has been written, as one that is filled anew for another size, nothing is
put back any more: the other attributes may say what is in it.

Weights of modules outside of the model have no copies either. Nobody may change them, as in the first step. A tensor that is
too large for a copy, or on a card, counts as one if it has the shape of one of the model's matrices, as in a moving average.
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import copy
import functools
import io
import itertools
import operator
import random
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.common.frames import is_users_module, variables_of
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.numerics.digests import prints_of
from orchestrator.worker.admission import state_detection

_MOST_ITEMS: Final = 1000
_MOST_BYTES: Final = 2**23  # of arrays, and of tensors, which are copied
_MOST_LOOKS: Final = 100
_BASES = (OrderedDict, dict, list, set, deque)  # whose methods are called, as a class may override them
_CONTAINERS: Final = frozenset({*_BASES, defaultdict, Counter})
_ITERATORS: tuple[Any, ...] = (type(iter([])), type(iter(())), type(iter(range(0))))  # a copy goes on by itself
_CACHED = type(functools.cache(len))
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_HOOKS: Final = frozenset(name for name in vars(torch.nn.Module()) if "_hooks" in name and "state_dict" not in name)
_NOT_THEIRS: Final = frozenset(
    {*vars(torch.nn.Module()), "forward"} - {"training"} - _HOOKS
)  # torch and stages set these
_CONTENT: Final = "cell_contents"  # of a cell
_FLAG: Final = "requires_grad"  # of a parameter
_BY_NAME = (type, types.CellType, torch.nn.Parameter)  # whose attributes are set one by one
# Most of a module and of a class; rarely exchanged.
_CODE = (types.FunctionType, types.ModuleType, staticmethod, classmethod, property, type)
# Left as they are: a file may have been closed since, and a module is imported once.
_HANDLES = (io.IOBase, types.ModuleType, threading.Thread, concurrent.futures.Executor)
_ARRAYS = (torch.Tensor, numpy.ndarray)
_CPU: Final = torch.device("cpu")
_MISSING: Final = object()


class _Mark(NamedTuple):
    """The state of an iterator, or of a function that caches. position: in the iterator, or the number of results that the
    function has computed; again: makes another one that is as it was. One that has not moved stays, as a function may have
    cached something large for good before the first step."""

    position: Any
    again: Callable[[], Any]


class _Held(NamedTuple):
    """An object, and what it refers to, by names; the items of containers there, and marks of iterators and of functions that
    cache, by the same names."""

    place: str
    owner: Any
    values: dict[str, Any]
    items: dict[str, Any]
    marks: dict[str, _Mark]


class Beginning:
    """Made before the first step. roots: objects of the user's, by names for messages; modules: of theirs, as dictionaries of
    their variables; more: gives those with others, which define classes and functions that are met."""

    def __init__(
        self,
        roots: Mapping[str, Any],
        model: torch.nn.Module,
        modules: Mapping[str, dict[str, Any]],
        more: Callable[[Set[str]], Mapping[str, dict[str, Any]]] | None = None,
    ) -> None:
        found, names = state_detection.holders_and_weights({**roots, **variables_of(modules)}, model), {*modules}
        while more is not None and not found.modules <= names:
            names |= found.modules
            modules = more(names)
            found = state_detection.holders_and_weights({**roots, **variables_of(modules)}, model)
        holders, weights = found.holders, found.weights
        known = {id(owner) for _, owner in holders}
        layers = [(place, each) for place, each in model.named_modules(prefix="model") if id(each) not in known]
        named = model.named_parameters(prefix="model")
        # None that another stage has: to look at those would take longer than all else.
        parameters = [(place, each) for place, each in named if torch.nn.Parameter in type(each).__mro__]
        held = (_held(*each) for each in (*holders, *layers, *parameters, *modules.items()))
        # A cell that has no content yet gets it by the code around the function.
        self._held = [each for each in held if each.values or not isinstance(each.owner, types.CellType)]
        parts = _Parts(self._held, model)
        self._copies, self._arrays, self._versions = parts.copies, parts.arrays, parts.versions
        self._weights = [(place, each, each._version, _print(each)) for place, each in (*weights, *parts.weights)]
        self._looks = 0  # that found more
        self._watch()

    def moved_weight(self, *, wholly: bool) -> str | None:
        """The place of a weight outside of the model that has changed since. wholly: whether one is found that was written past
        its version, as by `.data`."""
        return next(
            (
                place
                for place, each, version, known in self._weights
                if each._version != version or (wholly and _print(each) != known)
            ),
            None,
        )

    def _watch(self) -> None:
        """Note what is looked at before each step, in flat loops: the attributes that are as in the beginning."""
        owners = [(each.owner, each.values) for each in self._held]
        held = [(_attributes(owner), values) for owner, values in owners if not isinstance(owner, _BY_NAME[1:])]
        self._mappings = [now for now, _ in held]
        self._sizes = [*map(len, self._mappings)]
        self._watched = [
            (now, name, value)
            for now, values in held
            for name, value in values.items()
            if now.get(name) is value and name not in _HOOKS and not isinstance(value, _CODE)
        ]
        self._parameters = [each for each, _ in owners if isinstance(each, torch.nn.Parameter)]
        self._flags = [each.requires_grad for each in self._parameters]

    def _is_as_watched(self) -> bool:
        try:
            for now, name, value in self._watched:
                if now[name] is not value:
                    return False
        except KeyError:
            return False
        flags = [each.requires_grad for each in self._parameters]
        return flags == self._flags and [*map(len, self._mappings)] == self._sizes

    def has_more(self) -> bool:
        """Whether attributes have changed that had not when this was asked last. Neither items of containers are looked at
        nor closures. Not for ever: an object may get another attribute in each step."""
        if self._looks == _MOST_LOOKS or self._is_as_watched():
            return False
        self._looks += 1
        self._watch()
        return True

    def changed(self) -> list[str]:
        """The places that refer to something else by now; none where nothing can be put back."""
        found: list[str] = []
        if self._is_written():
            return found
        written = {id(part) for part, _ in self._written()}
        for held in self._held:
            now = _values(held.owner)
            names = {*held.values, *now}
            found += [
                _place(held, name)
                for name in sorted(names)
                if not _same(held, name, now.get(name, _MISSING)) or _refers(held, name, written)
            ]
        return found

    @contextlib.contextmanager
    def restored(self, only: str | None = None) -> Iterator[None]:
        """Within the block all refer to what they did in the beginning, and containers have the items that they had; or only
        the one at this place does. They stay the same containers, since hooks and packages may refer to them too."""
        if self._is_written():
            yield
            return
        found = [_values(held.owner) for held in self._held]
        values = [held.values[name] for held in self._held for name in held.items]
        values += [each for now in found for each in now.values() if _is_container(each)]
        containers = [(each, _items(each)) for each in {id(each): each for each in values}.values()]
        written = [(part, was, _copy(part)) for part, was in self._written()]
        if only is not None:
            there = {id(each) for held in self._held for place, each in _placed(held) if place == only}
            written = [each for each in written if id(each[0]) in there]
        try:
            for part, was, _ in written:
                _write(part, was)
            for held, now in zip(self._held, found, strict=True):
                _put(held.owner, _as_they_were(held, now, only))
                for name, items in held.items.items():
                    if only in (None, _place(held, name)):
                        _fill(held.values[name], items)
            yield
        finally:
            for container, items in containers:
                _fill(container, items)
            for held, now in zip(self._held, found, strict=True):
                _put(held.owner, now)
            for part, _, content in written:
                _write(part, content)

    def _written(self) -> list[tuple[Any, Any]]:
        """Those that have been written in place, with what they were."""
        return [(part, was) for part, was in self._copies if not _same_content(part, was)]

    def _is_written(self) -> bool:
        return (
            any(each._version != version for each, version in self._versions)
            or any(not _same_content(each, was) for each, was in self._arrays)
            or any(each.shape != was.shape for each, was in self._copies if isinstance(each, _ARRAYS))
        )


class _Parts:
    """The tensors, arrays and generators of random numbers among values and in containers. copies: of those that are not large,
    with what they were; arrays: others that are looked at, likewise; weights: other tensors of a matrix's shape, by their
    places; versions: of the rest."""

    def __init__(self, held: Sequence[_Held], model: torch.nn.Module) -> None:
        self.copies: list[tuple[Any, Any]] = []
        self.arrays: list[tuple[Any, Any]] = []
        self.weights: list[tuple[str, torch.Tensor]] = []
        self.versions: list[tuple[torch.Tensor, int]] = []
        of_model = [*model.parameters(), *model.buffers()]
        shapes = {(each.shape, each.dtype) for each in model.parameters() if each.dim() > 1}
        found = {id(value): (place, value) for each in held for place, value in _placed(each)}
        parts: list[tuple[str, Any]] = [each for each in found.values() if isinstance(each[1], _ARRAYS)]
        generators = [each for _, each in found.values() if state_detection.is_generator(each)]
        self.copies += [(each, _copy(each)) for each in generators if getattr(each, "device", _CPU) == _CPU]
        known = {id(each) for each in of_model}
        theirs = {each.untyped_storage().data_ptr() for each in of_model if _has_memory(each)}
        size = Counter[type]()
        for place, part in parts:
            is_array = isinstance(part, numpy.ndarray)
            if id(part) in known or (is_array and part.dtype.hasobject):
                continue
            is_own = _is_own(part, theirs)
            is_small = (is_array or is_own) and size[type(part)] + part.nbytes <= _MOST_BYTES
            if is_small:
                size[type(part)] += part.nbytes
            if is_small and is_own:
                self.copies.append((part, _copy(part)))
            elif is_small:
                self.arrays.append((part, _copy(part)))
            elif not is_array and not part.is_inference() and _has_memory(part) and (part.shape, part.dtype) in shapes:
                self.weights.append((place, part))
            elif not is_array and not part.is_inference():
                self.versions.append((part, part._version))


def _placed(held: _Held) -> Iterator[tuple[str, Any]]:
    """The values and the items of containers, by their places."""
    for name, value in held.values.items():
        place = _place(held, name)
        yield place, value
        yield from ((place, each) for each in _contents(held.items.get(name, ())))


def _is_own(part: Any, theirs: Set[int]) -> bool:
    """Whether its memory is its own: no part of the model, no batch of a loader, nothing that a card reads. theirs: addresses
    of the model's."""
    if isinstance(part, numpy.ndarray):
        whole = part.base if isinstance(part.base, numpy.ndarray) and part.base.nbytes == part.nbytes else part
        return bool(whole.flags.owndata and part.flags.writeable)  # of another shape, as by reshape()
    if type(part) is not torch.Tensor or not _has_memory(part) or part.requires_grad or part.is_inference():
        return False
    if not (part.is_cpu and part.is_contiguous()):
        return False
    storage = part.untyped_storage()
    is_read_by_a_card = torch.cuda.is_initialized() and part.is_pinned()  # type: ignore[no-untyped-call]
    return not (is_read_by_a_card or storage.is_shared()) and storage.data_ptr() not in theirs


def _has_memory(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return is_plain and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)


def _contents(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _copy(part: Any) -> Any:
    if state_detection.is_generator(part):
        return state_detection.state_of(part)
    return part.clone() if isinstance(part, torch.Tensor) else part.copy()


def _write(part: Any, content: Any) -> None:
    if isinstance(part, torch.Tensor):
        part.data.copy_(content)  # without another version
    elif isinstance(part, random.Random):
        part.setstate(content)
    elif isinstance(part, numpy.random.Generator):
        part.bit_generator.state = content
    elif isinstance(part, numpy.random.BitGenerator):
        part.state = content
    elif isinstance(part, (torch.Generator, numpy.random.RandomState)):
        part.set_state(content)
    else:
        part[...] = content


def _same_content(part: Any, was: Any) -> bool:
    if isinstance(part, numpy.ndarray):
        return bool(part.shape == was.shape and part.tobytes() == was.tobytes())
    if isinstance(part, torch.Tensor):
        return same_bits(part, was)
    now, printed = state_detection.state_of(part), state_detection.printed
    return now == was if isinstance(part, random.Random) else printed(now) == printed(was)


def _print(weight: torch.Tensor) -> int:
    """Another one once it is trained or averaged."""
    return prints_of([weight])[0] if _has_memory(weight) else 0


def _refers(held: _Held, name: str, written: Set[int]) -> bool:
    """Whether what was there is one of these, or is among its items."""
    if not written or name not in held.values:
        return False
    return id(held.values[name]) in written or any(id(each) in written for each in _contents(held.items.get(name, ())))


def _held(place: str, owner: Any) -> _Held:
    values = _values(owner)
    items = {name: _items(each) for name, each in values.items() if _is_container(each)}
    marks = {name: mark for name, each in values.items() if (mark := _mark(each)) is not None}
    return _Held(place, owner, values, items, marks)


def _as_they_were(held: _Held, now: Mapping[str, Any], only: str | None) -> dict[str, Any]:
    """The values of the beginning; with only the one at this place, if that is given, and the present others."""
    moved = {name: mark for name, mark in held.marks.items() if _position(held.values[name]) != mark.position}
    marked = {name: mark.again() for name, mark in moved.items() if only in (None, _place(held, name))}
    if only is None:
        return held.values | marked
    values = {name: value for name, value in now.items() if _place(held, name) != only}
    return values | {name: value for name, value in held.values.items() if _place(held, name) == only} | marked


def _mark(value: Any) -> _Mark | None:
    """None of what is neither an iterator of these kinds nor a function of the user's that caches."""
    kind = type(value)
    if kind is itertools.count:
        with contextlib.suppress(ValueError, SyntaxError):  # of numbers of another kind
            numbers = [ast.literal_eval(each) for each in repr(value)[len("count(") : -1].split(", ")]
            return _Mark(_position(value), lambda: itertools.count(*numbers))
    elif kind in _ITERATORS:
        return _Mark(_position(value), functools.partial(copy.copy, copy.copy(value)))
    elif kind is _CACHED and is_users_module(getattr(value, "__module__", None)):
        again = functools.lru_cache(**value.cache_parameters())
        return _Mark(_position(value), lambda: again(value.__wrapped__))
    return None


def _position(value: Any) -> Any:
    if type(value) is _CACHED:
        return value.cache_info().misses
    return repr(value) if type(value) is itertools.count else operator.length_hint(value)


def _fill(container: Any, items: Any) -> None:
    """Give a container these items, in their order, where it has others."""
    if _same_items(items, container):
        return
    base = _base(container)
    if base is list:
        list.__setitem__(container, slice(None), items)
        return
    base.clear(container)
    if base is OrderedDict:  # whose update() calls what a class may override
        for key, value in items.items():
            OrderedDict.__setitem__(container, key, value)
    else:
        (base.extend if base is deque else base.update)(container, items)


def _values(owner: Any) -> dict[str, Any]:
    if isinstance(owner, types.CellType):
        try:
            return {_CONTENT: owner.cell_contents}
        except ValueError:  # it has none yet
            return {}
    if isinstance(owner, torch.nn.Parameter):
        return {_FLAG: owner.requires_grad, **vars(owner)}
    left_out = _NOT_THEIRS if isinstance(owner, torch.nn.Module) else ()
    return {
        name: value
        for name, value in list(_attributes(owner).items())
        if name not in left_out and not (isinstance(name, str) and name.startswith("__"))
    }


def _attributes(owner: Any) -> Any:
    """A mapping that shows them as they are; one that can be written, unless this is a class."""
    if isinstance(owner, type):
        return vars(owner)
    return owner if type(owner) is dict else state_detection.attributes_of(owner)


def _is_container(value: Any) -> bool:
    base = _base(value)
    return base is not None and base.__len__(value) <= _MOST_ITEMS and _is_whole(value)


def _base(value: Any) -> Any:
    """Which container this is, or derives from; None of what is none."""
    kind: Any = type(value)
    return _base_of(kind)


@functools.cache
def _base_of(kind: type) -> type | None:
    return next((each for each in _BASES if each in kind.__mro__), None)


def _is_whole(container: Any) -> bool:
    """Whether its items and attributes are all that it has: one of a package may keep an index of them."""
    kind = type(container)
    if kind in _CONTAINERS or is_users_module(kind.__module__):
        return True
    of = vars(container) if hasattr(container, "__dict__") else {}
    return all(isinstance(each, _PLAIN) or _base(each) is not None for each in of.values())


def _items(container: Any) -> Any:
    """Those that it has now, taken at once, since threads of the user's may change it."""
    base = _base(container)
    if base is OrderedDict:
        return OrderedDict(OrderedDict.items(container))
    return base.copy(container) if base in (list, dict) else (set if base is set else list)(base.__iter__(container))


def _same(held: _Held, name: str, now: Any) -> bool:
    was = held.values.get(name, _MISSING)
    if name in held.items and type(now) is type(was):
        return _same_items(held.items[name], now)
    if name in held.marks and now is was:
        return bool(_position(now) == held.marks[name].position)
    return isinstance(now, _HANDLES) or isinstance(was, _HANDLES) or _equal(was, now)


def _same_items(was: Any, container: Any) -> bool:
    now = _items(container)
    if len(was) != len(now):
        return False
    if isinstance(was, set):
        return bool(was == now)
    return all(_equal(a, b) and _equal(x, y) for (a, x), (b, y) in zip(_pairs(was), _pairs(now), strict=True))


def _equal(one: Any, other: Any) -> bool:
    """Others than numbers and texts by identity: keys may be parameters, whose == gives a tensor."""
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and repr(one) == repr(other))


def _pairs(items: Any) -> Iterator[tuple[Any, Any]]:
    return iter(items.items()) if isinstance(items, dict) else enumerate(items)


def _put(owner: Any, values: Mapping[str, Any]) -> None:
    """Have the object refer to these, where it does not."""
    now = _values(owner)
    for name in {**now, **values}:
        present, value = now.get(name, _MISSING), values.get(name, _MISSING)
        if present is value or isinstance(present, _HANDLES) or isinstance(value, _HANDLES):
            continue
        if value is _MISSING:
            _delete(owner, name)
        else:
            _set(owner, name, value)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, _BY_NAME):
        setattr(owner, name, value)
    else:  # past what the class makes of it
        _attributes(owner)[name] = value


def _delete(owner: Any, name: str) -> None:
    if isinstance(owner, _BY_NAME):
        delattr(owner, name)
    else:
        del _attributes(owner)[name]


def _place(held: _Held, name: str) -> str:
    return held.place if name == _CONTENT else f"{held.place}.{name}"
