"""The look of a launch and of a plan at code and data before anything starts. The pipeline is built once, watched as it
reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.config.plan import Declared, Plan
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings
from orchestrator.data import input_auditing
from orchestrator.driver.launch.repeated import NOTHING, Repeated
from orchestrator.driver.preflight import checks, crowding
from orchestrator.driver.preflight.checks import Provenance
from orchestrator.provenance.data.hashing import Scan
from orchestrator.records import input_audit, phases
from orchestrator.records.input_audit import InputAudit
from orchestrator.worker.model import construction
from orchestrator.worker.model.construction import Rehearsal

_rehearsing = threading.Lock()  # it changes things of the whole process for a moment


@dataclass(frozen=True)
class Rehearsed:
    """The findings of a rehearsal."""

    settings: Settings  # of the run, of which the pipeline may have said some
    plan: Plan  # what they come to
    provenance: Provenance  # what is known of code and data
    built: Rehearsal  # what was built
    cut: dict[str, Any] | None  # where the model is cut into stages; None where it is not
    read: InputAudit  # what the pipeline read here that nobody declared


def rehearse(
    settings: Settings,
    project: Path,
    repeated: Repeated = NOTHING,
    known: Mapping[str, Scan] = MappingProxyType({}),
    *,
    cards_elsewhere: bool = False,
) -> Rehearsed:
    """All that a launch and a plan refuse. known, cards_elsewhere: as for `checks.check`. Raises ConfigurationError,
    PipelineRaised, UsageError, and NotRerunnable under `strict`."""
    declared = Declared(tuple(settings.data.inputs), tuple(settings.environment.variables))
    # The pipeline's module is imported by the checks.
    with _cutting(settings) as cut_of, input_auditing.window(declared) as whole:
        with phases.of("code and data"):
            provenance = checks.check(settings, project, known, cards_elsewhere=cards_elsewhere)
        plan = resolve(settings)
        with _rehearsing, phases.of("pipeline and model"), input_auditing.window(declared) as building:
            built, cut = construction.rehearse(plan), cut_of(plan)
    if built.plateau is not None:
        settings = replace(settings, schedule=replace(settings.schedule, name="plateau", options=dict(built.plateau)))
        plan = resolve(settings)
    plan = with_preparing(plan, built)
    if plan.cluster.card_bytes is not None:
        from orchestrator.driver.launch import memory_plan  # each launch would wait for what it imports

        memory_plan.refuse_what_exceeds(plan, memory_plan.planned(plan, built, cut))
    if plan.run.compute.device == "cuda" and plan.cluster.address is None and not cards_elsewhere:
        from orchestrator.driver.launch import memory_plan  # likewise

        memory_plan.refuse_crowded_cards(plan, built, cut)
    provenance = replace(provenance, notes=[*provenance.notes, *crowding.notes(plan, built.parameters)])
    seen = replace(building.audit, variables=whole.audit.variables)
    read = input_audit.undeclared(input_audit.elsewhere(seen, provenance.is_code), settings.environment.variables)
    if settings.strict and (refusal := input_audit.refusal(read)) is not None:
        raise refusal
    return Rehearsed(settings, repeated.planned(plan), provenance, built, cut, read)


def with_preparing(plan: Plan, built: Rehearsal) -> Plan:
    """The plan with what a worker of a stage needs while it has the whole model, where that could be built here."""
    if plan.cluster.members.stages == 1 or built.parameters is None:
        return plan
    from orchestrator.worker.pipeline_parallel.footprint import preparing_bytes

    return replace(plan, cluster=replace(plan.cluster, preparing_bytes=preparing_bytes(built.parameters)))


@contextmanager
def _cutting(settings: Settings) -> Iterator[Callable[[Plan], dict[str, Any] | None]]:
    """Within the block it finds where a model is cut; None without stages. Its process imports while this one checks code and
    data, and makes the model when this one has let go of its own. A launch without stages imports nothing of it, since it would
    wait for that."""
    if settings.cluster.stages == 1:
        yield lambda _: None
        return
    from orchestrator.worker.pipeline_parallel.rehearsal import CutRehearsal

    with CutRehearsal() as rehearsal:
        yield rehearsal.cut
