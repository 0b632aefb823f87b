"""`conf=NAME|PATH [key=value ...]`: check, start, train, record, sum up."""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from orchestrator.cluster.carrying import Project, settle
from orchestrator.cluster.joined import JoinedRay
from orchestrator.cluster.local import LocalRay
from orchestrator.cluster.members import Members, Place, roles
from orchestrator.cluster.placement import Need, reserve
from orchestrator.driver import pictures, preflight, signals, summary
from orchestrator.driver.folders import project_folder
from orchestrator.driver.outcome import Outcome
from orchestrator.driver.progress import Progress, for_stream
from orchestrator.driver.record import Record, open_record
from orchestrator.driver.session import Session
from orchestrator.errors import Interrupted, OrchestratorError, RunFailed, WorkerLost
from orchestrator.settings import Settings, to_yaml
from orchestrator.topologies import Schedule, build_schedule
from orchestrator.tracking import is_server


def launch(settings: Settings) -> tuple[str, Outcome]:
    """The whole story; returns the run's id and what it came to.

    Raises ConfigurationError and NotRerunnable before anything is started; an error of the run itself is in the outcome.
    """
    project = Path.cwd()
    provenance = preflight.check(settings, project)
    folder = project_folder(project)
    display = for_stream()
    for obstacle in provenance.obstacles:
        display.say(f"note: this run cannot be repeated exactly: {obstacle}")
    with signals.posted() as mailbox, ThreadPoolExecutor(1) as pool:
        # MLflow takes as long to import as Ray to start, so they do it side by side.
        opening = pool.submit(open_record, settings, folder, provenance)
        try:
            if is_server(settings.tracking.uri):
                opening.result()  # it may be out of reach: known before anything is started
            outcome = _train(settings, project, opening, display, mailbox)
        except OrchestratorError as error:
            outcome = Outcome(workers=settings.cluster.workers.start, error=error)
        except BaseException as error:
            opening.result().close(Outcome(error=RunFailed(f"{type(error).__name__}: {error}")))
            raise
        finally:
            display.close()
        record = opening.result()
        _draw(settings, record, display)
        outcome.not_recorded = record.close(outcome)
    if outcome.not_recorded is not None:
        display.say(
            f"warning: MLflow has not got all of this run: {outcome.not_recorded}\n"
            f"  the files in .orchestrator/{record.tracker.run_id}/ are complete"
        )
    if outcome.error is None:
        display.say(_summary(settings, outcome, record))
    return record.tracker.run_id, outcome


def _train(
    settings: Settings, project: Path, opening: Future[Record], display: Progress, mailbox: signals.Mailbox
) -> Outcome:
    """Start or join Ray, place the members, run them to the end, fetch the trained weights."""
    schedule = _schedule(settings)
    ray = _ray(settings, schedule, display)
    display.say(f"starting {_layout(schedule)}")
    with ray:
        mailbox.watch()
        places = _places(settings, schedule, project, display, mailbox)
        members = Members(roles(schedule), to_yaml(settings), secrets.token_bytes(32), places)
        record = opening.result()
        for run_id in record.orphans:
            display.say(f"note: run {run_id} was left RUNNING by a driver that is gone; it is marked KILLED now")
        outcome = Session(settings, schedule, members, record, display).run(mailbox)
        if outcome.error is None:
            try:
                members.save_weights(0, str(record.files.weights))
            except WorkerLost as error:  # what was trained up to here stays in the report
                outcome.error = error
    return outcome


def _draw(settings: Settings, record: Record, display: Progress) -> None:
    """The pictures of the run; without them it is as whole as with them."""
    files = record.files
    trouble = pictures.draw(files.pictures, files.trace, files.journal, record.tracker.name, _schedule(settings))
    if trouble is not None:
        display.say(f"note: {trouble}")


def _ray(settings: Settings, schedule: Schedule, display: Progress) -> LocalRay | JoinedRay:
    if settings.cluster.address is not None:
        return JoinedRay(settings.cluster.address)
    return LocalRay(_cpus(settings, schedule, display))


def _places(
    settings: Settings, schedule: Schedule, project: Path, display: Progress, mailbox: signals.Mailbox
) -> list[Place]:
    """Room for every member, on nodes that have this project; a private Ray is this machine, so there it is."""
    cluster = settings.cluster
    deadline_s = time.monotonic() + cluster.start_timeout_s

    def check() -> None:
        if mailbox.signal is not None:
            raise Interrupted(f"interrupted by {mailbox.signal}")

    together = settings.transport == "shared_memory"
    need = Need(schedule.members, cluster.cpus_per_worker, cluster.gpus_per_worker, together)
    seats = reserve(need, cluster.start_timeout_s, check)
    if cluster.address is None:
        return [Place(seat.node.id, str(project), seat.options) for seat in seats]
    wanted = Project(project, settings.data.inputs, deadline_s, check)
    grounds = settle(wanted, {seat.node.id: seat.node for seat in seats}.values(), display.say)
    used = [(seat, grounds[seat.node.id]) for seat in seats]
    return [
        Place(seat.node.id, ground.project, {**seat.options, "runtime_env": dict(ground.runtime_env)})
        for seat, ground in used
    ]


def _schedule(settings: Settings) -> Schedule:
    return build_schedule(settings.topology.name, settings.cluster.workers.start, **settings.topology.options())


def _layout(schedule: Schedule) -> str:
    """What a run runs on, such as "3 workers and 1 server, topology parameter_server"."""
    counts = [(schedule.workers, "worker"), (schedule.servers, "server")]
    members = [f"{number} {role}{'s' * (number > 1)}" for number, role in counts if number]
    return f"{' and '.join(members)}, topology {schedule.topology}"


def _cpus(settings: Settings, schedule: Schedule, display: Progress) -> float:
    """What the local Ray is started with: as many as the run needs (rule D4)."""
    cpus, cores = settings.cluster.cpus_per_worker * schedule.members, len(os.sched_getaffinity(0))
    if cpus > cores:
        display.say(f"note: {schedule.members} processes that want {cpus:g} CPUs share {cores} cores")
    return cpus


def _summary(settings: Settings, outcome: Outcome, record: Record) -> str:
    tracker = record.tracker
    layout = _layout(_schedule(settings))
    return summary.text(outcome, tracker.name, layout, tracker.run_id, tracker.experiment_id, record.store.uri)
