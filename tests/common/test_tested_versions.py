"""Code that depends on the insides of a library is left out with versions that it was not tried with."""

from __future__ import annotations

import importlib.metadata

import pytest

from orchestrator.common.tested_versions import DVC, MLFLOW, OPTUNA, RAY, TORCH, Tried


@pytest.mark.parametrize(
    ("installed", "here"),
    [("2.60.0", True), ("2.60", True), ("2.60.1+cpu", True), ("2.6", False), ("2.600.0", False), ("3.0", False)],
)
def test_versions_begin_alike(monkeypatch: pytest.MonkeyPatch, installed: str, here: bool) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _package: installed)
    assert Tried("any", ("2.60",)).is_here is here


def test_what_is_not_installed_is_not_here() -> None:
    assert not Tried("no-such-package", ("1",)).is_here


def test_the_pinned_versions_have_been_tried() -> None:
    assert [each.package for each in (RAY, MLFLOW, TORCH, DVC, OPTUNA) if not each.is_here] == []
