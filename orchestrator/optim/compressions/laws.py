"""The laws of a compression, tried on a small model: the tests hold the table's own entries to them, and a launch a user's own.

    grouping    what a shard puts into a phase depends on it, the agreement and the results before, and on no other shard
    pure        encoded and decoded again, it is the same
    in bounds   no element is larger than what the codec says is the largest of all shards
    shapes      rows fit their phase; what is replicated keeps its names, shapes and types
    untouched   without error feedback the gradients stay as they are, for they are not its own

It cannot see whether a model still learns with it. Sums are made in float64, without rounding to a grid or to levels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions.codec import Agreement, Codec, Held, Model, Nothing, Result, Rows

if TYPE_CHECKING:
    import torch

_SHAPES = ((6, 5), (7,), (4, 2, 3), (1,))
_STEPS = 3
_SHARDS = 4  # that have something


def problems(name: str, options: Mapping[str, Any], shards: int) -> list[str]:
    """Which law a compression breaks in a run of so many shards, a sentence; empty when none."""
    model = Model(_SHAPES, shards, 0)
    return COMPRESSIONS.judge(name, lambda: broken(partial(COMPRESSIONS.build(name, options), model)))


def broken(build: Callable[[], Codec | None]) -> str | None:
    """The law that it breaks, as a predicate; None where it keeps to all."""
    codec = build()
    if codec is None:
        return None
    replicated = codec.replicated()
    for step in range(_STEPS):
        held = _held(step)
        agreement = Agreement(step, math.fsum(each.weight for each in held), _largest(held), replicated)
        together, follows, mean = _step(codec, agreement, [held])
        if isinstance(together, str):
            return together
        apart, _, mean_apart = _step(build(), agreement, [[each] for each in _held(step)])  # type: ignore[arg-type]
        if apart != together or not _equal(mean, mean_apart):
            return (
                "makes of a shard what depends on the shards beside it, or on what it did before: both may be anywhere"
            )
        if not codec.kept and not all(_equal(a.tensors, b.tensors) for a, b in zip(held, _held(step), strict=True)):
            return "changes the gradients in place: without what shards keep they are not its own"
        kinds = [{name: (t.shape, t.dtype) for name, t in state.items()} for state in (replicated, follows)]
        if kinds[0] != kinds[1]:
            return "replicates tensors of other names, shapes or types than before the first step"
        replicated = follows
    return None


def _step(codec: Codec, agreement: Agreement, groups: Sequence[list[Held]]) -> tuple[Any, Any, list[torch.Tensor]]:
    """The input of the phases by shard, or the law that is broken; the replicated state then; the mean gradient."""
    import torch

    results: list[Result] = []
    told: list[Any] = []
    for phase, carrier in enumerate(codec.phases):
        if not carrier.takes_part(agreement.step):
            results.append(Nothing())
            continue
        rows: list[tuple[float, Sequence[torch.Tensor | None]]] = []
        for held in groups:
            put: Rows = codec.encode(phase, agreement, held, results)
            rows += [(each.weight, row) for each, row in zip(held, put.rows, strict=True)]
        for weight, row in rows:
            sizes = [None if t is None else t.numel() for t in row]
            if len(row) != len(carrier.elements) or any(
                s not in (None, e) for s, e in zip(sizes, carrier.elements, strict=True)
            ):
                return (
                    f"puts vectors of {sizes} elements into phase {phase}, which has {list(carrier.elements)}",
                    {},
                    [],
                )
            for tensor, largest in zip(row, put.largest, strict=True):
                most = 0.0 if tensor is None or not tensor.numel() else float(tensor.double().abs().max()) * weight
                if most > (largest or 0.0):
                    return f"puts {most:g} into phase {phase}, where it says that {largest} is the largest", {}, []
        told.append([(weight, [None if t is None else t.tolist() for t in row]) for weight, row in rows])
        results.append(_Result(carrier.elements, rows, agreement.total_weight))
    mean = [torch.zeros(math.prod(shape)) for shape in _SHAPES]
    follows = codec.decode(agreement, results, mean)
    return told, follows, mean


class _Result:
    """Implements `codec.Result`, in the order of shards."""

    def __init__(self, elements: Sequence[int], rows: Sequence[Any], total_weight: float) -> None:
        self._elements, self._rows, self._total_weight = elements, copy.deepcopy(rows), total_weight

    def write(self, i: int, out: torch.Tensor) -> None:
        total = out.new_zeros(self._elements[i]).double()
        for weight, row in self._rows:
            if row[i] is not None:
                total += row[i].double() * weight
        out.copy_(total / self._total_weight)


def _held(step: int) -> list[Held]:
    """Contributions of some shards, one of which has nothing for one parameter."""
    import torch

    generator = torch.Generator().manual_seed(step)
    held = [
        Held(shard, 1.0 + shard, [torch.randn(math.prod(shape), generator=generator) for shape in _SHAPES])
        for shard in range(_SHARDS)
    ]
    held[step % _SHARDS].tensors[0] = None
    return held


def _largest(held: Sequence[Held]) -> list[float | None]:
    found = [[(each.tensors[i], each.weight) for each in held] for i in range(len(_SHAPES))]
    return [max(float(t.double().abs().max()) * w for t, w in each if t is not None) for each in found]


def _equal(first: Sequence[torch.Tensor | None], second: Sequence[torch.Tensor | None]) -> bool:
    return len(first) == len(second) and all(
        one is other or (one is not None and other is not None and one.equal(other))
        for one, other in zip(first, second, strict=True)
    )
