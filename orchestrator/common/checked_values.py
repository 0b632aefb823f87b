"""One value of a setting: what each type accepts, what else it must be, and the sentence when it is not.

A value arrives twice, as YAML understands it and as it was typed, so that text stays what was typed: `1e3`, `012` and
`true` are good names of a run. The types are int, float, bool, str, a Literal, tuple[str, ...], dict[str, Any], Every, Span,
Steps and Workers, each also `| None`, and `Annotated` with bounds: a `Must`, or those of pydantic's `Field` (`ge`, `gt`, `le`,
`lt`, `min_length`). Pydantic checks, strictly; the sentences are ours.

It knows no keys, sources or defaults.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from orchestrator.common.values import Every, Notation, Sites, Span, Steps, Workers

_SHOWN_CHARACTERS = 80


class MismatchError(ValueError):
    """A value that its field cannot take; the message goes behind the key."""


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


POSITIVE = Field(gt=0)
NOT_NEGATIVE = Field(ge=0)
NOT_EMPTY = Field(min_length=1)
GIGABYTES = Field(gt=0, le=10**9)  # up to an exabyte; bytes are counted in whole numbers
A_LINE = Must("not empty, on one line", lambda text: text.splitlines() == [text])
NONE_EMPTY = Must("a list without empty texts", lambda texts: all(texts))


def at_least(least: int) -> Any:
    return Field(ge=least)


def between(least: int, most: int) -> Any:
    return Field(ge=least, le=most)


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
        raise MismatchError(f"must be {must(kind)}, got {show(float(value) if required is float else value)}")
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
    Sites: "the shards of each site such as {hospital_a: [0, 1], hospital_b: [2]}, a shard at one at most",
    Workers: "a number of workers such as 4, at least 1, or a range such as {min: 2, max: 4}",
}
