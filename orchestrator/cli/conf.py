"""`conf=NAME|PATH [key=value ...]`: launch, or only say what would be launched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, ended_run, reported
from orchestrator.cluster.sessions import workers
from orchestrator.config.settings import to_dict, to_yaml
from orchestrator.experiments import tuning
from orchestrator.numerics import determinism
from orchestrator.records import phases

if TYPE_CHECKING:
    from orchestrator.driver.launch.repeated import Repeated


def run(arguments: Arguments) -> CommandResult:
    """Imports what it needs once it is known what is asked for: a plan needs no Ray, and the settings not even torch."""
    showing, planning = arguments.flag("show"), arguments.flag("plan")
    if showing:
        shown = arguments.settings
        return CommandResult(stdout=json.dumps(to_dict(shown)) if arguments.as_json else to_yaml(shown).rstrip())
    if planning:
        from orchestrator.driver.launch.dry_run import dry_run

        return reported(dry_run(arguments.settings, _repeated(arguments), trusted=arguments.flag("trust")), arguments)
    try:
        return _launched(arguments)
    finally:
        workers.end()


def _launched(arguments: Arguments) -> CommandResult:
    settings = arguments.settings
    if settings.cluster.address is None:
        with determinism.environment_of(settings.run.arithmetic):
            workers.begin(settings.cluster.cpus_per_worker)  # it imports beside this process
    with phases.of("imports"):
        from orchestrator.driver.launch.launch import launch

    trusted = arguments.flag("trust")
    settings, where, measured = tuning.decided(settings, arguments.origins, trusted=trusted)
    typed = ["output=json"] if arguments.as_json else []
    run_id, outcome = launch(
        settings, where, repeated=_repeated(arguments), tuning=measured, typed=typed, trusted=trusted
    )
    return ended_run(run_id, outcome, arguments)


def _repeated(arguments: Arguments) -> Repeated:
    from orchestrator.driver.launch.repeated import Repeated

    given = [arguments.get(name) for name in ("replay", "segments", "streams", "sat_out")]
    return Repeated(*given)
