"""`rerun=SWEEP_ID`: repeat a whole sweep in a clean checkout, and prove that every trial came out as before.

The repetition is the public command line, `sweep=` with the recorded file, so the search itself runs again too: it asks for
the same trials and keeps the same ones, or the verdict says where it did not. Each run of it is then compared with that of
the original, step by step, as `rerun=RUN_ID` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.config.settings import kept
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.recording import trust
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import NotRerunnable, OrchestratorError, ending, few
from orchestrator.experiments.rerun.repeater import Repeater, exit_code
from orchestrator.experiments.rerun.run import judged, left_to_chance, undisturbed, unshown, why_not
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.outlook import TrialRung
from orchestrator.experiments.sweep.record import (
    ENSEMBLE,
    SweepFolder,
    SweepHistory,
    by_whom,
    examine_sweep,
    folder_of,
    recorded_trials,
    require_secret,
    with_same_trials,
)
from orchestrator.provenance.tracking import Past, Store

_WORST = ("diverged", "inputs-differ", "exact")
_SHOWN = 3  # lost trials in a sentence


@dataclass(frozen=True)
class SweepRerun:
    """The outcome of the rerun of a sweep."""

    sweep_id: str | None  # of the repetition; None where none was started
    rerun_of: str  # id of the original
    verdict: str | None  # the worst of all trials; None where the repetition did not finish
    trials: list[dict[str, Any]] = field(default_factory=list)  # of each run, its two ids and its verdict
    parted: str | None = None  # sentence on what differs first; None where nothing does
    error: OrchestratorError | None = None  # what ended the rerun; None where it came to a verdict
    kind: str = "sweep"  # "sweep" or "ensemble"
    gone: Sequence[int] = ()  # trials of the original that MLflow has lost: the journal alone tells of them

    @property
    def exit_code(self) -> int:
        return exit_code(self.error, self.verdict)

    @property
    def text(self) -> str:
        if self.verdict is None:
            return ""
        if self.verdict == "exact":
            runs = len(self.trials)
            more = "what they were made into" if self.kind == "ensemble" else "the trials that were asked for and kept"
            text = f"exact: all {runs} runs agree to the last bit, and so do{'es' * (self.kind == 'ensemble')} {more}"
        else:
            text = f"{self.verdict}: {self.parted}"
        return f"{text}{self._of_gone}"

    @property
    def _of_gone(self) -> str:
        """A line that tells how trials without a record were compared."""
        if not self.gone:
            return ""
        noun = "member" if self.kind == "ensemble" else "trial"
        numbers = few([f"{noun} {number}" for number in self.gone], _SHOWN)
        return f"\n  MLflow has lost {numbers}: only digest and value of the journal were compared, not the steps"

    def as_dict(self) -> dict[str, Any]:
        return {
            "sweep_id": self.sweep_id,
            "rerun_of": self.rerun_of,
            **ending(self.error),
            "verdict": self.verdict,
            "first_divergence": self.parted,
            "trials": self.trials,
        }


def rerun_sweep(
    past: Past, overrides: Sequence[str], uri: str | None, *, check_environment: bool, trusted: bool = False
) -> SweepRerun:
    """The whole story. trusted: whether it may be somebody else's. Raises UsageError, ConfigurationError and NotRerunnable
    before anything is started."""
    project = Path.cwd()
    folder = project_folder(project)
    store = Store(uri, folder)
    files = folder_of(store, folder, past)
    known = SweepHistory.read(files.journal)
    if past.status != "FINISHED":
        raise NotRerunnable(
            f"{past.kind} {past.run_id} ({past.status}) has not finished",
            f"go on with it first: resume={past.run_id}",
            code="sweep.of-unfinished",
        )
    recorded = dict(recorded_trials(store, folder, past, known))
    if not recorded:
        raise NotRerunnable(
            f"{past.kind} {past.run_id} has no trial that began", "launch it again", code="sweep.no-trial-began"
        )
    # One that failed may have ended before its record was whole.
    original = next(
        (each for each in recorded.values() if each.past.status == "FINISHED"), next(iter(recorded.values()))
    )
    original.require()
    trust.require_own(
        by_whom(past, original), trusted, "a rerun", lambda: examine_sweep(past.kind, files, original, overrides)
    )
    require_none_left_to_chance(past, recorded.values())
    overrides = [*kept.from_variables(files.settings, overrides), *undisturbed(original, overrides)]
    described = with_same_trials(files, overrides, "leave it out, or launch a new sweep with sweep=")
    require_secret(recorded.values(), overrides)
    more = [
        *(["ensemble.register=null"] if past.kind == ENSEMBLE else []),
        *unshown(described.settings),
        *(["trust=true"] if trusted and _begins_with_others(described) else []),
    ]
    repeater = Repeater(project, folder, store, original, [*overrides, *more], for_stream())
    report = repeater.repeat_sweep(past.kind, files.settings, {"rerun_of": past.run_id})
    sweep_id = report["sweep_id"]
    if report["status"] != "finished":
        return SweepRerun(
            sweep_id, past.run_id, None, error=why_not(original, {**report, "run_id": sweep_id}), kind=past.kind
        )
    again = SweepFolder(folder, sweep_id)
    done = replace(
        _compared(store, folder, past.run_id, (known, recorded), again, check_environment=check_environment),
        kind=past.kind,
    )
    again.verdict.write_text(json.dumps({**done.as_dict(), "text": done.text}, indent=1) + "\n")
    word = str(done.verdict)
    repeater.tag({sweep_id: {"verdict": word}, past.run_id: {"verdict": word, "verdict_by": sweep_id}})
    repeater.keep({sweep_id: "sweep", past.run_id: f"reruns/{sweep_id}"}, again.verdict)
    return done


def _begins_with_others(described: Sweep) -> bool:
    """Whether runs of the sweep begin with models or runs, of which the repetition may have to ask whose they are."""
    settings = described.settings
    return bool(settings.initial.name or settings.begin.name) or "initial.name" in described.course.space


def require_none_left_to_chance(past: Past, recorded: Iterable[Recorded]) -> None:
    """Raises NotRerunnable: the command that repeats a sweep tells its runs nothing of what they did before."""
    for each in recorded:
        if (what := left_to_chance(each)) is not None:
            raise NotRerunnable(
                f"{past.kind} {past.run_id}: chance decided {what} of its runs, so a repetition of the whole would part",
                f"repeat its runs one by one, which are told: rerun={each.past.run_id}",
                code="sweep.left-to-chance",
            )


def _compared(
    store: Store,
    folder: Path,
    rerun_of: str,
    original: tuple[SweepHistory, Mapping[TrialRung, Recorded]],
    again: SweepFolder,
    *,
    check_environment: bool,
) -> SweepRerun:
    known, recorded = original
    repeated = SweepHistory.read(again.journal)
    parted = parting(known, repeated)
    trials: list[dict[str, Any]] = []
    words = ["exact" if parted is None else "diverged"]
    for place, of_before in sorted(known.begun.items()):
        before, run_id = recorded.get(place), repeated.begun.get(place)
        row: dict[str, Any] = {"number": place[0], "rung": place[1], "run_id": run_id, "rerun_of": of_before}
        if before is None or run_id is None:
            trials.append({**row, "verdict": None})
            continue
        after = Recorded(store.find(run_id), RunFolder(folder, run_id))
        word, text = _judged(before, after, check_environment=check_environment)
        if word != "exact" and parted is None:
            parted = f"trial {place[0]}: {text}"
        words.append(word)
        trials.append({**row, "verdict": word, "digest": after.past.digest})
    gone = sorted({place[0] for place in known.begun if place not in recorded})
    return SweepRerun(again.path.name, rerun_of, min(words, key=_WORST.index), trials, parted, gone=gone)


def _judged(before: Recorded, after: Recorded, *, check_environment: bool) -> tuple[str, str]:
    """The verdict on a run and its repetition: the word, and a sentence."""
    if before.past.digest is None and not before.trace():  # it failed before its first step, so it has no bits
        steps = len(after.trace())
        return ("exact", "neither made a step") if not steps else ("diverged", f"it made no step, and {steps} now")
    done = judged(before, after, check_environment=check_environment)
    assert done.verdict is not None
    return done.verdict.word, done.verdict.text


def parting(before: SweepHistory, after: SweepHistory) -> str | None:
    """The place at which two sweeps first asked for, saw or kept something else; None if they never did."""
    if before.asked != after.asked:
        pairs = zip(before.asked, after.asked, strict=False)
        batch = next(
            (number for number, (a, b) in enumerate(pairs) if a != b), min(len(before.asked), len(after.asked))
        )
        return f"batch {batch} has other trials"
    for place in sorted({*before.ended, *after.ended}):
        a, b = before.ended.get(place), after.ended.get(place)
        if a is None or b is None:
            return f"trial {place[0]} {'was' if b is None else 'was not'} trained at rung {place[1]}"
        if (a.value, a.digest) != (b.value, b.digest):
            return (
                f"trial {place[0]} came to {b.value} ({str(b.digest)[:12]}) instead of {a.value} ({str(a.digest)[:12]})"
            )
    if before.cuts != after.cuts:
        return "other trials were kept"
    return _parting_of_wholes(before.combined or {}, after.combined or {})


def _parting_of_wholes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The same for ensembles."""
    different = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return f"the whole of the same members came to another {' and '.join(different)}" if different else None
