"""A wrong call is refused before anything starts, and modules of the project are found wherever a script lies."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.api import launching, one_launch
from orchestrator.experiments.sweep.report import SweepReport
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch forgets modules of its project that are not what their files say, as pytest's are: all other tests'."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "call", [orchestrator.launch, orchestrator.sweep, orchestrator.resume, orchestrator.rerun], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("override", [{"run.steps": 5}, 5, None], ids=str)
def test_an_override_that_is_no_text_is_refused(call: Callable[..., Any], override: object) -> None:
    with refused("command.override"):
        call("digits", override)


_api: Any = orchestrator  # whose functions take anything here
_RUN = "f" * 32
_HOLDS_ITSELF: dict[str, Any] = {}
_HOLDS_ITSELF["args"] = _HOLDS_ITSELF


@pytest.mark.parametrize(
    ("call", "code", "named"),
    [
        (lambda: _api.launch(None), "command.argument", "conf"),
        (lambda: _api.launch(["digits"]), "command.argument", "conf"),
        (lambda: _api.launch("digits", on_event=3), "command.argument-function", "on_event"),
        (lambda: _api.launch({"pipeline": _HOLDS_ITSELF}), "settings.holds-itself", "holds itself"),
        (lambda: _api.sweep(5), "command.argument", "conf"),
        (lambda: _api.sweep("digits", kind="trial"), "command.argument-choice", "kind"),
        (lambda: _api.resume(5), "command.argument", "run_id"),
        (lambda: _api.resume(None), "command.argument", "run_id"),
        (lambda: _api.resume(_RUN, trust="false"), "command.argument", "trust"),
        (lambda: _api.resume(_RUN, uri=Path("mlflow.db")), "command.argument", "uri"),
        (lambda: _api.rerun(5), "command.argument", "run_id"),
        (lambda: _api.rerun(_RUN, audit="5"), "command.argument", "audit"),
        (lambda: _api.rerun(_RUN, audit=2.5), "command.argument", "audit"),
        (lambda: _api.rerun(_RUN, audit=True), "command.argument", "audit"),
        (lambda: _api.rerun(_RUN, audit=1, seed=5), "command.argument", "seed"),
        (lambda: _api.rerun(_RUN, trust="false"), "command.argument", "trust"),
        (lambda: _api.rerun(_RUN, key=5), "command.argument", "key"),
        (lambda: _api.rerun(_RUN, wheels=5), "command.argument", "wheels"),
        (lambda: _api.run(None), "command.argument", "run_id"),
        (lambda: _api.run(uri=5), "command.argument", "uri"),
        (lambda: _api.runs(None), "command.argument-list", "where"),
        (lambda: _api.runs(columns="run"), "command.argument-list", "columns"),
        (lambda: _api.runs(columns=[None]), "command.argument-list", "columns"),
        (lambda: _api.compare(None, _RUN), "command.argument", "a run"),
        (lambda: _api.compare(_RUN, 5), "command.argument", "a run"),
        (lambda: _api.look(5), "command.argument", "run_id"),
        (lambda: _api.look(_RUN, first=-1), "command.argument-value", "first"),
        (lambda: _api.look(_RUN, count=0), "command.argument-value", "count"),
        (lambda: _api.staleness(None), "command.argument", "run_id"),
        (lambda: _api.load_ensemble(None), "command.argument", "folder"),
    ],
)
def test_an_argument_of_a_wrong_type_or_value_is_named(call: Callable[[], Any], code: str, named: str) -> None:
    with refused(code, named):
        call()


def test_a_script_in_a_folder_below_finds_modules_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "scripts"), "/packages"])
    for _ in range(2):
        launching._find_modules_of_the_project()
    assert sys.path == ["", str(tmp_path / "scripts"), "/packages"]


@pytest.mark.parametrize(
    "call", [orchestrator.launch, orchestrator.sweep, orchestrator.resume], ids=lambda c: c.__name__
)
def test_a_launch_within_a_launch_is_refused(call: Callable[..., Any]) -> None:
    with one_launch.alone(), refused("command.another-launch"):
        call("nothing-that-is-there")
    with pytest.raises(orchestrator.OrchestratorError) as caught:  # once the first has ended it may
        call("nothing-that-is-there")
    assert "command.another-launch" not in caught.value.codes


def test_a_launch_leaves_a_ray_alone_that_the_program_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: True))
    with refused("command.in-ray"):
        orchestrator.launch("digits")


def test_a_launch_is_refused_in_a_process_that_was_forked_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_launch, "_process_of_launches", os.getppid())
    with refused("command.forked"):
        orchestrator.launch("digits")


def test_a_sweep_is_looked_for_in_the_store_that_its_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_prepare_ray", "_prepare_numerics"):  # both change the environment
        monkeypatch.setattr(launching, name, lambda *_: None)
    report = SweepReport("f" * 32, uri="sqlite:///elsewhere.db")
    monkeypatch.setattr("orchestrator.experiments.sweep.sweep.sweep", lambda *_, **__: report)
    assert orchestrator.sweep({"tracking": {"uri": "sqlite:///elsewhere.db"}}).uri == "sqlite:///elsewhere.db"
