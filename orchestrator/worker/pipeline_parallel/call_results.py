"""Results of module calls, noted so that they are made again without the module's code: what `memoized_calls` remembers, and
what later stages are told of a call whose code reads values.

A tensor of a result is one of the arguments, a tensor that stands in the result before, or a new one, of which shapes alone are
noted. Other leaves are kept as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from orchestrator.worker.pipeline_parallel.fake_tensors import Key, is_dense
from orchestrator.worker.pipeline_parallel.operation_names import Opened

_TOLD_VALUES: Final = (type(None), bool, int, float, str)


class Leaf(NamedTuple):
    """Says from where a leaf of a result is taken: an argument, an earlier leaf, a fake tensor, or a value."""

    given: int | None = None  # which leaf of the arguments it is; None: none
    first: int | None = None  # which leaf of the result it is once more; None: none
    like: torch.Tensor | None = None  # the shape of a fake tensor; None of what is none
    home: str | None = None  # the device of the fake tensor; None: where the stage computes
    key: Key | None = None  # of the fake tensor, with a count from where the call began; None: it has none
    value: Any = None  # of what is none of these


class CallResult(NamedTuple):
    """How the result of a call is made again."""

    leaves: tuple[Leaf, ...]
    spec: Any  # of the tree of these leaves
    calls: Mapping[str, int]  # of the modules within, how often

    def again(self, given: Sequence[Any], fake: Callable[[Leaf], Any]) -> Any:
        """given: the leaves of the arguments; fake: makes a new fake tensor."""
        made: list[Any] = []
        for leaf in self.leaves:
            if leaf.given is not None:
                made.append(given[leaf.given])
            elif leaf.first is not None:
                made.append(made[leaf.first])
            else:
                made.append(leaf.value if leaf.like is None else fake(leaf))
        return tree_unflatten(made, self.spec)


def noted(
    result: Any, given: Sequence[Any], calls: Mapping[str, int], leaf_of: Callable[[Any], Leaf | None]
) -> CallResult | None:
    """given: the leaves of the call's arguments; calls: as of `CallResult`; leaf_of: of a leaf that is not there yet, None of
    one that cannot be made again. None where there is such a leaf."""
    found, spec = tree_flatten(result)
    leaves: list[Leaf] = []
    for i, leaf in enumerate(found):
        at = next((n for n, each in enumerate(given) if each is leaf and isinstance(leaf, torch.Tensor)), None)
        first = next((n for n in range(i) if found[n] is leaf and isinstance(leaf, torch.Tensor)), None)
        known = Leaf(given=at) if at is not None else Leaf(first=first) if first is not None else leaf_of(leaf)
        if known is None:
            return None
        leaves.append(known)
    return CallResult(tuple(leaves), spec, calls)


def is_tellable(leaf: Any) -> bool:
    """Whether later stages can be told of this leaf of a result."""
    return is_dense(leaf) if isinstance(leaf, torch.Tensor) else type(leaf) in _TOLD_VALUES


def told_leaf(leaf: Any) -> Leaf | None:
    """The leaf for a value, or for a tensor that has one. None where it is not tellable."""
    if not is_tellable(leaf):
        return None
    if not isinstance(leaf, torch.Tensor):
        return Leaf(value=leaf)
    like = torch.empty_strided(tuple(leaf.size()), tuple(leaf.stride()), dtype=leaf.dtype, device="meta")
    return Leaf(like=like, home="cpu" if leaf.is_cpu else None)


def to_text(told: Mapping[Opened, CallResult]) -> str:
    """The text for results whose leaves are `told_leaf`s: equal for equal ones, empty for none."""
    return (
        json.dumps([[*opened, list(map(_plain, each.leaves)), each.calls] for opened, each in told.items()])
        if told
        else ""
    )


def from_text(text: str, specs: Mapping[str, Any]) -> dict[Opened, CallResult]:
    """The results that `to_text` was given. specs: by module, of its results."""
    entries = json.loads(text) if text else []
    return {
        (name, call): CallResult(tuple(map(_leaf, leaves)), specs[name], calls) for name, call, leaves, calls in entries
    }


def _plain(leaf: Leaf) -> list[Any]:
    if leaf.like is None:
        return [leaf.given, leaf.first, leaf.value]
    kind = str(leaf.like.dtype).removeprefix("torch.")
    return [list(leaf.like.size()), list(leaf.like.stride()), kind, leaf.home]


def _leaf(plain: list[Any]) -> Leaf:
    if len(plain) == 3:
        return Leaf(given=plain[0], first=plain[1], value=plain[2])
    size, stride, kind, home = plain
    return Leaf(like=torch.empty_strided(size, stride, dtype=getattr(torch, kind), device="meta"), home=home)
