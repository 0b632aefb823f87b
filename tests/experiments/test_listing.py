"""A table of runs has settings and labels as they were."""

from __future__ import annotations

from orchestrator.experiments import listing
from orchestrator.provenance.tracking import Past


def test_a_number_is_read_where_python_writes_it_so_and_else_it_is_text() -> None:
    settings = {"optimizer.lr": "1e-05", "run.steps": "70", "run.seed": "-1", "run.compile": "True", "run.note": "None"}
    labels = {"month": "2024_01", "agent": "007", "size": "1e5", "group": "3"}
    past = Past("a" * 32, "n", "e", "FINISHED", 0, 70, {}, None, settings=settings, labels=labels)
    table = listing.frame([past], [*settings, *(f"tag.{name}" for name in labels)])
    assert table.iloc[0].tolist() == [1e-05, 70, -1, True, None, "2024_01", "007", "1e5", 3]
