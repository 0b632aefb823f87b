"""How a launched or resumed run ended, on stderr and as the JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

from orchestrator.driver.report.outcome import Outcome
from orchestrator.errors import OrchestratorError
from orchestrator.verbs.verb import Answer, Arguments, refusal


def report(run_id: str, outcome: Outcome, as_json: bool, started: float) -> Answer:
    if outcome.error is not None:
        print(f"error: {outcome.error}\n  run {run_id}, its files in .orchestrator/{run_id}/", file=sys.stderr)
        if outcome.checkpoint is not None:
            print(f"  go on from step {outcome.checkpoint}: python -m orchestrator resume={run_id}", file=sys.stderr)
    code = 0 if outcome.error is None else outcome.error.exit_code
    return Answer(code, json.dumps(outcome.as_dict(run_id, started)) if as_json else None)


def nothing(given: Arguments) -> dict[str, Any]:
    """The object of a run that was never created."""
    return Outcome().as_dict(None, given.started)


def refused(error: OrchestratorError, as_json: bool, started: float) -> Answer:
    """Nothing was started."""
    print(f"error: {error}", file=sys.stderr)
    return Answer(error.exit_code, refusal(error, Outcome(error=error).as_dict(None, started)) if as_json else None)
