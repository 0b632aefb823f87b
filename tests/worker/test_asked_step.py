"""The step that a recording asks: numbers as those of Python, and the steps that give the same answers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.worker.model.asked_step import Answers, AskedNumber

STEPS = st.integers(0, 40)
Of = Callable[[Any], Any]  # of a step, or of what stands for it

_NUMBERS = st.one_of(st.integers(-5, 9), st.sampled_from([0.5, 1.0, 2.0, 100.0, True]))
_OF_TWO: list[Callable[[Any, Any], Any]] = [
    lambda one, other: one + other,
    lambda one, other: one - other,
    lambda one, other: other - one,
    lambda one, other: one * other,
    lambda one, other: one / other,
    lambda one, other: other / one,
    lambda one, other: one // other,
    lambda one, other: other // one,
    lambda one, other: one % other,
    lambda one, other: other % one,
    lambda one, other: min(one, other),
    lambda one, other: max(other, one),
    lambda one, other: divmod(one, other)[1],
]
_OF_ONE: list[Of] = [
    *(lambda one: -one, abs, int, float, round, math.floor, math.ceil, math.trunc),
    *(lambda one: +one, lambda one: one if one else 7),
]
_ASKED: list[Of] = [
    *(bool, int, float, str, repr, hash, round, lambda one: f"{one:.2f}", lambda one: round(one, 1)),
    *(lambda one: one == 3, lambda one: one != 2, lambda one: one < 4, lambda one: one >= 0.5, lambda one: one < 2),
    *(lambda one: one in (0, 5), lambda one: {0: "a", 4: "b"}.get(one), lambda one: float(one).is_integer()),
    lambda one: (torch.ones(2) * one).tolist(),
    lambda one: (one - torch.ones(2)).tolist(),
]


@st.composite
def _computed(draw: st.DrawFn) -> Of:
    """Code that computes a number with a step."""
    parts: list[Of] = []
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            parts.append(draw(st.sampled_from(_OF_ONE)))
        else:
            parts.append(partial(_swapped, draw(st.sampled_from(_OF_TWO)), draw(_NUMBERS)))

    def code(step: Any) -> Any:
        for part in parts:
            step = part(step)
        return step

    return code


@st.composite
def _codes(draw: st.DrawFn) -> Of:
    """Code that computes with a step, and asks something of it."""
    computed = draw(_computed())
    asked = draw(st.lists(st.sampled_from(_ASKED), min_size=1, max_size=3))

    def code(step: Any) -> Any:
        number = computed(step)
        return [each(number) for each in asked]

    return code


def _swapped(of_two: Callable[[Any, Any], Any], other: Any, one: Any) -> Any:
    return of_two(one, other)


def _outcome(code: Of, step: Any) -> Any:
    try:
        return repr(code(step))
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        return type(error)


@given(_codes(), STEPS, STEPS)
def test_code_is_told_what_the_number_tells_and_goes_the_same_way_where_answers_hold(
    code: Of, step: int, other: int
) -> None:
    answers = Answers()
    assert _outcome(code, AskedNumber(answers, step)) == _outcome(code, step)
    assert answers.hold(step)
    if answers.hold(other):
        assert _outcome(code, other) == _outcome(code, step)


@given(_computed(), st.sampled_from(_OF_TWO[:4]), STEPS, STEPS, st.lists(st.floats(width=32), min_size=1, max_size=3))
def test_a_number_that_is_read_from_memory_has_the_bits_of_the_number(
    code: Of, of_two: Callable[[Any, Any], Any], step: int, other: int, values: list[float]
) -> None:
    """Also in the gradient. The second micro-batch asks for the same, in a place of its own."""
    both = [Answers(torch.full((2,), math.nan).unbind()) for _ in range(2)]
    given = [torch.tensor(values, requires_grad=True) for _ in range(2)]
    try:
        read = [code(AskedNumber(answers, step)) for answers in both]
        results = [of_two(number, tensor) for number, tensor in zip(read, given, strict=True)]
        expected = of_two(code(other), torch.tensor(values))
    except (ArithmeticError, RuntimeError, TypeError, ValueError):
        return
    answers = Answers()
    for each in both:
        answers.take(each)
    if answers.hold(other):
        answers.fill(other)
        for number, tensor in zip(read, given, strict=True):
            assert _bits(of_two(number, tensor)) == _bits(expected)
        for result, tensor in zip(results, given, strict=True):
            result.sum().backward()
            assert _bits(tensor.grad) == _bits(_gradient(code(other), of_two, values))


def _gradient(number: Any, of_two: Callable[[Any, Any], Any], values: list[float]) -> Any:
    tensor = torch.tensor(values, requires_grad=True)
    of_two(number, tensor).sum().backward()
    return tensor.grad


def _bits(tensor: Any) -> list[int]:
    bits: list[int] = tensor.detach().nan_to_num(nan=7e37, posinf=None).view(torch.int32).tolist()
    return bits


@pytest.mark.parametrize(
    "number", [lambda step: (-1 - step) ** 0.5, lambda step: 1e300 * (step + 1), lambda step: 2 ** (70 + step)]
)
def test_what_memory_cannot_hold_is_an_answer(number: Of) -> None:
    answers = Answers(torch.zeros(2).unbind())
    with contextlib.suppress(RuntimeError, OverflowError):
        torch.ones(1) * number(AskedNumber(answers, 3))
    assert not answers.hold(4)


def test_a_tensor_elsewhere_takes_the_number_itself() -> None:
    """One here has taken it from memory before."""
    answers = Answers(torch.zeros(2, device="meta").unbind())
    step = AskedNumber(answers, 3)
    assert (torch.ones(1, device="meta") * step).is_meta
    assert answers.hold(4)
    assert (torch.ones(1) * step).tolist() == [3.0]
    assert not answers.hold(4)


def test_what_no_place_is_left_for_is_an_answer() -> None:
    answers = Answers(torch.zeros(1).unbind())
    step = AskedNumber(answers, 3)
    assert (torch.ones(1) * step / 2 + (step + 1)).tolist() == [4.0]  # what is read is not yet filled
    assert not answers.hold(4)


def _guarded(number: Any) -> Any:
    try:
        return 1 / number
    except ZeroDivisionError:
        return 0.0


@pytest.mark.parametrize(
    ("code", "held"),
    [
        (lambda step: "generator" if step % 2 else "discriminator", [1, 3, 5, 7, 9]),
        (lambda step: step < 5, [0, 1, 2, 3, 4]),
        (lambda step: min(1.0, step / 2) * 1.0 < 3, [2, 3, 4, 5, 6, 7, 8, 9]),
        (lambda step: torch.ones(1) * (step // 4), [0, 1, 2, 3]),
        (lambda step: torch.ones(9)[:step], [3]),
        (lambda _: None, [*range(10)]),
        (lambda step: _guarded(step - 5), [0, 1, 2, 3, 4, 6, 7, 8, 9]),
        (lambda step: _guarded(step - 3), [3]),
    ],
)
def test_steps_with_the_same_answers(code: Of, held: list[int]) -> None:
    answers = Answers()
    code(AskedNumber(answers, 3))
    assert [step for step in range(10) if answers.hold(step)] == held


def test_the_place_that_asks_for_what_no_later_step_has() -> None:
    answers = Answers()
    step = AskedNumber(answers, 3)
    assert step % 2
    assert answers.recur(3)
    assert not answers.passing(3)
    assert torch.equal(torch.ones(1) * (step / 7), torch.ones(1) * (3 / 7))
    assert not answers.recur(3)
    place, _, line = answers.passing(3).rpartition(":")
    assert place == __file__
    assert int(line) > 0


@pytest.mark.parametrize(
    "code",
    [lambda step: torch.full((2,), step), torch.tensor, lambda step: torch.nn.functional.dropout(torch.ones(1), step)],
)
def test_what_reads_a_number_in_memory_raises(code: Of) -> None:
    with pytest.raises((TypeError, RuntimeError), match="AskedNumber"):
        code(AskedNumber(Answers(), 0))
