"""One job from the start of its Ray to the end of its record: places for the members, the session, the weights, the summary.

Launching and resuming differ in how a run begins (`session.RunStart`) and are the same from there on.
"""

from __future__ import annotations

import os
import secrets
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoints.catalog import Catalog
from orchestrator.checkpoints.storage import open_storage
from orchestrator.cluster.actors.members import ActorPlacement, Members, this_node
from orchestrator.cluster.placement.actor_slots import ActorSlots
from orchestrator.cluster.placement.project_transfer import Project, prepare_workspaces, unlike
from orchestrator.cluster.placement.reservation import Need, reserve
from orchestrator.cluster.sessions.joined import JoinedRay
from orchestrator.cluster.sessions.local import LocalRay
from orchestrator.control.membership import Requirements
from orchestrator.driver.record.folders import RunFolder
from orchestrator.driver.record.record import Record
from orchestrator.driver.report import pictures, summary
from orchestrator.driver.run.checkpointing import Saving
from orchestrator.driver.run.event_sink import EventSink
from orchestrator.driver.run.member_directory import MemberDirectory
from orchestrator.driver.run.outcome import Outcome
from orchestrator.driver.run.session import NodeCheck, RunStart, Session
from orchestrator.driver.terminal.progress import Progress, say_obstacles
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import Interrupted, OrchestratorError, RunFailed
from orchestrator.settings import Settings, to_yaml
from orchestrator.topologies import TOPOLOGIES, Schedule, build_schedule
from orchestrator.tracking import default_uri, is_server

_PULSE_SHARE = 0.25  # of the time after which a member counts as stuck: how old its last heartbeat may be


@dataclass(frozen=True)
class Job:
    """project: the folder from which the pipeline is imported; settings: of the run."""

    settings: Settings
    project: Path
    display: Progress
    pending_signal: PendingSignal

    def complete(self, opening: Future[Record], run_start: RunStart) -> tuple[str, Outcome]:
        """Run, and bring the record to its end, whatever happens; the run's id and what it came to."""
        settings, display = self.settings, self.display
        try:
            if is_server(settings.tracking.uri):
                opening.result()  # it may be out of reach: known before anything is started
            outcome = self._run(opening, run_start)
        except OrchestratorError as error:
            outcome = Outcome(workers=settings.cluster.workers.start, error=error)
        except BaseException as error:
            opening.result().close(Outcome(error=RunFailed(f"{type(error).__name__}: {error}")))
            raise
        finally:
            display.close()
        record = opening.result()
        files, tracker = record.files, record.tracker
        trouble = pictures.draw(files.pictures, files.trace, files.journal, tracker.name, _schedule(settings))
        if trouble is not None:
            display.say(f"note: {trouble}")
        for sentence in record.compare_with_like(outcome.digest):
            display.say(sentence)
        outcome.not_recorded = record.close(outcome)
        if outcome.not_recorded is not None:
            display.say(
                f"warning: MLflow has not got all of this run: {outcome.not_recorded}"
                + (f"\n  the files in .orchestrator/{tracker.run_id}/ are complete" if outcome.error is None else "")
            )
        if outcome.error is None:
            look = summary.look(
                tracker.run_id, tracker.experiment_id, record.store.uri, default_uri(record.files.path.parent)
            )
            display.say(summary.text(outcome, tracker.name, layout(settings), tracker.run_id, look))
        return tracker.run_id, outcome

    def _run(self, opening: Future[Record], run_start: RunStart) -> Outcome:
        """Start or join Ray, place the members, run them to the end, fetch the trained weights. Raises OrchestratorError for
        what goes wrong before the first member is started; later troubles are in the outcome."""
        settings = self.settings
        cluster = settings.cluster
        ray = (
            LocalRay(self._cpus(), cluster.start_timeout_s, self._check)
            if cluster.address is None
            else JoinedRay(cluster.address)
        )
        self.display.say(f"starting {layout(settings)}")
        with ray:
            self.pending_signal.watch()
            actor_slots, node_check = self._actor_slots()
            heartbeat_s = cluster.step_timeout_s * _PULSE_SHARE
            members = Members(to_yaml(settings), secrets.token_bytes(32), cluster.lease_s, heartbeat_s)
            # A private Ray has the priority that the user wants.
            niceness = None if cluster.address is None else os.getpriority(os.PRIO_PROCESS, 0)
            session = Session(run_start, members, actor_slots, node_check, niceness)
            record = opening.result()
            say_obstacles(self.display, record.obstacles)
            for run_id in record.orphans:
                self.display.say(
                    f"note: run {run_id} was left RUNNING by a driver that is gone; it is marked KILLED now"
                )
            event_sink = EventSink(record, self.display)
            storage = storage_of(settings, record.files)
            saving = Saving(Catalog(open_storage(storage), settings.checkpoint.keep))
            directory = MemberDirectory(settings, this_node(), storage, everywhere=settings.checkpoint.uri is not None)
            session.run(self.pending_signal, directory, saving, event_sink, ray.trouble)
            outcome = event_sink.outcome
            if outcome.error is None:
                weights = record.files.weights
                unfinished = weights.with_suffix(".unfinished")
                try:
                    holder = session.save_weights(str(unfinished))
                    unfinished.rename(weights)
                    record.profile = members.profile(holder)
                except RunFailed as error:  # what was trained up to here stays in the report
                    outcome.error = error
                    unfinished.unlink(missing_ok=True)
        return outcome

    def _actor_slots(self) -> tuple[ActorSlots, NodeCheck]:
        """Room for every member that the run starts with, on nodes that have this project, and what is asked of a node that
        comes later. A private Ray is this machine."""
        cluster = self.settings.cluster
        together = self.settings.transport == "shared_memory"
        wanted = _members(self.settings, cluster.workers.most if cluster.address is None else cluster.workers.start)
        need = Need(wanted, cluster.cpus_per_worker, cluster.gpus_per_worker, together)
        actor_slots = reserve(need, cluster.start_timeout_s, self._check)
        anywhere = {"num_cpus": need.cpus, "num_gpus": need.gpus}
        if cluster.address is None:
            here = str(self.project)
            return ActorSlots(
                [ActorPlacement(here, slot.options) for slot in actor_slots], ActorPlacement(here, anywhere)
            ), lambda _node: None
        project = Project(self.project, self.settings.data.inputs, cluster.start_timeout_s, self._check)
        workspaces = prepare_workspaces(
            project, {slot.node.id: slot.node for slot in actor_slots}.values(), self.display.say
        )
        places = [
            ActorPlacement(workspace.project, {**slot.options, "runtime_env": dict(workspace.runtime_env)})
            for slot, workspace in ((slot, workspaces[slot.node.id]) for slot in actor_slots)
        ]
        # A node that is not known yet is more likely to lack the project than to have it.
        carried = next((place for place in places if place.project is None), places[0])
        elsewhere = ActorPlacement(carried.project, {**anywhere, "runtime_env": carried.options["runtime_env"]})
        known = set(workspaces)

        def vet(node: str) -> str | None:
            if node in known or carried.project is None:
                return None
            try:
                problem = unlike(project, node)
            except OrchestratorError as error:
                return error.message
            known.update([node] if problem is None else [])
            return problem

        return ActorSlots(places, elsewhere), vet

    def _check(self) -> None:
        if self.pending_signal.signal is not None:
            raise Interrupted(f"interrupted by {self.pending_signal.signal}")

    def _cpus(self) -> float:
        """What the local Ray is started with: as many as the run may need (rule D4)."""
        members = _members(self.settings, self.settings.cluster.workers.most)
        cpus, cores = self.settings.cluster.cpus_per_worker * members, len(os.sched_getaffinity(0))
        if cpus > cores:
            self.display.say(f"note: {members} processes that want {cpus:g} CPUs share {cores} cores")
        return cpus


def requirements(
    settings: Settings, *, checkpoint: int | None = None, generation: int = 0, member: int = 0
) -> Requirements:
    """What the settings ask of the controller. checkpoint: to begin with; generation, member: the first numbers to give."""
    cluster = settings.cluster
    # Under `fast` the sums follow the layout, so a smaller one would change bits: it waits until it is complete again.
    whole = settings.reduction == "fast"
    return Requirements(
        shards=settings.data.shards,
        start=cluster.workers.start,
        least=cluster.workers.start if whole else cluster.workers.least,
        most=cluster.workers.most,
        spares=cluster.spares,
        servers=_servers(settings),
        start_timeout_s=cluster.start_timeout_s,
        step_timeout_s=cluster.step_timeout_s,
        whole=whole,
        checkpoint=checkpoint,
        generation=generation,
        member=member,
    )


def storage_of(settings: Settings, files: RunFolder) -> str:
    """Where the run's checkpoints lie: a path, or a URL under `checkpoint.uri`, which runs may share."""
    uri = settings.checkpoint.uri
    return str(files.checkpoints) if uri is None else f"{uri.rstrip('/')}/{files.path.name}"


def layout(settings: Settings) -> str:
    """What a run runs on, such as "3 workers and 1 server, topology parameter_server"."""
    workers = settings.cluster.workers
    number = str(workers.most) if workers.start == workers.most else f"{workers.start} to {workers.most}"
    counts = [(number, "worker"), (str(settings.cluster.spares), "spare"), (str(_servers(settings)), "server")]
    members = [f"{count} {role}{'s' * (count != '1')}" for count, role in counts if count != "0"]
    return f"{' and '.join(members)}, topology {settings.topology.name}"


def _schedule(settings: Settings) -> Schedule:
    return build_schedule(settings.topology.name, settings.cluster.workers.most, **settings.topology.options)


def _servers(settings: Settings) -> int:
    found: int = TOPOLOGIES.resolve(settings.topology.name, settings.topology.options).get("servers", 0)
    return found


def _members(settings: Settings, workers: int) -> int:
    return workers + settings.cluster.spares + _servers(settings)
