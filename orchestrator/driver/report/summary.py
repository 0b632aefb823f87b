"""The summary of a finished run for a person, with the command, or the address, that shows it in MLflow."""

from __future__ import annotations

import shlex

from orchestrator.driver.report.outcome import Outcome
from orchestrator.records import times
from orchestrator.tracking import is_server


def text(outcome: Outcome, title: str, layout: str, run_id: str, look: str) -> str:
    """layout: what it ran on, such as "4 workers in a ring"; look: where it is shown."""
    rate = f", {outcome.steps_per_s:.3g} steps/s" if outcome.steps_per_s else ""
    sent = f", {_size(outcome.bytes_per_step)} sent per step" if outcome.bytes_per_step else ""
    results = {"loss": outcome.loss, "epsilon": outcome.epsilon, **outcome.metrics}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in results.items() if value is not None)
    spent = times.sentence(outcome.times)
    return (
        f"{title}: finished {outcome.steps} step{'s' * (outcome.steps != 1)}, {layout}{rate}{sent}\n"
        f"  results  {shown}\n" + (f"  time     {spent}\n" if spent else "") + f"  digest   {outcome.digest}\n"
        f"  run      {run_id}, its files in .orchestrator/{run_id}/\n"
        f"  look     {look}"
    )


def _size(size: int) -> str:
    """By the member that sends most."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return f"{size / one:.3g} {unit}"
    return f"{size} bytes"


def look(run_id: str, experiment_id: str, store_uri: str, own_uri: str) -> str:
    """The run's page at a server; the command that shows another store. own_uri: the project's, which that command takes."""
    if is_server(store_uri):
        return f"{store_uri.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"
    return "python -m orchestrator ui" + ("" if store_uri == own_uri else f" tracking.uri={shlex.quote(store_uri)}")
