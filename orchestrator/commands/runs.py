"""`runs`: the runs of this project, newest first."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from orchestrator.driver.record.folders import NAME, project_folder
from orchestrator.tracking import Past, Store, is_server

_SHOWN_METRICS = 2


def runs(project: Path, uri: str | None = None) -> list[Past]:
    """Those of the project's own store, none where nothing was ever launched; or those of the store `uri`.

    Raises ConfigurationError.
    """
    folder = project / NAME
    if uri is not None:
        return Store(uri, folder if is_server(uri) else project_folder(project)).past()
    return Store(None, folder).past() if (folder / "mlflow.db").exists() else []


def table(found: list[Past]) -> str:
    """One line per run: enough of the id to name it, when, how it ended, what it came to."""
    if not found:
        return "no runs yet; launch one with conf=NAME"
    rows: list[tuple[str, ...]] = [("run", "started", "status", "name", "steps", "results", "digest", "rerun")]
    rows += [_row(past) for past in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(past: Past) -> tuple[str, ...]:
    started = datetime.fromtimestamp(past.started_ms / 1000).strftime("%Y-%m-%d %H:%M")
    told = [entry for entry in past.metrics.items() if entry[0].startswith(("validation/", "train/"))]
    metrics = sorted(told, key=lambda entry: (not entry[0].startswith("validation/"), entry[0]))
    results = ", ".join(f"{name} {value:.4g}" for name, value in metrics[:_SHOWN_METRICS])
    steps = "" if past.steps is None else str(past.steps)
    digest = (past.digest or "")[:12]
    name = past.name if past.kind == "run" else f"{past.name} ({past.kind})"
    return (past.run_id[:8], started, past.status.lower(), name, steps, results, digest, _rerun(past))


def _rerun(past: Past) -> str:
    """The verdict, and of which run this one is the rerun."""
    if past.rerun_of is None:
        return past.verdict or ""
    return f"{past.verdict or 'no verdict'}, of {past.rerun_of[:8]}"
