"""One job from the start of its Ray to the end of its record: slots for the members, the session, the weights, the
summary.

Launching and resuming differ in how a run begins (`startup.RunStart`) and are the same from there on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.checkpoint import stream_log
from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import open_storage
from orchestrator.cluster.actors import driver_failover
from orchestrator.cluster.actors.driver_loss import DriverHandle
from orchestrator.cluster.actors.members import ActorPlacement, Members, credentials_of, this_node
from orchestrator.cluster.placement.actor_slots import ActorSlots
from orchestrator.cluster.placement.project_transfer import (
    LateWorkspaces,
    Project,
    Workspace,
    copied,
    prepare_workspaces,
)
from orchestrator.cluster.placement.reservation import (
    Need,
    gpus_of_cluster,
    has_room_for,
    living_nodes,
    reserved,
    room,
    wishes,
)
from orchestrator.cluster.sessions import RaySession, environment
from orchestrator.cluster.sessions.joined import JoinedRay
from orchestrator.cluster.sessions.local import Actors, LocalRay
from orchestrator.cluster.sessions.metrics import Gauges
from orchestrator.comm.topologies import Schedule, build_schedule
from orchestrator.comm.transports.tls import make_credentials
from orchestrator.config.plan import Plan
from orchestrator.config.settings import Settings
from orchestrator.controller.sites import workers_at
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.preflight import begin, limits, visible_cards
from orchestrator.driver.preflight.checks import Provenance
from orchestrator.driver.preflight.private import Private
from orchestrator.driver.recording import model_folder
from orchestrator.driver.recording.record import Record
from orchestrator.driver.report import pictures, summary
from orchestrator.driver.report.layout import layout
from orchestrator.driver.report.outcome import BestModel, RunOutcome
from orchestrator.driver.run import trained_weights
from orchestrator.driver.run.checkpointing import Saving
from orchestrator.driver.run.drift_watch import DriftWatch
from orchestrator.driver.run.event_sink import Audience, EventSink
from orchestrator.driver.run.fault_injection import FaultInjection
from orchestrator.driver.run.inspection_requests import InspectionRequests
from orchestrator.driver.run.late_project import LateProject
from orchestrator.driver.run.member_directory import MemberDirectory
from orchestrator.driver.run.node_traits import TraitsByNode, refuse_unknown
from orchestrator.driver.run.parameter_inspection import ParameterInspection
from orchestrator.driver.run.session import Session
from orchestrator.driver.run.startup import NodeCheck, RunStart, Startup
from orchestrator.driver.run.time_log import TimeLog, summed
from orchestrator.driver.run.unrecorded import unrecorded, without_threads
from orchestrator.driver.supervision import Supervision, headless, remote_failover, supervisor
from orchestrator.driver.supervision.leader_lease import hold_lease
from orchestrator.driver.terminal.progress import ProgressDisplay, say_obstacles
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import (
    DataDamaged,
    OrchestratorError,
    RunFailed,
    WorkerLost,
    is_out_of_threads,
)
from orchestrator.numerics import determinism
from orchestrator.optim.privacy.secret import Secret
from orchestrator.provenance.data.hashing import Scan
from orchestrator.provenance.tracking import default_uri, identity_of_process, is_server
from orchestrator.provenance.tracking.health import is_well
from orchestrator.records import barriers, lines, phases, times

_drawing = threading.Lock()  # matplotlib's settings are those of the whole process
_TRUSTED = "trust=true"  # of a run whose own driver has said so
# Errors of a driver that is to go on with a run, and finds that the Ray is gone, too.
_OF_A_LOST_RAY = ("ray.nobody-answers", "ray.no-head", "ray.not-joined", "ray.no-nodes")


@dataclass(frozen=True)
class Beside:
    """The things that a run shares with others that the same process drives, each in a thread of its own, such as the trials
    of a sweep."""

    folder: Path  # the `.orchestrator` that they are recorded in
    display: ProgressDisplay  # shows the progress of this run
    pending_signal: PendingSignal  # tells all of a request to end
    ray: RaySession  # that they run on, which outlives them
    tags: Mapping[str, str] = field(default_factory=dict)  # of its MLflow run
    scans: Mapping[str, Scan] = field(default_factory=dict)  # of inputs, by path, as another run of them had these
    # told what was found of code and data before anything is started; may raise
    check: Callable[[Provenance], None] = lambda _provenance: None
    opened: Callable[[str], None] = lambda _run_id: None  # told the id of the run


@dataclass(frozen=True)
class Job:
    """A run with its resources, executed by `complete`."""

    settings: Settings  # of the run
    plan: Plan  # what the settings come to
    project: Path  # folder from which the pipeline is imported
    audience: Audience  # people and functions that are told of events
    pending_signal: PendingSignal  # tells of a request to end
    ray: RaySession | None = None  # to run on, which others share; None for one of its own
    secret: Secret | None = None  # of a private run; None elsewhere
    supervision: Supervision | None = None  # goes on with the run when this process is gone; None where nobody does
    notes: tuple[str, ...] = ()  # for the user, told with those that follow from the preparation

    @property
    def display(self) -> ProgressDisplay:
        return self.audience.display

    def complete(self, opening: Future[Record], run_start: RunStart) -> tuple[str, RunOutcome]:
        """Run the job and close its record, whatever happens; returns the run's id and its outcome."""
        plan, display = self.plan, self.display
        began = time.monotonic() - phases.since_command()
        try:
            uri = self.settings.tracking.uri
            if uri is not None and is_server(uri) and not is_well(uri):
                opening.result()  # it may be out of reach: known before anything is started
            outcome = self._run(opening, run_start)
        except OrchestratorError as error:
            outcome = self._not_begun(run_start, error)
        except OSError as error:
            outcome = self._not_begun(run_start, unrecorded(error))
        except BaseException as error:
            if not is_out_of_threads(error):
                why = RunFailed(f"{type(error).__name__}: {error}", code="run.failed")
                opening.result().close(RunOutcome(error=why))
                raise
            outcome = self._not_begun(run_start, without_threads())
        finally:
            display.close()
        record = opening.result()
        tracker = record.tracker
        try:
            outcome = self._summed_up(record, outcome)
        except OSError as error:
            outcome = replace(outcome, error=outcome.error or unrecorded(error))
        except BaseException as error:  # the run is not left as one that goes on
            why = RunFailed(f"{type(error).__name__}: {error}", code="run.failed")
            record.close(replace(outcome, error=outcome.error or why))
            raise
        heard = len(outcome.not_logged)
        outcome = record.close(outcome)
        if self.pending_signal.signal is not None:  # who ends the run wants nobody to go on with it
            outcome = replace(outcome, has_lost_ray=False, weights_lost=False)
        for note in tracker.notes():
            display.say(f"note: {note}")
        for trouble in outcome.not_logged[heard:]:
            display.say(f"warning: {trouble}")
        if outcome.not_recorded is not None:
            display.say(summary.not_recorded(outcome.not_recorded, tracker.run_id, record.store.name))
        if outcome.error is None and plan.segments is None:
            outcome = outcome.ended(began, time.monotonic())
            own_uri = default_uri(record.files.path.parent)
            look = summary.where_to_look(tracker.run_id, tracker.experiment_id, record.store.uri, own_uri)
            display.say(summary.text(outcome, tracker.name, layout(plan), tracker.run_id, look))
        return tracker.run_id, outcome

    def _not_begun(self, run_start: RunStart, error: OrchestratorError) -> RunOutcome:
        """The outcome of a run that has come no farther than it was."""
        is_lost = run_start.taken_over is not None and error.code in _OF_A_LOST_RAY
        return RunOutcome(
            workers=self.plan.cluster.members.start,
            steps=run_start.written,
            loss=run_start.loss,
            metrics=dict(run_start.metrics),
            checkpoint=run_start.requirements.checkpoint,
            error=error,
            has_lost_ray=is_lost,
        )

    def _summed_up(self, record: Record, outcome: RunOutcome) -> RunOutcome:
        """Draw and compare what has come of the run, and put its model together, before the record is closed."""
        plan, display, files, tracker = self.plan, self.display, record.files, record.tracker
        with contextlib.suppress(OSError):
            record.restored()
        by_barrier = [] if plan.lockstep else barriers.staleness(list(lines.read(files.barriers)))
        largest = max((each.largest for each in by_barrier), default=None)
        outcome = replace(outcome, repeats=plan.repeats, staleness=largest)
        state = self._state_of_last_step(outcome, files)
        pipelining = plan.pipelining if plan.cluster.members.stages > 1 else None
        partition = record.described.get("partition")
        seen = pictures.RunHistory(files.trace, files.journal, partition, by_barrier, pipelining, files.times)
        with _drawing:
            trouble = pictures.draw(files.pictures, seen, tracker.name, outcome.schedule or _schedule(plan))
        if trouble is not None:
            display.say(f"note: {trouble}")
        if (changed := record.inputs_at_the_end()) is not None:
            display.say(f"warning: {changed}")
        for sentence in record.comparisons.compare_data(record.described.get("profile")):
            display.say(sentence)
        for sentence in record.compare_digest(outcome.digest):
            display.say(sentence)
        if outcome.error is None and plan.segments is None:
            if (trouble := record.keep_model(outcome, None if state is None else state.result())) is not None:
                display.say(f"note: {trouble}")
            if (limits := record.answering()) is not None:
                display.say(f"note: {limits}")
        return outcome

    def _state_of_last_step(self, outcome: RunOutcome, files: RunFolder) -> Future[TrainingState | None] | None:
        """It may have gigabytes, and is read beside what else is done at the end. None where no checkpoint holds it."""
        is_saved = outcome.best is not None or outcome.checkpoint == outcome.steps
        if not is_saved or outcome.error is not None or self.plan.segments is not None:
            return None
        pool = ThreadPoolExecutor(1, "state")
        state = pool.submit(model_folder.state_of, storage_of(self.plan, files), outcome.model.step)
        pool.shutdown(wait=False)
        return state

    def _run(self, opening: Future[Record], run_start: RunStart) -> RunOutcome:
        """Place the members, run them to the end, fetch the trained weights. Raises OrchestratorError for what goes wrong
        before the first member is started; later troubles are in the outcome."""
        plan = self.plan
        self.display.say(f"starting {layout(plan)}{self._crowding()}")
        started = plan.cluster.members.total(plan.cluster.members.most) if self.ray is None else 0
        for note in (*self.notes, *(limits.notes(started) if started else ())):
            self.display.say(f"note: {note}")
        # Processes that are started from here on inherit it. A Ray that is shared has been started, and is told by the slots.
        own = determinism.environment_of(plan.run.compute.arithmetic if self.ray is None else "native")
        entering = self._own_ray(run_start) if self.ray is None else contextlib.nullcontext(self.ray)
        with own, phases.entered("Ray", entering) as ray:
            self.pending_signal.watch()
            if opening.done():
                opening.result()  # what is refused by now starts nobody
            with contextlib.ExitStack() as held:
                began, begun = time.time(), threading.Event()
                restores = run_start.requirements.checkpoint is not None
                job, run_start = self._after_a_loss(run_start)
                plan = job.plan
                actor_slots, node_check = job._actor_slots(held, ray.trouble, opening, begun, restores=restores)
                credentials = make_credentials() if plan.exchange.tls else None
                members = held.enter_context(
                    Members(plan, secrets.token_bytes(32), credentials, self._driver_handle(ray), ray.trouble)
                )
                # A private Ray has the priority that the user wants.
                niceness = None if plan.cluster.address is None else os.getpriority(os.PRIO_PROCESS, 0)
                traits = TraitsByNode(plan.cluster.speeds)
                startup = Startup.begin(run_start, members, actor_slots, node_check, niceness, traits)
                begun.set()
                phases.note("start of members", began, time.time())
                with phases.of("wait for the record"):
                    record = opening.result()
                return job._drive(startup, record, ray)

    def _after_a_loss(self, run_start: RunStart) -> tuple[Job, RunStart]:
        """As a driver begins that has taken over by itself, or that lost the trained weights: nodes may be gone, and nobody
        is there who would ask for less. Workers for whom there is no room yet join later, servers do not."""
        cluster = self.plan.cluster
        is_after_a_loss = run_start.taken_over is not None or run_start.weights_lost
        if not is_after_a_loss or cluster.address is None or self.plan.data.sites:
            return self, run_start
        nodes, each = living_nodes(), Need(1, cluster.cpus, cluster.gpus, cluster.together, card=cluster.card_type)
        wanted = cluster.members
        members = wanted.within(room(each, nodes), exact=self.plan.exchange.exact)
        fewer = [
            f"{now} of {then} {what}"
            for now, then, what in (
                (members.start, wanted.start, "workers"),
                (members.servers, wanted.servers, "servers"),
            )
            if now < then
        ]
        if fewer:
            self.display.say(f"note: this Ray has room for {' and '.join(fewer)} now")
        addresses = {node.address for node in nodes}
        speeds = {address: speed for address, speed in cluster.speeds.items() if address in addresses}
        plan = replace(self.plan, cluster=replace(cluster, members=members, speeds=speeds))
        requirements = replace(run_start.requirements, members=members)
        return replace(self, plan=plan), replace(run_start, requirements=requirements)

    def _drive(self, startup: Startup, record: Record, ray: RaySession) -> RunOutcome:
        plan, tracker = self.plan, record.tracker
        if self.ray is None and plan.segments is None:  # one of many is gone on with as a whole, an audit not at all
            self.pending_signal.last_words = summary.last_words(tracker.run_id, record.store.name)
        if self.supervision is not None:
            self.supervision.run(tracker.run_id, record.files.trace)
        if plan.cluster.address is not None or self.settings.tracking.metrics_port is not None:
            tracker.listeners.append(Gauges(tracker.run_id, tracker.name, self.settings.run.experiment))
        say_obstacles(self.display, record.obstacles)
        for sentence in record.unshared:
            self.display.say(f"note: for others who rerun this: {sentence}")
        for sentence in record.earlier:
            self.display.say(f"note: {sentence}")
        private = self._private(record)
        audits_here = private is None and not plan.data.sites
        watch = DriftWatch(
            plan.run, record.data if audits_here else {}, record.comparisons.predecessor, plan.data.cache
        )
        time_log = TimeLog(record.files, record.tracker, self.display.say, timeline=plan.cadence.timeline)
        event_sink = EventSink(record, self.audience, None if private is None else private.epsilon, watch, time_log)
        storage = storage_of(plan, record.files)
        if plan.run.begin is not None and not open_storage(storage).sizes():
            record.files.sync()
            begin.put(plan.run.begin, storage)
        saving = Saving(Catalog(open_storage(storage), plan.checkpoints.keep), repeats=plan.repeats)
        everywhere = plan.checkpoints.uri is not None
        directory = MemberDirectory(plan.exchange, this_node(), storage, everywhere=everywhere)
        keys = None if private is None else private.keys
        requests = InspectionRequests(record.files.inspections)
        closing_inspection = contextlib.closing(ParameterInspection(requests, plan, startup.members.read_parameters))
        failover = self._with_failover(record, ray)
        with contextlib.closing(watch), closing_inspection as inspection, failover as head_goes_on:
            step_s = plan.cluster.timeouts.step_s
            fault_injection = None if plan.chaos is None else FaultInjection(plan.chaos, step_s)
            session = Session(startup, directory, saving, event_sink, inspection, keys, fault_injection)
            try:
                session.run(self.pending_signal, ray.trouble, ray.draining, ray.diagnosis)
            finally:
                trained_at = time.monotonic()
                pictures.prepare()  # while the workers are asked for what they have, and end
                by_worker = time_log.close()
        has_lost_ray = _is_lost(ray, head_goes_on=head_goes_on)
        outcome = replace(
            event_sink.outcome,
            trained_at=trained_at,
            has_lost_ray=has_lost_ray,
            head_goes_on=not has_lost_ray and _is_lost(ray, head_goes_on=False),
            times=times.shares(summed(by_worker)),
            steps_per_s=time_log.steps_per_s(),
            step_samples=plan.data.step_samples,
            shards=time_log.shards(),
        )
        self._keep_streams(storage, record, outcome.steps)
        if plan.segments is not None:  # its last state is that of a segment, and no result
            return replace(outcome, digest=None)
        if outcome.error is not None:
            return outcome
        try:
            return replace(
                outcome, best=self._keep_weights(session, startup.members, record, is_private=private is not None)
            )
        except RunFailed as error:  # what was trained up to here stays in the report
            return replace(outcome, error=error, weights_lost=isinstance(error, WorkerLost))

    def _keep_weights(
        self, session: Session, members: Members, record: Record, *, is_private: bool
    ) -> BestModel | None:
        """Fetch the trained weights, and what their holder knows of them; returns the best model where that is the run's.
        Raises RunFailed."""
        weights = record.files.weights
        unfinished = weights.with_suffix(".unfinished")
        try:
            holder = session.save_weights(str(unfinished))
            unfinished.rename(weights)
            told = members.profile(holder) or {}
            of_samples = ("profile", "partition") if is_private else ()
            best = None
            if self.plan.checkpoints.is_model:
                best = trained_weights.put_best(storage_of(self.plan, record.files), weights, record.files.trace)
            record.described = {key: value for key, value in told.items() if key not in of_samples}
            record.answers = members.answers(holder) or record.answers
        except RunFailed:
            with contextlib.suppress(OSError):  # of a file system that has become read-only
                unfinished.unlink()
            raise
        return best

    def _keep_streams(self, storage: str, record: Record, steps: int) -> None:
        """Keep what live streams gave, among the files of the run."""
        log = self.plan.data.stream_log
        try:
            if log is not None:
                shutil.copyfile(log, record.files.streams)
            else:
                stream_log.collect(storage, record.files.streams, steps)
        except (OSError, DataDamaged) as error:
            self.display.say(f"warning: what live streams gave is not with the run, which cannot be repeated: {error}")

    def _private(self, record: Record) -> Private | None:
        """The private part of a run with noise; None for a run without."""
        privacy = self.plan.data.privacy
        if self.secret is None or privacy is None:
            return None
        return Private(self.secret, privacy, record.files, record.facts)

    def _actor_slots(
        self,
        held: contextlib.ExitStack,  # lets go of the room at the end
        trouble: Callable[[], str | None],  # with the Ray
        opening: Future[Record],  # the run's record
        begun: threading.Event,  # set when all first members were placed
        *,
        restores: bool,  # whether it starts from a checkpoint
    ) -> tuple[ActorSlots, NodeCheck]:
        """Room for every member that the run starts with, on nodes that have this project, and what is asked of a member that
        comes later. A private Ray is this machine."""
        checkouts = held.enter_context(contextlib.ExitStack())  # gone after the members
        cluster, timeout_s = self.plan.cluster, self.plan.cluster.timeouts.start_s
        refuse_unknown(cluster.speeds, living_nodes())
        wanted = cluster.members.total(cluster.members.most if cluster.address is None else cluster.members.start)
        data, servers = self.plan.data, cluster.members.servers if self.plan.data.sites else 0
        sites = workers_at(data.sites, cluster.members.most, data.shards) if data.sites else {}
        need = Need(wanted, cluster.cpus, cluster.gpus, cluster.together, sites, cluster.card_type)
        needs = [need]
        if cluster.address is not None and self.plan.checkpoints.uri is None and not sites:
            # No other node reaches the checkpoints.
            needs = wishes(need, this_node(), cluster.members.stages, insists=restores)
        slots = held.enter_context(reserved(needs, timeout_s, self.pending_signal.check, trouble))
        anywhere = {"num_cpus": need.cpus, "num_gpus": need.gpus, **need.placement()}
        if cluster.address is None:
            here, also = str(self.project), self._variables()
            slots_here = [ActorPlacement(here, {**slot.options, **also}, slot.node.id) for slot in slots]
            # Its CPUs are those of the bundles, and what is started beyond these takes the place of one that stays empty.
            beyond = ActorPlacement(here, {**anywhere, "num_cpus": 0, **also})
            has_room = lambda gpus: gpus > 0 and has_room_for({"GPU": gpus})  # noqa: E731
            recorded = LateProject(opening, begun, checkouts, self.display.say, lambda place: Workspace(str(place), {}))
            slots_of_run = ActorSlots(slots_here, beyond, 0, recorded.place, has_room, gpus_of_cluster)
            return slots_of_run, lambda _node, in_copy: recorded.check(in_copy=in_copy)
        begins = self.plan.run.initial
        needed = [*self.settings.data.inputs, *([] if begins is None else [begins.file])]
        project = Project(
            self.project, needed, timeout_s, self.pending_signal.check, self.settings.environment.variables
        )
        workspaces = prepare_workspaces(project, {slot.node.id: slot.node for slot in slots}.values(), self.display.say)
        places = [
            ActorPlacement(
                workspace.project, {**slot.options, "runtime_env": dict(workspace.runtime_env)}, slot.node.id
            )
            for slot, workspace in ((slot, workspaces[slot.node.id]) for slot in slots)
        ]
        # A node that is not known yet is more likely to lack the project than to have it.
        carried = next((place for place in places if place.project is None), places[0])
        elsewhere = ActorPlacement(carried.project, {**anywhere, "runtime_env": carried.options["runtime_env"]})
        known = {this_node(), *(node for node, workspace in workspaces.items() if workspace.project is not None)}
        has_room = lambda gpus: gpus > 0 and has_room_for({**need.bundle, "GPU": gpus})  # noqa: E731
        carried_from = lambda place: copied(replace(project, path=place), living_nodes())  # noqa: E731
        recorded = LateProject(opening, begun, checkouts, self.display.say, carried_from)
        late = LateWorkspaces(project, known, self.display.say, recorded.has_changed)
        # The project may be found to have changed as it is copied.
        moved = lambda place: recorded.place(place) or late.copied(place) or recorded.place(place)  # noqa: E731
        slots_of_run = ActorSlots(places, elsewhere, servers, moved, has_room, gpus_of_cluster)

        def check(node: str | None, in_copy: bool) -> str | None:
            return (None if node is None or in_copy else late.check(node)) or recorded.check(in_copy=in_copy)

        return slots_of_run, check

    def _variables(self) -> dict[str, Any]:
        """Options that tell members of the arithmetic, if their Ray was started without it."""
        if self.ray is None or self.plan.run.compute.arithmetic == "native":
            return {}
        return {"runtime_env": {"env_vars": determinism.PORTABLE}}

    def _driver_handle(self, ray: RaySession) -> DriverHandle | None:
        """A handle with which members outlive this process for a moment. None if nobody goes on with the run, and in a joined
        Ray, whose members end with this process at once."""
        if self.supervision is None or not isinstance(ray, LocalRay):
            return None
        self.supervision.members(ray.lock)
        return DriverHandle(os.getpid(), str(ray.lock))

    @contextmanager
    def _with_failover(self, record: Record, ray: RaySession) -> Iterator[bool]:
        """Within the block another machine goes on with the run when this one is lost, if there can be one. This process ends
        when another one has taken over. Yields whether the head goes on with it as soon as this node is lost to that Ray."""
        if self.supervision is None:
            yield False
            return
        run_id, store = record.tracker.run_id, record.store
        task = self._failover_task(self.supervision, record) if isinstance(ray, JoinedRay) else None
        with contextlib.ExitStack() as held:
            if is_server(store.uri):  # its user and another machine may both go on with a run whose driver has ended
                held.enter_context(hold_lease(store, run_id, self.supervision.release))
            if task is not None:
                record.has_failover = True
                held.enter_context(
                    driver_failover.standing_by(driver_failover.starter(task), ray.trouble, self._has_no_failover)
                )
            yield task is not None and not task.first_line

    def _failover_task(self, supervision: Supervision, record: Record) -> driver_failover.FailoverTask | None:
        """The task of the process that goes on when this node of a joined Ray is lost. None if there can be none, which the
        user is told."""
        run_id, store, node = record.tracker.run_id, record.store, this_node()
        on_head, there = driver_failover.is_head(node), driver_failover.place(node)
        for lacking, remedy in (
            (self.secret is not None, "its secret is on this machine alone"),
            (not is_server(store.uri), "set tracking.uri to an MLflow server that all nodes reach"),
            (self.plan.checkpoints.uri is None, "set checkpoint.uri to a place that all nodes reach"),
            (there is None, "this Ray has no other node; add one, and launch again"),
            (
                on_head and headless.refusal(self.plan) is not None,
                f"its Ray is lost, too, and {headless.refusal(self.plan)}",
            ),
        ):
            if lacking:
                self._has_no_failover(remedy)
                return None
        words = [*(each for each in supervision.words(run_id) if each != _TRUSTED), _TRUSTED]
        declared = self.settings.environment.variables
        variables = {**environment.of_workers(declared), **credentials_of(declared)}
        lock = str(record.files.lock.relative_to(record.files.path.parents[1]))
        task = driver_failover.FailoverTask(
            run_id, node, os.getpid(), words, str(supervision.folder), variables, supervisor.TAKEN_OVER, lock=lock
        )
        if not on_head:
            return task
        process = tuple(identity_of_process().values())
        watched = remote_failover.RemoteFailoverTask(
            run_id, store.uri, process, tuple(words), headless.workers(self.plan), lock
        )
        return replace(task, words=[remote_failover.__name__], first_line=watched.as_json())

    def _has_no_failover(self, why: str) -> None:
        self.display.say(f"note: when this machine is lost, nobody goes on with the run by himself: {why}")

    def _own_ray(self, run_start: RunStart) -> AbstractContextManager[RaySession]:
        """Joined, or started for this job with as many CPUs as it may need (rule D4)."""
        cluster = self.plan.cluster
        if cluster.address is not None:
            return JoinedRay(cluster.address, insists=run_start.taken_over is not None)
        members = cluster.members.total(cluster.members.most)
        port = self.settings.tracking.metrics_port
        return LocalRay(
            cluster.cpus * members,
            cluster.timeouts.start_s,
            self.pending_signal.check,
            runtime_envs=False,
            metrics_port=port,
            outlived=self.supervision is not None,
            actors=Actors(cluster.cpus, *visible_cards.for_ray(wanted=bool(cluster.gpus))),
        )

    def _crowding(self) -> str:
        """The number of cores in words, if members of an own, private Ray have less than a core each; otherwise empty."""
        cluster, cores = self.plan.cluster, len(os.sched_getaffinity(0))
        own = self.ray is None and cluster.address is None
        crowded = own and cluster.cpus * cluster.members.total(cluster.members.most) > cores
        return f", on {cores} core{'s' * (cores > 1)}" * crowded


def storage_of(plan: Plan, files: RunFolder) -> str:
    """The place of the run's checkpoints."""
    return files.checkpoints_at(plan.checkpoints.uri)


def _is_lost(ray: RaySession, *, head_goes_on: bool) -> bool:
    """Whether a Ray that was joined is gone, for this node at least, and with it whoever there would go on with the run."""
    return isinstance(ray, JoinedRay) and (ray.is_headless or (ray.trouble() is not None and not head_goes_on))


def _schedule(plan: Plan) -> Schedule:
    """The schedule of a run that never began."""
    return build_schedule(plan.exchange.topology.name, plan.cluster.members.most, **plan.exchange.topology.options)
