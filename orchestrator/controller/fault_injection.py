"""Which worker is disturbed when, for a user who rehearses a run's losses (`chaos`). Pure: the n-th disturbance is a function
of the seed and of n; whom it meets depends on who is there.

The only worker of a stage is never killed, for with it steps would be lost. Nobody is disturbed before all that the last
disturbance led to is over, as the run is not to be ended by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from orchestrator.controller.state import ControllerState, Member, present

Kind = Literal["kill", "pause"]
_EARLY: float = 0.25  # of the time between two
_LONGEST_S = 3.0  # of a pause


@dataclass(frozen=True)
class Fault:
    """A loss or a pause of a worker that the user asked for. number: from 0; at_s: after the first step; pick: by which one of
    several workers is chosen; pause_s: of a pause."""

    number: int
    at_s: float
    kind: Kind
    pick: int
    pause_s: float


def drawn_fault(seed: int, number: int, every_s: float, kinds: Sequence[Kind], step_timeout_s: float) -> Fault:
    """A pause ends well before the worker is taken for stuck."""
    dice = Random(f"chaos {seed} {number}")
    at_s = (number + 1 - _EARLY * dice.random()) * every_s
    kind = kinds[dice.randrange(len(kinds))]
    return Fault(number, at_s, kind, dice.getrandbits(32), dice.uniform(0.1, 1.0) * min(_LONGEST_S, step_timeout_s / 4))


def victim(wanted: Fault, state: ControllerState) -> Member | None:
    """The worker that it meets; None while there is none that may be disturbed."""
    if state.phase != "running" or state.recoveries or state.interrupted is not None:
        return None
    workers = [member for member in present(state) if member.role == "worker" and member.report is None]
    hosts = Counter(worker.stage for worker in workers)
    spared = wanted.kind == "kill"
    fit = [worker for worker in workers if not spared or hosts[worker.stage] > 1]
    return fit[wanted.pick % len(fit)] if fit else None
