"""Values of settings that have a notation of their own, such as `20`, `30s`, `1epoch` or `{min: 2, max: 4}`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic_core import CoreSchema, core_schema

_COUNTED = re.compile(r"([0-9]+)(epochs?)?")
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)s")


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
        if isinstance(value, str) and (seconds := _SECONDS.fullmatch(value)):
            return cls(seconds=float(seconds[1]))
        if counted := _counted(value):
            return cls(**counted)
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
        if counted := _counted(value):
            return cls(**counted)
        raise ValueError(f"not a number of steps or epochs: {value!r}")

    def in_steps(self, epoch: int) -> int:
        """This span as a number of steps. epoch: the steps of one."""
        return self.steps if self.steps is not None else (self.epochs or 0) * epoch

    def plain(self) -> int | str:
        """The form that `parse` reads as this value: 20, "1epoch" or "5epochs"."""
        return self.steps if self.steps is not None else f"{self.epochs}epoch{'s' * (self.epochs != 1)}"


def _counted(value: object) -> dict[str, int]:
    """{"steps": 20} of `20` or `"20"`, {"epochs": 5} of `"5epochs"`; empty for all else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"steps": value}
    counted = _COUNTED.fullmatch(value) if isinstance(value, str) else None
    return {} if counted is None else {"epochs" if counted[2] else "steps": int(counted[1])}


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
