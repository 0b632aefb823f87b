"""How far a member is in a run, and what it is doing: values that members, the controller and the driver share.

Progress is ordered by the functions of this module alone, which is why it has no `<`. In lockstep there is one clock, so
of any two members one has reached the other; with several clocks that need not be so. None is the progress of a member that
has only the initial state, which each builds by itself. Every member has reached it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Activity = Literal[
    "prepare", "admission", "compute", "exchange", "update", "evaluate", "checkpoint", "state_transfer", "idle"
]


@dataclass(frozen=True)
class Progress:
    """How far a member is."""

    steps: int  # committed
    # no evaluation is due after the last step, and the step is reported. A digest of a model in stages, which all members make
    # together, is part of the report
    evaluated: bool = True
    barriers: int | None = None  # sync barriers so far, of replicas that run free in between; None in lockstep


def just_committed(steps: int) -> Progress:
    """The least progress of who has committed so many steps."""
    return Progress(steps, evaluated=False)


def steps_of(progress: Progress | None) -> int:
    """The committed steps."""
    return 0 if progress is None else progress.steps


def advances_of(progress: Progress | None) -> int:
    """How often all replicas have gone from one boundary to the next."""
    if progress is None:
        return 0
    return progress.steps if progress.barriers is None else progress.barriers


def reached(one: Progress | None, other: Progress | None) -> bool:
    """Whether `one` is at least as far as `other`."""
    if one is None or other is None:
        return other is None
    return _order(one) >= _order(other)


def passed(one: Progress | None, other: Progress | None) -> bool:
    """Whether `one` is farther than `other`."""
    return one != other and reached(one, other)


def latest(progresses: Iterable[Progress | None]) -> Progress | None:
    """The one that has reached all others; None where all have the initial state."""
    found: Progress | None = None
    for progress in progresses:
        found = progress if reached(progress, found) else found
    return found


def behind(one: Progress | None, other: Progress | None) -> int:
    """How many advances `other` has made beyond those of `one`; negative where it has made fewer."""
    return advances_of(other) - advances_of(one)


def in_words(progress: Progress | None) -> str:
    """To follow a command."""
    if progress is None:
        return "with the initial state"
    steps = f"after {progress.steps} step{'s' * (progress.steps != 1)}"
    return steps if progress.evaluated else f"{steps}, before the evaluation"


def _order(progress: Progress) -> tuple[int, int, bool]:
    return progress.steps, progress.barriers or 0, progress.evaluated
