"""Combinations of members keep to their laws, whatever the members say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from orchestrator.worker.ensemble import combination_laws as laws
from orchestrator.worker.ensemble.combinations import COMBINATIONS, Vote, Weighted


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize("name", list(COMBINATIONS))
def test_every_combination_keeps_to_the_laws(name: str, members: int) -> None:
    assert laws.problems(name, {}, members) == []


def test_a_vote_is_decided_by_most_and_a_tie_by_the_mean() -> None:
    equal = torch.full((4,), 0.25, dtype=torch.float64)
    sure, unsure = [0.0, 1.0, 0.0], [0.34, 0.33, 0.33]
    outputs = torch.tensor([[unsure], [unsure], [unsure], [sure]], dtype=torch.float64)
    assert Vote(4).combine(outputs, equal).argmax(-1).item() == 0  # three against one, however sure it is
    outputs = torch.tensor([[unsure], [unsure], [sure], [sure]], dtype=torch.float64)
    assert Vote(4).combine(outputs, equal).argmax(-1).item() == 1  # two against two


@given(losses=st.lists(st.floats(0.1, 10), min_size=2, max_size=6, unique=True), rounds=st.integers(1, 30))
def test_weights_are_those_of_the_best_member_where_mixing_does_not_help(losses: list[float], rounds: int) -> None:
    weights = Weighted(len(losses), rounds=rounds).weigh(lambda w: sum(a * b for a, b in zip(w, losses, strict=True)))
    assert weights == [float(loss == min(losses)) for loss in losses]


def test_weights_are_mixed_where_that_helps_and_a_loss_that_is_no_number_is_the_worst() -> None:
    def loss(weights: Sequence[float]) -> float:
        return float("nan") if weights[2] else (weights[0] - 0.75) ** 2

    assert Weighted(3, rounds=8).weigh(loss) == [0.75, 0.25, 0.0]


class Loudest:
    """One's own: the member that is surest decides."""

    chooses = False

    def __init__(self, members: int, *, times: int = 1) -> None:
        self.members = members
        self.times = times

    def weigh(self, loss: Any) -> list[float]:  # noqa: ARG002
        return [1 / self.members] * self.members

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        surest = outputs.max(-1).values.argmax(0)
        return outputs[surest, torch.arange(outputs.shape[1])]


class First(Loudest):
    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        return outputs[0]


class Sum(Loudest):
    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        return outputs.sum(0)


class Greedy(Loudest):
    def weigh(self, loss: Any) -> list[float]:  # noqa: ARG002
        return [1.0] * self.members


def test_ones_own_is_held_to_the_laws() -> None:
    here = "tests.worker.ensemble.test_combinations"
    assert laws.problems(f"{here}:Loudest", {"times": 2}, 3) == []
    for name, said in (
        ("First", "in another order"),
        ("Sum", "add up to one"),
        ("Greedy", "gives the weights [1.0, 1.0, 1.0]"),
    ):
        (problem,) = laws.problems(f"{here}:{name}", {}, 3)
        assert said in problem
    assert (
        "no such" in laws.problems(f"{here}:Nobody", {}, 3)[0] or "Nobody" in laws.problems(f"{here}:Nobody", {}, 3)[0]
    )
