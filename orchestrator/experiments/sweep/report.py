"""The outcome of a sweep, as the JSON object that the command line promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from orchestrator.common.figures import aligned
from orchestrator.config.resolve import resolve
from orchestrator.errors import OrchestratorError, Status, ending, status_of
from orchestrator.experiments.search.asking import best
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.outlook import Outlook, TrialRung, look
from orchestrator.experiments.sweep.record import SweepRecord


@dataclass(frozen=True)
class SweepReport:
    """The outcome of a sweep."""

    sweep_id: str | None  # of the sweep; None where it was refused
    trials: list[dict[str, Any]] = field(default_factory=list)  # as the JSON object has them
    best: dict[str, Any] | None = None  # as the JSON object has it; None where no trial has a value
    objective: Mapping[str, str] = field(default_factory=dict)  # its metric and direction
    error: OrchestratorError | None = None  # what ended the sweep; None where it finished
    whole: Mapping[str, Any] | None = None  # of an ensemble that has been combined; None elsewhere
    uri: str | None = None  # of the MLflow store; None for the project's

    @property
    def status(self) -> Status:
        return status_of(self.error)

    def as_dict(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "sweep_id": self.sweep_id,
            **ending(self.error),
            "objective": dict(self.objective),
            "trials": self.trials,
            "best": self.best,
        }
        if self.whole is not None:
            report["whole"] = dict(self.whole)
        return report


def report_of(described: Sweep, record: SweepRecord, error: OrchestratorError | None) -> SweepReport:
    """As far as the journal tells. error: what ended the sweep."""
    history, course = record.known, described.course
    outlook = look(course, history.ended, history.asked, further=False)
    trials = [_trial(described, record, outlook, trial.number) for trial in outlook.trials]
    best_result = best(outlook.results, described.direction)
    told_of_best = ("number", "run_id", "settings", "value", "digest")
    chosen = None if best_result is None else {key: trials[best_result.trial.number][key] for key in told_of_best}
    objective = {"metric": described.metric, "direction": described.direction}
    combined = None if history.combined is None else {**history.combined, "model": str(record.files.model)}
    uri = described.settings.tracking.uri
    return SweepReport(record.sweep_id, trials, chosen, objective, error, combined, uri)


def _trial(described: Sweep, record: SweepRecord, outlook: Outlook, number: int) -> dict[str, Any]:
    known, course = record.known, described.course
    places: list[TrialRung] = [(number, rung) for rung in range(course.last + 1) if (number, rung) in known.ended]
    result = next((each for each in outlook.results if each.trial.number == number), None)
    last = known.ended[places[-1]] if places else None
    status = "waiting"
    if last is not None and last.why is not None:
        status = "failed"
    elif result is not None:
        status = "pruned" if result.pruned else "finished"
    found: dict[str, Any] = {
        "number": number,
        "run_id": known.begun.get((number, max(len(places) - 1, 0))),
        "settings": dict(outlook.trials[number].point),
        "value": None if last is None else last.value,
        "status": status,
        "digest": None if last is None else last.digest,
    }
    if last is not None and last.why is not None:
        found["error"] = last.why
    if course.last:
        ended = [(place[1], known.ended[place]) for place in places]
        found["rungs"] = [
            {"steps": course.steps_of(rung), "run_id": each.run_id, "value": each.value, "digest": each.digest}
            for rung, each in ended
        ]
    return found


def again(described: Sweep, report: SweepReport) -> str:
    """The command that repeats a sweep; where chance decides the order of updates, its best run, since runs alone are told."""
    name = report.sweep_id if report.best is None or resolve(described.settings).lockstep else report.best["run_id"]
    return f"python -m orchestrator rerun={name}"


def summary_of_whole(described: Sweep, report: SweepReport) -> str:
    """The outcome of an ensemble, beside its members, for a person."""
    ensemble, whole = described.ensemble, report.whole
    assert ensemble is not None
    assert whole is not None
    rows = [("", "members (least to most)", "whole", "where members agree", "where they do not")]
    for name, value in whole["metrics"].items():
        of_members = [each[name] for each in whole["of_members"] if each[name] is not None]
        span = f" ({_short(min(of_members))} to {_short(max(of_members))})" if of_members else ""
        halves = (_short(whole[half].get(name)) for half in ("agreed", "disagreed"))
        rows.append((name, f"{_short(whole['mean_of_members'][name])}{span}", _short(value), *halves))
    chosen = f"; weights chosen on {whole['chosen_on']} others" if whole["chosen_on"] else ""
    unit = " nats" if ensemble.output == "logits" else ""
    disagreement = "" if whole["disagreement"] is None else f", disagreement {whole['disagreement']:.4g}{unit}"
    return "\n".join(
        [
            f"{described.settings.run.name or described.kind}: {ensemble.members} members, judged by {whole['samples']} "
            f"validation samples{chosen}{disagreement}",
            indent(aligned(rows), "  "),
            f"  weights  {', '.join(f'{weight:.3g}' for weight in whole['weights'])}",
            f"  digest   {whole['digest']}",
            f"  model    .orchestrator/{report.sweep_id}/model/, in MLflow the model of run {report.sweep_id}",
            f"  again    {again(described, report)}",
        ]
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
