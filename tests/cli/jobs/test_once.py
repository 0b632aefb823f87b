"""A job that is started again goes on with its run, or launches it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.jobs import once as story
from orchestrator.config.settings import load
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.preflight import ownership
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.tracking import Past
from tests.refusals import refused

CONF = {"run": {"steps": 3}, "pipeline": {"target": "a:B"}, "optimizer": {"name": "sgd", "lr": 0.1}}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The settings of each launch, by a job whose run was killed."""
    found: list[Any] = []
    past = Past("0" * 32, "a run", "default", "KILLED", 0, None, {}, None)

    def launch(settings: Any, *_: Any, **__: Any) -> tuple[str, Any]:
        found.append(settings)
        return "1" * 32, None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(story, "Store", lambda *_: None)
    monkeypatch.setattr(story, "find", lambda *_: past)
    recorded = Recorded(past, RunFolder(tmp_path, past.run_id))
    monkeypatch.setattr(Recorded, "of", lambda *_: recorded)
    monkeypatch.setattr(ownership, "is_own", lambda _: True)
    monkeypatch.setattr(story, "launch", launch)
    return found


def _once(monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    def resume(*_: Any, **__: Any) -> Any:
        raise NotRerunnable("it ended too early", code=code)

    monkeypatch.setattr(story, "resume", resume)
    return story.once("job-1", load([CONF], []), {}, [])[0]


@pytest.mark.parametrize("code", ["record.no-settings", "record.no-code", "record.elsewhere"])
def test_a_run_that_was_lost_before_its_record_is_launched_anew(
    code: str, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can never be gone on with, so each further try of the job was refused, and told to launch it again."""
    assert _once(monkeypatch, code) == "1" * 32
    assert len(launched) == 1


def test_a_run_that_still_runs_elsewhere_is_not_launched_beside_it(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("record.still-running"):
        _once(monkeypatch, "record.still-running")
    assert launched == []


def test_a_job_that_is_started_twice_at_once_is_launched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds no run in the store yet."""
    monkeypatch.chdir(tmp_path)
    with story.alone("a job"):
        with refused("job.under-way", "job a job is under way in this process"), story.alone("a job"):
            pass
        with story.alone("another"):
            pass
    with story.alone("a job"):
        pass
    assert [each.name for each in (tmp_path / ".orchestrator").iterdir()] == [".gitignore"]
