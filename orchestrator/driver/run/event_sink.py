"""Writes what happens in a run to where it belongs: the journal, the trace, MLflow, the terminal, the outcome.

The journal holds what settings do not determine (law 4): who came and went, the generations, the decisions with their
reasons, the checkpoints. Nothing here decides or waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.common import injection
from orchestrator.controller import events
from orchestrator.driver.preflight import crowded_cards
from orchestrator.driver.preflight.crowded_cards import CardMemory, Tenant
from orchestrator.driver.recording.record import Record
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run.checkpointing import SavedCheckpoint
from orchestrator.driver.run.drift_watch import DataDrift, DriftWatch
from orchestrator.driver.run.event_table import EVENTS
from orchestrator.driver.run.time_log import TimeLog
from orchestrator.driver.supervision import TakenOver
from orchestrator.driver.terminal.progress import PLAIN_EVERY_S, ProgressDisplay, say_obstacles
from orchestrator.errors import ConfigurationError, Inconsistent, NotRerunnable, OrchestratorError, RunFailed
from orchestrator.provenance.tracking import EXECUTION
from orchestrator.records import input_audit, phases, trace
from orchestrator.records.lines import LineFile
from orchestrator.records.merging import Change
from orchestrator.worker.member.generation import Generation

Callback = Callable[[Mapping[str, Any]], object]

_REMEMBERED_LINES = 10_000
_MANY_WORKERS = 16
_MANY_PASSES = 4  # of one worker in a step
_SMALL_PASS_S = 0.02  # a longer pass is more than the calls of its operators
_UPLOAD_S = 30.0  # between two copies of the run's files in MLflow, which are made at checkpoints, at least
_UPLOAD_REST = 20.0  # times as long as the last copy took: all of a trace that grows is sent each time
_NO_CHECKPOINTS = (
    "note: no worker runs on this machine, so there are no checkpoints and no resume; set checkpoint.uri to a place that "
    "all nodes reach"
)

_NO_MORE_CHECKPOINTS = "no worker runs on this machine any more, and until one does no checkpoint is written"


@dataclass(frozen=True)
class Audience:
    """The listeners of a run while it goes on. on_event: called with each event."""

    display: ProgressDisplay
    on_event: Callback | None = None


class EventSink:
    """Receives the events of a run and writes them down. Its `outcome` is the result of the run so far."""

    def __init__(
        self,
        record: Record,  # where events are written
        audience: Audience,  # people and functions that are told of events
        # privacy that so many steps spend; None where the run is not private
        epsilon: Callable[[int], float] | None = None,
        # compares the data with those of the run before, from the first step on; None for no comparison
        drift_watch: DriftWatch | None = None,
        time_log: TimeLog | None = None,  # where members' reports of their time go; None for nowhere
    ) -> None:
        self._time_log = time_log
        self._on_event, progress = audience.on_event, audience.display
        self._epsilon = epsilon
        self._drift_watch = drift_watch
        self._record = record
        self._tracker = record.tracker
        self._journal = record.journal
        self._progress = progress
        self._said: dict[str, str] = {}
        self._unprotected: set[int] = set()
        self._ranks: dict[int, int] = {}  # of the workers of the present generation
        self._evaluated: dict[int, tuple[int, int]] = {}  # generation, hash of the metrics, which may be thousands
        self._sent_step = -1  # of the last report of what is sent
        self._told_of_trouble = False
        self._told_of_disk = False
        self._uploaded_at = time.monotonic()
        self._uploaded_s = 0.0  # that all copies had taken when the last one was asked for
        self._uploaded_once = False
        self._counted_at = time.monotonic()  # when it was said last how many workers are ready
        self._taken_over: tuple[TakenOver, int] | None = None  # until the first step is done
        self._hosted_first: tuple[int, ...] = ()  # shards of each worker, until their speed was looked at
        self._writes = True  # whether members of the generation write checkpoints
        self._first = 0  # step of the first line of the trace
        self.outcome = RunOutcome()

    @property
    def origin(self) -> str | None:
        """The commit that the code was made from."""
        return self._record.origin

    def goes_on(
        self, steps: int, loss: float | None, metrics: Mapping[str, float], checkpoint: int | None, first: int
    ) -> None:
        """Take over what was reported before, where a run is resumed. first: step that the run begins with."""
        self._first = first
        self.outcome = replace(
            self.outcome,
            steps=steps,
            loss=loss,
            metrics=dict(metrics),
            checkpoint=checkpoint,
            epsilon=self._spent(steps),
        )

    def catches_up(self, untold: Iterable[Mapping[str, Any]]) -> None:
        """Tell MLflow of lines of the trace and of evaluations that are in the files already, and everybody of calls of
        `on_evaluation`. They are untold until that is at MLflow or on the disk."""
        for entry in untold:
            match entry.get("event"):
                case "called_back":
                    self.event(**entry)
                case "evaluated":
                    self._tracker.metrics(entry["step"], entry["metrics"])
                case _:
                    self._tracker.metrics(entry["step"], self._metrics_of(entry))
        file = self._record.files.untold
        if file.exists():
            with suppress(OSError):  # of a full disk; a later driver tells it
                self._tracker.sync()
                file.unlink()

    def takes_over(self, taken_over: TakenOver, redone: int) -> None:
        """Another driver has died; how long that took is known with the first step. redone: the steps that are done again, as
        far as the trace here tells. MLflow may have heard of more, where the trace of that driver was lost with its machine."""
        steps_lost = max(redone, self._tracker.reached - self.outcome.steps)
        self._taken_over = (taken_over, steps_lost)
        self.event("driver_lost", pid=taken_over.driver, steps_lost=steps_lost)

    def agreed(self, run_manifest: Mapping[str, Any]) -> None:
        """Record the run manifest that the workers agree on."""
        self._record.run_manifest = run_manifest
        if self.outcome.generations != 1:
            return
        needed = self._record.memory
        if needed is not None:
            self._progress.say(needed)
        unknown = run_manifest.get("unknown_operators")
        if unknown:
            self._progress.say(
                f"note: run.arithmetic=portable: {', '.join(unknown)} is on no page of operators, so nobody knows whether its "
                "bits are the same on another processor"
            )

    def refusal(self, run_manifest: Mapping[str, Any]) -> NotRerunnable | None:
        """Why the run may not go on with the data that its workers have, or under strict with the bits that they compute. Other
        bits are told."""
        refused = self._record.other_data(run_manifest)
        if refused is None and (other := self._record.other_bits(run_manifest)) is not None:
            refused = self._record.goes_on_with_other_bits(other)
            if refused is None:
                self._progress.say(f"warning: {other}: nobody can repeat it exactly")
        return refused

    def crowded(self, generation: Generation, cards: Mapping[int, CardMemory]) -> ConfigurationError | None:
        """Say it if members of the first generation, and spares, hardly fit on the GPUs that they share. Returns why they do
        not. cards: by member."""
        if not cards:
            return None
        begin, spare = generation.begin, self._record.needed_by_a_spare(generation)
        needed = dict(zip(begin.members, self._record.needed_at_once(generation), strict=False))
        names = {
            member: f"{'worker' if rank < begin.workers else 'server'} {member}"
            for rank, member in enumerate(begin.members)
        }
        each = [
            Tenant(names.get(member, f"spare {member}"), card, needed.get(member, spare))
            for member, card in cards.items()
            if spare or member in needed
        ]
        self._say((), [*crowded_cards.notes(each)])
        return crowded_cards.refusal(each)

    def described(self, node: str, environment: Mapping[str, Any], modules: list[dict[str, Any]]) -> None:
        """Record what the process of a worker on this node is made of."""
        self._say(*self._record.describe(node, environment, modules))

    def was_read(self, audit: Mapping[str, Any]) -> NotRerunnable | None:
        """Record what the user's code has read; why a strict run may not go on with that."""
        read = input_audit.from_dict(audit)
        obstacles, notes = self._record.was_read(read) if read else ([], [])
        if (obstacles or notes) and (refusal := self._record.refusal_of_inputs()) is not None:
            return refusal
        self._say(obstacles, notes)
        return None

    def _say(self, obstacles: Sequence[str], notes: Sequence[str]) -> None:
        say_obstacles(self._progress, obstacles)
        for note in notes:
            self._progress.say(f"note: {note}")

    def ready(self, workers: int, wanted: int) -> None:
        """Say now and then how many workers are ready, while the run waits for its first ones, if they are many: a few are
        ready at about the same time."""
        if workers < wanted >= _MANY_WORKERS and time.monotonic() - self._counted_at >= PLAIN_EVERY_S:
            self._counted_at = time.monotonic()
            self._progress.say(f"{workers} of {wanted} workers are ready")

    def gives_way(self, node: str, niceness: int, ours: int) -> None:
        """Note that members of a joined Ray have a lower priority than this process."""
        self._progress.say(
            f"note: workers on node {node[:8]} run at nice level {niceness}, this driver at {ours}: whatever else computes "
            "there goes first, which slows training down\n"
            f"  start Ray there with RAY_worker_niceness={ours} in its environment: RAY_worker_niceness={ours} ray start ..."
        )

    def tick(self) -> None:
        if self._time_log is not None:
            self._time_log.tick()
        self._tracker.tick()
        for note in self._tracker.notes():
            self._progress.say(f"note: {note}")
        if self._tracker.trouble is not None and not self._told_of_trouble:
            self._told_of_trouble = True
            self._progress.say(
                "warning: MLflow does not take what this run reports; it goes on, and its folder keeps that: "
                f"{self._tracker.trouble}"
            )

        self.not_logged(self._record.logger_feed.troubles())
        found = None if self._drift_watch is None else self._drift_watch.take()
        if found is not None:
            self._drifted(found)

    def removed(self) -> RunFailed | None:
        """Put back the files that somebody has removed. Why the run cannot go on where its folder was removed: what was
        written before the first step is lost, so it could be neither resumed nor repeated. Raises OSError."""
        if not self._record.restored():
            return None
        files = self._record.files
        if files.settings.exists():
            self._progress.say(
                f"warning: files in {files.path} were removed while the run writes them; they are there again"
            )
            return None
        if not files.checkpoints.exists():
            self.outcome = replace(self.outcome, checkpoint=None)
        return RunFailed(
            f"the folder of the run, {files.path}, was removed while it ran, after step {self.outcome.steps}",
            "launch it again; what MLflow was told until then is there",
            code="record.removed",
        )

    def not_logged(self, troubles: Sequence[str]) -> None:
        """Writers beside MLflow that are told nothing any more."""
        self.outcome = replace(self.outcome, not_logged=(*self.outcome.not_logged, *troubles))
        for trouble in troubles:
            self._progress.say(f"warning: {trouble}; the run goes on, and MLflow is told all of it")

    def _drifted(self, found: DataDrift) -> None:
        self._record.comparisons.drift_told = True
        self.event("data_compared", run=found.run_id, drift=found.drift)

    def failed(self, error: OrchestratorError | None) -> None:
        """The run ends. The first error is the one that is reported. Replicas that differ have no digest in common."""
        error = self.outcome.error or error
        self.outcome = replace(self.outcome, error=error)
        self.finished(self.outcome.digest)

    def finished(self, digest: str | None) -> None:
        """Note that a member has finished. digest: of the parameters of a member that has finished; None where it has none."""
        digest = None if isinstance(self.outcome.error, Inconsistent) else digest or self.outcome.digest
        self.outcome = replace(self.outcome, digest=digest)

    def heard(self, member: int, where: str | None, report: Mapping[str, Any]) -> None:
        """Write what a member reports, unless another has reported the same, or it is no event of the table. where: the
        member's machine; None where it never said."""
        facts = {"member": member, "worker": member, "where": where, **report}
        event = facts.pop("event")
        if event in EVENTS and self._is_new(event, facts):
            self.event(event, **facts)

    def _is_new(self, event: str, facts: Mapping[str, Any]) -> bool:
        """Every worker reports every evaluation, what the members send, and that no row could be tried. The first report is
        enough; of an evaluation one of a later generation counts if it differs."""
        if event == "unserved":
            is_first, self._record.served_told = self._record.served_told is None, facts["why"]
            return is_first
        if event == "sent":
            known_step, self._sent_step = self._sent_step, max(self._sent_step, facts["step"])
            return bool(self._sent_step > known_step)
        if event == "evaluated":
            found = (facts.get("generation", 0), hash(repr(sorted(facts["metrics"].items()))))
            known = self._evaluated.get(facts["step"])
            if known is not None and (known[0] >= found[0] or known[1] == found[1]):
                return False
            self._evaluated[facts["step"]] = found
        return True

    def event(self, event: str, **facts: Any) -> None:
        """Write an event where its row of the table says."""
        row, known = EVENTS[event], {"step": self.outcome.steps, **facts}
        self.outcome = row.outcome(self.outcome, known)
        if row.fields is not None:
            line = {"event": event, **row.fields(known)}
            self._journal.append([line])
            self._call_back(line)
        if metrics := row.metrics(known):
            self._tracker.metrics(known["step"], metrics)
        for sentence in row.sentences(known):
            self._progress.say(sentence)

    def _call_back(self, event: Mapping[str, Any]) -> None:
        """The run goes on whatever the user's function does."""
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:
            self._on_event = None
            self._progress.say(
                f"warning: on_event raised {type(error).__name__}: {error}; it is not called any more, the run goes on"
            )

    def begins(self, generation: Generation, away: Sequence[str] = ()) -> None:
        """A generation begins. The terminal hears of it with its first step (`recovered`), and at once of shards that sit it
        out. away: the sites of those."""
        members, steps = generation.begin.members, generation.begin.run_manifest["steps"]
        self._ranks = {member: rank for rank, member in enumerate(members[: generation.workers])}
        self.event("generation_started", generation=generation, members=members, steps=steps, away=away)
        if self.outcome.generations == 1 and len(set(generation.begin.stages)) < 2:
            self._hosted_first = self.outcome.hosted
        if self.outcome.generations == 1:
            self._progress.start(steps)
            if not generation.writers:
                self._progress.say(_NO_CHECKPOINTS)
        elif bool(generation.writers) != self._writes:
            again = "note: a worker runs on this machine again, and writes checkpoints"
            saved = f"the newest holds {self.outcome.checkpoint or 0} steps"
            self._progress.say(again if generation.writers else f"warning: {_NO_MORE_CHECKPOINTS}; {saved}")
        self._writes = bool(generation.writers)

    def lines(self, change: Change) -> None:
        """Record new lines of the trace, in order."""
        self._write(self._record.trace, change, self._first)
        if change.replaces:
            self._go_back(change)
        new = change.new
        if not new:
            return
        if self._drift_watch is not None:
            self._drift_watch.begin()
        if self.outcome.first_step_at is None:
            self.outcome = replace(self.outcome, first_step_at=time.monotonic())
            self.began(phases.recorded())
        for line in new:
            self._step(line)
        if self._taken_over is not None:
            (before, steps_lost), self._taken_over = self._taken_over, None
            why = f"the driver (process {before.driver}) had ended"
            self.recovered(events.Recovered("driver", time.monotonic() - before.ended, steps_lost, why))
        self._progress.step(self.outcome.steps, self.outcome.loss, self.outcome.epsilon)

    def _step(self, line: Mapping[str, Any]) -> None:
        """Tell MLflow and the user's function of a step. Its line stands in the trace, not in the journal."""
        step, told = line["step"], self._metrics_of(line)
        loss, epsilon = told.get("train/loss"), told.get("train/epsilon")
        self.outcome = replace(self.outcome, steps=step + 1, loss=loss, epsilon=epsilon)
        self._tracker.metrics(step, told)
        self._call_back({"event": "step", "step": step, "loss": loss})

    def _metrics_of(self, line: Mapping[str, Any]) -> dict[str, float]:
        """As a line of the trace tells them."""
        found = {"train/loss": trace.loss_of(line), "train/epsilon": self._spent(line["step"] + 1)}
        return {name: value for name, value in found.items() if value is not None}

    def _spent(self, steps: int) -> float | None:
        return self._epsilon(steps) if self._epsilon is not None and steps else None

    def began(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Record what was done before the first step, by the driver or by a member (`records.phases`)."""
        if self._time_log is not None:
            self._time_log.begun(told)

    def barriers(self, change: Change) -> None:
        """Record new sync barriers of an asynchronous run, in order."""
        if self._record.barriers is not None:
            self._write(self._record.barriers, change, 0)
        for barrier in change.new:
            if "consensus_distance" in barrier:
                apart, gap = (float.fromhex(barrier[key]) for key in ("consensus_distance", "spectral_gap"))
                metrics = {f"{EXECUTION}gossip/consensus_distance": apart, f"{EXECUTION}gossip/spectral_gap": gap}
                self._tracker.metrics(barrier["steps"] - 1, metrics)

    def _write(self, file: LineFile, change: Change, first: int) -> None:
        """first: number of the first line of the file."""
        if change.replaces:
            file.keep(change.kept - first)
        file.append(change.new)
        if file.trouble is not None and not self._told_of_disk:
            self._told_of_disk = True
            self._progress.say(
                f"warning: {file.path} cannot be written, training goes on: {file.trouble}\n"
                "  make room: what is missing is tried again with each step"
            )

    def _go_back(self, change: Change) -> None:
        """Steps after these are done again and come out otherwise."""
        loss = None if change.last is None else trace.loss_of(change.last)
        self.outcome = replace(self.outcome, steps=change.kept, loss=loss)
        for step in [step for step in self._evaluated if step >= change.kept]:
            del self._evaluated[step]

    def times(self, role: str, member: int, window: Mapping[str, Any]) -> None:
        """Record where the time of a member went."""
        self._note_small_passes(window.get("micro_batch_s"))
        if self._time_log is not None:
            self._time_log.add(f"{role} {member}", window, self._ranks.get(member))

    def _note_small_passes(self, micro_batch_s: float | None) -> None:
        """Told once, by the first steps that were measured: a pass so short takes about as long with more rows."""
        hosted, self._hosted_first = self._hosted_first, ()
        passes, shards, workers = max(hosted, default=0), sum(hosted), len(hosted)
        if micro_batch_s is None:
            self._hosted_first = hosted
        elif passes >= _MANY_PASSES and micro_batch_s < _SMALL_PASS_S:
            self._progress.say(
                f"note: {shards} shards on {workers} worker{'s' * (workers > 1)}: a step makes {passes} passes of "
                f"{1e3 * micro_batch_s:.2g} ms each, one after another, and is up to {passes} times slower than with "
                f"data.shards={workers}; other shards give other bits"
            )

    def recovered(self, command: events.Recovered) -> None:
        self.event("recovered", **vars(command), workers=self.outcome.workers)

    def sync(self) -> None:
        """Wait until the trace, the sync barriers, the journal and what the run is made of are on the disk, and their metrics
        there or at the store.

        This comes before a checkpoint of their last step, since a run that is resumed from it goes on behind them, and does no
        evaluation of theirs again. Raises OSError when the disk does not take them."""
        for file in (*self._record.history, self._journal):
            file.sync()
        self._record.files.sync()
        self._tracker.sync()

    def saved(self, saved: SavedCheckpoint) -> None:
        self.event(
            "checkpoint_saved",
            step=saved.step,
            parts=saved.parts,
            bytes=saved.manifest.size_bytes,
            state=saved.manifest.state_digest,
            without_streams=saved.manifest.digest_without_streams,
            seals=self._record.seals(saved.step),
            stall_s=saved.stall_s,
            seconds=saved.seconds,
        )
        is_first, self._uploaded_once = not self._uploaded_once, True
        took_s = self._tracker.upload_s - self._uploaded_s
        is_due = time.monotonic() - self._uploaded_at >= max(_UPLOAD_S, _UPLOAD_REST * took_s)
        if is_due or (self._record.has_failover and is_first):
            self._uploaded_at, self._uploaded_s = time.monotonic(), self._tracker.upload_s
            self._record.upload()
        if self._record.has_failover:
            self._record.upload_history()

    def lost(self, role: str, member: int, why: str, where: str | None = None) -> None:
        """Tell of the loss of a member. where: its machine; None where it never said."""
        injection.at("lost", None, (role, member, why))
        self.event(f"{role}_lost", **{role: member}, why=why, where=where)

    def unprotected(self, workers: Sequence[int], why: str = "on another machine than the driver") -> None:
        """Tell of each of these workers, once, that what its shards keep is lost with its process."""
        new = [worker for worker in workers if worker not in self._unprotected]
        self._unprotected.update(new)
        for worker in new:
            self.event("shard_state_unprotected", worker=worker, why=why)
        if new:
            named = f"worker{'s' * (len(new) > 1)} {', '.join(map(str, new))}"
            self._progress.say(
                f"note: what the shards of {named} keep is lost with {'their processes' if len(new) > 1 else 'its process'} "
                f"({why}); all workers go back to the last checkpoint then"
            )

    def printed(self, who: str, line: str) -> None:
        """Show what the pipeline prints, with its worker; the same line from other workers is shown once."""
        if len(self._said) > _REMEMBERED_LINES:
            self._said.clear()
        if self._said.setdefault(line, who) == who:
            self._progress.say(f"[{who}] {line}")
