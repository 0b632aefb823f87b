"""The table's own compressions keep to the laws to which a user's own is held, and the laws find what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions.codec import Agreement, Held, Means, Model, Phase, Result, Rows
from orchestrator.optim.compressions.laws import broken, problems
from orchestrator.optim.transforms import State

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "quantize": [{}, {"bits": 16}, {"error_feedback": False}],
    "topk": [{}, {"ratio": 0.3, "warmup": 2}, {"error_feedback": True}],
    "powersgd": [
        {},
        {"rank": 1},
        {"rank": 2},
        {"rank": 2, "error_feedback": False},
        {"rank": 1, "warmup": 2},
        {"rank": 1, "reset": 2},
    ],
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_the_laws_hold(name: str) -> None:
    for options in OPTIONS.get(name, [{}]):
        assert problems(name, options, 8) == []


class Plain:
    """Exact sums of everything: a compression that does nothing, and what each of its children does wrong."""

    def __init__(self, model: Model) -> None:
        self.elements = tuple(math.prod(shape) for shape in model.shapes)
        self.phases: Sequence[Phase] = (Means(self.elements),)
        self.kept: Sequence[int] = ()

    def replicated(self) -> State:
        return {}

    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:  # noqa: ARG002
        return Rows([each.tensors for each in held], agreement.largest)

    def decode(self, agreement: Agreement, results: Sequence[Result], mean: Sequence[torch.Tensor]) -> State:  # noqa: ARG002
        for i, vector in enumerate(mean):
            results[0].write(i, vector)
        return {}


class ByTheGroup(Plain):
    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:
        rows = super().encode(phase, agreement, held, earlier)
        return Rows([[None if t is None else t / len(held) for t in row] for row in rows.rows], rows.largest)


class OutOfBounds(Plain):
    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:
        rows = super().encode(phase, agreement, held, earlier)
        return Rows([[None if t is None else 2 * t for t in row] for row in rows.rows], rows.largest)


class InPlace(Plain):
    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:
        for each in held:
            for tensor in each.tensors:
                if tensor is not None:
                    tensor.mul_(0.5)
        return super().encode(phase, agreement, held, earlier)


class TooShort(Plain):
    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:
        rows = super().encode(phase, agreement, held, earlier)
        return Rows([[None if t is None else t[1:] for t in row] for row in rows.rows], rows.largest)


class Growing(Plain):
    def decode(self, agreement: Agreement, results: Sequence[Result], mean: Sequence[torch.Tensor]) -> State:
        super().decode(agreement, results, mean)
        return {"more": torch.zeros(1)}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Plain, None),
        (ByTheGroup, "depends on the shards beside it"),
        (OutOfBounds, "is the largest"),
        (InPlace, "changes the gradients in place"),
        (TooShort, "puts vectors of"),
        (Growing, "replicates tensors of other names"),
    ],
)
def test_what_breaks_a_law_is_found(kind: type[Plain], words: str | None) -> None:
    found = broken(lambda: kind(Model(((6, 5), (7,), (4, 2, 3), (1,)), 8, 0)))
    assert (found is None) if words is None else (found is not None and words in found)
