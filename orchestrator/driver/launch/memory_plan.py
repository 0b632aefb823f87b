"""How much memory workers will need, as far as that is known before anything is started."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from orchestrator.common.figures import sized
from orchestrator.config.plan import Plan
from orchestrator.controller.shard_assignment import assign_stages
from orchestrator.driver.preflight import crowded_cards, visible_cards
from orchestrator.errors import ConfigurationError
from orchestrator.provenance.environment.cards import CardsUnknown
from orchestrator.worker import footprint, memory_needs
from orchestrator.worker.footprint import Needed
from orchestrator.worker.model.construction import Rehearsal

_ANY_CARD_BYTES: Final = 1_000_000_000  # any GPU has so much, and to ask for more takes a part of a second


def planned(plan: Plan, built: Rehearsal, cut: dict[str, Any] | None) -> list[Needed]:
    """The memory that the worker of each stage needs: one entry if the model is whole. Empty if only a worker can tell. cut:
    as `planning.summary`."""
    known = _known(plan, built, cut)
    return [] if known is None else memory_needs.by_stage(known, plan)


def _known(plan: Plan, built: Rehearsal, cut: dict[str, Any] | None) -> dict[str, Any] | None:
    """The part of a run manifest that tells the needs of workers; None if only a worker can tell."""
    if built.layout is None or (cut is None and plan.cluster.members.stages > 1):
        return None
    return {
        "parameters": built.parameters,
        "layout": built.layout,
        "trained": built.trained,
        "shard_state": plan.update.compression is not None,  # of most compressions
        **({} if cut is None else {"stages": cut}),
    }


def refuse_crowded_cards(plan: Plan, built: Rehearsal, cut: dict[str, Any] | None) -> None:
    """Raises ConfigurationError where the members of a private Ray do not fit on the GPUs of this machine together, whoever
    computes where. Small models fit on any, and nobody is asked."""
    members = plan.cluster.members
    known = _known(plan, built, cut)
    if known is None:
        return
    stages = assign_stages([None] * members.start, members.stages) if members.stages > 1 else ()
    schedule = footprint.first_schedule(plan)
    needed = {
        "worker": memory_needs.at_once(known, plan, schedule, stages),
        "spare": [memory_needs.of_a_spare(known, plan)] * members.spares,
        "server": [] if stages else memory_needs.of_servers(known, plan, schedule),
    }
    sizes = [(role, size) for role, each in needed.items() for size in each if size]
    if sum(size for _, size in sizes) < _ANY_CARD_BYTES:
        return
    with suppress(CardsUnknown):
        roles, bytes_of_each = zip(*sizes, strict=True)
        refusal = crowded_cards.refusal_of_all(bytes_of_each, visible_cards.with_free(), roles)
        if refusal is not None:
            raise refusal


def refuse_what_exceeds(plan: Plan, memory: list[Needed]) -> None:
    """Raises ConfigurationError where a worker may not take of its GPU what it needs without any activation."""
    limit = plan.cluster.card_bytes
    otherwise = "cut the model into more stages (cluster.stages), each with a worker"
    if not plan.lockstep:
        otherwise = "set sync=bsp, which needs less, and allows stages (cluster.stages)"
    for stage, needed in enumerate(memory):
        if limit is not None and needed.card > limit:
            whose = f"the worker of stage {stage}" if len(memory) > 1 else "a worker"
            raise ConfigurationError(
                [f"cluster.gpu_gb: {whose} needs {sized(needed.card)} beside activations, and may take {sized(limit)}"],
                f"raise cluster.gpu_gb, or {otherwise}",
                code="gpu.limit-too-low",
            )
