"""`resume=RUN_ID [key=value ...]`: go on with a run."""

from __future__ import annotations

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.verbs import ended, sweep
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    prepare_environment(given.get("cluster.address"))
    from orchestrator.commands.resume import resume  # imports ray, which reads that environment
    from orchestrator.commands.sweep import resume_sweep
    from orchestrator.driver.sweep.record import find_sweep

    uri = given.get("tracking.uri")
    past = find_sweep(given.value, uri)
    if past is not None:
        return sweep.report(resume_sweep(past, list(given.rest), uri), given.as_json, past.kind)
    run_id, outcome = resume(given.value, list(given.rest), uri)
    return ended.report(run_id, outcome, given.as_json, given.started)


VERB = Verb(
    forms=("resume=RUN_ID [key=value ...]",),
    about=(
        (
            "resume=RUN_ID",
            "go on with that run from its last checkpoint, in the same MLflow run; the beginning of an id is\n"
            "enough, and `last` is the newest run; how it is executed may change (cluster.*, topology.*)",
        ),
    ),
    run=_run,
    refused=ended.nothing,
)
