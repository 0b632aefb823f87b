"""What a sweep came to, as the JSON object that the command line promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.driver.report.outcome import Status
from orchestrator.driver.sweep.record import SweepRecord
from orchestrator.errors import Interrupted, OrchestratorError
from orchestrator.search.asking import best
from orchestrator.search.outlook import Outlook, Place, look
from orchestrator.search.sweeps import Sweep


@dataclass(frozen=True)
class SweepReport:
    """What a sweep came to. sweep_id: None where it was refused; trials, best: as the JSON object has them."""

    sweep_id: str | None
    trials: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    objective: Mapping[str, str] = field(default_factory=dict)
    error: OrchestratorError | None = None

    @property
    def status(self) -> Status:
        if self.error is None:
            return "finished"
        return "killed" if isinstance(self.error, Interrupted) else "failed"

    def as_dict(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "sweep_id": self.sweep_id,
            "status": self.status,
            "objective": dict(self.objective),
            "trials": self.trials,
            "best": self.best,
        }
        if self.error is not None:
            error = self.error.as_dict()
            report["error"] = {key: error[key] for key in ("kind", "message", "remedy")}
        return report


def report_of(described: Sweep, record: SweepRecord, error: OrchestratorError | None) -> SweepReport:
    """As far as the journal tells. error: what ended the sweep."""
    known, course = record.known, described.course
    outlook = look(course, known.ended, known.asked)
    trials = [
        _trial(described, record, outlook, trial.number) for trial in outlook.trials if _was_asked(record, trial.number)
    ]
    found = best(outlook.results, described.direction)
    kept = ("number", "run_id", "settings", "value", "digest")
    chosen = None if found is None else {key: trials[found.trial.number][key] for key in kept}
    objective = {"metric": described.metric, "direction": described.direction}
    return SweepReport(record.sweep_id, trials, chosen, objective, error)


def _was_asked(record: SweepRecord, number: int) -> bool:
    return any(trial.number == number for batch in record.known.asked for trial in batch)


def _trial(described: Sweep, record: SweepRecord, outlook: Outlook, number: int) -> dict[str, Any]:
    known, course = record.known, described.course
    places: list[Place] = [(number, rung) for rung in range(course.last + 1) if (number, rung) in known.ended]
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
