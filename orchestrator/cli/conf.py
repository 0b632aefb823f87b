"""`conf=NAME|PATH [key=value ...]`: launch, or only say what would be launched."""

from __future__ import annotations

from orchestrator.cli.answer import Answer, ended_run, reported
from orchestrator.cli.arguments import Arguments
from orchestrator.cluster.sessions import workers
from orchestrator.config.settings import to_yaml
from orchestrator.numerics import determinism
from orchestrator.records import phases


def run(given: Arguments) -> Answer:
    """Imports what it needs once it is known what is asked for: a plan needs no Ray, and the settings not even torch."""
    showing, planning = given.flag("show"), given.flag("plan")
    if showing:
        return Answer(stdout=to_yaml(given.settings).rstrip())
    if planning:
        from orchestrator.driver.launch.dry_run import dry_run

        return reported(dry_run(given.settings, trusted=given.flag("trust")), given)
    try:
        return _launched(given)
    finally:
        workers.end()


def _launched(given: Arguments) -> Answer:
    settings = given.settings
    if settings.cluster.address is None:
        with determinism.environment_of(settings.run.arithmetic):
            workers.begin(settings.cluster.cpus_per_worker)  # it imports beside this process
    with phases.of("imports"):
        from orchestrator.driver.launch.launch import Repeated, launch
        from orchestrator.experiments.tuning import choosing

    trusted = given.flag("trust")
    settings, where, tuning = choosing.decided(given.settings, given.origins, trusted=trusted)
    repeated = Repeated(given.get("replay"), given.get("segments"), given.get("streams"), given.get("sat_out"))
    typed = ["output=json"] if given.as_json else []
    run_id, outcome = launch(settings, where, repeated=repeated, tuning=tuning, typed=typed, trusted=trusted)
    return ended_run(run_id, outcome, given)
