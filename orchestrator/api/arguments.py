"""Checks of what a caller gives to the functions of the Python entry: they name the parameter whose value has a wrong type.

Unchecked, an id that is a number would stand for a run whose id begins with it, and `trust="false"` would count as true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.errors import UsageError


def require(name: str, given: object, *types: type, optional: bool = False) -> None:
    """Raises UsageError where the value is of none of these types. optional: None will do, too."""
    if given is None and optional:
        return
    if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
        expected = " or ".join([*(each.__name__ for each in types), *(["None"] if optional else [])])
        raise UsageError(f"{name} is {given!r}: expected {expected}", code="command.argument")


def require_number(name: str, given: object, least: int) -> None:
    """Raises UsageError for anything but a whole number of at least so much."""
    require(name, given, int)
    if isinstance(given, int) and given < least:
        raise UsageError(f"{name} is {given}: expected at least {least}", code="command.argument-value")


def require_texts(name: str, given: Iterable[object]) -> None:
    """Raises UsageError for anything but a list of texts; one text is none, as it would be read letter by letter."""
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"{name} is {given!r}: expected a list of texts", code="command.argument-list")


def require_one_of(name: str, given: object, *values: str) -> None:
    """Raises UsageError for another value."""
    if given not in values:
        raise UsageError(
            f"{name} is {given!r}: expected {' or '.join(map(repr, values))}", code="command.argument-choice"
        )


def require_overrides(overrides: Sequence[object]) -> None:
    """Raises UsageError for an override that is no text."""
    for each in overrides:
        if not isinstance(each, str):
            raise UsageError(
                f"an override is a text, and {each!r} is none",
                'write each as "key=value", such as "run.steps=5"; a configuration may be a mapping as a whole',
                code="command.override",
            )


def require_callable(name: str, given: object) -> None:
    """Raises UsageError for what cannot be called."""
    if not callable(given):
        raise UsageError(f"{name} is {given!r}: expected a function", code="command.argument-function")
