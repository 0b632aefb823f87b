"""`conf=NAME|PATH [key=value ...]`: launch, or only say what would be launched."""

from __future__ import annotations

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.errors import OrchestratorError
from orchestrator.settings import load, origins, to_yaml
from orchestrator.verbs import ended
from orchestrator.verbs.verb import Answer, Arguments, Verb

_OWN = ("replay", "show", "plan")


def _run(given: Arguments) -> Answer:
    conf, overrides, replay = given.value.split(","), given.without(*_OWN), given.get("replay")
    showing = given.choice("show", "false", "true") == "true"
    planning = given.choice("plan", "false", "true") == "true"
    settings = load(conf, overrides)
    if showing:
        return Answer(stdout=to_yaml(settings).rstrip())
    as_json = settings.output == "json"
    try:
        prepare_environment(settings.cluster.address)
        if planning:
            from orchestrator.commands.dry_run import answer, dry_run  # imports ray, which reads that environment

            return Answer(stdout=answer(dry_run(settings), as_json))
        from orchestrator.commands import tune
        from orchestrator.commands.launch import launch

        settings, where, tuning = tune.decided(settings, origins(conf, overrides))
        run_id, outcome = launch(settings, where, replay=replay, tuning=tuning)
    except OrchestratorError as error:
        return ended.refused(error, as_json, given.started)
    return ended.report(run_id, outcome, as_json, given.started)


VERB = Verb(
    forms=("conf=NAME|PATH [key=value ...] [show=true | plan=true]",),
    about=(
        (
            "conf=NAME",
            "launch the run that conf/NAME.yaml describes; a path works too, and several,\n"
            "comma-separated, are merged left to right; show=true: only print its settings, as YAML;\n"
            "plan=true: only check it, and say what would run where and what keeps it from being rerun",
        ),
    ),
    run=_run,
    refused=ended.nothing,
)
