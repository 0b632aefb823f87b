"""The space as a file declares it, read and checked: all problems at once, each with its place."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from orchestrator.common.checked_values import Given, MismatchError, read, show
from orchestrator.config.settings.schema import locate, shorthand
from orchestrator.errors import coded
from orchestrator.experiments.search.space import Choice, Dimension, Range, Space

_PARTS = ("low", "high", "step", "log", "choices")


def read_own(
    own: Mapping[str, tuple[Any, Any, str, str]], given: Mapping[tuple[str, ...], Given]
) -> tuple[dict[str, Any], list[str], list[tuple[str, ...]]]:
    """The values of the keys of a table (type, default, what it is, what it determines), what is wrong with them, and the paths
    that are none of its keys."""
    values = {key: default for key, (_, default, _, _) in own.items()}
    problems: list[str] = []
    others: list[tuple[str, ...]] = []
    for path, each in given.items():
        key = ".".join(path)
        if key not in own:
            others.append(path)
            continue
        try:
            values[key] = read(own[key][0], each)
        except MismatchError as mismatch:
            problem = coded("settings.value", str(mismatch))
            problems.append(coded(problem.code, f"{each.where}: {key}: {problem}"))
    return values, problems, others


def read_space(leaves: Mapping[tuple[str, ...], Given]) -> tuple[Space, dict[str, str], list[str]]:
    """The space, where each of its keys was given, and what is wrong with it."""
    parts: dict[str, dict[str, Given]] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for path, given in leaves.items():
        key, part = ".".join(path[:-1]), path[-1] if path else ""
        if isinstance(given.value, list) and part != "choices":  # a list is short for choices
            key, part = ".".join(path), "choices"
        if not key or part not in _PARTS:
            near = difflib.get_close_matches(part, _PARTS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(
                coded(
                    "sweep.range",
                    f"{given.where}: {'.'.join(('space', *path))}: expected a range such as "
                    f"{{low: 0.001, high: 0.1, log: true}}, or {{choices: [...]}}{hint}",
                )
            )
            continue
        if part == "choices":
            parts[key] = {}  # a later source has the last word
        parts.setdefault(key, {})[part] = given
        places[key] = given.where
    space: dict[str, Dimension] = {}
    for key, given_parts in parts.items():
        try:
            space[key] = _dimension(given_parts)
        except ValueError as error:
            problems.append(coded("sweep.dimension", f"{places[key]}: space.{key}: {error}"))
        problems += _unsearchable(key, places[key])
    if not parts and not problems:
        problems.append(
            coded(
                "sweep.space-required",
                "space: required; it names the settings to search, each with a range or with choices",
            )
        )
    return space, places, problems


def _dimension(parts: Mapping[str, Given]) -> Dimension:
    """Raises ValueError."""
    if "choices" in parts:
        if len(parts) > 1:
            raise ValueError(f"choices stand alone, without {', '.join(part for part in parts if part != 'choices')}")
        given = parts["choices"].value
        if not isinstance(given, list):
            raise ValueError(f"choices: expected a list, got {show(given)}")
        return Choice(tuple(given))
    for end in ("low", "high"):
        if end not in parts:
            raise ValueError(f"{end} is missing")
    numbers: dict[str, Any] = {name: parts[name].value for name in ("low", "high", "step") if name in parts}
    for name, value in numbers.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != value
            or abs(value) == float("inf")
        ):
            raise ValueError(f"{name}: expected a number, got {show(value)}")
    log = parts["log"].value if "log" in parts else False
    if not isinstance(log, bool):
        raise ValueError(f"log: expected true or false, got {show(log)}")
    if not all(isinstance(value, int) for value in numbers.values()):
        numbers = {name: float(value) for name, value in numbers.items()}
    return Range(**numbers, log=log)


def _unsearchable(key: str, where: str) -> list[str]:
    """A key that does not determine the result is nothing to search for."""
    located = locate(shorthand(tuple(key.split("."))))
    if located is None or located[0].about.determines == "result":
        return []
    return [
        coded(
            "sweep.execution-key",
            f"{where}: space.{key}: it changes how a run is executed and not what comes out; leave it out",
        )
    ]
