"""`resume=RUN_ID [trust=true] [key=value ...]`: go on with a run, a sweep or an ensemble."""

from __future__ import annotations

from orchestrator.cli.answer import Answer, ended_run
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.sweep import ended_sweep
from orchestrator.driver.launch.resume import resume
from orchestrator.experiments.sweep.record import find_sweep
from orchestrator.experiments.sweep.sweep import resume_sweep


def run(arguments: Arguments) -> Answer:
    past, overrides, trusted = (
        find_sweep(arguments.value, arguments.uri),
        arguments.without("trust"),
        arguments.flag("trust"),
    )
    if past is not None:
        return ended_sweep(resume_sweep(past, overrides, arguments.uri, trusted=trusted), arguments, past.kind)
    run_id, outcome = resume(arguments.value, overrides, arguments.uri, typed=arguments.rest, trusted=trusted)
    return ended_run(run_id, outcome, arguments)
