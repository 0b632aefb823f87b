"""Schedules are pure functions of the step with the ends that their definitions give."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import Span
from orchestrator.optim.schedule_laws import broken
from orchestrator.optim.schedules import SCHEDULES, Moment, build
from orchestrator.worker.model.updater import rates_of, set_rates


def values(steps: int, name: str = "constant", warmup: int = 0, **options: object) -> list[float]:
    factor = build(name, options)
    return [factor(Moment(step, steps, warmup)) for step in range(steps)]


def test_each_schedule_has_the_values_of_its_definition() -> None:
    assert values(3) == [1, 1, 1]
    assert values(5, "linear") == [1, 0.75, 0.5, 0.25, 0]
    assert values(3, "linear", final=0.5) == [1, 0.75, 0.5]
    assert values(3, "cosine") == pytest.approx([1, 0.5, 0])
    assert values(4, "exponential", gamma=0.5) == [1, 0.5, 0.25, 0.125]
    assert values(5, "steps", every=Span(steps=2), gamma=0.5) == [1, 1, 0.5, 0.5, 0.25]
    assert values(4, "inverse_sqrt", warmup=1) == pytest.approx([1, math.sqrt(1 / 2), math.sqrt(1 / 3), 0.5])
    assert build("plateau", {"gamma": 0.5})(Moment(9, 10, reductions=3)) == 0.125


def test_the_warm_up_rises_to_one_and_the_schedule_starts_behind_it() -> None:
    assert values(8, "linear", warmup=4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 2 / 3, 1 / 3, 0])


@pytest.mark.parametrize(("name", "half"), [("linear", 0.75), ("cosine", 0.75)])
def test_a_schedule_may_end_before_the_run(name: str, half: float) -> None:
    """At the step `end` it has its final factor, and keeps it."""
    assert values(5, name, end=Span(steps=2), final=0.5) == pytest.approx([1, half, 0.5, 0.5, 0.5])
    assert values(3, name, end=Span(steps=2)) == values(3, name)
    assert values(3, name, end=Span(steps=4), warmup=2)[2] == 1
    ending = build(name, {"end": Span(epochs=2), "final": 0.5})
    assert [ending(Moment(step, 9, epoch=3)) for step in (0, 6, 7)] == [1, 0.5, 0.5]


def test_a_reduction_every_few_epochs_counts_their_steps() -> None:
    factor = build("steps", {"every": Span(epochs=2), "gamma": 0.5})
    assert [factor(Moment(step, 12, epoch=3)) for step in (0, 5, 6, 11)] == [1, 1, 0.5, 0.5]


NEEDED = {"steps": {"every": Span(steps=3)}}


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(0, 20), st.integers(1, 50))
def test_every_schedule_keeps_to_the_laws(name: str, warmup: int, steps: int) -> None:
    options = NEEDED.get(name, {})
    assert broken(build(name, options), warmup, steps) is None
    assert all(value <= 1 for value in values(steps, name, warmup, **options))


def test_a_schedule_that_breaks_a_law_is_told_with_the_step() -> None:
    count = itertools.count(5)
    wrong: dict[str, Callable[[Moment], Any]] = {
        "gives -1.0 at step 2 of 3; the factor must be finite and at least 0": lambda at: 1.0 - at.step,
        "gives inf at step 0 of 3; the factor must be finite and at least 0": lambda _: math.inf,
        "gives nan at step 0 of 3; the factor must be finite and at least 0": lambda _: math.nan,
        "gives None at step 0 of 3; the factor must be a number": lambda _: None,
        "is not pure: at step 2 of 3 it gave 10, and 11 when asked again; the factor must depend on the moment and the options "
        "alone": lambda _: next(count),
    }
    assert [broken(factor, 0, 3) for factor in wrong.values()] == list(wrong)


def test_rates_are_set_per_group() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups: list[dict[str, Any]] = [{"params": [parameters[0]], "lr": 0.5}, {"params": [parameters[1]]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    rates = rates_of(optimizer)
    set_rates(optimizer, rates, 0.5)
    set_rates(optimizer, rates, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5 * 0.1, 0.1 * 0.1]
