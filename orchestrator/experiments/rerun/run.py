"""`rerun=RUN_ID|CRATE [key=value ...]`: repeat a run exactly in a clean checkout of its code, and prove it, or say why not.

Code comes from the snapshot, data from DVC's cache or remote, settings from the record, and so does the order of updates
where a run is asynchronous; only how the run is executed may be changed. It reports the differences that bear on exactness:
what determines the result, then the outcome. Execution settings, hosts and places may differ; `compare=` shows them.

A crate of `export=` is unpacked and checked beside the work trees, and is repeated in the store of the folder where the
command was typed, a new one if need be. Nothing of a record that is not one's own is executed without `trust=true`
(trust.py).

With `environment=rebuild` it runs in an environment made from the record (rebuild.py).

With `stages=true` the preparation of its data is repeated first (data_stage_replay.py).

With `audit=N` so many segments of it are repeated instead of the whole (audit.py).

With `explain=true` the repetition has digests of every tensor after each step, and when it diverges, a second one goes as far
as the first step that differs, to see what comes out the same there and what does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.preflight import begin, initial, ownership, private
from orchestrator.driver.recording import trust
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import Interrupted, NotRerunnable, OrchestratorError, UsageError, bulleted, ending, few
from orchestrator.experiments.rerun import audit, data_stage_replay, rebuild
from orchestrator.experiments.rerun.changed_files import changed_files
from orchestrator.experiments.rerun.repeater import Repeater, exit_code, failure
from orchestrator.provenance.code import checkout
from orchestrator.provenance.crates import crate, statement
from orchestrator.provenance.environment import container
from orchestrator.provenance.tracking import Past, Store
from orchestrator.records import lines, trace
from orchestrator.records.comparison import compare
from orchestrator.records.data_stage_replay import Preparation
from orchestrator.records.explanation import Explanation, explain
from orchestrator.records.input_audit import InputAudit, is_below
from orchestrator.records.verdict import Divergence, Verdict, judge

_SHOWN = 3  # files in a sentence
_EVALUATED = (
    "the training came out the same, so the validation set or the metrics follow from what is not recorded (a clock, a file, "
    "a service)"
)
_ELSEWHERE = ("checkpoint.uri=null", "cluster.address=null")  # places of others, which are theirs


@dataclass(frozen=True)
class Rerun:
    """The outcome of a rerun."""

    run_id: str | None  # of the repetition; None where none was started
    rerun_of: str  # id of the original, or what was given as its name where that names none
    verdict: Verdict | None  # how both compare; None where there is no repetition to judge
    # between original and repetition, those that bear on exactness
    differences: list[dict[str, Any]] = field(default_factory=list)
    # id of the second repetition, and what it showed; None where there was none
    explained: tuple[str, Explanation] | None = None
    # what kept the repetition, or its explanation, from its end; None where nothing did
    error: OrchestratorError | None = None
    # what the stages that made its data came to; None where they were not asked for
    prepared: Preparation | None = None
    # what may keep the original from being repeated, as its record says
    obstacles: Sequence[str] = ()
    # what the repetition has read of the project where the command was typed, and not of the restored one
    beside: Sequence[str] = ()

    @property
    def word(self) -> str | None:
        if self.prepared is not None and self.prepared.parted is not None:
            return self.prepared.word
        return None if self.verdict is None else self.verdict.word

    @property
    def is_trained_alike(self) -> bool:
        """Whether nothing but an evaluation differs."""
        return self.verdict is not None and self.verdict.is_trained_alike

    @property
    def exit_code(self) -> int:
        return exit_code(self.error, self.word)

    @property
    def text(self) -> str:
        """The verdict for a person, with what explains it; empty without one."""
        if self.prepared is not None and (self.prepared.parted is not None or self.verdict is None):
            return self.prepared.text
        if self.verdict is None:
            return ""
        found = self.verdict.text if self.prepared is None else f"{self.verdict.text}\n{self.prepared.text}"
        if self.beside:
            found += (
                f"\nthe repetition read {few(self.beside, _SHOWN)} here, and not what was recorded and restored: the pipeline, "
                "a setting or a list among the data names it by its whole path; name it relative to the project"
            )
        if self.verdict.word != "diverged":
            return found
        if self.obstacles:
            found += f"\nthe record of the original says why it may differ:{bulleted(self.obstacles)}"
        if self.explained is not None:
            return f"{found}\n{self.explained[1].text}"
        if self.is_trained_alike:
            return f"{found}\n{_EVALUATED}"
        ask = f"rerun={self.rerun_of} explain=true runs that step once more, to tell chance within it from other causes"
        return f"{found}\n{ask}"

    def as_dict(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "run_id": self.run_id,
            "rerun_of": self.rerun_of,
            "status": None,
            "verdict": self.word,
            "first_divergence": None if self.verdict is None else self.verdict.first_divergence,
            "differences": self.differences,
            "explanation": None,
            "stages": None if self.prepared is None else self.prepared.as_list(),
            "audit": None,
        }
        if self.explained is not None:
            run_id, found = self.explained
            report["explanation"] = {"run_id": run_id, **found.as_dict()}
        return {**report, **ending(self.error)}


@dataclass(frozen=True)
class RerunRequest:
    """The requests of the command."""

    check_environment: bool = True  # whether another environment leaves no run exact
    explaining: bool = False  # whether a second repetition looks into what has diverged
    trusted: bool = False  # whether the code of others may be executed
    key: Path | None = None  # file of the public key that has to have signed a crate; None for any
    rebuilding: bool = False  # whether it runs in an environment made from the record
    wheels: Path | None = None  # folder of wheels for that environment; None for none
    preparing: bool = False  # whether the stages that made its data are executed again
    auditing: audit.Asked | None = None  # segments of it that are repeated instead of the whole; None for the whole


def rerun(name: str, overrides: Sequence[str], uri: str | None, wanted: RerunRequest) -> Rerun | audit.Audited:
    """The whole story. overrides: of the settings.

    Raises UsageError, ConfigurationError and NotRerunnable before anything is started.
    """
    project = Path.cwd()
    if not crate.is_crate(name):
        if wanted.key is not None:
            raise UsageError(
                "key= checks the signature of a crate, and this is a run", "leave it out", code="rerun.key-unused"
            )
        folder = project_folder(project)
        store = Store(uri, folder)
        original = Recorded.find(store, folder, name)
        original.require()
        overrides = undisturbed(original, overrides)
        trust.require_own(
            original.past, wanted.trusted, "a rerun", lambda: _examined(original, overrides, folder, wanted)
        )
        return _repeat(Repeater(project, folder, store, original, overrides, for_stream()), wanted)
    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"rerun={name}: there is no such crate", "export=RUN_ID to=PATH makes one", code="rerun.no-crate"
        )
    trusted_key = None if wanted.key is None else statement.public_key(wanted.key)
    folder = project_folder(project)
    with checkout.disposable_folder(folder / checkout.FOLDER) as place:
        came = crate.read(path, place / "crate", trusted_key)
        original = _of_crate(came)
        display = for_stream()
        display.say(_checked(path, came, wanted.key))
        original.require()
        passed = [*_ELSEWHERE, *undisturbed(original, overrides)]
        if not wanted.trusted:
            found = _examined(original, passed, folder, wanted)
            raise ownership.Untrusted(f"{path} is a record that was sent to you", "a rerun", found)
        if came.weights is not None:
            initial.keep(came.weights, original.initial.digest, folder, f"of {path}")
        store = Store(uri, folder)
        return _repeat(Repeater(project, folder, store, original, passed, display, came.carried), wanted)


def _examined(original: Recorded, overrides: Sequence[str], folder: Path, wanted: RerunRequest) -> trust.WouldExecute:
    """The code that would be executed. Raises ConfigurationError and NotRerunnable."""
    stages = data_stage_replay.commands(original, folder / checkout.FOLDER) if wanted.preparing else []
    return trust.examine(original, overrides, rebuilding=wanted.rebuilding, stages=stages)


def _repeat(repeater: Repeater, wanted: RerunRequest) -> Rerun | audit.Audited:
    """Raises what keeps it from being started."""
    original = repeater.original
    original.require()
    settings = original.settings(repeater.overrides)
    private.of_record(settings, original.files, original.past.run_id)
    drawn: audit.Draw | None = None
    if wanted.auditing is not None:
        drawn = audit.draw(original, settings, wanted.auditing, came_along=repeater.carried is not None)
    if original.initial.name is not None:
        initial.brought(original.initial, repeater.store, repeater.folder, trusted=wanted.trusted)
    begin.brought(settings.begin, repeater.store, repeater.folder, trusted=wanted.trusted)
    if wanted.rebuilding:
        rebuild.refuse_cluster(settings.cluster.address)
        travelled = [] if repeater.carried is None else [original.files.path.parent / container.WHEELS]
        wheels = rebuild.wheels_in(wanted.wheels, *travelled)
        repeater = replace(repeater, rebuilt=rebuild.rebuild(original, repeater.folder, wheels, repeater.display))
    more = [*(["trace.tensors_every=1"] if wanted.explaining else []), *unshown(settings)]
    repeater = replace(repeater, overrides=[*original.completed(repeater.overrides), *more, *_replay(original)])
    if drawn is not None:
        return audit.audited(repeater, drawn, check_environment=wanted.check_environment)
    if not wanted.preparing:
        return _trained(repeater, wanted)
    with data_stage_replay.prepared(repeater, check_environment=wanted.check_environment) as (prepared, places):
        repeater.tag({original.past.run_id: {"preparation": prepared.word}})
        if prepared.parted is not None:
            return Rerun(None, original.past.run_id, None, prepared=prepared)
        return _trained(replace(repeater, made=places), wanted, prepared)


def _trained(repeater: Repeater, wanted: RerunRequest, prepared: Preparation | None = None) -> Rerun:
    """The run itself. prepared: what its stages came to, which is told with its verdict."""
    original = repeater.original
    report = repeater.repeat({"rerun_of": original.past.run_id})
    run_id = report["run_id"]
    if report["status"] != "finished":
        return Rerun(run_id, original.past.run_id, None, error=why_not(original, report), prepared=prepared)
    repeated = Recorded(repeater.store.find(run_id), RunFolder(repeater.folder, run_id))
    done = replace(
        judged(original, repeated, check_environment=wanted.check_environment),
        prepared=prepared,
        beside=read_beside(repeated.input_audit, repeater.project),
    )
    if wanted.explaining and done.word == "diverged" and not done.is_trained_alike:
        done = _explain(repeater, repeated, done)
    _publish(repeater, repeated, done)
    return done


def read_beside(audit: InputAudit, project: Path) -> list[str]:
    """The files that a repetition has read of this project, which is not the restored one. Pure."""
    found = (each for each in audit.files.values() if each.inside is None and not each.folder)
    return [each.path for each in found if is_below(each.path, [str(project)])]


def _of_crate(came: crate.Crate) -> Recorded:
    """Raises NotRerunnable."""
    known = {each.name for each in fields(Past)}
    try:
        past = Past(**{key: value for key, value in came.run.items() if key in known})
        metrics = {name: float(value) for name, value in past.metrics.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise NotRerunnable(
            f"{crate.RUN} of the crate is no run: {error}", "ask for the crate again", code="crate.run"
        ) from None
    return Recorded(replace(past, metrics=metrics), RunFolder(came.place, crate.RECORD))


def _checked(path: Path, came: crate.Crate, key: Path | None) -> str:
    signed = "not signed, so anyone may have made it" if came.signed_by is None else f"signed by {came.signed_by}"
    if came.signed_by is not None:
        signed += ", as key= asks for" if key is not None else "; key=PUBLIC_KEY checks that this is who you think"
    root = "" if came.trace is None else f"\n  its trace has the root {came.trace}"
    return f"{path}: every file is what its statement says (sha256 {came.statement_sha256}), {signed}{root}"


def _replay(original: Recorded) -> list[str]:
    """Overrides by which a repetition takes from the record what chance decided: the order of updates of an asynchronous run,
    the samples of live streams, the sites that sat out. Raises NotRerunnable."""
    barriers = original.barriers()
    past = original.past
    if barriers == [] or (barriers is None and past.digest is None and not original.has_steps()):
        first = "step" if barriers is None else "rest"
        raise NotRerunnable(
            f"run {past.run_id} ({past.status}) ended before its first {first}, so it has no step to repeat",
            "launch it again" if past.rerun_of is None else f"repeat the run that it repeats: rerun={past.rerun_of}",
            code="replay.no-step",
        )
    streams = original.files.streams
    given = [f"streams={streams.resolve()}"] if streams.exists() else []
    if original.files.trace.exists() and (original.held.data.sites or trace.sat_out(original.files.trace)):
        given.append(f"sat_out={original.files.trace.resolve()}")
    return [*given, *([] if barriers is None else [f"replay={original.files.barriers.resolve()}"])]


def unshown(settings: Settings) -> list[str]:
    """Overrides of settings by which a repetition would be taken for its original, or shown beside it."""
    found = []
    if settings.run.submission is not None:  # by which a job finds the run to go on with
        found.append("run.submission=null")
    if settings.tracking.register is not None:  # a repetition is no newer version
        found.append("tracking.register=null")
    if settings.tracking.metrics_port is not None:  # which the original may still have
        found.append("tracking.metrics_port=null")
    if settings.tracking.also:  # nor of interest to others: MLflow has it, with its verdict
        found.append("tracking.also=[]")
    return found


def undisturbed(original: Recorded, overrides: Sequence[str]) -> list[str]:
    """The overrides, with none of the losses that the original rehearsed, unless they are asked for: a repetition proves bits,
    and may have less time than the original had between two of them."""
    rehearsed = original.held.chaos.every is not None
    asked = any(each.partition("=")[0].partition(".")[0] == "chaos" for each in overrides)
    return [*(["chaos.every=null"] if rehearsed and not asked else []), *overrides]


def left_to_chance(original: Recorded) -> str | None:
    """The part of a run that chance decided, of which its repetition is told (`_replay`); None where it decided nothing."""
    if original.barriers() is not None:
        return f"the order of updates (sync={original.held.sync.name})"
    if original.files.streams.exists():
        return "the samples of live streams"
    if original.files.trace.exists() and trace.sat_out(original.files.trace):
        return "the steps that sites sat out"
    return None


def why_not(original: Recorded, report: dict[str, Any]) -> OrchestratorError:
    """Why a repetition came to nothing. One that could not even start may lack what was said at the launch of the original."""
    error, known = failure(report), original.obstacles
    if report["run_id"] is not None or isinstance(error, Interrupted) or not known:
        return error
    said = f"the launch said what would keep it from being repeated:{bulleted(known)}"
    return NotRerunnable(f"{error.message}\n  {said}", error.remedy, code=error.code)


def judged(original: Recorded, repeated: Recorded, *, check_environment: bool) -> Rerun:
    """The verdict of two recorded runs."""
    then, now = original.as_run(), repeated.as_run()
    found = compare(then, now, {each.path: each.kind for each in changed_files(original, repeated)})
    inputs, machines = (of(check_environment=check_environment) for of in (found.inputs, found.machines))
    verdict = judge(then, now, inputs, machines)
    bearing = [each.as_dict() for each in found.differences if each.share != "execution"]
    return Rerun(repeated.past.run_id, original.past.run_id, verdict, bearing, obstacles=original.obstacles)


def _explain(repeater: Repeater, repeated: Recorded, done: Rerun) -> Rerun:
    """The same with what a second repetition shows. The verdict stands also where that comes to nothing."""
    assert done.verdict is not None
    assert done.verdict.first_divergence is not None
    parted = done.verdict.first_divergence
    repeater.display.say(f"step {parted['step']} differs: a second repetition goes up to it, and is ended there")
    try:
        return replace(done, explained=_run_once_more(repeater, repeated, parted))
    except Interrupted:
        return replace(
            done,
            error=Interrupted(
                "the second repetition was interrupted; the verdict stands unexplained", code="rerun.unexplained"
            ),
        )
    except OrchestratorError as error:
        repeater.display.say(f"warning: the second repetition failed, and nothing is explained: {error}")
        return done


def _run_once_more(repeater: Repeater, repeated: Recorded, parted: Divergence) -> tuple[str, Explanation]:
    """Raises Interrupted, and other OrchestratorErrors when the second repetition does not get as far as the step."""
    report = repeater.repeat({"explains": repeated.past.run_id}, last=parted["step"])
    if report["steps"] <= parted["step"] and report["status"] != "finished":
        raise failure(report)
    again = RunFolder(repeater.folder, report["run_id"]).trace
    return report["run_id"], explain(parted, repeater.original.trace(), repeated.trace(), lines.read(again))


def _keep_lock(repeater: Repeater, repeated: Recorded) -> None:
    """The files that the environment was made of belong to the repetition's record, and to that of the original where they are
    those that it had, too: from then on they are asked for by their hashes."""
    if repeater.rebuilt is None:
        return
    original = repeater.original
    whose = [repeated, *([original] if repeater.rebuilt.as_recorded and repeater.carried is None else [])]
    for each in whose:
        if not each.files.pylock.exists():
            each.files.pylock.write_text(repeater.rebuilt.pylock, encoding="utf-8")
            repeater.keep({each.past.run_id: "run"}, each.files.pylock)


def _publish(repeater: Repeater, repeated: Recorded, done: Rerun) -> None:
    """The verdict belongs to both runs, in MLflow and in the folder."""
    repeated.files.verdict.write_text(json.dumps({**done.as_dict(), "text": done.text}, indent=1) + "\n")
    _keep_lock(repeater, repeated)
    new, first, word = repeated.past.run_id, done.rerun_of, str(done.word)
    if repeater.carried is not None:  # the original is in somebody else's store
        repeater.tag({new: {"verdict": word}})
        repeater.describe({new: f"of `{first}`: {word}"})
        repeater.keep({new: "run"}, repeated.files.verdict)
        return
    repeater.tag({new: {"verdict": word}, first: {"verdict": word, "verdict_by": new}})
    repeater.describe({new: f"of `{first}`: {word}", first: f"`{new}`: {word}"})
    repeater.keep({new: "run", first: f"reruns/{new}"}, repeated.files.verdict)
