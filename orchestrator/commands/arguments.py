"""What a verb of the command line is, what was typed beside it, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import Interrupted, OrchestratorError, UsageError

_OUTPUT = ("output=json", "output=text")


@dataclass(frozen=True)
class Arguments:
    """value: of the verb, "digits" of conf=digits; rest: the other arguments, as given; started: the time of the command."""

    value: str
    rest: tuple[str, ...]
    started: float

    @property
    def as_json(self) -> bool:
        return "output=json" in self.rest

    def get(self, key: str) -> str | None:
        """The last value given to a key; None where there is none, or it is empty."""
        given = [each.partition("=")[2] for each in self.rest if each.partition("=")[0] == key]
        return (given[-1] if given else None) or None

    def choice(self, key: str, first: str, other: str) -> str:
        """The value of a key, `first` where it is not given. Raises UsageError."""
        found = self.get(key) or first
        if found not in (first, other):
            raise UsageError(f"{key}={found}: it is {first} or {other}")
        return found

    def without(self, *keys: str) -> list[str]:
        """What is left for the settings."""
        return [each for each in self.rest if each.partition("=")[0] not in keys]

    def only(self, verb: str, *keys: str, output: bool = True) -> None:
        """Raises UsageError for what a verb that changes no settings does not take."""
        unknown = [each for each in self.without(*keys) if not (output and each in _OUTPUT)]
        if unknown:
            takes = [*(["output=json"] if output else []), *(f"{key}={_FORMS.get(key, key.upper())}" for key in keys)]
            raise UsageError(f"{verb} takes only {_listed(takes)}, not {' '.join(unknown)}")


_FORMS = {
    "tracking.uri": "URI",
    "port": "N",
    "parameter": "NAME",
    "first": "N",
    "count": "N",
    "to": "PATH",
    "key": "PATH",
    "data": "true",
    "wheels": "FOLDER",
    "license": "URL",
}


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "nothing else"


@dataclass(frozen=True)
class Answer:
    """code: of the exit; stdout: what is written there, None for nothing."""

    code: int = 0
    stdout: str | None = None


def nothing(given: Arguments) -> dict[str, Any]:  # noqa: ARG001
    """The JSON object of a verb that has none of its own."""
    return {}


@dataclass(frozen=True)
class Verb:
    """One thing that the command line does.

    forms: the lines of the usage; about: (what is typed, what it means); run: does it, and raises OrchestratorError for what
    it refuses; refused: the JSON object then, to which the error is added; with_conf: whether it stands beside conf=; speaks:
    whether it writes to stdout while it runs, where others keep it for their answer.
    """

    forms: tuple[str, ...]
    about: tuple[tuple[str, str], ...]
    run: Callable[[Arguments], Answer]
    refused: Callable[[Arguments], Mapping[str, Any]] = nothing
    with_conf: bool = False
    speaks: bool = False


def refusal(error: OrchestratorError, report: Mapping[str, Any]) -> str:
    """The JSON object of a verb that came to nothing."""
    told = error.as_dict()
    kept = {key: told[key] for key in ("kind", "message", "remedy")}
    status = "killed" if isinstance(error, Interrupted) else "failed"
    return json.dumps({**report, **error.more, "status": status, "error": kept})
