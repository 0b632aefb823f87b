"""`resume=RUN_ID [key=value ...]`: go on with a run, a sweep or an ensemble."""

from __future__ import annotations

from orchestrator.commands.answer import Answer, ended_run
from orchestrator.commands.arguments import Arguments
from orchestrator.commands.launch.resume import resume
from orchestrator.commands.sweep.sweep import ended_sweep, resume_sweep
from orchestrator.driver.sweep.record import find_sweep


def run(given: Arguments) -> Answer:
    past = find_sweep(given.value, given.uri)
    if past is not None:
        return ended_sweep(resume_sweep(past, given.rest, given.uri), given, past.kind)
    run_id, outcome = resume(given.value, given.rest, given.uri, typed=given.rest)
    return ended_run(run_id, outcome, given)
