"""A pipeline that logs to MLflow by itself is told of."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.worker.model import runs_of_its_own

BEGUN: Any = SimpleNamespace(info=SimpleNamespace(run_name="calm-duck-141"))


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(active_run=lambda: None)])
def test_nothing_is_told_where_no_run_was_begun(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", module)
    assert runs_of_its_own.note() is None


def test_the_run_and_what_to_write_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: BEGUN))
    said = runs_of_its_own.note()
    assert said is not None
    assert "here calm-duck-141" in said
    assert "metrics() and on_evaluation()" in said
