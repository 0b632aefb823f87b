"""The run before a run: the newest one of its experiment that trained the same pipeline, repeats no other and has finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.common import temporary
from orchestrator.provenance.tracking.store import KIND, Store
from orchestrator.provenance.tracking.tracker import Tracker

_LOOKED_AT = 20  # runs; the others of these are parts of something else, or repeat a run with the data that it had
_NO_LAUNCH = {KIND, "rerun_of", "explains"}  # tags of those


def predecessor(store: Store, tracker: Tracker, target: str) -> str | None:
    """Its id, of the run that `tracker` follows; target: of the pipeline. Raises what MLflow raises."""
    found = store.launched_before(tracker.experiment_id, tracker.started_ms, target, _LOOKED_AT)
    ids = [run_id for run_id, tags in found.items() if not _NO_LAUNCH & tags]
    return next((run_id for run_id in ids if run_id != tracker.run_id), None)


def data_of(store: Store, run_id: str, folder: Path) -> dict[str, Any]:
    """The `data.json` of a run, from its folder here or from its artifacts. folder: the project's `.orchestrator`. Raises what
    MLflow raises, OSError, ValueError."""
    own = folder / run_id / "data.json"
    if own.exists():
        return dict(json.loads(own.read_text(encoding="utf-8")))
    with temporary.folder() as place:
        fetched = store.client.download_artifacts(run_id, "run/data.json", str(place))
        return dict(json.loads(Path(fetched).read_text(encoding="utf-8")))
