"""`resume=RUN_ID [key=value ...]`: go on with a run from its last good checkpoint, in the same MLflow run.

Settings that determine the result stay as they were. Settings of its execution, such as the number of workers, may change.
Steps that were done after the checkpoint are computed again and compared with what the trace says of them: a free check.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.manifest import Manifest
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import open_storage
from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.preflight import begin, checks, private
from orchestrator.driver.recording import failover_reports, trust, unsent
from orchestrator.driver.recording.opening import reopen_record
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.recording.recorded_checkout import checked_out
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run.event_sink import Audience
from orchestrator.driver.run.job import Beside, Job, storage_of
from orchestrator.driver.run.startup import RunStart, requirements
from orchestrator.driver.supervision import Supervision, headless, supervised, supervisor, taken_over
from orchestrator.driver.terminal import signals
from orchestrator.driver.terminal.progress import ProgressDisplay, for_stream
from orchestrator.errors import REPLICAS_DIFFERED, CheckpointDamaged, ConfigurationError, UsageError
from orchestrator.provenance.code import changes, worktree
from orchestrator.provenance.data import hashing
from orchestrator.provenance.tracking import Past, Store
from orchestrator.records import hash_seal, lines, trace
from orchestrator.records.input_audit import settable, variables_apart
from orchestrator.worker.model import snapshot

_NAMED = 5  # changed files in a message
_ANEW = "or launch the run again"


def resume(
    name: str,
    overrides: Sequence[str],
    uri: str | None,
    beside: Beside | None = None,
    typed: Sequence[str] | None = None,
    *,
    trusted: bool = False,
    weights_lost: bool = False,
) -> tuple[str, RunOutcome]:
    """The whole story; returns the run's id and what it came to. name: of the run, see `Store.find`; uri: of the MLflow store;
    beside, typed: as `launch` takes them; trusted: whether it may be somebody else's; weights_lost: as in `RunStart`.

    Raises UsageError, ConfigurationError and NotRerunnable before anything is started; an error of the run itself is in the
    outcome.
    """
    project = Path.cwd()
    folder = project_folder(project) if beside is None else beside.folder
    store = Store(uri, folder)
    display = for_stream() if beside is None else beside.display
    sent = unsent.send_first(store, display.say)
    past = store.find(name)
    if past.kind == "audit":
        raise UsageError(
            f"{past.run_id} is an audit, and is not gone on with",
            "type rerun=RUN_ID audit=N once more",
            code="resume.of-audit",
        )
    if past.status == "FINISHED" and any(each.run_id == past.run_id and each.trouble is None for each in sent):
        return past.run_id, _finished(past)
    if past.status == "FINISHED":
        raise UsageError(
            f"run {past.run_id} has finished",
            f"a new run trains on from its end: conf=NAME begin={past.run_id} run.steps=MORE",
            code="resume.of-finished",
        )
    recorded = Recorded.of(store, folder, past)
    trust.require_own(past, trusted, "a resume", lambda: trust.examine(recorded, overrides))
    with recorded.files.leased():
        recorded.require_readable(takes_over=supervisor.TAKEN_OVER in os.environ)
        recorded.require_begun()
        settings = recorded.settings(overrides)
        _check_filed(recorded.held, settings)
        secret = private.of_record(settings, recorded.files, past.run_id)
        # Trials of a sweep share one process, whose Ray has been started.
        again = nullcontext() if beside is not None else variables_again(recorded, settings, display)
        with again, recorded_project(recorded, project, folder, display) as place:
            settings = begin.all_pinned(settings, place, trusted=trusted)
            provenance = checks.check(settings, place)  # most of its notes are on what a launch is about to record
            plan, notes = resolve(settings), tuple(provenance.of_cards)
            run_start = replace(beginning_of(plan, recorded.files, display.say), weights_lost=weights_lost)
            posted = signals.posted() if beside is None else nullcontext(beside.pending_signal)
            with (
                posted as pending_signal,
                supervised(settings, typed, pending_signal, project) as supervision,
                ThreadPoolExecutor(1) as pool,
            ):
                if supervision is not None:  # also of one that ends before its first step somebody takes its place
                    supervision.run(past.run_id, recorded.files.trace)
                since = run_start.written, run_start.told_from
                opening = pool.submit(reopen_record, settings, store, recorded.files, provenance, *since)
                ray = None if beside is None else beside.ray
                job = Job(settings, plan, place, Audience(display), pending_signal, ray, secret, supervision, notes)
                run_id, outcome = job.complete(opening, run_start)
    without_ray(run_id, outcome, plan, supervision)
    if beside is not None:
        return run_id, outcome
    return with_weights(run_id, outcome, overrides, uri, typed, trusted=trusted)


def without_ray(run_id: str, outcome: RunOutcome, plan: Plan, supervision: Supervision | None) -> None:
    """Go on with a run whose Ray is gone, on this machine alone: then this does not return."""
    if supervision is None or not outcome.has_lost_ray or outcome.error is None or headless.refusal(plan) is not None:
        return
    workers = headless.workers(plan)
    for_stream().say(
        f"{outcome.error.message}; run {run_id} goes on without it, on this machine alone, with "
        f"{workers.on(headless.cores())} of its {plan.cluster.members.most} workers"
    )
    if outcome.trained_at is not None:  # by this process it is gone on with, whomever that has followed
        os.environ.pop(supervisor.TAKEN_OVER, None)
    headless.become(headless.words(supervision.words(run_id), workers, headless.cores()))


def with_weights(
    run_id: str,
    outcome: RunOutcome,
    overrides: Sequence[str],
    uri: str | None,
    typed: Sequence[str] | None,
    *,
    trusted: bool = False,
) -> tuple[str, RunOutcome]:
    """Id and outcome of a run that has come to its end, with its trained weights. They may be lost with the last workers, as
    when this process stood still for longer than workers live without it. Then the run is resumed with the overrides, and does
    the steps after its last checkpoint again. Raises as `resume`."""
    if not outcome.weights_lost or not outcome.checkpoint:
        return run_id, outcome
    for_stream().say(f"{outcome.error}; what follows the checkpoint of step {outcome.checkpoint} is done again")
    return resume(run_id, overrides, uri, typed=typed, trusted=trusted, weights_lost=True)


def _finished(past: Past) -> RunOutcome:
    """The outcome of a run that had finished, and MLflow lacked that."""
    metrics = {key: value for key, value in past.metrics.items() if key.startswith("validation/")}
    loss, epsilon = past.metrics.get("train/loss"), past.metrics.get("train/epsilon")
    return RunOutcome(steps=past.steps or 0, loss=loss, digest=past.digest, metrics=metrics, epsilon=epsilon)


def _check_filed(before: Settings, after: Settings) -> None:
    """Refuse another name or experiment: it is the same run in MLflow. Raises ConfigurationError."""
    others = [name for name in ("name", "experiment") if getattr(before.run, name) != getattr(after.run, name)]
    if others:
        raise ConfigurationError(
            [f"run.{name}: a run keeps the one that it began with" for name in others],
            "leave it out; another name can be given in MLflow",
            code="resume.filed",
        )


@contextmanager
def variables_again(recorded: Recorded, settings: Settings, display: ProgressDisplay) -> Iterator[None]:
    """Within, the declared variables are as they were when the run began. Others that the pipeline read may be of the place,
    such as a job's own folder: they stay, and those that differ are told."""
    declared = settings.environment.variables
    again = {name: value for name, value in settable(recorded.input_audit).items() if name in declared}
    for sentence in variables_apart(recorded.input_audit, os.environ, declared):
        display.say(f"note: {sentence}")
    before = {name: os.environ.get(name) for name in again}
    _set_variables(again)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    """None: it is not set."""
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@contextmanager
def recorded_project(recorded: Recorded, project: Path, folder: Path, display: ProgressDisplay) -> Iterator[Path]:
    """The project with the code and the data that the run began with (rule D6). It is the present one if that still has them,
    else a clean checkout, which is gone afterwards. Raises NotRerunnable when they cannot be had."""
    changed = _changed(recorded, project)
    if not changed:
        yield project
        return
    display.say(f"note: {', '.join(changed[:_NAMED])} changed since the run began; it goes on with what it began with")
    bundle, tree = recorded.files.bundle, recorded.code.get("tree")
    with checked_out(bundle, tree, recorded.inputs, recorded.held, project, folder) as there, contextlib.chdir(there):
        yield there


def _changed(recorded: Recorded, project: Path) -> list[str]:
    """The files of the code and the inputs that are not what the run began with; a run without a snapshot is trusted."""
    inputs = {item.path: item.md5 for item in recorded.inputs}
    now = {path: hashing.scan_input(project, path).md5 if (project / path).exists() else None for path in inputs}
    found = [path for path in inputs if now[path] != inputs[path]]
    if recorded.code.get("tree") is None:
        return found
    try:
        work = worktree.examine(project)
    except worktree.Unrecorded:
        return [*found, "the repository"]
    if work.tree == recorded.code["tree"]:
        return found
    return [*(changes.since(recorded.files.bundle, work) if recorded.files.bundle.exists() else ["the code"]), *found]


def beginning_of(plan: Plan, files: RunFolder, say: Callable[[str], None]) -> RunStart:
    """Find where the run goes on, by what it has left, and cut its trace there. Raises CheckpointDamaged, and UsageError where
    its replicas differed."""
    for file, is_whole in ((files.trace, _is_line), (files.barriers, _is_barrier), (files.journal, _is_event)):
        _check(file, is_whole)
    storage = open_storage(storage_of(plan, files))
    checkpoints, first = Catalog(storage, plan.checkpoints.keep), plan.run.first_step
    handed = failover_reports.take(storage, checkpoints, files, first, supersedes=not plan.repeats)
    if handed.sentence is not None:
        say(f"note: {handed.sentence}")
    found = checkpoints.latest(can_wait=True)
    if found.manifest is None and plan.run.begin is not None:
        begin.put(plan.run.begin, storage_of(plan, files))
        found = found._replace(manifest=checkpoints.latest().manifest)
    journal = list(lines.written(files.journal))
    saved = max((event["step"] for event in journal if event["event"] == "checkpoint_saved"), default=first)
    if found.manifest is not None and found.manifest.step > saved and not _reaches(files, found.manifest, plan):
        say(
            f"note: what the store has of the run ends before the checkpoint of step {found.manifest.step}, which is made again"
        )
        found = checkpoints.latest(until=saved, can_wait=True)
    for reason in found.reasons:
        say(f"warning: {reason}")
    step = None if found.manifest is None else found.manifest.step
    _refuse_mixed(journal, step or first, first)
    _check_seals(files, journal, step)
    if saved > (step or first) and not found.reasons:
        say(f"warning: the checkpoint of step {saved}, of which the journal tells, is gone from its place")
    say("no checkpoint: from the beginning" if step is None else f"going on from the checkpoint of step {step}")
    barriers_kept = 0 if plan.lockstep or found.manifest is None else _barriers_until(found.manifest, files)
    if not plan.repeats and found.reasons:  # of those that were passed over, which may be read again later
        checkpoints.latest(until=step or first)
    if not plan.lockstep and files.barriers.exists():
        lines.cut(files.barriers, barriers_kept)
    cut = lines.cut(files.trace, (step or 0) - first) if files.trace.exists() else []
    written = list(lines.written(files.trace))
    reached = first + len(written)
    if reached < (step or 0):
        raise CheckpointDamaged(
            f"the trace ends at step {reached}, before the checkpoint of step {step}",
            f"restore {files.trace} from the artifacts of the run, or launch it again",
            code="resume.trace-short",
        )
    evaluated = {event["step"]: event["metrics"] for event in journal if event["event"] == "evaluated"}
    metrics = evaluated[max(told)] if (told := [step for step in evaluated if step < reached]) else {}
    generations = [event["number"] for event in journal if event["event"] == "generation_started"]
    # Ids are taken from all events, since an id is never given again (rule F9). Spares, and members lost while they prepared,
    # belong to no generation.
    members = [event[role] for event in journal for role in ("worker", "server") if role in event]
    return RunStart(
        requirements(
            plan, checkpoint=step, generation=max(generations, default=-1) + 1, member=max(members, default=-1) + 1
        ),
        reached,
        trace.loss_of(written[-1]) if written else None,
        {name: float(value) for name, value in metrics.items()},  # one that is no number is a text in the journal
        cut if plan.lockstep else (),  # otherwise they are done again in another order
        len(cut),
        barriers_kept,
        first,
        untold=failover_reports.untold(files, reached),
        taken_over=taken_over(),
    )


def _refuse_mixed(journal: Sequence[Mapping[str, Any]], step: int, first: int) -> None:
    """Refuse a checkpoint of a run whose replicas differed in the end: nobody knows since when. step: of the checkpoint; first:
    of the run. Raises UsageError."""
    ended: Mapping[str, Any] = next((event for event in reversed(journal) if event["event"] == "run_ended"), {})
    if step > first and ended.get("code") == REPLICAS_DIFFERED:
        raise UsageError(
            f"the replicas of this run differed, and the checkpoint of step {step} may hold parts of both",
            "launch it anew; with check.every=1 the first step that differs is found",
            code="resume.of-mixed",
        )


def _reaches(files: RunFolder, manifest: Manifest, plan: Plan) -> bool:
    """Whether trace and sync barriers lead to this checkpoint. Files that came from the store may be older."""
    steps = manifest.step - plan.run.first_step
    if steps > sum(1 for _ in lines.written(files.trace)):
        return False
    if plan.lockstep:
        return True
    barriers = sum(1 for _ in lines.written(files.barriers))
    return barriers >= int(snapshot.run_state_of(TrainingState(manifest.values, {}))["free"]["rests"])


def _check(file: Path, is_whole: Callable[[Any], bool]) -> None:
    """Raises CheckpointDamaged where a line that a driver has left is not what it wrote, before anything is changed."""
    try:
        found = enumerate(lines.written(file), 1)
        damaged = next((number for number, line in found if not _holds(is_whole, line)), None)
    except ValueError as error:
        raise _damaged(file, str(error)) from None
    if damaged is not None:
        raise _damaged(file, f"line {damaged} is not what was written")


def _check_seals(files: RunFolder, journal: Sequence[Mapping[str, Any]], step: int | None) -> None:
    """Raises CheckpointDamaged where trace or sync barriers are not what they were when the checkpoint of this step was
    saved."""
    sealed = [event for event in journal if event["event"] == "checkpoint_saved" and event["step"] == step]
    for name, file in (("trace", files.trace), ("rests", files.barriers)):
        if sealed and name in sealed[-1] and file.exists() and hash_seal.is_broken(file, sealed[-1][name]):
            why = f"it is not what it was when the checkpoint of step {step} was saved, as {files.journal} tells"
            raise CheckpointDamaged(
                f"{file} is damaged: {why}",
                f"restore both from the artifacts of the run, {_ANEW}",
                code="resume.file-damaged",
            )


def _holds(is_whole: Callable[[Any], bool], line: Any) -> bool:
    try:
        return is_whole(line)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _is_line(line: Any) -> bool:
    trace.loss_of(line)
    return isinstance(line["step"], int)


def _is_barrier(barrier: Any) -> bool:
    return isinstance(barrier["steps"], int) and isinstance(barrier["clocks"], list)


def _is_event(event: Any) -> bool:
    """Whether this line of the journal is an event, as far as `resume` reads it."""
    match event["event"]:
        case "checkpoint_saved":
            return isinstance(event["step"], int) and all(
                hash_seal.is_seal(event[name]) for name in ("trace", "rests") if name in event
            )
        case "evaluated":
            return isinstance(event["step"], int) and isinstance(
                sum(map(float, event["metrics"].values())), float | int
            )
        case "generation_started":
            return isinstance(event["number"], int)
    return all(isinstance(event.get(role, 0), int) for role in ("worker", "server"))


def _damaged(file: Path, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{file} is damaged: {why}", f"restore it from the artifacts of the run, {_ANEW}", code="resume.file-damaged"
    )


def _barriers_until(manifest: Manifest, files: RunFolder) -> int:
    """How many sync barriers of an asynchronous run stand before the checkpoint. Raises CheckpointDamaged where the file of
    sync barriers does not lead to it."""
    reached = snapshot.run_state_of(TrainingState(manifest.values, {}))["free"]
    barriers = list(lines.written(files.barriers))
    remedy = f"restore {files.barriers} from the artifacts of the run, or launch it again"
    if len(barriers) < reached["rests"]:
        raise CheckpointDamaged(
            f"the checkpoint of step {manifest.step} follows {reached['rests']} rests, "
            f"and {files.barriers.name} has {len(barriers)}",
            remedy,
            code="resume.rests-missing",
        )
    if reached["rests"] and barriers[reached["rests"] - 1]["clocks"] != reached["clocks"]:
        raise CheckpointDamaged(
            f"{files.barriers.name} and the checkpoint of step {manifest.step} are of different runs: their clocks differ",
            remedy,
            code="resume.other-clocks",
        )
    return int(reached["rests"])
