"""The space of a search: settings by their keys, each with a range or with choices. Pure.

    space:
      optimizer.lr: {low: 1e-4, high: 1e-1, log: true}
      data.batch_size: {low: 32, high: 128, step: 32}
      topology.name: {choices: [ring, tree]}

A point of the space gives each key one value. Values are exact: a stepped range has those that decimal arithmetic gives, such
as 0.3 and not 0.30000000000000004, whatever a search computes with.

It knows neither which keys there are nor what a setting accepts (`sweeps.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_EXACT = 1 << 53  # up to here floating-point numbers hold every whole one
_MOST = 1_000_000  # values of a range with steps that are no whole numbers
Point = dict[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included: whole ones or any, on a logarithmic scale or in steps. Raises ValueError."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        if self.log and self.step is not None:
            raise ValueError("log and step: only one can be set")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, not {self.low}")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be greater than 0, got {self.step}")
        if not _is_finite(self.high) or not _is_finite(self.low) or not _is_finite(self.high - self.low):
            raise ValueError(f"from {self.low} to {self.high} is farther than floating-point numbers reach")
        if self.step is not None and (Fraction(str(self.high)) - Fraction(str(self.low))) % Fraction(str(self.step)):
            raise ValueError(f"steps of {self.step} from {self.low} do not reach {self.high}")
        if not self.whole and self.count is not None and self.count > _MOST:  # Optuna tells no more of them apart
            raise ValueError(f"from {self.low} to {self.high} there are {self.count} steps; leave step out")

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        given = (self.low, self.high, *(() if self.step is None else (self.step,)))
        return all(isinstance(number, int) for number in given)

    @property
    def count(self) -> int | None:
        """How many values there are; None where there is no end of them."""
        if not self.whole and self.step is None:
            return 1 if self.low == self.high else None
        return int((Fraction(str(self.high)) - Fraction(str(self.low))) / self._spacing) + 1

    def values(self) -> list[Any] | None:
        """All of them in order; None where there is no end of them."""
        return None if self.count is None else [self._nth(number) for number in range(self.count)]

    @property
    def _spacing(self) -> Fraction:
        return Fraction(str(self.step or 1))

    def _nth(self, number: int) -> Any:
        """A value of those that are counted, of which there may be too many for a list."""
        if not self.whole and self.step is None:
            return self.low
        return (int if self.whole else float)(Fraction(str(self.low)) + number * self._spacing)

    def at(self, share: float) -> Any:
        """The value below which this share of the range lies. share: from 0 to below 1."""
        if self.log:
            margin = 0.5 if self.whole else 0.0  # so that the whole numbers at both ends get as much as the others
            low, high = math.log(self.low - margin), math.log(self.high + margin)
            return self.snap(math.exp(low + share * (high - low)))
        if self.count is not None:
            exact = Fraction(share) if self.count > _EXACT else share
            return self._nth(int(exact * self.count))
        return self.snap(self.low + share * (self.high - self.low))

    def snap(self, value: float) -> Any:
        """The value of the range that is nearest."""
        inside = min(max(value, self.low), self.high)
        if self.whole and self.step is None:
            return round(inside)
        if self.count is None:
            return float(inside)
        below = int((Fraction(inside) - Fraction(str(self.low))) / self._spacing)
        near = range(max(below - 1, 0), min(below + 3, self.count))
        return min(map(self._nth, near), key=lambda each: abs(each - inside))

    def holds(self, value: Any) -> bool:
        number = isinstance(value, int if self.whole else float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and self.snap(value) == value

    @property
    def ends(self) -> tuple[Any, ...]:
        kind = int if self.whole else float
        return (kind(self.low), kind(self.high))

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(zip(("low", "high"), self.ends, strict=True))
        if self.step is not None:
            found["step"] = self.step
        return {**found, "log": True} if self.log else found


@dataclass(frozen=True)
class Choice:
    """One of some values: text, numbers, true, false, null. Raises ValueError."""

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("choices is empty")
        for number, value in enumerate(self.choices):
            if value is not None and not isinstance(value, bool | int | float | str):
                raise ValueError(f"choices are text, numbers, true, false and null, not {value!r}")
            if value != value:
                raise ValueError("choices are told apart, and nan is equal to nothing")
            if any(type(value) is type(other) and value == other for other in self.choices[:number]):
                raise ValueError(f"{value!r} stands twice in choices")

    @property
    def count(self) -> int:
        return len(self.choices)

    def values(self) -> list[Any]:
        return list(self.choices)

    def at(self, share: float) -> Any:
        return self.choices[int(share * len(self.choices))]

    def holds(self, value: Any) -> bool:
        return any(type(value) is type(other) and value == other for other in self.choices)

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.choices

    def as_dict(self) -> dict[str, Any]:
        return {"choices": list(self.choices)}


def _is_finite(number: float) -> bool:
    """Also of a whole number that no floating-point number reaches."""
    return abs(number) <= sys.float_info.max


Dimension = Range | Choice
Space = Mapping[str, Dimension]  # in the order in which it was declared


def problem_of(space: Space, point: Any) -> str | None:
    """Why this is no point of the space, as a predicate; None where it is one."""
    if not isinstance(point, Mapping) or set(point) != set(space):
        return f"gives {point!r}, where each of {', '.join(space)} needs a value"
    return next(
        (
            f"gives {key} the value {point[key]!r}, which is not in {space[key].as_dict()}"
            for key in space
            if not space[key].holds(point[key])
        ),
        None,
    )


def corners(space: Space) -> Iterator[Point]:
    """Points that show each end of each range and each choice at least once, the others at their first."""
    first = {key: dimension.ends[0] for key, dimension in space.items()}
    yield first
    for key, dimension in space.items():
        yield from ({**first, key: value} for value in dimension.ends[1:])
