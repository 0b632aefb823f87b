"""Tells of a pipeline that logs to MLflow by itself, as training scripts do."""

from __future__ import annotations

import sys


def note() -> str | None:
    """The run of MLflow that the user's code has begun in this thread, with what to write in its place; None where there is
    none. MLflow is not imported for that."""
    active_run = getattr(sys.modules.get("mlflow"), "active_run", None)
    run = None if active_run is None else active_run()
    if run is None:
        return None
    return (
        f"the pipeline logs to MLflow by itself, each worker to a run of its own, here {run.info.run_name}; leave "
        "mlflow.start_run() and mlflow.log_... out: losses are recorded here, and metrics() and on_evaluation() return further "
        "numbers"
    )
