"""Finds, while every operation is looked at, what module calls leave behind beside their results.

Stages behind a reader's call are told its result, and do not make the call (`survey.py`). So they would miss what it does
elsewhere: tensors that it is given and changes, attributes of modules, draws from generators.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import CellType, FrameType
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from orchestrator.worker.pipeline_parallel.border_values import Generators, same_generators
from orchestrator.worker.pipeline_parallel.call_results import is_tellable
from orchestrator.worker.pipeline_parallel.fake_tensors import is_dense
from orchestrator.worker.pipeline_parallel.operation_names import OUTSIDE, Opened

_OF_EVERY_MODULE: Final = frozenset(vars(torch.nn.Module())) - {"training"}


@dataclass
class OpenCall:
    """A module call that is under way."""

    opened: Opened  # which one it is
    memory: set[int] = field(default_factory=set)  # that was made within it, or within calls that it has made
    # The rest is of a reader's call alone.
    before: _Surroundings | None = None  # as it has found them
    given: frozenset[int] = frozenset()  # the ids of its arguments
    made: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)  # by id, tensors that were made within
    drew: bool = False  # whether it has drawn from torch's generators
    effect: str = ""  # what it has left behind that other stages would miss


@dataclass
class _Surroundings:
    generators: Generators
    attributes: dict[tuple[str, str], tuple[Any, list[Any]]]  # by module and name, with what they hold


class CallEffects:
    """For the calls that are under way with one model. readers: the modules whose calls are looked at closely; noted: where
    the survey keeps tensors itself."""

    def __init__(self, model: torch.nn.Module, readers: frozenset[str], noted: list[torch.Tensor]) -> None:
        self._model, self._readers, self._noted = model, readers, noted
        self._open = [OpenCall(OUTSIDE)]

    @property
    def readers(self) -> tuple[Opened, ...]:
        """Their calls that are under way, the outermost first."""
        return tuple(each.opened for each in self._open if each.before is not None)

    def begin(self, opened: Opened, given: Iterable[Any]) -> None:
        begun = OpenCall(opened)
        if opened[0] in self._readers:
            begun.before = _Surroundings(Generators.now(), _attributes(self._model))
            begun.given = frozenset(map(id, given))
        self._open.append(begun)

    def end(self, name: str, result: Any) -> OpenCall | None:
        """The call of this module that is over, if it is a reader's; those within that ended by an exception are over, too.
        result: of the call."""
        while len(self._open) > 1:
            ended = self._open.pop()
            self._open[-1].memory |= ended.memory
            self._open[-1].made |= ended.made
            if ended.opened[0] == name:
                return None if ended.before is None else self._judged(ended, result)
        return None

    def _judged(self, ended: OpenCall, result: Any) -> OpenCall:
        assert ended.before is not None
        found, now = ended.before.generators, Generators.now()
        ended.drew = not all(map(torch.equal, found.of_torch, now.of_torch))
        ended.effect = ended.effect or self._effect(ended.before, now) or _of_result(result, ended.given, self._noted)
        return ended

    def _effect(self, before: _Surroundings, now: Generators) -> str:
        changed = _changed(before.attributes, _attributes(self._model))
        if changed is not None:
            return f"leaves a new value in the attribute {changed[1]!r} of {changed[0] or 'the model'!r}"
        drawn = not same_generators(now._replace(of_torch=()), before.generators._replace(of_torch=()))
        return "draws from a generator of Python or numpy" if drawn else ""

    def makes(self, results: Iterable[Any], given: Sequence[torch.Tensor]) -> None:
        """An operation on these tensors has returned these."""
        inner, known = self._open[-1], {_memory_of(each) for each in given}
        for leaf in results:
            if isinstance(leaf, torch.Tensor):
                memory = _memory_of(leaf)
                if memory and memory not in known:
                    inner.memory.add(memory)
                if self.readers and not any(leaf is each for each in given):
                    inner.made[id(leaf)] = weakref.ref(leaf)

    def home(self, tensor: torch.Tensor) -> Opened:
        """The innermost call within which its memory was made."""
        return self._open[self._depth(tensor)].opened

    def writes(self, tensor: torch.Tensor) -> None:
        """An operation writes this one, which depends on no parameter."""
        for each in self._open[self._depth(tensor) + 1 :]:
            if each.before is not None and not each.effect:
                each.effect = "changes a tensor that was made before it"

    def _depth(self, tensor: torch.Tensor) -> int:
        memory, inner = _memory_of(tensor), len(self._open) - 1
        if memory == 0:  # nothing is written there
            return inner
        return next((depth for depth in range(inner, 0, -1) if memory in self._open[depth].memory), 0)


def _memory_of(tensor: torch.Tensor) -> int | None:
    """The address at which it begins, 0 for none. None where it is not one piece, or wraps another tensor (`torch.func`)."""
    try:
        return tensor.untyped_storage().data_ptr() if is_dense(tensor) else None
    except NotImplementedError:
        return None


# Torch's call of a module has its result in a cell.
_PASSING: Final = (FrameType, CellType, torch.autograd.Function)


def _of_result(result: Any, given: frozenset[int], noted: list[torch.Tensor]) -> str:
    """Why later stages cannot be told of this result; empty where they can."""
    leaves = [leaf for leaf in tree_leaves(result) if id(leaf) not in given]
    other = next((leaf for leaf in leaves if not is_tellable(leaf)), None)
    if other is not None:
        return f"returns a value of type {type(other).__name__}, of which later stages cannot be told"
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    found = [] if isinstance(result, torch.Tensor) else [result]
    holders = {id(leaves), id(tensors), id(noted), *map(id, found)}
    for holder in found:  # it grows
        within = [each for each in gc.get_referents(holder) if not isinstance(each, torch.Tensor | type)]
        found += [each for each in within if id(each) not in holders]
        holders.update(map(id, within))
    # Not looked at is what was there before this process was forked, which are objects of torch, Ray and this package.
    others = gc.get_referrers(*tensors) if tensors else []
    keeps = any(id(each) not in holders and not isinstance(each, _PASSING) for each in others)
    return "keeps a tensor elsewhere that it returns" if keeps else ""


def _attributes(model: torch.nn.Module) -> dict[tuple[str, str], tuple[Any, list[Any]]]:
    return {
        (name, attribute): (value, _held(value))
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if attribute not in _OF_EVERY_MODULE
    }


def _held(value: Any) -> list[Any]:
    """The parts of a container or of an object."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    if isinstance(value, torch.Tensor | torch.nn.Module | type):
        return []
    return [*vars(value).values()] if hasattr(value, "__dict__") else []


def _changed(
    before: dict[tuple[str, str], tuple[Any, list[Any]]], after: dict[tuple[str, str], tuple[Any, list[Any]]]
) -> tuple[str, str] | None:
    """The first that is another one, or holds others."""
    for key, (value, held) in after.items():
        old = before.get(key)
        if old is None or not _same(old[0], value) or len(old[1]) != len(held) or not all(map(_same, old[1], held)):
            return key
    return next((key for key in before if key not in after), None)


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, bool | int | float | str) and one == other)
