"""One value: what each type of field accepts, what else it must be, and the sentence when it is not.

A value arrives twice, as YAML understands it and as it was typed, so that text stays what was typed: `1e3`, `012` and
`true` are good names of a run. The types are those of the annotations in `schema.py`: int, float, bool, str, a Literal,
tuple[str, ...], dict[str, Any], Every, Span, Workers, each also `| None`.

What it does not do: know keys, sources or defaults.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_STEPS = re.compile(r"[0-9]+")
_EPOCHS = re.compile(r"([0-9]+)epochs?")
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)s")
_SHOWN_CHARACTERS = 80


class MismatchError(ValueError):
    """A value that its field cannot take; the message goes behind the key."""


@dataclass(frozen=True, kw_only=True)
class Every:
    """How often: every so many steps, or every so many seconds; exactly one is set."""

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError(f"expected steps or seconds, got steps={self.steps}, seconds={self.seconds}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be greater than 0 and finite, got {self.seconds}")

    @classmethod
    def parse(cls, value: object) -> Every:
        """From `20` or `"20"` (steps) or `"30s"` (seconds). Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(steps=value)
        if isinstance(value, str) and _STEPS.fullmatch(value):
            return cls(steps=int(value))
        if isinstance(value, str) and (seconds := _SECONDS.fullmatch(value)):
            return cls(seconds=float(seconds[1]))
        raise ValueError(f"not a number of steps or seconds: {value!r}")

    def __str__(self) -> str:
        return str(self.plain())

    def plain(self) -> int | str:
        """What `parse` reads as this value: 20 or "30s"."""
        return self.steps if self.steps is not None else f"{self.seconds!r}".removesuffix(".0") + "s"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of a run: so many steps, or so many epochs; exactly one is set. Unlike seconds, both are known beforehand."""

    steps: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        given = [number for number in (self.steps, self.epochs) if number is not None]
        if len(given) != 1 or given[0] < 1:
            raise ValueError(f"expected steps or epochs, at least 1, got steps={self.steps}, epochs={self.epochs}")

    @classmethod
    def parse(cls, value: object) -> Span:
        """From `20` or `"20"` (steps), `"1epoch"` or `"5epochs"`. Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(steps=value)
        if isinstance(value, str) and _STEPS.fullmatch(value):
            return cls(steps=int(value))
        if isinstance(value, str) and (epochs := _EPOCHS.fullmatch(value)):
            return cls(epochs=int(epochs[1]))
        raise ValueError(f"not a number of steps or epochs: {value!r}")

    def in_steps(self, epoch: int) -> int:
        """epoch: the steps of one."""
        return self.steps if self.steps is not None else (self.epochs or 0) * epoch

    def __str__(self) -> str:
        return str(self.plain())

    def plain(self) -> int | str:
        """What `parse` reads as this value: 20, "1epoch" or "5epochs"."""
        return self.steps if self.steps is not None else f"{self.epochs}epoch{'s' * (self.epochs != 1)}"


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many workers: `start` begin the run, it pauses below `least`, and grows and is filled up to `most` (rule D4)."""

    start: int
    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.start <= self.most:
            raise ValueError(f"expected 1 <= least <= start <= most, got {self}")

    @classmethod
    def parse(cls, value: object) -> Workers:
        """From `4`, which may shrink to one worker and is filled again, or `{min: 2, max: 4}`. Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(start=value, least=1, most=value)
        if isinstance(value, dict) and set(value) == {"min", "max"}:
            least, most = value["min"], value["max"]
            if all(isinstance(number, int) and not isinstance(number, bool) for number in (least, most)):
                return cls(start=least, least=least, most=most)
        raise ValueError(f"not a number of workers: {value!r}")

    def __str__(self) -> str:
        return str(self.plain())

    def plain(self) -> int | dict[str, int]:
        """What `parse` reads as this value."""
        return self.most if (self.start, self.least) == (self.most, 1) else {"min": self.least, "max": self.most}


@dataclass(frozen=True)
class Given:
    """A value as a source gave it: understood as YAML, and as typed (None where that is not known)."""

    value: Any
    text: Any = None
    where: str = ""


@dataclass(frozen=True)
class Constraint:
    """What a value must be beyond its type. `text` completes "must be ..."."""

    text: str
    holds: Callable[[Any], bool]


def at_least(least: int) -> Constraint:
    return Constraint(f"at least {least}", lambda number: bool(number >= least))


def one_of(names: typing.Iterable[str]) -> Constraint:
    offer = tuple(names)
    return Constraint(f"one of {', '.join(offer)}", lambda name: name in offer)


def matching(pattern: str, form: str) -> Constraint:
    return Constraint(f"of the form {form}", lambda text: re.fullmatch(pattern, text) is not None)


POSITIVE = Constraint("greater than 0", lambda number: bool(number > 0))
NOT_NEGATIVE = Constraint("at least 0", lambda number: bool(number >= 0))
NOT_EMPTY = Constraint("not empty", lambda text: bool(text))
A_LINE = Constraint("not empty, on one line", lambda text: text.splitlines() == [text])
NONE_EMPTY = Constraint("a list without empty texts", lambda texts: all(texts))


def read(kind: Any, given: Given, must: Constraint | None = None) -> Any:
    """The value as a field of type `kind` holds it. Raises MismatchError."""
    required = without_none(kind)
    if given.value is None:
        if required is not kind:
            return None
        raise MismatchError(f"has no value; expected {describe(kind)}")
    try:
        value = _READERS[typing.get_origin(required) or required](required, given)
    except MismatchError:
        raise
    except ValueError:
        raise MismatchError(f"expected {describe(required)}, got {show(given.value)}") from None
    if must is not None and not must.holds(value):
        raise MismatchError(f"must be {must.text}, got {show(value)}")
    return value


def without_none(kind: Any) -> Any:
    """`int` for `int | None`; any other type as it is."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind
    (required,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    return required


def is_text(kind: Any) -> bool:
    """Whether a field of this type takes its value as typed."""
    required = without_none(kind)
    return required is str or typing.get_origin(required) is typing.Literal


def plain(value: Any) -> Any:
    """The value as YAML and JSON hold it; a copy where it could be changed."""
    if isinstance(value, Every | Span | Workers):
        return value.plain()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def describe(kind: Any) -> str:
    required = without_none(kind)
    if typing.get_origin(required) is typing.Literal:
        return f"one of {', '.join(typing.get_args(required))}"
    return _DESCRIPTIONS[typing.get_origin(required) or required]


def show(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[: _SHOWN_CHARACTERS - 3]}..."


def _read_int(_: Any, given: Given) -> int:
    if isinstance(given.value, int) and not isinstance(given.value, bool):
        return given.value
    raise ValueError


def _read_float(_: Any, given: Given) -> float:
    if not isinstance(given.value, int | float) or isinstance(given.value, bool):
        raise ValueError
    try:
        number = float(given.value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise MismatchError(f"must be finite, got {show(given.value)}")
    return number


def _read_bool(_: Any, given: Given) -> bool:
    if isinstance(given.value, bool):
        return given.value
    raise ValueError


def _read_text(_: Any, given: Given) -> str:
    if isinstance(given.text, str):
        return given.text
    if isinstance(given.value, str):
        return given.value
    if isinstance(given.value, int | float):  # an interpolation into text, such as ${run.seed}
        return show(given.value)
    raise ValueError


def _read_literal(kind: Any, given: Given) -> str:
    text = _read_text(kind, given)
    if text in typing.get_args(kind):
        return text
    raise MismatchError(f"expected {describe(kind)}, got {show(text)}")


def _read_texts(kind: Any, given: Given) -> tuple[str, ...]:
    if not isinstance(given.value, list | tuple):
        raise ValueError
    typed = given.text if isinstance(given.text, list) else [None] * len(given.value)
    return tuple(_read_text(kind, Given(value, text)) for value, text in zip(given.value, typed, strict=True))


def _read_mapping(_: Any, given: Given) -> dict[str, Any]:
    if not isinstance(given.value, dict):
        raise ValueError
    _require_yaml(given.value, ())
    return given.value


def _require_yaml(value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise MismatchError(f"the key {'.'.join((*path, show(key)))} is not text; put it in quotes")
            _require_yaml(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_yaml(item, (*path, str(index)))
    elif value is not None and type(value) not in (bool, int, float, str):
        raise MismatchError(
            f"{'.'.join(path)} is of type {type(value).__name__}; "
            "values are text, numbers, true, false, null, lists and mappings"
        )


def _read_every(_: Any, given: Given) -> Every:
    return given.value if isinstance(given.value, Every) else Every.parse(given.value)


def _read_span(_: Any, given: Given) -> Span:
    return given.value if isinstance(given.value, Span) else Span.parse(given.value)


def _read_workers(_: Any, given: Given) -> Workers:
    return given.value if isinstance(given.value, Workers) else Workers.parse(given.value)


_READERS: dict[Any, Callable[[Any, Given], Any]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_text,
    typing.Literal: _read_literal,
    tuple: _read_texts,
    dict: _read_mapping,
    Every: _read_every,
    Span: _read_span,
    Workers: _read_workers,
}

_DESCRIPTIONS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of texts such as [a, b]",
    dict: "a mapping such as {key: value}",
    Every: "a number of steps such as 20 or of seconds such as 30s",
    Span: "a number of steps such as 20 or of epochs such as 5epochs, at least 1",
    Workers: "a number of workers such as 4, at least 1, or a range such as {min: 2, max: 4}",
}
