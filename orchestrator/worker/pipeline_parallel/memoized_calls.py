"""Calls of modules before a stage's border that are not run on shapes: remembered ones, and those that it is told.

On shapes alone a call gives the same again, so calls are remembered by what they were given. A prefix runs on fake tensors, and
each of its operations takes a hundred times as long in Python as on values of a few elements. So a module that was called
before with arguments of these shapes is not run once more: its result is made from what is known.
Not remembered are calls in which the border lies, which draw random numbers, or whose results are more than shapes; such a
module runs, and the modules within it are remembered. Neither are calls that leave the result of a module within elsewhere:
hooks, lists and attributes may gather such results for the loss, as those of the routers of experts.

The code of a reader looks at values (`survey.py`). The stage that has them notes what a call of it returns, and all stages
behind are told so. Calls within which a result was told are not remembered, since another micro-batch may give another one.

Nobody sees what else a module leaves in attributes. A tensor that is found there behind the border is of an earlier
micro-batch, and has no value (`Stage.value_of`). A reader that leaves anything there has no stage begin behind it.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, Protocol

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from orchestrator.numerics.byte_layout import bytes_of
from orchestrator.worker.pipeline_parallel.border_values import Generators, same_generators
from orchestrator.worker.pipeline_parallel.call_results import CallResult, Leaf, noted, told_leaf
from orchestrator.worker.pipeline_parallel.fake_tensors import (
    PLAIN,
    FakeTensor,
    ValueNeeded,
    Watcher,
    form_of,
    is_dense,
)
from orchestrator.worker.pipeline_parallel.operation_names import Opened, OperationNames, OperationWatch

_MOST_BYTES: Final = 1 << 16  # of a tensor with values, such as a mask, which are compared then
_MOST_KINDS: Final = 16  # of arguments; a module that has been given more is not remembered any more
_ONE_LEAF: Final = tree_flatten(((0,), {}))[1]  # of a call with one argument


class Prefix(Protocol):
    """The state of a pass through the code before a stage's border."""

    counts: Counter[str]  # how often modules have been called so far
    own: bool  # whether the border has been reached
    named: list[weakref.ref[FakeTensor]]  # results of modules that have been called so far
    operations: OperationNames  # with the calls that are open
    looking: OperationWatch | None  # None where no operation has a name that crosses
    readers: Mapping[str, Any]  # the modules whose results are told, with the tree of a result
    told: Mapping[Opened, CallResult]  # the results that came over the border
    told_used: int  # how many of them have been used so far
    tells: dict[Opened, CallResult] | None  # those for the stages behind; None in the last stage
    counted: frozenset[str]  # the modules of which it matters how often they were called


class MemoizedCalls:
    """For these modules of one model. home: the device of fake tensors; prefix: of the forward pass that is under way, None
    where there is none."""

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        watcher: Watcher,
        home: str,
        prefix: Callable[[], Prefix | None],
    ) -> None:
        self._watcher, self._home = watcher, home
        self._prefix = prefix
        self._kinds: Counter[str] = Counter()
        self._known: dict[Any, CallResult | None] = {}
        self._wrapped: list[tuple[torch.nn.Module, Any]] = []
        for name, module in modules.items():
            if name:
                self._wrapped.append((module, vars(module).get("forward")))
                module.forward = _MemoizedCall(self, name, module)

    def close(self) -> None:
        """Put the modules' own `forward` back. Close several in reverse order."""
        for module, forward in self._wrapped:
            if forward is None:
                del vars(module)["forward"]
            else:
                module.forward = forward
        self._wrapped = []

    def call(self, module_call: _MemoizedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module is called with these."""
        prefix = self._prefix()
        if prefix is None:
            return module_call.forward(*args, **kwargs)
        is_reader = module_call.name in prefix.readers and prefix.operations.inner[0] == module_call.name
        return (self._told if is_reader else self._run)(prefix, module_call, args, kwargs)

    def _told(self, prefix: Prefix, module_call: _MemoizedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a reader's call, as it was told, or to be told."""
        given, _ = flattened(args, kwargs)
        opened = prefix.operations.inner
        if opened in prefix.told:
            prefix.told_used += 1
            with nullcontext() if prefix.looking is None else prefix.looking.within(users=False):
                return self._made(prefix.told[opened], given, prefix)
        before = prefix.counts.copy()
        result = self._run(prefix, module_call, args, kwargs)
        if prefix.own and prefix.tells is not None:
            calls = {name: n for name, n in (prefix.counts - before).items() if name in prefix.counted}
            known = noted(result, given, calls, told_leaf)
            if known is None or known.spec != prefix.readers[module_call.name]:
                raise ValueNeeded(
                    f"{module_call.name!r}, whose code reads values, does not return tensors, numbers and strings as in the "
                    "beginning"
                )
            prefix.tells[opened] = known
        return result

    def _run(self, prefix: Prefix, module_call: _MemoizedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its result, remembered or computed."""
        if prefix.own or self._kinds[module_call.name] > _MOST_KINDS:
            return module_call.forward(*args, **kwargs)
        if prefix.looking is None:
            return self._remembered(prefix, module_call, args, kwargs, module_call.forward)
        if (
            prefix.operations.inner[0] != module_call.name
        ):  # called past its hooks: its operations are among the caller's
            return module_call.forward(*args, **kwargs)
        looking = prefix.looking

        def forward(*args: Any, **kwargs: Any) -> Any:
            with looking.within(users=True):
                return module_call.forward(*args, **kwargs)

        with looking.within(users=False):
            return self._remembered(prefix, module_call, args, kwargs, forward)

    def _remembered(
        self,
        prefix: Prefix,
        module_call: _MemoizedCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        forward: Callable[..., Any],
    ) -> Any:
        """forward: of the call."""
        leaves, spec = flattened(args, kwargs)
        key = _signature(module_call, leaves, str(spec))
        if key is None:
            return forward(*args, **kwargs)
        if key not in self._known:
            self._kinds[module_call.name] += 1
            before = len(prefix.named)
            result, recipe = _recorded(prefix, leaves, lambda: forward(*args, **kwargs))
            if not _are_kept(prefix.named[before:], (*leaves, *tree_flatten(result)[0])):
                self._known[key] = recipe
            return result
        recipe = self._known[key]
        return forward(*args, **kwargs) if recipe is None else self._made(recipe, leaves, prefix)

    def _made(self, recipe: CallResult, given: list[Any], prefix: Prefix) -> Any:
        def fake(leaf: Leaf) -> FakeTensor:
            assert leaf.like is not None
            key = None if leaf.key is None else (leaf.key[0], leaf.key[1] + prefix.counts[leaf.key[0]], leaf.key[2])
            return FakeTensor.of(leaf.like, self._watcher, key, leaf.home or self._home)

        made = recipe.again(given, fake)
        prefix.counts.update(recipe.calls)
        return made


class _MemoizedCall:
    """In the place of a module's `forward`. A copy of the module has its own forward again."""

    def __init__(self, calls: MemoizedCalls, name: str, module: torch.nn.Module) -> None:
        functools.update_wrapper(self, module.forward)  # which takes what another stage's one has, too
        self._calls, self.name = weakref.ref(calls), name  # weakly: who looks for state in the model goes no further
        self.module, self.forward = module, module.forward
        # its result has the same shape, whatever its tensors hold
        self.any_value = type(module).__module__.startswith("torch.nn.modules.") and not [*module.children()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls = self._calls()
        assert calls is not None
        return calls.call(self, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The `forward` of the copy of the module."""
        forward = self.forward
        while isinstance(forward, _MemoizedCall):  # of another stage of the same model
            forward = forward.forward
        return getattr(forward, "__func__", forward).__get__(memo[id(self.module)])


def flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], TreeSpec]:
    """The leaves of a call's arguments, and how they lie. For one tensor, as most modules get, torch makes 63 calls."""
    if not kwargs and len(args) == 1 and isinstance(args[0], torch.Tensor):
        return [*args], _ONE_LEAF
    return tree_flatten((args, kwargs))


def _recorded(prefix: Prefix, given: list[Any], call: Callable[[], Any]) -> tuple[Any, CallResult | None]:
    """The result of the call, and how it is made again; None if it has to be called again."""
    before, generators, told = prefix.counts.copy(), Generators.now(), prefix.told_used
    result = call()
    if prefix.own or prefix.told_used != told or not same_generators(Generators.now(), generators):
        return result, None

    def leaf_of(leaf: Any) -> Leaf | None:
        if type(leaf) is FakeTensor and not isinstance(leaf.key, str):
            key = None if leaf.key is None else (leaf.key[0], leaf.key[1] - before[leaf.key[0]], leaf.key[2])
            return Leaf(like=leaf.shape_alone(), home=str(leaf.home), key=key)
        return Leaf(value=leaf) if isinstance(leaf, PLAIN) else None

    return result, noted(result, given, prefix.counts - before, leaf_of)


def _are_kept(named: Sequence[weakref.ref[FakeTensor]], known: Sequence[Any]) -> bool:
    """Whether any of these results is still referred to, other than by what the caller has. One may be by a view, too, where
    its shape was computed for the first time; so the next call asks again."""
    ids = {id(each) for each in known}
    return any(each is not None and id(each) not in ids for each in (reference() for reference in named))


def _signature(module_call: _MemoizedCall, leaves: list[Any], spec: str) -> Any:
    """None where the call may depend on more than what is compared here."""
    with torch._C.DisableTorchFunctionSubclass():
        found = tuple(_compared(leaf, any_value=module_call.any_value) for leaf in leaves)
    if None in found:
        return None
    mixed = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    modes = module_call.module.training, torch.is_grad_enabled(), mixed, torch.get_default_dtype()
    return module_call.name, spec, modes, found


def _compared(leaf: Any, *, any_value: bool) -> Any:
    """The part of an argument that is compared with those of other calls; None where more than that may matter."""
    if isinstance(leaf, PLAIN):
        return type(leaf), leaf
    if not isinstance(leaf, torch.Tensor) or not is_dense(leaf):
        return None
    if type(leaf) is FakeTensor or any_value:
        return form_of(leaf)
    is_large = leaf.nbytes > _MOST_BYTES or leaf.requires_grad or not leaf.is_cpu
    return None if is_large else (form_of(leaf), bytes_of(leaf).numpy().tobytes())
