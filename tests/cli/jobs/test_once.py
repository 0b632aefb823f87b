"""A job that is started again goes on with its run, or launches it anew."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.jobs import once as story
from orchestrator.config.settings import load
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.preflight import ownership
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.tracking import Driving, Past
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


def _once(monkeypatch: pytest.MonkeyPatch, code: str, killed: str = "") -> str:
    def resume(*_: Any, **__: Any) -> Any:
        raise NotRerunnable("it ended too early", code=code)

    monkeypatch.setattr(story, "resume", resume)
    return story.once("job-1", load([CONF], []), {}, [], killed=killed)[0]


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
    monkeypatch.setattr(story, "_drove", lambda *_: False)
    with refused("record.still-running"):
        _once(monkeypatch, "record.still-running")
    assert launched == []


@pytest.mark.parametrize(("host", "is_lost"), [("there", True), ("elsewhere", False)])
def test_a_run_whose_job_was_killed_on_another_host_before_its_settings_were_written_is_launched_anew(
    host: str, launched: list[Any], monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """Nothing here tells that its driver is gone but the lock of the job, which it held."""
    ended: list[Any] = []
    store = SimpleNamespace(
        driving=lambda _: Driving(True, ("77", "5", host, "b"), None),
        client=SimpleNamespace(set_terminated=lambda *told: ended.append(told)),
    )
    monkeypatch.setattr(story, "Store", lambda *_: store)
    with contextlib.nullcontext() if is_lost else refused("record.still-running"):
        _once(monkeypatch, "record.still-running", "process 77 of me on there")
    assert (len(launched), ended) == ((1, [("0" * 32, "KILLED")]) if is_lost else (0, []))


def test_who_was_killed_at_work_under_an_id_is_known_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with story.alone("a job") as killed:
        (lock,) = (tmp_path / ".orchestrator").glob("once-*.lock")
        left = lock.read_bytes()
    assert killed == ""
    lock.write_bytes(left)
    with story.alone("a job") as killed:
        assert killed == left.decode().strip()


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
