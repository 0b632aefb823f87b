"""Schedules are pure functions of the step with the ends that their definitions give."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.settings import ScheduleSettings, Span
from orchestrator.updates.schedules import factor, rates_of, set_rates


def values(steps: int, **options: object) -> list[float]:
    return [factor(ScheduleSettings(**options), step, steps) for step in range(steps)]  # type: ignore[arg-type]


def test_each_schedule_has_the_values_of_its_definition() -> None:
    assert values(3) == [1, 1, 1]
    assert values(5, name="linear") == [1, 0.75, 0.5, 0.25, 0]
    assert values(3, name="linear", final=0.5) == [1, 0.75, 0.5]
    assert values(3, name="cosine") == pytest.approx([1, 0.5, 0])
    assert values(4, name="exponential", gamma=0.5) == [1, 0.5, 0.25, 0.125]
    assert values(5, name="steps", every=Span(steps=2), gamma=0.5) == [1, 1, 0.5, 0.5, 0.25]
    assert values(4, name="inverse_sqrt", warmup=1) == pytest.approx([1, math.sqrt(1 / 2), math.sqrt(1 / 3), 0.5])
    assert factor(ScheduleSettings(name="plateau", gamma=0.5), 9, 10, reductions=3) == 0.125


def test_the_warm_up_rises_to_one_and_the_schedule_starts_behind_it() -> None:
    assert values(8, name="linear", warmup=4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 2 / 3, 1 / 3, 0])


@pytest.mark.parametrize(("name", "half"), [("linear", 0.75), ("cosine", 0.75)])
def test_a_schedule_may_end_before_the_run(name: str, half: float) -> None:
    """At the step `end` it has its final factor, and keeps it."""
    assert values(5, name=name, end=Span(steps=2), final=0.5) == pytest.approx([1, half, 0.5, 0.5, 0.5])
    assert values(3, name=name, end=Span(steps=2)) == values(3, name=name)
    assert values(3, name=name, end=Span(steps=4), warmup=2)[2] == 1
    ending = ScheduleSettings(name=name, end=Span(epochs=2), final=0.5)  # type: ignore[arg-type]
    assert [factor(ending, step, 9, epoch=3) for step in (0, 6, 7)] == [1, 0.5, 0.5]


def test_a_reduction_every_few_epochs_counts_their_steps() -> None:
    schedule = ScheduleSettings(name="steps", every=Span(epochs=2), gamma=0.5)
    assert [factor(schedule, step, 12, epoch=3) for step in (0, 5, 6, 11)] == [1, 1, 0.5, 0.5]


@given(
    st.sampled_from(["constant", "linear", "cosine", "exponential", "steps", "inverse_sqrt", "plateau"]),
    st.integers(0, 20),
    st.integers(1, 50),
)
def test_a_factor_is_never_negative_and_never_above_one(name: str, warmup: int, steps: int) -> None:
    every = Span(steps=3) if name == "steps" else None
    assert all(0 <= value <= 1 for value in values(steps, name=name, warmup=warmup, every=every))


def test_rates_are_set_per_group() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups: list[dict[str, Any]] = [{"params": [parameters[0]], "lr": 0.5}, {"params": [parameters[1]]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    rates = rates_of(optimizer)
    set_rates(optimizer, rates, 0.5)
    set_rates(optimizer, rates, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5 * 0.1, 0.1 * 0.1]
