"""The gauges of Ray that show a run's metrics."""

from __future__ import annotations

import pytest

from orchestrator.cluster.sessions.metrics import Gauges, gauge_name

pytestmark = pytest.mark.slow  # imports Ray


def test_names_in_any_language_are_told_of_which_ray_takes_only_ascii() -> None:
    gauges = Gauges("1f", "Prüfung 50 %", "größe")
    gauges(3, {"validation/Güte": 0.5, "train/loss": 1.0})
    assert gauges._labels == {"run": "1f", "name": "Pr%C3%BCfung 50 %", "experiment": "gr%C3%B6%C3%9Fe"}
    assert list(gauges._gauges) == ["validation/Güte", "train/loss", "steps"]


def test_a_gauge_has_a_name_that_prometheus_takes() -> None:
    assert gauge_name("validation/Güte") == "orchestrator_validation_G_te"
