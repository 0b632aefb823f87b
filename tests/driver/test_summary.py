"""The hint for seeing a run in MLflow: a command for a store in a file, the address for a server."""

from __future__ import annotations

from orchestrator.driver.report import summary
from orchestrator.driver.report.outcome import Outcome

OWN = "sqlite:////project/.orchestrator/mlflow.db"


def shown(uri: str) -> str:
    outcome = Outcome(steps=3, loss=0.5, digest="d")
    return summary.text(outcome, "digits", "1 worker", "r1", summary.look("r1", "7", uri, OWN)).splitlines()[-1]


def test_a_store_of_ones_own_is_shown_by_a_command() -> None:
    assert shown(OWN) == "  look     python -m orchestrator ui"


def test_another_store_is_named() -> None:
    other = "sqlite:////somewhere else/mlflow.db"
    assert shown(other) == f"  look     python -m orchestrator ui tracking.uri='{other}'"


def test_a_run_at_a_server_has_an_address() -> None:
    assert shown("https://mlflow.example:8080/") == "  look     https://mlflow.example:8080/#/experiments/7/runs/r1"
