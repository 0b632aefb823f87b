"""The record of a run is opened: the words of a launch about a name that it shares with others, and full disks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config.settings import load, origins
from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.resume import resume, variables_again
from orchestrator.driver.preflight.checks import Provenance
from orchestrator.driver.recording.opening import another_name, name_in_store, open_record
from orchestrator.driver.recording.record import Record
from orchestrator.provenance.code import snapshot, worktree
from orchestrator.provenance.tracking import Store
from orchestrator.records.input_audit import InputAudit
from tests.provenance.code.repositories import create
from tests.refusals import refused

CONF = {"run": {"name": "digits", "steps": 4}, "pipeline": {"target": "a:B"}, "optimizer": {"name": "sgd", "lr": 0.1}}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["optimizer.lr=0.5", "run.seed=7"], "run.name=digits-lr0.5-seed7"),
        (["optimizer.name=adam", "cluster.workers=3"], "run.name=digits-nameadam"),
        (["cluster.workers=3"], None),
        (["optimizer.lr=0.5", "run.name=mine"], None),
        ([], None),
    ],
)
def test_a_name_tells_what_the_command_line_changed_of_the_result(typed: list[str], said: str | None) -> None:
    assert another_name(load([CONF], typed), origins([CONF], typed)) == said


@pytest.mark.parametrize(
    ("lr", "said"), [(["optimizer.lr=0.5"], "run.name=digits-lr0.5"), ([], None)], ids=["beside-another", "alone"]
)
def test_no_name_that_is_advised_has_a_credential_left_out(
    monkeypatch: pytest.MonkeyPatch, lr: list[str], said: str | None
) -> None:
    """A rerun of the run that was named so asked for its name, as for a credential."""
    monkeypatch.setenv("DB_PASSWORD", "hunter22222")
    typed = ["pipeline.args.api_key=x1y2z3", "pipeline.args.login='me:${oc.env:DB_PASSWORD}'", *lr]
    assert another_name(load([CONF], typed), origins([CONF], typed)) == said


def test_a_run_that_nobody_named_has_the_name_of_its_pipeline() -> None:
    unnamed = {**CONF, "run": {"steps": 4}}
    assert name_in_store(load([unnamed], ["pipeline.target=here.there:Signs"])) == "Signs"
    assert name_in_store(load([unnamed], ["pipeline.target=here.there:Signs", "run.name=mine"])) == "mine"


OF_MLFLOW = pytest.mark.filterwarnings(
    "ignore:The ..noload.. loader strategy is deprecated"
)  # its own use of SQLAlchemy


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = create(tmp_path / "p", {"a.py": "1"})
    monkeypatch.chdir(made)
    return made


def test_declared_variables_are_as_they_were_while_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had the bits of the shell in which its resume was typed."""
    monkeypatch.setenv("SCALE", "3")
    monkeypatch.setenv("PLACE", "/b")
    said: list[str] = []
    recorded: Any = SimpleNamespace(input_audit=InputAudit(variables={"SCALE": ("2",), "PLACE": ("/a",)}))
    display: Any = SimpleNamespace(say=said.append)
    with variables_again(recorded, load([CONF], ["environment.variables=[SCALE]"]), display):
        assert (os.environ["SCALE"], os.environ["PLACE"]) == ("2", "/b")
    assert (os.environ["SCALE"], len(said)) == ("3", 2)


def opened(project: Path, *given: str) -> Record:
    found = Provenance(project, worktree.examine(project), {}, [], [], [])
    return open_record(load([CONF], given), project_folder(project), found, {})


@OF_MLFLOW
@pytest.mark.slow
def test_a_run_whose_settings_a_full_disk_did_not_take_is_no_run_to_go_on_with(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty file was read as settings."""

    write_text = Path.write_text

    def full(file: Path, text: str, **given: Any) -> int:
        write_text(file, text[: 0 if file.stem == "settings" else None], **given)
        if file.stem == "settings":
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(text)

    with monkeypatch.context() as patched, refused("record.unwritable", "No space left on device"):
        patched.setattr(Path, "write_text", full)
        opened(project)
    [past] = Store(None, project_folder(project)).past()
    assert past.status == "FAILED"
    with refused("record.no-settings", "ended before its settings were recorded"):
        resume(past.run_id, [], None)


@OF_MLFLOW
@pytest.mark.slow
def test_code_that_a_full_disk_does_not_take_is_told_and_refused_where_that_is_strict(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a tag in the store."""
    monkeypatch.setattr(snapshot, "_PACK", ["no-such-command"])
    record = opened(project)
    assert "the code is not recorded: " in record.obstacles[-1]
    record.tracker.end("FAILED")
    for each in (record.journal, record.trace):
        each.close()
    record.files.release()
    assert not list(record.files.path.glob(".*"))
    with refused("rerun.code-not-kept", "the code is not recorded"):
        opened(project, "strict=true")
    assert [past.status for past in Store(None, project_folder(project)).past()] == ["FAILED", "FAILED"]
    # Its driver may also have been killed in that moment.
    with refused("record.no-code", "ended before its code was recorded, and before its first step"):
        resume("last", [], None)
