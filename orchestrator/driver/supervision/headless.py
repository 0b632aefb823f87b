"""How a run of a joined Ray goes on when the head of that Ray is gone, and with it the Ray: on one machine, in a Ray of
its own.

The number of workers changes no bit, so as many are started as the machine has processors for. Fast sums depend on the number:
with them it stays as it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from orchestrator.config.plan import Plan

_OF_THE_RAY = ("cluster.address", "cluster.workers", "cluster.speeds", "cluster.spares")


@dataclass(frozen=True)
class Workers:
    """How many may go on with a run. cpus: of each."""

    least: int
    most: int
    cpus: float

    def on(self, cores: int) -> int:
        """A machine with so many processors."""
        return max(self.least, min(self.most, int(cores / max(self.cpus, 1.0))))


def workers(plan: Plan) -> Workers:
    members, cpus = plan.cluster.members, plan.cluster.cpus
    if not plan.exchange.exact:
        return Workers(members.start, members.start, cpus)
    return Workers(max(members.stages, 1), members.most, cpus)


def words(given: Sequence[str], workers: Workers, cores: int) -> list[str]:
    """The words of the command line that goes on with the run. given: the words for the Ray that is gone; cores: of the
    machine."""
    kept = [word for word in given if word.partition("=")[0] not in _OF_THE_RAY]
    return [*kept, "cluster.address=null", f"cluster.workers={workers.on(cores)}", "cluster.speeds=[]"]


def refusal(plan: Plan) -> str | None:
    """Why one machine alone cannot go on with it; None where it can."""
    return "its sites are places of their own" if plan.data.sites else None


def cores() -> int:
    return len(os.sched_getaffinity(0))


def become(words: Sequence[str]) -> NoReturn:
    """Become the process that goes on, in place of this one, so that a caller that waits for its end waits on."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", *words])
