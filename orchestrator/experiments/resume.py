"""Go on with a run, a sweep or an ensemble, whichever a name means: `resume=ID`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.resume import resume as resume_run
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.experiments.sweep.record import find_sweep
from orchestrator.experiments.sweep.report import SweepReport
from orchestrator.experiments.sweep.sweep import resume_sweep
from orchestrator.provenance.code import checkout
from orchestrator.provenance.tracking import Store


@dataclass(frozen=True)
class Resumed:
    """A run, sweep or ensemble that was gone on with, and how that ended."""

    id: str  # of the run, the sweep or the ensemble
    kind: str  # "run", "sweep" or "ensemble"
    ended: RunOutcome | SweepReport  # of a run the first, else the second


def resume(
    name: str, overrides: Sequence[str], uri: str | None, typed: Sequence[str] | None = None, *, trusted: bool = False
) -> Resumed:
    """The whole story. name, typed, trusted: as `driver.launch.resume` takes them. Raises as that and `resume_sweep`."""
    folder = project_folder(Path.cwd())
    past = find_sweep(name, Store.with_run(uri, folder, name))
    checkout.sweep(folder / checkout.FOLDER)  # it may be a repetition that was killed with its command
    if past is not None:
        return Resumed(past.run_id, past.kind, resume_sweep(past, overrides, uri, trusted=trusted))
    run_id, outcome = resume_run(name, overrides, uri, typed=typed, trusted=trusted)
    return Resumed(run_id, "run", outcome)
