"""`sweep=NAME|PATH [key=value ...]` and `ensemble=NAME|PATH [key=value ...]`."""

from __future__ import annotations

from orchestrator.cli.answer import Answer, code_of, ended
from orchestrator.cli.arguments import Arguments
from orchestrator.driver.terminal import console
from orchestrator.experiments.sweep.report import SweepReport
from orchestrator.experiments.sweep.sweep import sweep


def run(given: Arguments) -> Answer:
    return ended_sweep(sweep(given.value, given.without("trust"), trusted=given.flag("trust")), given, "sweep")


def ensemble(given: Arguments) -> Answer:
    done = sweep(given.value, given.without("trust"), "ensemble", trusted=given.flag("trust"))
    return ended_sweep(done, given, "ensemble")


def ended_sweep(found: SweepReport, given: Arguments, kind: str) -> Answer:
    """Say how a sweep or an ensemble (`kind`) ended that was launched or gone on with."""
    if found.error is not None:
        console.tell(f"error: {found.error}\n  {kind} {found.sweep_id}")
        console.tell(f"  go on: python -m orchestrator resume={found.sweep_id}")
    return ended(code_of(found.error), found.as_dict(), given)
