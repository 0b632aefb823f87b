"""The step that `loss` is told while its passes are recorded. It answers as the number does, and keeps what was asked.

A loss that takes the step asks little of it, as a GAN asks whose turn it is. Code takes the same way in every step that has the
same answers, so a recording serves them all.

A weight that rises or falls along the run is another number in each step. A recording reads it from memory, which is filled
before each replay, if code multiplies it by a float32 tensor, adds or subtracts it: these operations have the bits of the
number. Others would round it in another way, so there the number is an answer.

It is no `int`: code that is written in C reads no number in it, and calls the methods below, or raises.
"""

from __future__ import annotations

import math
import operator
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from orchestrator.common.frames import is_users

_AHEAD: Final = 16  # steps; a recording that serves none of so many is not worth its making

# How a number follows from the step: the name of an operation, and what it is done with.
Expression = tuple[Any, ...]

_STEP: Final[Expression] = ("step",)
_NUMBER: Final = "number"
_CAN_BE: Final = "can be"  # computed, whatever comes of it
_KIND: Final = "kind"  # the type of the number, and whether memory can hold it
_PLACED: Final = {"mul", "add", "sub"}
MOST_PLACES: Final = 8  # numbers that are read from memory, in one micro-batch
_NUMBERS: Final = (bool, int, float)
_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "truth": operator.truth,
    "index": operator.index,
    "int": int,
    "float": float,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    _CAN_BE: lambda _: True,
    _KIND: lambda number: (type(number).__name__, _is_placed(number)),
}
_COMPARISONS: Final = {name: getattr(operator, name) for name in ("lt", "le", "eq", "ne", "gt", "ge")}
_SIGNS: Final = {name: getattr(operator, name) for name in ("neg", "pos", "abs", "invert")}
_ARITHMETIC: Final = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
}
_OPERATIONS: Final[dict[str, Callable[..., Any]]] = _CONVERSIONS | _COMPARISONS | _SIGNS | _ARITHMETIC


class _Answer(NamedTuple):
    """outcome: type and text of a number of Python, or of what was raised; place: FILE:LINE of the user's code that asked,
    empty if there is none."""

    outcome: tuple[str, str]
    place: str


class Answers:
    """The answers that code was given about a step, and the numbers that it reads from memory."""

    def __init__(self, places: Sequence[torch.Tensor] = ()) -> None:
        """places: for numbers, float32 without dimensions."""
        self._given: dict[Expression, _Answer] = {}
        self._free = list(places)
        self._placed: dict[Expression, list[torch.Tensor]] = {}

    def place(self, asked: Expression, step: int, device: torch.device) -> torch.Tensor | None:
        """The memory of the number, for `fill`; None if there is none on this device, or no room."""
        if asked not in self._placed:
            if not self._free or self._free[-1].device != device or not _is_placed(_value(asked, step)):
                return None
            self._placed[asked] = [self._free.pop()]
            self.give((_KIND, asked), step)
        place = self._placed[asked][0]
        return place if place.device == device else None

    def fill(self, step: int) -> None:
        """Before a replay in this step, of which the answers hold."""
        for asked, places in self._placed.items():
            number = _value(asked, step)
            for place in places:
                place.fill_(number)

    def give(self, asked: Expression, step: int) -> Any:
        """The answer in this step, which is kept. Raises what the number would, which is an answer, too."""
        if asked not in self._given:
            self._given[asked] = _Answer(_outcome(asked, step), _place())
        return _value(asked, step)

    def take(self, others: Answers) -> None:
        """Keep those, too."""
        self._given |= others._given
        for asked, places in others._placed.items():
            self._placed.setdefault(asked, []).extend(places)

    def hold(self, step: int) -> bool:
        """Whether this step has the same."""
        return all(_outcome(asked, step) == answer.outcome for asked, answer in self._given.items())

    def recur(self, step: int) -> bool:
        """Whether one of the steps behind this one has the same."""
        return any(map(self.hold, _behind(step)))

    def passing(self, step: int) -> str:
        """The place that asked first for what none of the steps behind this one has; empty if there is none."""
        for asked, answer in self._given.items():
            if not any(_outcome(asked, each) == answer.outcome for each in _behind(step)):
                return answer.place
        return ""


def _applied(name: str) -> Callable[[AskedNumber, Any], Any]:
    """An operation with something on the right."""
    return lambda own, other: own._with(name, other)


def _from_both(name: str) -> tuple[Callable[[AskedNumber, Any], Any], Callable[[AskedNumber, Any], Any]]:
    """The same, and with it on the left."""
    return _applied(name), lambda own, other: own._with(name, other, reflected=True)


def _converted(name: str) -> Callable[[AskedNumber], Any]:
    return lambda own: own._answers.give((name, own._made), own._step)


def _signed(name: str) -> Callable[[AskedNumber], Any]:
    return lambda own: AskedNumber(own._answers, own._step, (name, own._made))


class AskedNumber:
    """A number that follows from a step. Arithmetic with numbers of Python gives another one of these. Anything else is done
    with the number itself, which is an answer."""

    def __init__(self, answers: Answers, step: int, made: Expression = _STEP) -> None:
        """made: how it follows from the step."""
        self._answers, self._step, self._made = answers, step, made

    def number(self) -> Any:
        """The number itself."""
        return self._answers.give(self._made, self._step)

    def _with(self, name: str, other: Any, *, reflected: bool = False) -> Any:
        operand = _expression(other)
        if operand is None:
            mine = self._in_memory(other) if name in _PLACED else None
            mine = self.number() if mine is None else mine
            return _OPERATIONS[name](other, mine) if reflected else _OPERATIONS[name](mine, other)
        made = (name, operand, self._made) if reflected else (name, self._made, operand)
        if name in _COMPARISONS:
            return self._answers.give(made, self._step)
        self._answers.give((_CAN_BE, made), self._step)  # a step by which code divides may be zero
        return AskedNumber(self._answers, self._step, made)

    def _in_memory(self, other: Any) -> torch.Tensor | None:
        if not isinstance(other, torch.Tensor) or other.dtype != torch.float32:
            return None
        return self._answers.place(self._made, self._step, other.device)

    __add__, __radd__ = _from_both("add")
    __sub__, __rsub__ = _from_both("sub")
    __mul__, __rmul__ = _from_both("mul")
    __truediv__, __rtruediv__ = _from_both("truediv")
    __floordiv__, __rfloordiv__ = _from_both("floordiv")
    __mod__, __rmod__ = _from_both("mod")
    __pow__, __rpow__ = _from_both("pow")
    __lshift__, __rlshift__ = _from_both("lshift")
    __rshift__, __rrshift__ = _from_both("rshift")
    __and__, __rand__ = _from_both("and_")
    __or__, __ror__ = _from_both("or_")
    __xor__, __rxor__ = _from_both("xor")
    __lt__, __le__, __gt__, __ge__ = (_applied(name) for name in ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _applied("eq"), _applied("ne")
    __neg__, __pos__, __abs__, __invert__ = (_signed(name) for name in _SIGNS)
    __bool__, __index__, __int__, __float__ = (_converted(name) for name in ("truth", "index", "int", "float"))
    __trunc__, __floor__, __ceil__ = (_converted(name) for name in ("trunc", "floor", "ceil"))

    def __round__(self, digits: int | None = None) -> Any:
        return _converted("round")(self) if digits is None else round(self.number(), digits)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __hash__(self) -> int:
        return hash(self.number())

    def __str__(self) -> str:
        return str(self.number())

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return format(self.number(), how)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what others look for in objects of any kind
            raise AttributeError(name)
        return getattr(self.number(), name)


def _expression(value: Any) -> Expression | None:
    """None for what is no number of Python."""
    if isinstance(value, AskedNumber):
        return value._made
    # By their types, too: 2 and 2.0 are equal, and what comes of them is not.
    return (_NUMBER, type(value).__name__, value) if type(value) in _NUMBERS else None


def _value(asked: Expression, step: int) -> Any:
    name, *operands = asked
    if asked == _STEP:
        return step
    if name == _NUMBER:
        return operands[-1]
    return _OPERATIONS[name](*(_value(operand, step) for operand in operands))


def _outcome(asked: Expression, step: int) -> tuple[str, str]:
    try:
        value = _value(asked, step)
    except (ArithmeticError, TypeError, ValueError) as error:
        return type(error).__name__, ""
    return type(value).__name__, repr(value)


def _is_placed(number: Any) -> bool:
    """Whether torch takes it as a number that it rounds to float32."""
    if isinstance(number, int):
        return abs(number) < 2**63
    return isinstance(number, float) and abs(number) <= torch.finfo(torch.float32).max


def _behind(step: int) -> range:
    return range(step + 1, step + 1 + _AHEAD)


def _place() -> str:
    stack = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(2)), lookup_lines=False)
    return next((f"{frame.filename}:{frame.lineno}" for frame in stack if is_users(frame)), "")
