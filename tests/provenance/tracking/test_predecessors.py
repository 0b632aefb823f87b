"""The run before a run, in a true store."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.provenance.tracking import KIND, Store, Tracker
from orchestrator.provenance.tracking.predecessors import predecessor


def begun(store: Store, target: str = "a:B", **tags: str) -> Tracker:
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    tracker.describe({"pipeline.target": target}, tags)
    return tracker


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_it_is_the_newest_that_was_launched_and_has_finished(tmp_path: Path) -> None:
    """Not one of another pipeline, a part, a failed one, or a repetition, which reads the data of whenever its original ran."""
    store = Store(None, tmp_path)
    (older, before) = (begun(store), begun(store))
    others = [begun(store, "c:D"), *(begun(store, **{tag: "x"}) for tag in ("rerun_of", "explains", KIND))]
    failed = begun(store)
    for tracker in (older, before, *others):
        tracker.end("FINISHED")
    failed.end("FAILED")
    assert predecessor(store, begun(store), "a:B") == before.run_id
    assert predecessor(store, before, "a:B") == older.run_id
    assert predecessor(store, older, "a:B") is None
