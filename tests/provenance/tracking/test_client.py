"""MLflow's client gives what there is much of in pages."""

from __future__ import annotations

from typing import Any

from mlflow.store.entities.paged_list import PagedList

from orchestrator.provenance.tracking.client import Client


class Mlflow:
    """Has five experiments, and gives two at a time."""

    def search_experiments(self, page_token: str | None = None) -> Any:
        first = int(page_token or 0)
        return PagedList(list(range(5))[first : first + 2], str(first + 2) if first + 2 < 5 else None)


def test_runs_of_all_experiments_of_a_large_server_are_found() -> None:
    assert Client(Mlflow).experiments() == [0, 1, 2, 3, 4]
