"""Writes what happens in a run to where it belongs: the journal, the trace, MLflow, the terminal, the outcome.

The journal holds what settings do not determine (law 4): who came and went, the generations, the decisions with their
reasons, the checkpoints. Nothing here decides or waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.common import injection
from orchestrator.controller import events
from orchestrator.controller.fault_injection import Disturbance
from orchestrator.driver.recording.record import Record
from orchestrator.driver.report import few
from orchestrator.driver.report.outcome import Outcome, recovery_in_words
from orchestrator.driver.run.checkpointing import SavedCheckpoint
from orchestrator.driver.run.drift_watch import DriftWatch, Found
from orchestrator.driver.run.standstill import Stand
from orchestrator.driver.run.time_log import TimeLog
from orchestrator.driver.supervision import TakenOver
from orchestrator.driver.terminal.progress import ProgressDisplay, say_obstacles
from orchestrator.errors import NotRerunnable, RunFailed
from orchestrator.provenance.tracking import EXECUTION
from orchestrator.records import phases, reads, trace
from orchestrator.records.files_read import FilesRead
from orchestrator.records.lines import LineFile
from orchestrator.records.merging import Change
from orchestrator.worker.member.generation import Generation

Callback = Callable[[Mapping[str, Any]], object]

_REMEMBERED_LINES = 10_000
_MANY_PASSES = 4  # of one worker in a step
_SMALL_PASS_S = 0.02  # a longer pass is more than the calls of its operators
_UPLOAD_S = 30.0  # between two copies of the run's files in MLflow, which are made at checkpoints
_NO_CHECKPOINTS = (
    "note: no worker runs on this machine, so there are no checkpoints and no resume; set checkpoint.uri to a place that "
    "all nodes reach"
)


@dataclass(frozen=True)
class Audience:
    """Who hears of a run while it goes on. on_event: called with each event."""

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
        self._evaluated: dict[int, tuple[int, dict[str, float]]] = {}  # generation, metrics
        self._sent_step = -1  # of the last report of what is sent
        self._told_of_trouble = False
        self._told_of_disk = False
        self._uploaded_at = time.monotonic()
        self._uploaded_once = False
        self._taken_over: tuple[TakenOver, int] | None = None  # until the first step is done
        self._hosted_first: tuple[int, ...] = ()  # shards of each worker, until their speed was looked at
        self._first_report: tuple[int, float] | None = None  # steps that were done, and when they were reported
        self.outcome = Outcome()

    @property
    def origin(self) -> str | None:
        """The commit that the code was made from."""
        return self._record.origin

    def goes_on(self, steps: int, loss: float | None, metrics: Mapping[str, float], checkpoint: int | None) -> None:
        """A run is resumed: take over what was reported before."""
        outcome = self.outcome
        outcome.steps, outcome.loss, outcome.metrics, outcome.checkpoint = steps, loss, dict(metrics), checkpoint

    def catches_up(self, untold: Iterable[Mapping[str, Any]]) -> None:
        """Tell MLflow of lines of the trace and of evaluations that are in the files already."""
        for entry in untold:
            loss = None if "event" in entry else trace.loss_of(entry)
            told = entry["metrics"] if "event" in entry else {} if loss is None else {"train/loss": loss}
            self._tracker.metrics(entry["step"], told)

    def takes_over(self, taken_over: TakenOver, steps_lost: int) -> None:
        """Another driver has died; how long that took is known with the first step. steps_lost: those that are done again."""
        self._taken_over = (taken_over, steps_lost)
        self.event("driver_lost", pid=taken_over.driver, steps_lost=steps_lost)

    def agreed(self, run_manifest: Mapping[str, Any]) -> None:
        """Record the run manifest that the workers agree on."""
        self._record.run_manifest = run_manifest
        needed = self._record.memory
        if needed is not None and self.outcome.generations == 1:
            self._progress.say(needed)
        unknown = run_manifest.get("unknown_operators")
        if unknown and self.outcome.generations == 1:
            self._progress.say(
                f"note: run.arithmetic=portable: {', '.join(unknown)} is on no page of operators, so nobody knows whether its "
                "bits are the same on another processor"
            )

    def described(self, node: str, environment: Mapping[str, Any], modules: list[dict[str, Any]]) -> None:
        """Record what the process of a worker on this node is made of."""
        self._say(*self._record.describe(node, environment, modules))

    def was_read(self, found: Mapping[str, Any]) -> NotRerunnable | None:
        """Record what the user's code has read; why a strict run may not go on with that."""
        read = reads.from_dict(found)
        obstacles, notes = self._record.was_read(read) if read else ([], [])
        if (obstacles or notes) and (refusal := self._record.refusal_of_reads()) is not None:
            return refusal
        self._say(obstacles, notes)
        return None

    def _say(self, obstacles: Sequence[str], notes: Sequence[str]) -> None:
        say_obstacles(self._progress, obstacles)
        for note in notes:
            self._progress.say(f"note: {note}")

    def gives_way(self, node: str, niceness: int, ours: int) -> None:
        """Note that members of a joined Ray have a lower priority than this process."""
        self._progress.say(
            f"note: workers on node {node[:8]} run at nice level {niceness}, this driver at {ours}: whatever else computes "
            "there goes first, which slows training down\n"
            f"  start Ray there with RAY_worker_niceness={ours} in its environment: RAY_worker_niceness={ours} ray start ..."
        )

    def tick(self) -> None:
        self._tracker.tick()
        for note in self._tracker.notes():
            self._progress.say(f"note: {note}")
        if self._tracker.trouble is not None and not self._told_of_trouble:
            self._told_of_trouble = True
            self._progress.say(
                "warning: MLflow does not take what this run reports; it goes on, and its folder keeps that: "
                f"{self._tracker.trouble}"
            )

        if self._record.feed is not None:
            self.not_told(self._record.feed.troubles())
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
            self.outcome.checkpoint = None
        return RunFailed(
            f"the folder of the run, {files.path}, was removed while it ran, after step {self.outcome.steps}",
            "launch it again; what MLflow was told until then is there",
            code="record.removed",
        )

    def not_told(self, troubles: Sequence[str]) -> None:
        """Writers beside MLflow that are told nothing any more."""
        self.outcome.not_told += troubles
        for trouble in troubles:
            self._progress.say(f"warning: {trouble}; the run goes on, and MLflow is told all of it")

    def _drifted(self, found: Found) -> None:
        self._record.drift_told = True
        self.event("data_compared", run=found.run_id, **found.drift.as_dict())
        if found.drift.is_any:
            self._progress.say(f"note: since run {found.run_id} of this experiment {found.drift.text}")

    def event(self, event: str, **details: Any) -> None:
        """Append an event to the journal."""
        self._journal.append([{"event": event, **details}])
        self._call_back({"event": event, **details})

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

    def decided(self, before: str, after: str, reason: str) -> None:
        self.event("decided", **{"from": before, "to": after, "reason": reason})

    def begins(self, generation: Generation) -> None:
        """A generation begins. The terminal hears of it with its first step (`recovered`)."""
        members, steps = generation.begin.members, generation.begin.run_manifest["steps"]
        self._ranks = {member: rank for rank, member in enumerate(members[: generation.workers])}
        self.event("generation_started", **generation.as_event(), members=members, steps=steps)
        self.outcome.generations += 1
        self.outcome.workers = generation.workers
        self.outcome.hosted = tuple(map(len, generation.begin.shards))
        if self.outcome.generations == 1 and len(set(generation.begin.stages)) < 2:
            self._hosted_first = self.outcome.hosted
        if self.outcome.schedule is None or generation.workers > self.outcome.schedule.workers:
            self.outcome.schedule = generation.schedule
        self._tracker.metrics(self.outcome.steps, {f"{EXECUTION}cluster/workers": generation.workers})
        if self.outcome.generations == 1:
            self._progress.start(steps)
            if generation.storage is not None and not generation.writers:
                self._progress.say(_NO_CHECKPOINTS)

    def lines(self, change: Change) -> None:
        """Record new lines of the trace, in order."""
        self._write(self._record.trace, change)
        if change.replaces:
            self._go_back(change)
        new = change.new
        if not new:
            return
        if self._drift_watch is not None:
            self._drift_watch.begin()
        now = time.monotonic()
        if self.outcome.first_step_at is None:
            self.outcome.first_step_at = now
            self.began(phases.told())
        for line in new:
            self.outcome.steps = line["step"] + 1
            self.outcome.loss = trace.loss_of(line)
            told = {} if self.outcome.loss is None else {"train/loss": self.outcome.loss}
            if self._epsilon is not None:
                self.outcome.epsilon = told["train/epsilon"] = self._epsilon(self.outcome.steps)
            self._tracker.metrics(line["step"], told)
            self._call_back({"event": "step", "step": line["step"], "loss": self.outcome.loss})
        if self._taken_over is not None:
            (before, steps_lost), self._taken_over = self._taken_over, None
            why = f"the driver (process {before.driver}) had ended"
            self.recovered(events.Recovered("driver", time.time() - before.ended, steps_lost, why))
        if self._first_report is None:
            self._first_report = (self.outcome.steps, now)
        elif now > self._first_report[1]:
            self.outcome.steps_per_s = (self.outcome.steps - self._first_report[0]) / (now - self._first_report[1])
        self._progress.step(self.outcome.steps, self.outcome.loss, self.outcome.epsilon)

    def began(self, told: Sequence[Mapping[str, Any]]) -> None:
        """What was done before the first step, by the driver or by a member (`records.phases`)."""
        if self._time_log is not None:
            self._time_log.begun(told)

    def rests(self, change: Change) -> None:
        """Record new rests of an asynchronous run, in order."""
        if self._record.rests is not None:
            self._write(self._record.rests, change)
        for rest in change.new:
            if "consensus_distance" in rest:
                apart, gap = (float.fromhex(rest[key]) for key in ("consensus_distance", "spectral_gap"))
                told = {f"{EXECUTION}gossip/consensus_distance": apart, f"{EXECUTION}gossip/spectral_gap": gap}
                self._tracker.metrics(rest["steps"] - 1, told)

    def _write(self, file: LineFile, change: Change) -> None:
        if change.replaces:
            file.keep(change.kept)
        file.append(change.new)
        if file.trouble is not None and not self._told_of_disk:
            self._told_of_disk = True
            self._progress.say(
                f"warning: {file.path} cannot be written, training goes on: {file.trouble}\n"
                "  make room: what is missing is tried again with each step"
            )

    def _go_back(self, change: Change) -> None:
        """Steps after these are done again and come out otherwise."""
        self.outcome.steps = change.kept
        self.outcome.loss = None if change.last is None else trace.loss_of(change.last)
        for step in [step for step in self._evaluated if step >= change.kept]:
            del self._evaluated[step]

    def evaluated(self, step: int, metrics: dict[str, float], generation: int = 0) -> None:
        """Record an evaluation. Every worker reports every evaluation; the first report is enough, of the latest generation
        where they differ."""
        known = self._evaluated.get(step)
        if known is not None and (known[0] >= generation or known[1] == metrics):
            return
        self._evaluated[step] = (generation, metrics)
        self.outcome.metrics = metrics
        self._tracker.metrics(step, metrics)
        self.event("evaluated", step=step, metrics={key: _plain(value) for key, value in metrics.items()})
        self._progress.say(f"after step {step + 1}: {few.line(metrics)}")

    def called_back(self, entry: Mapping[str, Any]) -> None:
        """Record a call of the pipeline's on_evaluation."""
        step, metrics = entry["step"], entry.get("metrics", {})
        self.event(**{**entry, "metrics": {key: _plain(value) for key, value in metrics.items()}})
        if metrics:
            self._tracker.metrics(step, {f"callback/{name}": value for name, value in metrics.items()})
        if "failed" in entry:
            self._progress.say(f"warning: on_evaluation after step {step + 1}, the run goes on: {entry['failed']}")

    def sent(self, step: int, sent_bytes: int) -> None:
        """Record what the members send in a step from this one on. Every worker reports the same; the first is enough."""
        if step > self._sent_step:
            self._sent_step = step
            self.outcome.bytes_per_step = sent_bytes
            self._tracker.metrics(step, {f"{EXECUTION}exchange/bytes_per_step": sent_bytes})

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
        seconds = round(command.seconds, 3)
        recovery: dict[str, Any] = {"kind": command.kind, "seconds": seconds, "steps_lost": command.steps_lost}
        if command.why:
            recovery["why"] = command.why
        self.outcome.recoveries.append(recovery)
        self.event("recovered", **recovery)
        self._tracker.metrics(self.outcome.steps, {f"{EXECUTION}recovery/{command.kind}_s": command.seconds})
        workers = self.outcome.workers
        now = "" if command.kind == "driver" else f"; {workers} worker{'s' * (workers != 1)} now"
        self._progress.say(f"{recovery_in_words(recovery)}{now}")

    def redealt(self, command: events.Rebalance) -> None:
        """Shards are about to be dealt by speed."""
        self.outcome.redealt += 1
        self.event(
            "shards_redealt",
            step=self.outcome.steps,
            micro_batch_s=[[member, round(each, 6)] for member, each in command.micro_batch_s.items()],
            step_s=round(command.step_s, 6),
            expected_s=round(command.expected_s, 6),
            moving=command.moving,
        )

    def slow(self, command: events.Slow, where: str) -> None:
        """A worker is far slower than the others."""
        own, others = (f"{1e3 * each:.3g} ms" for each in (command.micro_batch_s, command.others_s))
        told = f"worker {command.member} on {where}: {own} for a micro-batch, others {others} in the median"
        self.outcome.slow.append(told)
        self.event(
            "worker_slow",
            worker=command.member,
            where=where,
            step=self.outcome.steps,
            micro_batch_s=round(command.micro_batch_s, 6),
            others_s=round(command.others_s, 6),
            seconds=round(command.seconds, 1),
        )
        self._progress.say(
            f"warning: a worker has been far slower than the others for {command.seconds:.0f} s; {told}\n"
            "  look at its machine: other jobs (uptime), its clock rate (heat), a part that fails"
        )

    def distrusts(self, command: events.Distrust, wrong: Sequence[str], between: Sequence[str]) -> None:
        """A check has found different answers. wrong, between: as of the command, with their machines."""
        verdict = command.verdict
        self.event("answers_differ", **asdict(verdict), workers=command.wrong, names=wrong or between)
        what = f"shard {verdict.shard}" if verdict.shard is not None else "the memory of its sum"
        spread = f"; it may have done so since step {verdict.since}" if verdict.since < verdict.step else ""
        told = [f"{each} computed {what} of step {verdict.step} wrongly{spread}" for each in wrong]
        told = told or [f"{' and '.join(between)}: two answers in {what} of step {verdict.step}{spread}"]
        self.outcome.wrong += told
        again = "" if command.verdict.shard is not None and not wrong else "; the step is repeated"
        left = " without its machine" * command.machines or " in another process" * bool(wrong)
        remedy = (
            "\n  steps before it are in the parameters: rerun=ID on another machine shows whether they are right"
            * bool(spread)
        )
        for each in told:
            self._progress.say(f"warning: {each}{again}{left}{remedy}")

    def sync(self) -> None:
        """Wait until the trace, the rests and what the run is made of are on the disk, and their metrics there or at the store.

        This comes before a checkpoint of their last step, since a run that is resumed from it goes on behind them. Raises
        OSError when the disk does not take them."""
        for file in self._record.history:
            file.sync()
        self._record.files.sync()
        self._tracker.sync()

    def saved(self, saved: SavedCheckpoint) -> None:
        self.outcome.checkpoint = saved.step
        self.event(
            "checkpoint_saved",
            step=saved.step,
            parts=saved.parts,
            bytes=saved.manifest.size_bytes,
            state=saved.manifest.state_digest,
            **self._record.seals(saved.step),
            stall_s=round(saved.stall_s, 6),
            seconds=round(saved.seconds, 3),
        )
        self._tracker.metrics(
            saved.step,
            {f"{EXECUTION}checkpoint/stall_s": saved.stall_s, f"{EXECUTION}checkpoint/seconds": saved.seconds},
        )
        is_first, self._uploaded_once = not self._uploaded_once, True
        if time.monotonic() - self._uploaded_at >= _UPLOAD_S or (self._record.is_stood_by and is_first):
            self._uploaded_at = time.monotonic()
            self._record.upload()
        if self._record.is_stood_by:
            self._record.upload_history()

    def not_saved(self, step: int, why: str) -> None:
        self.event("checkpoint_failed", step=step, why=why)
        self._progress.say(f"warning: the checkpoint of step {step} could not be written, training goes on: {why}")

    def passed_over(self, reason: str) -> None:
        """A checkpoint is damaged, and an older one is used."""
        self.event("checkpoint_passed_over", why=reason)
        self._progress.say(f"warning: {reason}")

    def lost(self, role: str, member: int, why: str, where: str | None = None) -> None:
        """where: its machine; None where it never said."""
        injection.at("lost", None, (role, member, why))
        self.event(f"{role}_lost", **{role: member}, step=self.outcome.steps, why=why)
        at = "" if where is None else f" on {where}"
        self._progress.say(f"{role} {member}{at} was lost after step {self.outcome.steps}: {why}")

    def drains(self, node: str, members: Sequence[str], seconds: float | None, *, is_ours: bool) -> None:
        """Ray has said that a node goes away. is_ours: this process is there."""
        told = {} if seconds is None else {"seconds": round(seconds, 1)}
        self.event("node_drained", node=node, members=members, step=self.outcome.steps, **told)
        when = "" if seconds is None else f" in {seconds:.0f} s"
        who = f"; {', '.join(members)} leave{'s' * (len(members) == 1)} when others have come" if members else ""
        self._progress.say(f"{node} goes away{when} (Ray drains it){who}")
        if is_ours:
            self._progress.say(
                "warning: this launch runs there and ends with it\n"
                "  interrupt it (Ctrl-C), which saves a checkpoint, and resume it on another node"
            )

    def retires(self, role: str, member: int) -> None:
        """It has no part in the run any more, and nothing is lost with it."""
        self.event(f"{role}_left", **{role: member}, step=self.outcome.steps)
        self._progress.say(f"{role} {member} left after step {self.outcome.steps}, since its node goes away")

    def disturbs(self, wanted: Disturbance, worker: int, where: str) -> None:
        """On purpose, as the user has asked for."""
        pause = {"seconds": round(wanted.pause_s, 3)} if wanted.kind == "pause" else {}
        self.outcome.disturbed[wanted.kind] = self.outcome.disturbed.get(wanted.kind, 0) + 1
        self.event("disturbed", number=wanted.number, kind=wanted.kind, worker=worker, step=self.outcome.steps, **pause)
        how = f"is stopped for {wanted.pause_s:.1f} s" if pause else "is killed"
        self._progress.say(f"chaos: worker {worker} on {where} {how}, disturbance {wanted.number + 1}")

    def stands(self, role: str, member: int, found: Stand, *, is_stuck: bool) -> None:
        """Where a member of a step that stalls stands. What is said of who is stuck is said with its loss."""
        self.event("stacks", **{role: member}, stuck=is_stuck, **found.as_dict())

    def caller_refused(self, member: int, why: str) -> None:
        self.event("caller_refused", member=member, why=why)
        self._progress.say(f"member {member} {why}")

    def loader_lost(self, worker: int, why: str) -> None:
        self.event("loader_lost", worker=worker, why=why)
        self._progress.say(f"worker {worker}: {why}")

    def waits(self, worker: int, what: str) -> None:
        """It is not to blame, and nothing is lost by it."""
        self.event("waiting", worker=worker, what=what)
        self._progress.say(f"worker {worker}: {what}")

    def bytes_read(self, node: str, fetched: int, cached: int) -> None:
        """Of files from elsewhere, by the workers of a node since they said so last."""
        before = self.outcome.bytes_read.get(node, (0, 0))
        self.outcome.bytes_read[node] = before[0] + fetched, before[1] + cached

    def files_read(self, numbers: Sequence[int], of: int) -> None:
        """Of the training set."""
        self.outcome.files_read |= FilesRead(frozenset(numbers), of)

    def cannot_claim(self, worker: int, why: str) -> None:
        """The workers of its host compute the shards that are dealt to them."""
        self.event("board_out_of_reach", worker=worker, why=why)
        self._progress.say(
            f"note: worker {worker} cannot reach the memory in which the workers of its host claim shards ({why}); there they "
            "compute those that are dealt to them"
        )

    def unprotected(self, workers: Sequence[int], why: str = "on another machine than the driver") -> None:
        """What the shards of these workers keep is lost with their processes. Told once of each."""
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


def _plain(value: float) -> float | str:
    """JSON has no NaN."""
    return value if math.isfinite(value) else str(value)
