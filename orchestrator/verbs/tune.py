"""`tune conf=NAME ...`: which layout is the fastest here, by a measurement of some seconds."""

from __future__ import annotations

import json

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.errors import UsageError
from orchestrator.settings import load
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    conf = given.get("conf")
    if conf is None:
        raise UsageError("tune: it needs a configuration", "such as: tune conf=digits")
    settings = load(conf.split(","), given.without("conf", "output"))
    prepare_environment(settings.cluster.address)
    from orchestrator.commands.tune import tune  # imports ray, which reads that environment

    found = tune(settings)
    return Answer(stdout=json.dumps(found.as_dict()) if given.as_json else found.as_text())


VERB = Verb(
    forms=("tune conf=NAME|PATH [key=value ...]",),
    about=(
        (
            "tune",
            "run short pieces of that run, and say which topology, how many workers and how many loaders make its\n"
            "steps the shortest here; topology=auto, cluster.workers=auto and data.loaders=auto let a launch choose",
        ),
    ),
    run=_run,
    with_conf=True,
)
