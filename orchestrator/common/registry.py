"""A table of variants: what can stand behind one key of the settings, `topology=ring`, and what each of them takes.

    TOPOLOGIES = Table("topology", {"ring": ring, "tree": tree})
    TOPOLOGIES["tree"](7, arity=3)

An entry is a callable. Its first parameter is what a run gives it (the number of workers, the moment, the parameters of the
model); each further one is an option, whose annotation says what it must be and what it is:

    def tree(workers: int, *, arity: Annotated[int, Field(ge=1, description="Children of a node.")] = 2) -> Schedule:

So adding one is a function and a line: settings, documentation, messages and laws read the options from here. The first
sentence of its docstring says to users what it does (`help=topology`, `docs/settings.md`). Behind the key can also stand
`package.module:name`, a callable of the same form in the user's project. An entry of several functions is a class whose
instances have them as methods.

It does not know what entries are for.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar

from pydantic.fields import FieldInfo

from orchestrator.common.checked_values import Given, MismatchError, is_known, read
from orchestrator.common.import_string import find, raised
from orchestrator.errors import ConfigurationError, code_of, coded

Entry = TypeVar("Entry", bound=Callable[..., Any])
Problem = tuple[str, str]  # the option, or "name", and the sentence behind the key


@dataclass(frozen=True)
class Variant:
    """An entry of a table by its name, with the options that it is built with."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Option:
    """An option that a variant of a table takes. kind: its type, with bounds; Any where it is none of the settings'. default:
    `REQUIRED` where it has none."""

    name: str
    kind: Any
    doc: str
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


REQUIRED = inspect.Parameter.empty


class Table(dict[str, Entry]):
    """Name -> entry; `table["package.module:name"]` imports one.

    given: how many of an entry's parameters come from the run; hidden: those after them that are no options either."""

    def __init__(self, key: str, entries: Mapping[str, Entry], given: int = 1, hidden: Iterable[str] = ()) -> None:
        super().__init__(entries)
        self.key = key
        self.given = given
        self.hidden = tuple(hidden)

    def __missing__(self, name: str) -> Entry:
        """Raises ConfigurationError."""
        if not is_reference(name):
            raise ConfigurationError(self._named([("name", self._not_on_offer(name))]))
        found: Entry = find(self.key, name, self.key, callable)
        if not callable(found):
            raise ConfigurationError(
                [f"{self.key}: {name} is of type {type(found).__name__}; it must be a function or a class"],
                code="settings.variant-type",
            )
        takes = _most_positional(found)
        if takes < self.given:
            number = {1: "one parameter"}.get(self.given, f"{self.given} parameters")
            raise ConfigurationError(
                [f"{self.key}: {name} takes {takes} positional arguments, and {number} of it come from the run"],
                "docs/extending.md says what it is given",
                code="settings.variant-takes",
            )
        return found

    def options(self, name: str) -> dict[str, Option]:
        """The options of an entry. Raises ConfigurationError."""
        return {
            option.name: option for option in _parameters(self[name])[self.given :] if option.name not in self.hidden
        }

    def sentences(self) -> dict[str, str]:
        """A line for each of the table's own entries that says what it does: the first sentence of its docstring."""
        return {name: _first_sentence(inspect.getdoc(entry) or "") for name, entry in self.items()}

    def known_options(self) -> dict[str, dict[str, Option]]:
        """Every option of the table's own entries: option -> entry -> how it takes it."""
        found: dict[str, dict[str, Option]] = {}
        for name in self:
            for option in self.options(name).values():
                found.setdefault(option.name, {})[name] = option
        return found

    def read(self, name: str, given: Mapping[str, Given]) -> tuple[dict[str, Any], list[Problem]]:
        """The values of the options that are given, as the entry takes them, and everything that is wrong.

        Nothing (null) leaves an option to the entry, unless it takes that as a value. Raises ConfigurationError as `options`.
        """
        if name not in self and not is_reference(name):
            return {}, [("name", self._not_on_offer(name))]
        options = self.options(name)
        values: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, each in given.items():
            option = options.get(key)
            if option is None:
                if each.value is not None or key not in self.known_options():
                    problems.append((key, coded("settings.no-such-option", self._no_such_option(name, key))))
                continue
            if each.value is None and option.default is None:
                continue
            try:
                values[key] = each.value if option.kind is Any else read(option.kind, each)
            except MismatchError as mismatch:
                if each.value is not None:
                    problems.append((key, coded("settings.value", str(mismatch))))
        problems += [
            (option.name, coded("settings.option-required", f"required by {self.key}={name}"))
            for option in options.values()
            if option.is_required and (option.name not in given or given[option.name].value is None)
        ]
        return values, problems

    def problems(self, name: str, options: Mapping[str, Any]) -> list[str]:
        """The faults that `read` finds in values, a sentence each, and the reason if an entry cannot be found."""
        try:
            found = self.read(name, {key: Given(value) for key, value in options.items()})[1]
        except ConfigurationError as error:
            return error.with_remedy()
        return self._named(found)

    def resolve(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options of an entry: those that are given, as it takes them, over its defaults. Raises ConfigurationError."""
        values, problems = self.read(name, {key: Given(value) for key, value in options.items()})
        if problems:
            raise ConfigurationError(self._named(problems))
        return {option.name: option.default for option in self.options(name).values()} | values

    def build(self, name: str, options: Mapping[str, Any]) -> Entry:
        """An entry that has all its options and wants only what a run gives it. Raises ConfigurationError."""
        return typing.cast("Entry", functools.partial(self[name], **self.resolve(name, options)))

    def judge(self, named: str, law: Callable[[], str | None]) -> list[str]:
        """The fault of an entry of the user's project: at most one sentence, or what it refuses itself. named: its name, and
        what it was tried with; law: which law it breaks, as a predicate, None where it keeps to all."""
        try:
            broken = law()
        except ConfigurationError as error:
            return error.with_remedy()
        except Exception as error:
            broken = raised(error)
        return [] if broken is None else [coded("settings.variant-breaks-law", f"{self.key}: {named} {broken}")]

    def _named(self, problems: Sequence[Problem]) -> list[str]:
        return [coded(code_of(sentence), f"{self.key}.{option}: {sentence}") for option, sentence in problems]

    def _not_on_offer(self, name: str) -> str:
        near = difflib.get_close_matches(name, self, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        there = f"there are {', '.join(self)}, or your own as package.module:name"
        return coded("settings.no-such-variant", f"{name!r} is not on offer{hint} ({there})")

    def _no_such_option(self, name: str, key: str) -> str:
        options = list(self.options(name))
        near = difflib.get_close_matches(key, options, n=1)
        if near:
            return f"{name} has no {key}; did you mean {near[0]}?"
        others = list(self.known_options().get(key, ()))
        if 0 < len(others) <= _FEW:
            return f"{name} has no {key}; {' and '.join(others)} {'have' if others[1:] else 'has'}"
        return f"{name} has no {key}; it has {', '.join(options) or 'no options'}"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


_FEW = 3  # entries that are named because they have an option


def is_reference(name: str) -> bool:
    return ":" in name


def takes(function: Any, *arguments: Any) -> bool:
    """Whether it can be called with these arguments, as far as Python knows its parameters."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # it has none that Python knows
        return True
    return True


def _most_positional(function: Callable[..., Any]) -> float:
    """How many positional arguments it takes, as far as Python knows its parameters."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    except ValueError:
        return math.inf
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return math.inf
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


@functools.cache
def _parameters(entry: Callable[..., Any]) -> tuple[Option, ...]:
    hints = _hints(entry)
    return tuple(
        _option(parameter, hints.get(parameter.name, Any))
        for parameter in inspect.signature(entry).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )


def _option(parameter: inspect.Parameter, hint: Any) -> Option:
    notes = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    docs = [note.description for note in notes if isinstance(note, FieldInfo) and note.description]
    return Option(parameter.name, hint if is_known(hint) else Any, "".join(docs[:1]), parameter.default)


def _hints(entry: Callable[..., Any]) -> dict[str, Any]:
    """Its annotations, each read by itself: one that names what only a type checker imports leaves the others known."""
    function = inspect.unwrap(entry.__init__ if inspect.isclass(entry) else entry)
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = SimpleNamespace(__annotations__={name: annotation}, __globals__=getattr(function, "__globals__", {}))
        with suppress(NameError, TypeError, AttributeError, SyntaxError):
            found |= typing.get_type_hints(alone, include_extras=True)
    return found
