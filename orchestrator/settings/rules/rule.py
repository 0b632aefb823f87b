"""A rule between the values of several keys, and a sentence that more than one needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """What values of several keys must be together. `broken` gets them in this order; the first is the one to blame."""

    keys: tuple[str, ...]
    broken: Callable[..., str | None]


@dataclass(frozen=True)
class Idle(Rule):
    """A setting that others leave without effect. That harms no run: it is looked for where somebody describes one, and not
    where the settings come from a record, which has to be repeated as it is, nor in a rung of a sweep, which is shorter than
    its runs are. switches: those of the keys that may be given by a later source than all others and leave these behind, as
    where the command line shortens the run of a file."""

    switches: tuple[str, ...] = ()


def two_lengths(section: str | None) -> str:
    return f"{section}.steps and {section}.epochs: only one can be set"
