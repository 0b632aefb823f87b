"""The summary of a finished run for a person, with the command, or the address, that opens it in MLflow."""

from __future__ import annotations

import shlex
import sys

from orchestrator.driver.run.outcome import Outcome
from orchestrator.tracking import is_server

# `mlflow ui` as it comes takes 11 s and 2.5 GB; with one worker and no job runner it is 6 s and 0.5 GB.
_LIGHT = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"


def text(outcome: Outcome, title: str, layout: str, run_id: str, experiment_id: str, store_uri: str) -> str:
    """layout: what it ran on, such as "4 workers in a ring"."""
    rate = f", {outcome.steps_per_s:.3g} steps/s" if outcome.steps_per_s else ""
    results = {"loss": outcome.loss, **outcome.metrics}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in results.items() if value is not None)
    page = f"#/experiments/{experiment_id}/runs/{run_id}"
    if is_server(store_uri):
        look = f"{store_uri.rstrip('/')}/{page}"
    else:
        command = f"{sys.executable} -m mlflow ui --workers 1 --backend-store-uri {shlex.quote(store_uri)}"
        look = f"{_LIGHT} {command}\n           and open http://127.0.0.1:5000/{page}"
    return (
        f"{title}: finished {outcome.steps} step{'s' * (outcome.steps != 1)}, {layout}{rate}\n"
        f"  results  {shown}\n"
        f"  digest   {outcome.digest}\n"
        f"  run      {run_id}, its files in .orchestrator/{run_id}/\n"
        f"  look     {look}"
    )
