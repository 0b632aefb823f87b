"""The setup of the process of a command: arguments under a locale without umlauts, and warnings that are to be
errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import process_setup

PRINTED = "import sys, warnings; from orchestrator.cli import process_setup; process_setup.prepare(); {}"


def done(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, **variables}
    command = [sys.executable, "-c", PRINTED.format(code), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_text_stays_as_it_is(text: str) -> None:
    assert process_setup.as_utf8(text) == text


@pytest.mark.slow
def test_arguments_in_utf8_are_taken_as_such_under_another_locale() -> None:
    found = done("print(ascii(sys.argv[1]))", "run.note=ein Tüst", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (found.stdout, found.stderr) == (ascii("run.note=ein Tüst") + "\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["error", "error::DeprecationWarning", "ignore::UserWarning,error"])
def test_warnings_of_libraries_are_no_errors_and_that_is_said_once(wanted: str) -> None:
    found = done(
        "process_setup.prepare(); warnings.warn('old', DeprecationWarning); print('on')", PYTHONWARNINGS=wanted
    )
    assert found.stdout == "on\n"
    assert found.stderr.count("note: warnings that are to be errors") == 1
    assert "DeprecationWarning: old" in found.stderr


@pytest.mark.slow
def test_other_wishes_about_warnings_stay() -> None:
    found = done("warnings.warn('old', UserWarning); print(sys.warnoptions)", PYTHONWARNINGS="ignore::UserWarning")
    assert (found.stdout, found.stderr) == ("['ignore::UserWarning']\n", "")
