"""Finds where a model may be cut, in one run of the user's code on real values that sees every operation and every module
call.

    position     how many modules have been called for the first time; the call that raises it to p may be a border
    bound        a tensor that depends on a parameter or a buffer, and so has no value before a border (`fake_tensors.py`)
    a skip       a bound output of a module, finished before a border and used behind it
    glue         a bound result that no module has returned: it crosses a border as an argument of the call there, or by a name
                 of its own (`operation_names.py`) while the module call is open whose code has computed it
    a reader     a module whose own code reads the value of a bound tensor: later stages are told the result of its call
                 (`memoized_calls.py`), and can begin behind it, if it leaves nothing behind but this result

A stage cannot begin where other glue would have to cross, within a reader's call behind the point where it reads, behind any
other such point, or within an activation checkpoint, whose second forward pass would not find the border. Nor does one begin
behind the first use of a tensor to which torch.autograd.grad differentiates back.

Costs are counted, not measured: floating-point operations of products, elements of all results, and calls. So every member
chooses the same borders by itself, on a busy machine too.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from orchestrator.errors import PipelineRaised
from orchestrator.worker.pipeline_parallel.border_values import Generators, same_generators, size_of
from orchestrator.worker.pipeline_parallel.call_effects import CallEffects, OpenCall
from orchestrator.worker.pipeline_parallel.fake_tensors import ABOUT, Key, name_of, read_by, writes
from orchestrator.worker.pipeline_parallel.operation_names import OUTSIDE, Opened, OperationNames

# The costs of a result beside products, in floating-point operations: memory, and the call itself. With these the part of the
# forward time before a border is off by 0.06 in the mean, over 14 models and sizes; with products and 8 an element by 0.09.
_PER_ELEMENT: Final = 32
_PER_CALL: Final = 200_000
_CHECKPOINT: Final = "torch/utils/checkpoint.py"


@dataclass(frozen=True)
class Crossing:
    """A bound tensor."""

    # its keys as an output of modules, each with the position from which on it has it; a reader gives it a new one
    keys: tuple[tuple[int, Key], ...]
    operation_key: Key  # its key as the result of an operation
    born: int  # the position of that operation
    used: tuple[int, ...]  # the positions of its uses
    given: frozenset[int]  # the positions of the calls whose arguments it is among
    size: int  # in bytes, on its way

    def crosses(self, border: int) -> bool:
        """Beside the arguments of the call there."""
        return self.born < border <= max(self.used, default=-1) and border not in self.given

    def returned_as(self, border: int) -> Key | None:
        """Its key as an output of a module before that border; None where it is none."""
        return next((key for made, key in reversed(self.keys) if made < border), None)


@dataclass(frozen=True)
class Survey:
    """The operations and module calls of one call with a model. The call of position p is `calls[p - 1]`."""

    calls: tuple[str, ...]  # the modules in the order of their first calls
    barred: Mapping[int, str]  # by position, why no stage can begin there
    glued: frozenset[int]  # the positions where glue crosses by a name of its own
    uses: Mapping[str, tuple[int, ...]]  # by parameter or buffer, the positions of its uses
    crossings: tuple[Crossing, ...]  # of all bound tensors that are used
    costs: tuple[float, ...]  # by position, what is computed there, in floating-point operations
    draws: bool  # whether random numbers were drawn
    passed: tuple[int, ...] = ()  # by position, the bytes of the tensors among the arguments of the call there
    # by position, the bytes that autograd keeps for the backward pass; empty if nobody asked
    kept: tuple[int, ...] = ()
    # the modules whose results later stages are told, each with the tree of a result
    readers: Mapping[str, Any] = field(default_factory=dict)
    reading: frozenset[str] = frozenset()  # the modules whose code has read values

    @property
    def is_apart(self) -> bool:
        """Whether nothing of the model is used, neither called nor read."""
        return not self.calls and not self.uses

    def position(self, name: str) -> int | None:
        return self.calls.index(name) + 1 if name in self.calls else None


def survey(
    model: torch.nn.Module, call: Callable[[], Any], *, readers: frozenset[str] = frozenset(), keeps: bool = False
) -> Survey:
    """Survey what `call` does with the model. Leaves parameters as they are; buffers, gradients and generators are the
    caller's care. readers: the modules whose results later stages are to be told; where more are `reading`, it is to be done
    again with those. keeps: whether what autograd keeps is counted. Raises PipelineRaised for a scripted module, and what the
    call raises."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise PipelineRaised(
                f"the module {name or 'model'!r} is scripted: what it does with parameters of other stages cannot be followed",
                "leave torch.jit.script out, or set cluster.stages=1",
                code="stages.scripted",
            )
    watch, before = _Watch(model, readers), Generators.now()
    with _counted(model, watch) if keeps else nullcontext(), _hooked(model, watch), _Costs(watch), _Operations(watch):
        call()
    return watch.survey(draws=not same_generators(Generators.now(), before))


@dataclass
class _Bound:
    """A bound tensor, without its values."""

    shape: tuple[int, ...]  # its own
    size: int  # in bytes, on its way
    born: int  # the position of the operation that it is the result of
    operation_key: Key  # its key as the result of that operation
    within: Opened  # the innermost module call that was open then
    keys: list[tuple[int, Key]] = field(default_factory=list)  # as of `Crossing`
    inside: tuple[Opened, ...] = ()  # the calls of readers that were open then
    drawn: bool = False  # from generators that stages before would leave otherwise
    used: list[int] = field(default_factory=list)  # the positions of its uses
    given: set[int] = field(default_factory=set)  # the positions of the calls whose arguments it is among

    def crossing(self) -> Crossing:
        return Crossing(
            tuple(self.keys), self.operation_key, self.born, tuple(self.used), frozenset(self.given), self.size
        )

    def loose(self, ended: Mapping[Opened, int]) -> Iterator[int]:
        """The positions at which it would have to cross by a name of its own, or cannot cross at all. It cannot if it was
        drawn, or if a reader's call in which it was made is over and has not returned it. ended: the positions at which
        calls were over."""
        crossing = self.crossing()
        returned = {key[:2] for _, key in self.keys}
        lost = min((ended[call] for call in self.inside if call in ended and call not in returned), default=None)
        last = max(self.used, default=-1)
        for border in range(self.born + 1, max([last, *self.given]) + 1):
            by_itself = crossing.crosses(border) and crossing.returned_as(border) is None
            if by_itself or (self.drawn and border <= last) or (lost is not None and border > lost):
                yield border


class _Watch:
    def __init__(self, model: torch.nn.Module, readers: frozenset[str]) -> None:
        self.readers = readers
        self._inputs: list[torch.Tensor] = []  # kept alive, so that no other tensor gets the id of one
        self.effects = CallEffects(model, readers, self._inputs)
        self.specs: dict[str, Any] = {}  # by reader, of the tree of its first result
        self.untold: list[tuple[int, str]] = []  # from which position on a reader's result cannot be told, and why
        self.calls: list[str] = []
        self.counts: Counter[str] = Counter()
        self.costs: list[float] = [0.0]
        self.passed: list[int] = [0]
        self.kept: list[int] | None = None  # None: nobody asked
        self.names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        self.uses: dict[str, list[int]] = {}
        self.bound: dict[int, _Bound] = {}  # by the id of a tensor that lives
        self.found: list[_Bound] = []  # all
        self._lives: dict[int, weakref.ref[torch.Tensor]] = {}
        self.barred: dict[int, str] = {}
        # by the call that reads: the position where it does first, and what it reads; OUTSIDE for the model's own code, too
        self.read: dict[Opened, tuple[int, str]] = {}
        self.differentiated: list[tuple[int, str]] = []  # from which position on, and in whose code
        # by the id of a tensor that is not bound and has a gradient, where it was first used
        self._begun: dict[int, int] = {}
        self.drifted = False
        self.operations = OperationNames()
        self.ended: dict[Opened, int] = {}  # the position at which a call was over

    @property
    def position(self) -> int:
        return len(self.calls)

    def begins(self, name: str, leaves: Sequence[Any]) -> None:
        self.counts[name] += 1
        self.operations.begin(name, self.counts[name])
        self.effects.begin((name, self.counts[name]), leaves)
        if self.counts[name] > 1:
            return
        self.calls.append(name)
        self.costs.append(0.0)
        if self.kept is not None:
            self.kept.append(0)
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self.passed.append(sum(map(size_of, tensors.values())))
        if not name:
            self.barred[self.position] = "it is the whole model"
        elif _in_a_checkpoint():
            self.barred[self.position] = (
                "it is called within an activation checkpoint, which calls it once more in backward"
            )
        for leaf in leaves:
            if id(leaf) in self.bound:
                self.bound[id(leaf)].given.add(self.position)

    def ends(self, name: str, result: Any) -> None:
        inside = self.effects.readers
        ended = self.effects.end(name, result)
        leaves, spec = tree_flatten(result)
        if ended is not None:
            self._tells(ended, leaves, spec, inside)
        self.ended[name, self.counts[name]] = self.position
        self.operations.end(name)
        for i, leaf in enumerate(leaves):
            known = self.bound.get(id(leaf))
            if known is not None and (not known.keys or (ended is not None and id(leaf) not in ended.given)):
                known.keys.append((self.position, (name, self.counts[name], i)))

    def _tells(self, ended: OpenCall, leaves: Sequence[Any], spec: Any, inside: tuple[Opened, ...]) -> None:
        """A reader's call is over. Stages behind it have no value of what was made within, and may know only what it returns.
        inside: the calls of readers that were open."""
        name, call = ended.opened
        alive = [each for each in (found() for found in ended.made.values()) if each is not None]
        returned = [leaf for leaf in leaves if id(leaf) not in ended.given]
        self.binds([*alive, *returned], lambda i: (f"{name}:result#0", call, i), inside=inside)
        self.drifted = self.drifted or ended.drew
        held = next((self.names[id(leaf)] for leaf in returned if id(leaf) in self.names), None)
        effect = ended.effect if held is None else f"returns {held!r}, which one stage has"
        if not effect and self.specs.setdefault(name, spec) != spec:
            effect = "returns results of several structures"
        if effect:
            self.untold.append((self.position, f"{_called(name)}, whose code reads values, {effect}"))

    def uses_of(self, tensors: Sequence[torch.Tensor]) -> tuple[bool, bool]:
        """Note that these are used; returns whether one of them is bound, and whether all such were drawn alone."""
        bound, drawn = False, True
        for tensor in tensors:
            if id(tensor) in self.names:
                self.uses.setdefault(self.names[id(tensor)], []).append(self.position)
                bound, drawn = True, False
            elif id(tensor) in self.bound:
                known = self.bound[id(tensor)]
                known.used.append(self.position)
                bound, drawn = True, drawn and known.drawn
            elif tensor.requires_grad and id(tensor) not in self._begun:
                self._begun[id(tensor)] = self.position
                self._inputs.append(tensor)
        return bound, drawn

    def differentiates(self, inputs: Sequence[Any]) -> None:
        """The code asks for gradients of these."""
        first = min((self._first(each) for each in inputs if isinstance(each, torch.Tensor)), default=self.position)
        self.differentiated.append((first, _called(self.operations.inner[0])))

    def _first(self, tensor: torch.Tensor) -> int:
        """The position from which on it is there, or in use."""
        if id(tensor) in self.names:
            return self.uses.get(self.names[id(tensor)], [self.position])[0]
        return self.bound[id(tensor)].born if id(tensor) in self.bound else self._begun.get(id(tensor), 0)

    def binds(
        self,
        made: Sequence[Any],
        label: Callable[[int], Key],
        *,
        inside: tuple[Opened, ...] | None = None,
        drawn: bool = False,
    ) -> None:
        """Note the tensors that an operation has made. made: the leaves of what an operation has returned; inside: as of
        `_Bound`, None: the calls that are open."""
        inside = self.effects.readers if inside is None else inside
        for i, leaf in enumerate(made):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self.names and id(leaf) not in self.bound:
                shape, where = tuple(leaf.shape), self.operations.inner
                known = _Bound(shape, size_of(leaf), self.position, label(i), where, inside=inside, drawn=drawn)
                self.found.append(known)
                self.bound[id(leaf)] = known
                # Another one may get its id.
                self._lives[id(leaf)] = weakref.ref(leaf, partial(self._is_gone, id(leaf)))

    def _is_gone(self, number: int, _: object) -> None:
        del self.bound[number], self._lives[number]

    def is_bound(self, leaf: Any) -> bool:
        return id(leaf) in self.names or id(leaf) in self.bound

    def reads(self, what: str, call: Opened) -> None:
        """call: the one that may be skipped by who is told its result."""
        found = self.position, f"{what}, in the code of {_called(self.operations.inner[0])}"
        self.read.setdefault(call if call[0] else OUTSIDE, found)

    def survey(self, *, draws: bool) -> Survey:
        barred, glued = dict(self.barred), set[int]()
        for known in self.found:
            for border in known.loose(self.ended):
                if not known.drawn and border <= self.ended.get(known.within, self.position):
                    glued.add(border)
                else:
                    barred.setdefault(border, _loose(known))
        for call, (position, what) in self.read.items():
            is_told = call[0] in self.readers
            for border in range(position + 1, (self.ended.get(call, self.position) if is_told else self.position) + 1):
                barred.setdefault(
                    border, f"before it the code reads a value that parameters or chance decide, by {what}"
                )
        for position, why in self.untold:
            for border in range(position + 1, self.position + 1):
                barred.setdefault(border, why)
        for first, where in self.differentiated:
            for border in range(first + 1, self.position + 1):
                barred.setdefault(
                    border,
                    f"torch.autograd.grad, in the code of {where}, differentiates what is computed before it, of which a later "
                    "stage has shapes alone",
                )
        crossings = tuple(known.crossing() for known in self.found if known.used)
        uses = {name: tuple(sorted(set(positions))) for name, positions in self.uses.items()}
        found = tuple(self.costs), draws, tuple(self.passed), tuple(self.kept or ())
        reading = frozenset(name for name, _ in self.read if name)
        return Survey(tuple(self.calls), barred, frozenset(glued), uses, crossings, *found, self.specs, reading)


def _loose(known: _Bound) -> str:
    how = "drawn at random before it" if known.drawn else "left behind without being returned before it"
    where = _called(known.within[0])
    return f"a tensor of shape {known.shape}, {how} in the code of {where}, is used behind it"


def _called(module: str) -> str:
    return repr(module) if module else "the model or of the loss"


class _Operations(TorchFunctionMode):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        watch, name = self._watch, name_of(func)
        if name in ABOUT:
            return func(*args, **(kwargs or {}))
        label = watch.operations.label(name)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_bound, is_drawn = watch.uses_of(given)
        if is_bound and func is torch.autograd.grad:
            watch.differentiates(tree_leaves(args[1] if len(args) > 1 else (kwargs or {}).get("inputs")))
        before = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        draws = not torch.equal(before, torch.default_generator.get_state())
        made = tree_leaves(result)
        watch.effects.makes(made, given)
        written = [*given[: writes(name)], *_out_of(kwargs)]
        for each in written:
            if not watch.is_bound(each):
                watch.effects.writes(each)
        if is_bound:
            watch.drifted = watch.drifted or draws
            if any(watch.is_bound(each) for each in read_by(name, args, kwargs or {})):
                watch.reads(f"{name}()", watch.operations.inner)
            if writes(name) and given and not watch.uses_of(given[:1])[0]:
                watch.reads(f"{name}, which writes it elsewhere", watch.effects.home(given[0]))
            watch.binds(made, label, drawn=is_drawn)
        elif draws and watch.drifted:
            watch.binds(made, label, drawn=True)
        return result


def _out_of(kwargs: Mapping[str, Any] | None) -> list[torch.Tensor]:
    """The tensors to which an operation writes its results."""
    return [leaf for leaf in tree_leaves((kwargs or {}).get("out")) if isinstance(leaf, torch.Tensor)]


class _Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, watch: _Watch) -> None:
        from torch.utils.flop_counter import flop_registry  # it imports Triton, and a driver surveys nothing

        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._formulas = flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, only to keep it from what follows: two seconds in each worker

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        elements = sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        cost = float(_PER_CALL + _PER_ELEMENT * elements)
        counted = self._formulas.get(func.overloadpacket)
        if counted is not None:
            cost += float(counted(*args, **(kwargs or {}), out_val=out))
        self._watch.costs[-1] += cost
        return out


@contextmanager
def _counted(model: torch.nn.Module, watch: _Watch) -> Iterator[None]:
    """Within the block the memory that autograd keeps is counted, each piece once. Parameters and buffers do not count, since
    they are there anyway. Nor does what an activation checkpoint computes again."""
    known = {each.untyped_storage().data_ptr() for each in [*model.parameters(), *model.buffers()]}
    kept = watch.kept = [0]
    alive: list[torch.Tensor] = []  # so that no other memory gets its address

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            alive.append(tensor)
            kept[-1] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield


@contextmanager
def _hooked(model: torch.nn.Module, watch: _Watch) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        before, after = _begins(watch, name), _ends(watch, name)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _begins(watch: _Watch, name: str) -> Callable[..., None]:
    return lambda _module, args, kwargs: watch.begins(name, tree_leaves((args, kwargs)))


def _ends(watch: _Watch, name: str) -> Callable[..., None]:
    return lambda _module, _args, output: watch.ends(name, output)


def _in_a_checkpoint() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_CHECKPOINT):
            return True
        frame = frame.f_back
    return False
