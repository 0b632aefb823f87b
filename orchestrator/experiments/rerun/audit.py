"""`rerun=RUN_ID|CRATE audit=N [audit.seed=TEXT]`: repeat some segments of a run between kept checkpoints, drawn at random.

All of them are one repetition: a single Ray with its workers, which go from the end of a segment to the beginning of the next
one with the checkpoint that the run kept there. Which ones they are says a seed that is made when the command is typed, so who
made the run cannot have known; it is in the record, and given again it draws the same ones.

The parts that can be audited are found before anything starts: a trace with the root of the record, and checkpoints with the
states of which the journal tells.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.manifest import steps_among
from orchestrator.checkpoint.storage import open_storage
from orchestrator.common import temporary
from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import (
    CheckpointDamaged,
    ConfigurationError,
    NotRerunnable,
    OrchestratorError,
    UsageError,
    ending,
)
from orchestrator.experiments.rerun.repeater import Repeater, exit_code, failure
from orchestrator.provenance.crates import crate
from orchestrator.provenance.tracking import PARENT, Past
from orchestrator.records import audit, lines, merkle
from orchestrator.records.audit import Audit, Segment
from orchestrator.records.comparison import Run, compare

_SEED_BYTES = 16


@dataclass(frozen=True)
class Asked:
    """How much of a run is to be audited. count: of segments; seed: None for a fresh one."""

    count: int
    seed: str | None = None


@dataclass(frozen=True)
class Draw:
    """The segments to be repeated. storage: where the checkpoints lie; all_segments, chosen: in order."""

    storage: str
    all_segments: Sequence[Segment]
    chosen: Sequence[Segment]
    seed: str

    @property
    def text(self) -> str:
        steps = sum(each.steps for each in self.chosen)
        named = ", ".join(f"{each.first}-{each.end - 1}" for each in self.chosen)
        return (
            f"audit of {len(self.chosen)} of {len(self.all_segments)} segments, {steps} of "
            f"{sum(each.steps for each in self.all_segments)} steps, drawn by audit.seed={self.seed}: {named}"
        )


@dataclass(frozen=True)
class Audited:
    """The outcome of an audit. run_id: of the repetition; rerun_of: the original; found: None where it came to nothing."""

    run_id: str | None
    rerun_of: str
    found: Audit | None
    differences: Sequence[Mapping[str, Any]] = field(default_factory=list)
    error: OrchestratorError | None = None

    @property
    def word(self) -> str | None:
        return None if self.found is None else self.found.word

    @property
    def exit_code(self) -> int:
        return exit_code(self.error, self.word)

    @property
    def text(self) -> str:
        return "" if self.found is None else self.found.text

    def as_dict(self) -> dict[str, Any]:
        found = self.found
        return {
            "run_id": self.run_id,
            "rerun_of": self.rerun_of,
            "status": None,
            "verdict": self.word,
            "first_divergence": None if found is None else found.parted,
            "differences": list(self.differences),
            "explanation": None,
            "stages": None,
            "audit": None if found is None else found.as_dict(),
            **ending(self.error),
        }


def draw(original: Recorded, settings: Settings, asked: Asked, *, came_along: bool) -> Draw:
    """Draw the segments of an audit. settings: of the repetition; came_along: the record was sent, and its checkpoints are
    beside it, if anywhere. Raises NotRerunnable and UsageError for what cannot be audited."""
    run_id = original.past.run_id
    if original.barriers() is not None:
        raise UsageError(
            f"audit: run {run_id} has sync={original.held.sync.name}, whose updates are repeated in their order from the first "
            "one on",
            "leave audit out: the whole run can be repeated; one with sync=bsp and checkpoint.archive=STEPS can be audited",
            code="audit.free-replicas",
        )
    if original.files.streams.exists():
        raise UsageError(
            f"audit: run {run_id} has learned from live streams, whose record is read from the first step on",
            "leave audit out: the whole run can be repeated",
            code="audit.streams",
        )
    if settings.cluster.address is not None and (came_along or original.held.checkpoint.uri is None):
        raise UsageError(
            "audit: the kept checkpoints are files of this machine, and other nodes of a joined Ray do not reach them",
            "cluster.address=null audits here; a run with checkpoint.uri at a place that all nodes reach can be audited there",
            code="audit.checkpoints-unreachable",
        )
    _require_trace(original)
    storage, kept, without_streams = _kept(original, came_along=came_along)
    segments = audit.segments_of(original.held.begin.step, original.trace(), kept, without_streams)
    if len(segments) < 2:
        raise NotRerunnable(
            f"audit: run {run_id} kept no checkpoint on its way, so it is no more than one segment",
            _remedy(run_id, came_along=False),
            code="audit.one-segment",
        )
    if len(segments) < asked.count:
        raise UsageError(
            f"audit={asked.count}: run {run_id} has {len(segments)} segments between kept checkpoints",
            f"audit={len(segments)} repeats all of them",
            code="audit.count",
        )
    seed = secrets.token_hex(_SEED_BYTES) if asked.seed is None else asked.seed
    return Draw(storage, segments, audit.drawn(segments, asked.count, seed), seed)


def audited(repeater: Repeater, drawn: Draw, *, check_environment: bool) -> Audited:
    """Repeat what was drawn, and judge. Raises what keeps it from being started."""
    original, run_id = repeater.original, repeater.original.past.run_id
    repeater.display.say(drawn.text)
    with temporary.folder() as place:
        file = place / "segments.json"
        ranges = [[each.first, each.end] for each in drawn.chosen]
        file.write_text(json.dumps({"of": run_id, "storage": drawn.storage, "ranges": ranges}), encoding="utf-8")
        launched = replace(repeater, overrides=[*repeater.overrides, f"segments={file}"])
        tags = {"rerun_of": run_id} | ({PARENT: run_id} if repeater.carried is None else {})
        report = launched.repeat(tags)
    if report["status"] != "finished":
        return Audited(report["run_id"], run_id, None, error=failure(report))
    repeated = Recorded(repeater.store.find(report["run_id"]), RunFolder(repeater.folder, report["run_id"]))
    compared = compare(_inputs(original), _inputs(repeated))
    found = replace(
        _judged(original, repeated, drawn),
        differences=tuple(compared.inputs(check_environment=check_environment)),
        machines=tuple(compared.machines(check_environment=check_environment)),
    )
    bearing = [each.as_dict() for each in compared.differences if each.share == "result"]
    done = Audited(report["run_id"], run_id, found, bearing)
    _publish(repeater, repeated, done)
    return done


def _judged(original: Recorded, repeated: Recorded, drawn: Draw) -> Audit:
    events = list(lines.read(repeated.files.journal))
    begun = {each["step"]: each["digest"] for each in events if each["event"] == "segment_begun"}
    states = _states(events), _states(events, "without_streams")
    trace, again = original.trace(), repeated.trace()
    evaluations = original.evaluations(), repeated.evaluations()
    parts = tuple(audit.compared(segment, trace, again, begun, *states, evaluations) for segment in drawn.chosen)
    steps = sum(each.steps for each in drawn.all_segments)
    return Audit(parts, len(drawn.all_segments), steps, drawn.seed)


def _inputs(recorded: Recorded) -> Run:
    """The inputs of the run, without its result."""
    outcome = ("trace", "digest", "best", "metrics", "profiles", "rests")
    return cast("Run", {key: value for key, value in recorded.as_run().items() if key not in outcome})


def _require_trace(original: Recorded) -> None:
    """Raises NotRerunnable for a trace that is not the recorded one."""
    found = merkle.head([merkle.leaf(line) for line in lines.raw(original.files.trace)])
    if original.past.trace not in (None, found):
        raise NotRerunnable(
            f"{original.files.trace} is not what was recorded: its root is {found}, and the tag says {original.past.trace}",
            "remove it, and it is taken from the run's artifacts again",
            code="audit.trace",
        )


def _kept(original: Recorded, *, came_along: bool) -> tuple[str, dict[int, str], dict[int, str]]:
    """The place of the checkpoints, and which there are: steps that were done -> the digest of the state; and of those with
    places in streams -> that without them. Raises NotRerunnable where there are none, or others than the journal tells of."""
    run_id, files = original.past.run_id, original.files
    place = (
        str(files.path.parent / crate.CHECKPOINTS) if came_along else files.checkpoints_at(original.held.checkpoint.uri)
    )
    digests = _states(list(lines.written(files.journal)))
    try:
        storage = open_storage(place)
        kept = {step: catalog.read(storage, step) for step in steps_among(storage.sizes()) if step > 0}
        found = {step: manifest.state_digest for step, manifest in kept.items()}
        rest = {step: manifest.digest_without_streams for step, manifest in kept.items()}
    except (CheckpointDamaged, ConfigurationError, OSError) as error:
        raise NotRerunnable(
            f"audit: the checkpoints of run {run_id} in {place} cannot be used: {error}",
            _remedy(run_id, came_along=came_along),
            code="audit.checkpoints-unusable",
        ) from error
    if not found:
        raise NotRerunnable(
            f"audit: there is no checkpoint of run {run_id} in {place}",
            _remedy(run_id, came_along=came_along),
            code="audit.no-checkpoint",
        )
    wrong = [step for step, state in found.items() if digests.get(step, state) != state]
    if wrong:
        raise NotRerunnable(
            f"audit: the checkpoint of step {min(wrong)} in {place} is not the one of which the journal of run {run_id} tells",
            "remove it, and the segments on both sides of it are one",
            code="audit.other-checkpoint",
        )
    return place, found, {step: digest for step, digest in rest.items() if digest is not None}


def _remedy(run_id: str, *, came_along: bool) -> str:
    if came_along:
        return "ask for a crate that has them: export=RUN_ID to=PATH checkpoints=true"
    return f"repeat all of it, and have it keep some for later audits: rerun={run_id} checkpoint.archive=STEPS"


def _states(events: Sequence[Mapping[str, Any]], name: str = "state") -> dict[int, str]:
    """The checkpoints that a journal tells of: steps that were done -> the digest of the state."""
    return {each["step"]: each[name] for each in events if each["event"] == "checkpoint_saved" and name in each}


def _publish(repeater: Repeater, repeated: Recorded, done: Audited) -> None:
    """The outcome belongs to both runs. A verdict over the whole of the original stands, unless it is contradicted."""
    report = {**done.as_dict(), "text": done.text}
    repeated.files.verdict.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    new, first, word = repeated.past.run_id, done.rerun_of, str(done.word)
    assert done.found is not None
    sentence = f"{word}: {len(done.found.parts)} of {done.found.segments} segments"
    if repeater.carried is not None:  # the original is in somebody else's store
        repeater.tag({new: {"verdict": word, "audit": sentence}})
        repeater.keep({new: "run"}, repeated.files.verdict)
        return
    stands = word == "audited" and _is_judged(repeater.original.past)
    verdict = {} if stands else {"verdict": word, "verdict_by": new}
    repeater.tag({new: {"verdict": word, "audit": sentence}, first: {**verdict, "audit": sentence, "audit_by": new}})
    repeater.describe({first: f"`{new}`: {sentence}"})
    repeater.keep({new: "run", first: f"reruns/{new}"}, repeated.files.verdict)


def _is_judged(past: Past) -> bool:
    """By a rerun of the whole."""
    return past.verdict in ("exact", "diverged", "inputs-differ")
