"""LARS and LAMB, number by number against another implementation; and how rates follow the batch size."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import Steps
from orchestrator.optim.lamb import Lamb
from orchestrator.optim.lars import Lars
from orchestrator.optim.optimizer_laws import broken, problems
from orchestrator.optim.optimizer_state import kept_aside
from orchestrator.optim.optimizers import OPTIMIZERS, build
from orchestrator.optim.scaling import Scaling
from tests.optim.other import CASES, parameters, reference, trained


@pytest.mark.slow
@pytest.mark.long
def test_they_are_those_of_pytorch_optimizer() -> None:
    for (name, options), expected in zip(CASES, reference(), strict=True):
        trainable = parameters()
        found = trained(OPTIMIZERS[name](trainable, **options), trainable)
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-7), (name, options)


def test_a_bound_on_the_norm_of_lamb() -> None:
    """Far above every norm it is none, and the change of a tensor is as long as the tensor."""
    parameter = torch.nn.Parameter(3 * torch.ones(20, 20))
    before = parameter.detach().clone()
    parameter.grad = torch.ones(20, 20)
    Lamb([parameter], lr=0.1, bound=1e9).step()
    assert (parameter.detach() - before).norm().item() == pytest.approx(0.1 * 60, rel=1e-4)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_they_keep_to_the_laws_of_an_optimizer(name: str) -> None:
    assert broken(lambda model: build(name, {}, model)) is None
    model = torch.nn.Linear(2, 2)
    assert kept_aside(build(name, {}, model), model) == {}
    assert OPTIMIZERS[name] in (Lars, Lamb)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lars", {"lr": -1.0}, ("optimizer.lr", "must be at least 0", "-1.0")),
        ("lars", {"nesterov": True, "momentum": 0.0}, ("lars", "nesterov needs a momentum")),
        ("lars", {"trust_coeff": 1.0}, ("optimizer.trust_coeff", "did you mean trust_coefficient?")),
        ("lamb", {"betas": [0.9]}, ("lamb", "betas must be two numbers")),
        ("lamb", {"betas": [0.9, 1.0]}, ("lamb", "betas must be two numbers")),
        ("lamb", {"momentum": 0.9}, ("optimizer.momentum", "lamb has no momentum")),
    ],
)
def test_wrong_options_are_told(name: str, options: dict[str, Any], words: tuple[str, ...]) -> None:
    (problem,) = problems(name, options)
    assert all(word in problem for word in words), problem


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 99))
def test_rates_follow_the_batch(base: int, rows: int, step: int) -> None:
    constant = Steps.constant(rows)
    assert Scaling("linear", base, constant).at(step) == rows / base
    assert Scaling("sqrt", base, constant).at(step) == math.sqrt(rows / base)
    assert Scaling("linear", rows, constant).at(step) == Scaling("sqrt", rows, constant).at(step) == 1.0


def test_rates_follow_a_batch_that_grows() -> None:
    growing = Steps.parse({0: 64, 3: 256})
    assert [Scaling("sqrt", 64, growing).at(step) for step in range(5)] == [1, 1, 1, 2, 2]
    assert [Scaling("linear", 128, growing).at(step) for step in range(5)] == [0.5, 0.5, 0.5, 2, 2]
