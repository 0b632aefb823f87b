"""One value: what each type of setting accepts, what else it must be, and the sentence when it is not.

A value arrives twice, as YAML understands it and as it was typed, so that text stays what was typed: `1e3`, `012` and
`true` are good names of a run. The types are int, float, bool, str, a Literal, tuple[str, ...], dict[str, Any], Every, Span,
Steps and Workers, each also `| None`, and `Annotated` with bounds: a `Must`, or those of pydantic's `Field` (`ge`, `gt`, `le`,
`lt`, `min_length`). Pydantic checks, strictly; the sentences are ours.

It knows no keys, sources or defaults.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_STEPS = re.compile(r"[0-9]+")
_EPOCHS = re.compile(r"([0-9]+)epochs?")
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)s")
_SHOWN_CHARACTERS = 80


class MismatchError(ValueError):
    """A value that its field cannot take; the message goes behind the key."""


class Notation:
    """A value with a notation of its own."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """From what `plain` gives. Raises ValueError."""
        raise NotImplementedError

    def plain(self) -> Any:
        """The form that `parse` reads as this value."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.plain())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value)
        )


@dataclass(frozen=True, kw_only=True)
class Every(Notation):
    """How often: every so many steps, epochs or seconds; exactly one is set."""

    steps: int | None = None
    seconds: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        given = {"steps": self.steps, "seconds": self.seconds, "epochs": self.epochs}
        if list(given.values()).count(None) != 2:
            raise ValueError(f"expected steps, epochs or seconds, got {given}")
        for name, number in (("steps", self.steps), ("epochs", self.epochs)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be greater than 0 and finite, got {self.seconds}")

    @classmethod
    def parse(cls, value: object) -> Every:
        """From `20` or `"20"` (steps), `"1epoch"`, `"5epochs"`, or `"30s"` (seconds). Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(steps=value)
        if isinstance(value, str) and _STEPS.fullmatch(value):
            return cls(steps=int(value))
        if isinstance(value, str) and (seconds := _SECONDS.fullmatch(value)):
            return cls(seconds=float(seconds[1]))
        if isinstance(value, str) and (epochs := _EPOCHS.fullmatch(value)):
            return cls(epochs=int(epochs[1]))
        raise ValueError(f"not a number of steps, epochs or seconds: {value!r}")

    def in_steps(self, epoch: int) -> int | None:
        """None of seconds. epoch: the steps of one."""
        return self.steps if self.epochs is None else self.epochs * epoch

    def plain(self) -> int | str:
        """The form that `parse` reads as this value: 20, "1epoch" or "30s"."""
        if self.epochs is not None:
            return Span(epochs=self.epochs).plain()
        return self.steps if self.steps is not None else f"{self.seconds!r}".removesuffix(".0") + "s"


@dataclass(frozen=True, kw_only=True)
class Span(Notation):
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

    def plain(self) -> int | str:
        """The form that `parse` reads as this value: 20, "1epoch" or "5epochs"."""
        return self.steps if self.steps is not None else f"{self.epochs}epoch{'s' * (self.epochs != 1)}"


@dataclass(frozen=True)
class Steps(Notation):
    """A whole number for each step. changes: (first step, value), from step 0 on, in order; values are at least 1."""

    changes: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        firsts, values = [first for first, _ in self.changes], [value for _, value in self.changes]
        if firsts[:1] != [0] or firsts != sorted(set(firsts)) or min(values) < 1:
            raise ValueError(f"expected values of at least 1 from step 0 on, in the order of steps, got {self.changes}")

    @classmethod
    def constant(cls, value: int) -> Self:
        return cls(((0, value),))

    @classmethod
    def parse(cls, value: object) -> Self:
        """From `64`, or `{0: 64, 400: 256}`: another value from these steps on. Raises ValueError."""
        given = value if isinstance(value, dict) else {0: value}
        changes = [(step, number) for step, number in given.items() if type(step) is type(number) is int]
        if len(changes) != len(given):
            raise ValueError(f"not a whole number for each step: {value!r}")
        return cls(tuple(sorted(changes)))

    def plain(self) -> int | dict[int, int]:
        """The form that `parse` reads as this value: 64 or {0: 64, 400: 256}."""
        return self.changes[0][1] if self.is_constant else dict(self.changes)

    @property
    def is_constant(self) -> bool:
        return len(self.changes) == 1

    @property
    def least(self) -> int:
        return min(value for _, value in self.changes)

    def at(self, step: int) -> int:
        return next(value for first, value in reversed(self.changes) if first <= step)

    def intervals(self) -> Iterator[tuple[int, int | None, int]]:
        """(first step, end, value) of each stretch in which it is constant; the last one has no end."""
        firsts = [first for first, _ in self.changes]
        for (first, value), end in zip(self.changes, [*firsts[1:], None], strict=True):
            yield first, end, value


@dataclass(frozen=True, kw_only=True)
class Workers(Notation):
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

    def plain(self) -> int | dict[str, int]:
        """The form that `parse` reads as this value."""
        return self.most if (self.start, self.least) == (self.most, 1) else {"min": self.least, "max": self.most}


@dataclass(frozen=True)
class Sites(Notation):
    """Which shards are pinned to which site; a shard to one at most."""

    by_name: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, value: object) -> Self:
        """From `{hospital_a: [0, 1], hospital_b: [2]}`; `{}`: nowhere. Raises ValueError."""
        if not isinstance(value, dict) or not all(name and isinstance(name, str) for name in value):
            raise ValueError(f"not a list of shards for each site: {value!r}")
        given: dict[str, list[Any]] = {name: own if isinstance(own, list) else [] for name, own in value.items()}
        shards = [shard for own in given.values() for shard in own]
        if not all(given.values()) or not all(type(shard) is int and shard >= 0 for shard in shards):
            raise ValueError(f"not a list of shards for each site: {value!r}")
        if len(set(shards)) < len(shards):
            raise ValueError(f"a shard at two sites: {value!r}")
        return cls({name: tuple(sorted(own)) for name, own in given.items()})

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def plain(self) -> dict[str, list[int]]:
        """The form that `parse` reads as this value."""
        return {name: list(shards) for name, shards in self.by_name.items()}


@dataclass(frozen=True)
class Given:
    """A value as a source gave it: understood as YAML, and as typed (None where that is not known)."""

    value: Any
    text: Any = None
    where: str = ""


@dataclass(frozen=True)
class Must:
    """A condition on a value beyond its type, for which pydantic has no name. `text` completes "must be ..."."""

    text: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not self.holds(value):
            raise PydanticCustomError("must", "must be something else")
        return value


def matching(pattern: str, form: str) -> Must:
    return Must(f"of the form {form}", lambda text: re.fullmatch(pattern, text) is not None)


def speeds_of(texts: Iterable[str]) -> dict[str, float]:
    """The speeds in "ADDRESS=SPEED", by address. Raises ValueError."""
    return {address: float(speed) for address, _, speed in (text.strip().rpartition("=") for text in texts)}


def are_speeds(texts: Collection[str]) -> bool:
    try:
        found = speeds_of(texts)
    except ValueError:
        return False
    return len(found) == len(texts) and all(address and 0 < speed < math.inf for address, speed in found.items())


_LABEL = re.compile(r"([\w.-]+)(?:=(.+))?")


def labels_of(texts: Iterable[str]) -> dict[str, str | None]:
    """From NAME or NAME=VALUE each, in order; None where there is no value. Raises ValueError."""
    found: dict[str, str | None] = {}
    for text in texts:
        label = _LABEL.fullmatch(text)
        if label is None or label[1] in found:
            raise ValueError(f"no label, or one of a name that stands before: {text!r}")
        found[label[1]] = label[2]
    return found


def are_labels(texts: Collection[str]) -> bool:
    try:
        labels_of(texts)
    except ValueError:
        return False
    return True


POSITIVE = Field(gt=0)
NOT_NEGATIVE = Field(ge=0)
NOT_EMPTY = Field(min_length=1)
A_LINE = Must("not empty, on one line", lambda text: text.splitlines() == [text])
NONE_EMPTY = Must("a list without empty texts", lambda texts: all(texts))


def at_least(least: int) -> Any:
    return Field(ge=least)


def read(kind: Any, given: Given) -> Any:
    """The value as a setting of type `kind` holds it. Raises MismatchError."""
    bare, bounds = unwrap(kind)
    required = without_none(bare)
    if given.value is None:
        if required is not bare:
            return None
        raise MismatchError(f"has no value; expected {describe(kind)}")
    value = _as_typed(required, given)
    try:
        return _adapter(required, bounds).validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    if found["type"] == "finite_number":
        raise MismatchError(f"must be finite, got {show(value)}")
    if found["type"] in _BOUNDS:
        raise MismatchError(f"must be {must(kind)}, got {show(_coerced(required, value))}")
    raise MismatchError(f"expected {describe(kind)}, got {show(value if is_text(required) else given.value)}")


@functools.cache
def unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """`int` and its bounds for `Annotated[int, Field(ge=1)]`."""
    if typing.get_origin(kind) is not Annotated:
        return kind, ()
    bare, *notes = typing.get_args(kind)
    bounds = [bound for note in notes for bound in (note.metadata if isinstance(note, FieldInfo) else [note])]
    return bare, tuple(bound for bound in bounds if _bound_text(bound))


def without_none(kind: Any) -> Any:
    """`int` for `int | None`; any other type as it is."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind
    required = [part for part in typing.get_args(kind) if part is not types.NoneType]
    return required[0] if len(required) == 1 else kind


@functools.cache
def is_text(kind: Any) -> bool:
    """Whether a setting of this type takes its value as typed."""
    required = without_none(unwrap(kind)[0])
    return required is str or typing.get_origin(required) is typing.Literal


def is_known(kind: Any) -> bool:
    """Whether this is a type of settings."""
    required = without_none(unwrap(kind)[0])
    if typing.get_origin(required) is tuple:
        return typing.get_args(required) == (str, ...)
    return typing.get_origin(required) is typing.Literal or (typing.get_origin(required) or required) in _DESCRIPTIONS


def plain(value: Any) -> Any:
    """The value as YAML and JSON hold it; a copy where it could be changed."""
    if isinstance(value, Notation):
        return value.plain()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def describe(kind: Any) -> str:
    required = without_none(unwrap(kind)[0])
    if typing.get_origin(required) is typing.Literal:
        return f"one of {', '.join(typing.get_args(required))}"
    return _DESCRIPTIONS[typing.get_origin(required) or required]


def must(kind: Any) -> str:
    """The demand of its bounds: "at least 1"; empty if there are none."""
    return " and ".join(_bound_text(bound) for bound in unwrap(kind)[1])


def megabytes(size_bytes: int) -> str:
    """A number of bytes for a person."""
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 10_000_000 else f"{size_bytes / 1e6:.1f} MB"


def sized(size_bytes: float) -> str:
    """The same in three digits, whatever the size."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= one:
            return f"{size_bytes / one:.3g} {unit}"
    return f"{size_bytes:.0f} bytes"


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> str:
    """Rows of cells as text in columns: the first so many begin at the left, the others end at the right. All begin at the
    left if no number is given."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        padded = (
            cell.ljust(width) if left is None or place < left else cell.rjust(width) for place, (cell, width) in cells
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def show(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[: _SHOWN_CHARACTERS - 3]}..."


@functools.cache
def _adapter(required: Any, bounds: tuple[Any, ...]) -> TypeAdapter[Any]:
    checks_itself = inspect.isclass(required) and issubclass(required, Notation)
    return TypeAdapter(Annotated[required, *bounds] if bounds else required, config=None if checks_itself else _STRICT)


def _bound_text(bound: Any) -> str:
    if isinstance(bound, Must):
        return bound.text
    if getattr(bound, "min_length", None) == 1:
        return "not empty"
    return next((f"{words} {getattr(bound, name)}" for name, words in _BOUND_WORDS.items() if hasattr(bound, name)), "")


def _as_typed(required: Any, given: Given) -> Any:
    """The value for pydantic to look at: text as typed, a tuple for a list. A value that is no number of its type in Python
    either stays."""
    if typing.get_origin(required) is tuple and isinstance(given.value, list | tuple):
        typed = given.text if isinstance(given.text, list) else [None] * len(given.value)
        return tuple(_as_typed(str, Given(value, text)) for value, text in zip(given.value, typed, strict=True))
    if typing.get_origin(required) is dict and isinstance(given.value, dict):
        _require_yaml(given.value, ())
    if not is_text(required):
        return given.value
    if isinstance(given.text, str):
        return given.text
    number = isinstance(given.value, int | float)  # an interpolation into text, such as ${run.seed}
    return show(given.value) if number else given.value


def _coerced(required: Any, value: Any) -> Any:
    return float(value) if required is float else value


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


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_BOUNDS = {
    "must",
    "greater_than_equal",
    "greater_than",
    "less_than_equal",
    "less_than",
    "string_too_short",
    "too_short",
}
_BOUND_WORDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
_DESCRIPTIONS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of texts such as [a, b]",
    dict: "a mapping such as {key: value}",
    Every: "a number of steps such as 20, of epochs such as 1epoch, or of seconds such as 30s",
    Span: "a number of steps such as 20 or of epochs such as 5epochs, at least 1",
    Steps: "a whole number such as 64, at least 1, or one from each of some steps on such as {0: 64, 400: 256}",
    Workers: "a number of workers such as 4, at least 1, or a range such as {min: 2, max: 4}",
}
