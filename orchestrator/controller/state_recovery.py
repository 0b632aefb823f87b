"""From which step a generation of stages goes on, and who has to get what for it. Pure.

A step is committed by two votes (docs/architecture.md): a worker applies the sum of its stage only when every worker of every
stage has said that it has its own. So as soon as one has applied step t, each of the others has applied it or holds what is to
be applied, and a stage with a living host of then can always follow. A stage whose hosts are all gone cannot: then all go back
to the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.records.progress import Progress, behind, latest

Transfer = tuple[int, int]  # donor, recipient


@dataclass(frozen=True)
class Standing:
    """The position of a worker. holds_sum: it has the sum of its stage for the step after its progress, and has not applied
    it."""

    stage: int
    progress: Progress | None
    holds_sum: bool = False


@dataclass(frozen=True)
class StateRecovery:
    """The work before the first step. run_states: from whom to whom the state of the run goes, without parameters, and with
    it what the last second vote agreed on. applies: the ranks that apply the sum they hold by that. transfers: after that,
    and within a stage, all that it keeps. lost: the stages that cannot get to where the farthest worker is."""

    applies: tuple[int, ...] = ()
    run_states: tuple[Transfer, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    lost: tuple[int, ...] = ()


def plan_recovery(standings: Sequence[Standing], stages: int) -> StateRecovery:
    """Plan how all workers get to one state. standings: by rank; every stage is hosted."""
    top = latest(standing.progress for standing in standings)
    if top is None:
        return StateRecovery()
    farthest = [rank for rank, each in enumerate(standings) if each.progress == top]
    applies = [rank for rank, each in enumerate(standings) if _can_follow(each, top)]
    keeps = [_has_parameters(each, top) or _can_follow(each, top) for each in standings]
    # by a step that they apply, or by an evaluation
    behind_top = [rank for rank, each in enumerate(standings) if keeps[rank] and each.progress != top]
    hosting: list[list[int]] = [[] for _ in range(stages)]
    for rank, each in enumerate(standings):
        hosting[each.stage].append(rank)
    transfers: list[Transfer] = []
    lost: list[int] = []
    for stage, ranks in enumerate(hosting):
        recipients = [rank for rank in ranks if not keeps[rank]]
        donors = [rank for rank in ranks if keeps[rank]]
        donors = [rank for rank in donors if standings[rank].progress == top] or donors
        if donors:
            transfers += [(donors[i % len(donors)], rank) for i, rank in enumerate(recipients)]
        else:
            lost.append(stage)
    run_states = [(farthest[i % len(farthest)], rank) for i, rank in enumerate(behind_top)]
    return StateRecovery(tuple(applies), tuple(run_states), tuple(transfers), tuple(lost))


def _has_parameters(standing: Standing, top: Progress) -> bool:
    return behind(standing.progress, top) == 0


def _can_follow(standing: Standing, top: Progress) -> bool:
    return standing.holds_sum and behind(standing.progress, top) == 1
