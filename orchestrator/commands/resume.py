"""`resume=RUN_ID [trust=true] [key=value ...]`: go on with a run, a sweep or an ensemble."""

from __future__ import annotations

from orchestrator.commands.answer import Answer, ended_run
from orchestrator.commands.arguments import Arguments
from orchestrator.commands.launch.resume import resume
from orchestrator.commands.sweep.sweep import ended_sweep, resume_sweep
from orchestrator.driver.sweep.record import find_sweep


def run(given: Arguments) -> Answer:
    past, overrides, trusted = find_sweep(given.value, given.uri), given.without("trust"), given.flag("trust")
    if past is not None:
        return ended_sweep(resume_sweep(past, overrides, given.uri, trusted=trusted), given, past.kind)
    run_id, outcome = resume(given.value, overrides, given.uri, typed=given.rest, trusted=trusted)
    return ended_run(run_id, outcome, given)
