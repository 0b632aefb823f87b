"""`ensemble=NAME|PATH [key=value ...]`: several models, trained apart and made one."""

from __future__ import annotations

from typing import Any

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.verbs import sweep
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    prepare_environment(given.get("cluster.address"))
    from orchestrator.commands.sweep import sweep as story  # imports ray, which reads that environment

    return sweep.report(story(given.value, list(given.rest), "ensemble"), given.as_json, "ensemble")


def _refused(given: Arguments) -> dict[str, Any]:  # noqa: ARG001
    return {"sweep_id": None, "status": "failed", "trials": [], "best": None}


VERB = Verb(
    forms=("ensemble=NAME|PATH [parallel=K] [ensemble.members=N] [key=value ...]",),
    about=(
        (
            "ensemble=NAME",
            "train the members of an ensemble, each a run, parallel=K of them side by side, and make them one\n"
            "model; conf/NAME.yaml is any configuration, its section ensemble says the rest",
        ),
    ),
    run=_run,
    refused=_refused,
)
