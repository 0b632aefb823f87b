"""`cluster.stages: auto`: as few stages as leave each worker room in the memory of this machine and of its GPUs. No bit depends
on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.common.gpu_memory import sharing
from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings
from orchestrator.config.settings.sections import BY_MEMORY, ClusterSettings
from orchestrator.driver.preflight import checks, visible_cards
from orchestrator.errors import ConfigurationError, PipelineRaised
from orchestrator.experiments.simulation.stages import Need, StageChoice, card_room, choose_stages, room_of
from orchestrator.provenance.environment.cards import CardsUnknown
from orchestrator.worker.pipeline_parallel.needs import needs


def staged(settings: Settings) -> tuple[Settings, StageChoice | None]:
    """The settings with a number of stages where that is `auto`, and why; as they are where it is not. Raises
    ConfigurationError."""
    if BY_MEMORY not in settings.tuning.auto:
        return settings, None
    cluster = settings.cluster
    if cluster.address is not None:
        raise ConfigurationError(
            [
                "cluster.stages: auto goes by the memory of this machine and its GPUs, and with cluster.address workers may be "
                "on others, of which nothing is known before they are joined"
            ],
            "give the number; a launch says what each stage needs",
            code="stages.auto-joined",
        )
    checks.check(_with(settings, 1, ()), Path.cwd())
    workers = cluster.workers.most + cluster.spares
    card = _card_room(settings, workers) if settings.run.device == "cuda" else None
    chosen = choose_stages(_needs(settings), room_of(available_bytes(), workers, _own_bytes(), card))
    others = tuple(key for key in settings.tuning.auto if key != BY_MEMORY)
    return _with(settings, chosen.stages, others), chosen


def as_dict(choice: StageChoice) -> dict[str, Any]:
    """For tuning.json."""
    return {
        "keys": [BY_MEMORY],
        "chosen": {BY_MEMORY: choice.stages},
        "reason": choice.reason,
        "room_bytes": choice.room_bytes,
        "card_room_bytes": choice.card_room_bytes,
        "needs": [asdict(each) for each in choice.needs],
    }


def _needs(settings: Settings) -> Iterator[Need]:
    """As far as there are workers for, and as the model can be cut."""

    def plan(stages: int) -> Plan:
        return resolve(_with(settings, stages, ()))

    most = settings.cluster.workers.start
    with closing(needs(plan, most)) as found:
        try:
            for stages, size in found:
                yield Need(stages, size.host, size.card)
        except PipelineRaised as error:
            if error.details:  # a traceback: raised by the pipeline, which its workers tell better
                raise
            raise ConfigurationError(
                [f"cluster.stages: auto: {error.message}"], error.remedy, code="stages.auto-failed"
            ) from None


def _card_room(settings: Settings, workers: int) -> int:
    """The bytes of its GPU that each of so many workers can have. Raises ConfigurationError where nobody tells."""
    planned = resolve(_with(settings, 1, ())).cluster
    try:
        free = visible_cards.free_bytes()
    except CardsUnknown as error:
        if planned.card_bytes is None:
            raise ConfigurationError(
                [f"cluster.stages: auto goes by the memory of the GPUs, and of these nobody tells it: {error}"],
                "set cluster.gpu_gb to what each worker may take, or give the number of stages",
                code="stages.auto-cards-unknown",
            ) from None
        free = []
    return card_room(free, sharing(planned.gpus, workers), planned.card_bytes)


def _with(settings: Settings, stages: int, auto: tuple[str, ...]) -> Settings:
    """Settings for stages only are left out if there is one stage."""
    run, cluster = settings.run, replace(settings.cluster, stages=stages)
    if stages == 1:
        run, cluster = replace(run, recompute=False), replace(cluster, pipeline=ClusterSettings().pipeline)
    return replace(settings, run=run, cluster=cluster, tuning=replace(settings.tuning, auto=auto))


def _own_bytes() -> int:
    """The memory of this process, which has imported what a worker imports."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
