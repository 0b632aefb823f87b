"""`sweep=NAME|PATH [key=value ...]`: a search over settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.verbs.verb import Answer, Arguments, Verb

if TYPE_CHECKING:
    from orchestrator.commands.sweep_rerun import SweepRerun
    from orchestrator.driver.sweep.report import SweepReport


def _run(given: Arguments) -> Answer:
    prepare_environment(given.get("cluster.address"))
    from orchestrator.commands.sweep import sweep  # imports ray, which reads that environment

    return report(sweep(given.value, list(given.rest)), given.as_json)


def report(found: SweepReport, as_json: bool, kind: str = "sweep") -> Answer:
    """Say how the sweep ended, or an ensemble as its `kind` is."""
    if found.error is not None:
        print(f"error: {found.error}\n  {kind} {found.sweep_id}", file=sys.stderr)
        print(f"  go on: python -m orchestrator resume={found.sweep_id}", file=sys.stderr)
    code = 0 if found.error is None else found.error.exit_code
    return Answer(code, json.dumps(found.as_dict()) if as_json else None)


def report_rerun(done: SweepRerun, as_json: bool) -> Answer:
    if done.verdict is not None:
        print(f"{done.kind} {done.sweep_id} repeats {done.kind} {done.rerun_of}\n{done.text}", file=sys.stderr)
    if done.error is not None:
        print(f"error: the repetition of {done.kind} {done.rerun_of} failed: {done.error}", file=sys.stderr)
    return Answer(done.exit_code, json.dumps(done.as_dict()) if as_json else None)


def _refused(given: Arguments) -> dict[str, Any]:  # noqa: ARG001
    return {"sweep_id": None, "status": "failed", "trials": [], "best": None}


VERB = Verb(
    forms=("sweep=NAME|PATH [parallel=K] [search=NAME] [key=value ...]",),
    about=(
        (
            "sweep=NAME",
            "search for settings, as conf/NAME.yaml describes; each trial is a run, parallel=K of them side by\n"
            "side; resume= and rerun= take the id of a sweep, too",
        ),
    ),
    run=_run,
    refused=_refused,
)
