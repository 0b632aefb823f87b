"""One stage's part of the user's own code: from its border to the next one, on values; before it, on fake tensors.

    prefix   the code before the border runs on fake tensors                  fake_tensors.py
             but for calls that read values, whose results it is told         memoized_calls.py
    own      from the call of the border's module on, on the activations that have come over it
    end      the call at which the next stage begins ends the run; its arguments, and earlier outputs, go on

The unsplit backward pass runs in descending order of creation. So it is the stages' backward passes one after the other, if
the gradients that come from behind begin as roots: those of a stage's activations, and of parameters that later stages use
too.

It does not seed, send, decide what crosses (`cuts.py`), or keep a shard's buffers.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.staging import Direct, Staging
from orchestrator.worker.pipeline_parallel.border_values import (
    Activations,
    BorderValue,
    Generators,
    Gradients,
    pack,
    unpack,
)
from orchestrator.worker.pipeline_parallel.call_results import CallResult, from_text, to_text
from orchestrator.worker.pipeline_parallel.cuts import Cuts, Way
from orchestrator.worker.pipeline_parallel.fake_tensors import FakeTensor, Key, ValueNeeded, freezing, is_dense
from orchestrator.worker.pipeline_parallel.memoized_calls import MemoizedCalls, flattened
from orchestrator.worker.pipeline_parallel.operation_names import (
    Opened,
    OperationNames,
    OperationWatch,
    is_of_operation,
)

_REMEDY: Final = (
    "a stage replays loss() and metrics() up to its border on shapes alone, so what happens before a border may not depend on "
    "values there, and what is used behind it not on the step; let another module begin the stage (stages(self, model)), or "
    "leave cluster.stages out"
)


class Record(NamedTuple):
    """The part of a forward pass that a stage keeps for the backward pass. roots: tensors from which gradients flow;
    arrivals: of the activations that came, where their gradients are put; found: the generators as the code before the border
    has left them, None in the first stage."""

    roots: Sequence[torch.Tensor]
    arrivals: Sequence[dict[str, torch.Tensor] | None]
    found: Generators | None = None


class Forward(NamedTuple):
    """The end of a forward pass. leaves: for the next stage, or `value`: what the last stage's code has returned."""

    record: Record
    leaves: Activations | None
    value: Any = None


class _Reached(BaseException):
    """The next stage begins here. Not an Exception, so that no user's code catches it."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.leaves, _ = flattened(args, kwargs)


class _Arrive(torch.autograd.Function):
    """A value from another stage that is neither leaf nor view, so that it may be changed in place; keeps its gradient."""

    @staticmethod
    def forward(ctx: Any, _switch: torch.Tensor, arrival: dict[str, torch.Tensor]) -> torch.Tensor:
        ctx.arrival = arrival
        ctx.set_materialize_grads(False)
        return arrival.pop("value")

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[None, None]:
        if gradient is not None:
            ctx.arrival["gradient"] = gradient
        return None, None


class _Walk:
    """One forward pass of a stage. own: whether the border has been reached."""

    def __init__(
        self,
        way: Way,  # in which the model is called
        came: Activations | None,  # from the stage before, None for the first one
        names: frozenset[Key],  # of what crosses beside arguments
        readers: Mapping[str, Any],  # as of `memoized_calls.Prefix`
        counted: frozenset[str],  # as there
        *,
        is_last: bool,  # whether no stage is behind
    ) -> None:
        self.way = way
        self.came = came
        self.own = came is None
        self.readers, self.counted = readers, counted
        self.told: Mapping[Opened, CallResult] = {} if came is None else from_text(came.told, readers)
        self.told_used = 0
        self.tells: dict[Opened, CallResult] | None = None if is_last else {}
        self.found: Generators | None = None
        self.counts: Counter[str] = Counter()
        self.named: list[weakref.ref[FakeTensor]] = []
        self.values: dict[Key, torch.Tensor] = {}
        self.arrivals: list[dict[str, torch.Tensor] | None] = []
        operation_keys = frozenset(filter(is_of_operation, names))
        self.operations = OperationNames()
        self.looking = OperationWatch(self.operations, operation_keys, self._note) if operation_keys else None

    def away(self) -> AbstractContextManager[None]:
        """The code within the block is not the user's."""
        return nullcontext() if self.looking is None else self.looking.within(users=False)

    def _note(self, name: Key, tensor: torch.Tensor) -> None:
        """A result that crosses a border."""
        if type(tensor) is not FakeTensor:
            self.values.setdefault(name, tensor)
        elif tensor.key is None:
            tensor.key = name


Places = list[tuple[Any, str | int]]  # where the model's modules hold a tensor: (dictionary or list, key)


class Stage:
    """One stage of a model in this process. held: the parameters and buffers that it uses, by name; parameters: the
    parameters among them. `hosting` puts fake tensors in the place of what other stages hold; `close` takes the hooks off the
    model's modules. staging: to where it computes; its caller moves there what it holds."""

    def __init__(self, model: torch.nn.Module, cuts: Cuts, index: int, staging: Staging | None = None) -> None:
        self.index = index
        self._staging = staging or Direct()
        self._cuts = cuts
        self._walk: _Walk | None = None
        self._last = index == cuts.stages - 1
        self._kept = {way: frozenset(key for keys in skips for key in keys) for way, skips in cuts.skips.items()}
        self._border = cuts.borders[index - 1] if index else None
        counted = {key[0].partition(":")[0] for keys in self._kept.values() for key in keys}
        self._counted = frozenset(counted) | frozenset(cuts.borders)
        self._next = None if self._last else cuts.borders[index]
        tensors = dict([*model.named_parameters(), *model.named_buffers()])
        self._places = places_of(model, tensors)
        earlier = frozenset().union(*cuts.hosted[:index]) if index else frozenset()
        self.held = {name: tensors[name] for name in tensors if name in cuts.hosted[index]}
        self.parameters = {name: each for name, each in self.held.items() if isinstance(each, torch.nn.Parameter)}
        self._foreign = [name for name in tensors if name not in cuts.hosted[index]]
        self._twice = [name for name in self.held if name in earlier]  # fake in the prefix, values behind it
        home = self._staging.empty(0, torch.float32).device  # with its index, as devices of tensors have
        absent = [*self._foreign, *self._twice]
        self._fakes = {name: FakeTensor.like(tensors[name], self, name, str(home)) for name in absent}
        self._switch = torch.zeros((), device=home, requires_grad=True)
        self._records = False
        readers = frozenset().union(*cuts.readers.values())
        modules = {name: module for name, module in model.named_modules() if index or name in readers}
        self._memoized = MemoizedCalls(modules, self, str(home), lambda: self._walk)
        self._handles = [
            handle
            for name, module in model.named_modules()
            for handle in (
                module.register_forward_pre_hook(self._before(name), with_kwargs=True, prepend=True),
                module.register_forward_hook(self._after(name)),
            )
        ]

    def close(self) -> None:
        """Take memoized calls and hooks off the model. Close several stages in reverse order."""
        self._memoized.close()
        for handle in self._handles:
            handle.remove()

    def host(self) -> None:
        """From now on the model's modules hold fake tensors instead of what other stages hold."""
        self._put({name: self._fakes[name] for name in self._foreign})

    @contextmanager
    def hosting(self) -> Iterator[None]:
        """Within the block; for a process that holds all stages."""
        held = {name: _found(self._places[name]) for name in self._foreign}
        self.host()
        try:
            yield
        finally:
            self._put(held)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within the block passes neither set the generators nor ask for their states, which the caller does around them. Its
        own switch: a node of one that has taken part in passes before names the stream of those."""
        before = self._switch
        self._records, self._switch = True, torch.zeros_like(before, requires_grad=True)
        try:
            yield
        finally:
            self._records, self._switch = False, before

    def forward(self, call: Callable[[], Any], way: Way, came: Activations | None) -> Forward:
        """The stage's part of `call`. came: from the stage before, None for the first stage. Raises PipelineRaised where the
        code does otherwise than when borders were chosen, and what the call raises."""
        if way in self._cuts.apart:
            return self._alone(call, came)
        readers = self._cuts.readers.get(way, {})
        walk = self._walk = _Walk(way, came, self._kept[way], readers, self._counted, is_last=self._last)
        if came is not None:
            self._put({name: self._fakes[name] for name in self._twice})
        try:
            with walk.looking or nullcontext():
                value = call()
        except _Reached as reached:
            return self._leave(walk, reached.leaves)
        except ValueNeeded as needed:
            raise PipelineRaised(f"stage {self.index}: {needed}", _REMEDY, code="stages.output-needed") from None
        finally:
            self._walk = None
            self._put({name: self.held[name] for name in self._twice})
        missed = self._next if walk.own else self._border
        if missed is not None:
            raise PipelineRaised(
                f"the module {missed!r}, at which a stage begins, was not called",
                "let stages begin at modules that are called for every batch: stages(self, model) names them",
                code="stages.module-not-called",
            )
        return Forward(Record([], walk.arrivals, walk.found), None, value)

    def _alone(self, call: Callable[[], Any], came: Activations | None) -> Forward:
        """A call that uses nothing of the model: the generators come to the last stage, which makes it."""
        if came is not None:
            came.generators.restore()
        if self._last:
            return Forward(Record([], []), None, call())
        return Forward(Record([], []), Activations([], [], [], [], Generators.now()))

    def backward(
        self, record: Record, came: Gradients | None, tied: Mapping[str, torch.Tensor]
    ) -> list[BorderValue | None]:
        """The stage's part of the backward pass; gradients are at the parameters then. came: from the stage behind, None for
        the last one; tied: by name, what stages behind contribute to parameters of this one. Returns the gradients of what
        had come over the border."""
        roots: list[torch.Tensor] = []
        gradients: list[torch.Tensor | None] = []
        if came is None:
            roots, gradients = list(record.roots), [None] * len(record.roots)
        else:
            for root, border_value in zip(record.roots, came.border_values, strict=True):
                if border_value is not None:
                    roots.append(root)
                    gradients.append(unpack(border_value, self._staging))
        for name, gradient in tied.items():
            if not self.held[name].requires_grad:
                raise freezing(name)
            roots.append(self.held[name])
            gradients.append(gradient)
        if roots:
            torch.autograd.backward(roots, gradients)
        arrived = [None if arrival is None else arrival.pop("gradient", None) for arrival in record.arrivals]
        return [None if gradient is None else pack(gradient) for gradient in arrived]

    def value_of(self, fake: FakeTensor) -> torch.Tensor | None:
        walk = self._walk
        if walk is not None and fake.walk is not walk:  # an earlier forward pass has left it somewhere
            fake.value = None
        if fake.value is not None or walk is None or not walk.own:
            return fake.value
        if isinstance(fake.key, str):  # the code took the parameter before the border
            if fake.key not in self.held:
                raise ValueNeeded(
                    f"behind its border the code uses {fake.key!r}, which it did not when borders were chosen"
                )
            return self.held[fake.key]
        if fake.key is None or fake.key not in walk.values:
            raise ValueNeeded(f"behind its border the code uses {fake}, which does not come over it")
        fake.value, fake.walk = walk.values[fake.key], walk
        return fake.value

    def _put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            for holder, key in self._places[name]:
                if isinstance(holder, dict):
                    dict.__setitem__(holder, key, tensor)
                else:
                    holder[key] = tensor

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(_module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            walk = self._walk
            if walk is None:
                return None
            walk.counts[name] += 1
            walk.operations.begin(name, walk.counts[name])
            if walk.counts[name] == 1 and name == self._next and walk.own:
                raise _Reached(args, kwargs)
            with walk.away():
                if walk.counts[name] == 1 and name == self._border:
                    return self._arrive(walk, args, kwargs)
                return self._valued(args, kwargs) if walk.own else None

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _args: Any, output: Any) -> None:
            walk = self._walk
            if walk is None:
                return
            walk.operations.end(name)
            for i, leaf in enumerate([output] if isinstance(output, torch.Tensor) else tree_leaves(output)):
                key = (name, walk.counts[name], i)
                if type(leaf) is FakeTensor:
                    walk.named.append(weakref.ref(leaf))
                if type(leaf) is FakeTensor and leaf.key is None:
                    leaf.key = key
                elif walk.own and key in self._kept[walk.way]:  # a reader gives what it returns another name
                    value = self._value(leaf) if name in walk.readers else leaf
                    if type(value) is not FakeTensor:
                        walk.values.setdefault(key, value)

        return hook

    def _valued(self, args: Any, kwargs: Any) -> Any:
        """Modules behind the border get values, and no fake tensors that have one."""
        leaves, spec = flattened(args, kwargs)
        if FakeTensor not in map(type, leaves):
            return None
        return tree_unflatten([self._value(leaf) for leaf in leaves], spec)

    def _value(self, leaf: Any) -> Any:
        return self.value_of(leaf) if type(leaf) is FakeTensor else leaf

    def _arrive(self, walk: _Walk, args: Any, kwargs: Any) -> Any:
        came = walk.came
        assert came is not None
        walk.own = True
        self._put({name: self.held[name] for name in self._twice})
        values = []
        for border_value, flows in zip(came.border_values, came.flows, strict=True):
            value = unpack(border_value, self._staging)
            arrival = {"value": value} if flows else None
            values.append(value if arrival is None else _Arrive.apply(self._switch, arrival))  # type: ignore[no-untyped-call]
            walk.arrivals.append(arrival)
        leaves, spec = flattened(args, kwargs)
        for place, n in came.places:
            old, leaves[place] = leaves[place], values[n]
            if type(old) is FakeTensor:
                old.value, old.walk = values[n], walk
                if isinstance(old.key, tuple):
                    walk.values[old.key] = values[n]
        for key, n in came.skips:
            walk.values[key] = values[n]
        if not self._records:
            walk.found = Generators.now()
            came.generators.restore()
        return tree_unflatten(leaves, spec)

    def _leave(self, walk: _Walk, leaves: Sequence[Any]) -> Forward:
        tensors: list[torch.Tensor] = []
        numbers: dict[int, int] = {}

        def number(tensor: torch.Tensor) -> int:
            if id(tensor) not in numbers:
                numbers[id(tensor)] = len(tensors)
                tensors.append(tensor)
            return numbers[id(tensor)]

        try:
            values = [self._value(leaf) for leaf in leaves]
        except ValueNeeded as needed:
            raise PipelineRaised(f"stage {self.index}: {needed}", _REMEDY, code="stages.output-needed") from None
        places = [(i, number(value)) for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        skips = []
        for key in self._cuts.skips[walk.way][self.index]:
            if key not in walk.values:
                raise PipelineRaised(
                    f"stage {self.index}: the output of {key[0]!r} that a later stage needs was not made",
                    _REMEDY,
                    code="stages.output-missing",
                )
            skips.append((key, number(walk.values[key])))
        other = next((tensor.layout for tensor in tensors if not is_dense(tensor)), None)
        if other is not None:
            raise PipelineRaised(
                f"stage {self.index}: a tensor of layout {other} would cross the border behind it, where only dense ones can",
                "keep it as an attribute of the model or the pipeline, let another module begin the next stage "
                "(stages(self, model)), or leave cluster.stages out",
                code="stages.sparse",
            )
        flows = [tensor.requires_grad for tensor in tensors]
        states = Generators((), None, None) if self._records else Generators.now()
        told = to_text({**walk.told, **(walk.tells or {})})
        sent = Activations([pack(tensor) for tensor in tensors], flows, places, skips, states, told)
        return Forward(Record(tensors, walk.arrivals, walk.found), sent)


def places_of(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, Places]:
    """The places where modules hold these tensors: as parameters and buffers, and in lists of theirs, as recurrent layers
    do."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    places: dict[str, Places] = {name: [] for name in tensors}
    for module in model.modules():
        holders: list[Any] = [module._parameters, module._buffers]
        holders += [held for held in vars(module).values() if type(held) is list]
        for holder in holders:
            for key, held in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
                if isinstance(held, torch.Tensor) and id(held) in names:
                    places[names[id(held)]].append((holder, key))
    return places


def _found(places: Places) -> torch.Tensor:
    holder, key = places[0]
    return holder[key]  # type: ignore[no-any-return]
