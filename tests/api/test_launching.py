"""A wrong call is refused before anything starts, and modules of the project are found wherever a script lies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.api import launching
from tests.refusals import refused


@pytest.mark.parametrize(
    "call", [orchestrator.launch, orchestrator.sweep, orchestrator.resume, orchestrator.rerun], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("override", [{"run.steps": 5}, 5, None], ids=str)
def test_an_override_that_is_no_text_is_refused(call: Callable[..., Any], override: object) -> None:
    with refused("command.override"):
        call("digits", override)


def test_a_script_in_a_folder_below_finds_modules_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "scripts"), "/packages"])
    for _ in range(2):
        launching._find_modules_of_the_project()
    assert sys.path == ["", str(tmp_path / "scripts"), "/packages"]
