"""The hint for opening a run in MLflow: a command for a store of one's own, the address for a server."""

from __future__ import annotations

from orchestrator.driver.report import summary
from orchestrator.driver.run.outcome import Outcome


def shown(uri: str) -> str:
    return summary.text(Outcome(steps=3, loss=0.5, digest="d"), "digits", "1 worker", "r1", "7", uri)


def test_a_store_of_ones_own_is_opened_by_a_command() -> None:
    text = shown("sqlite:////somewhere else/mlflow.db")
    assert "mlflow ui --workers 1 --backend-store-uri 'sqlite:////somewhere else/mlflow.db'" in text
    assert "http://127.0.0.1:5000/#/experiments/7/runs/r1" in text


def test_a_run_at_a_server_has_an_address() -> None:
    text = shown("https://mlflow.example:8080/")
    assert text.endswith("look     https://mlflow.example:8080/#/experiments/7/runs/r1")
    assert "mlflow ui" not in text
