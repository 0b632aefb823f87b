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
    """Where a worker is. holds_sum: it has the sum of its stage for the step after its progress, and has not applied it."""

    stage: int
    progress: Progress | None
    holds_sum: bool = False


@dataclass(frozen=True)
class HandOver:
    """applies: the ranks that apply the sum they hold before anything else. transfers: within a stage all that it keeps,
    between stages the run's state without parameters; in this order. lost: the stages that cannot get to where the farthest
    worker is."""

    applies: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    lost: tuple[int, ...] = ()


def hand_over(standings: Sequence[Standing], stages: int) -> HandOver:
    """standings: by rank; every stage is hosted."""
    top = latest(standing.progress for standing in standings)
    if top is None:
        return HandOver()
    farthest = [rank for rank, standing in enumerate(standings) if standing.progress == top]
    applies: list[int] = []
    between: list[Transfer] = []
    within: list[Transfer] = []
    lost: list[int] = []
    for stage in range(stages):
        ranks = [rank for rank, standing in enumerate(standings) if standing.stage == stage]
        donors = [rank for rank in ranks if rank in farthest]
        if not donors:  # an evaluation apart, or a step whose sum they hold
            donors = [rank for rank in ranks if _has_parameters(standings[rank], top)]
            if not donors:
                donors = [rank for rank in ranks if _can_follow(standings[rank], top)]
                applies += donors
            between += [(farthest[i % len(farthest)], rank) for i, rank in enumerate(donors)]
        if not donors:
            lost.append(stage)
            continue
        recipients = [rank for rank in ranks if rank not in donors]
        within += [(donors[i % len(donors)], rank) for i, rank in enumerate(recipients)]
    return HandOver(tuple(applies), (*between, *within), tuple(lost))


def _has_parameters(standing: Standing, top: Progress) -> bool:
    return behind(standing.progress, top) == 0


def _can_follow(standing: Standing, top: Progress) -> bool:
    return standing.holds_sum and behind(standing.progress, top) == 1
