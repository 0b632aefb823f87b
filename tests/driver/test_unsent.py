"""The next command sends what MLflow lacks of earlier runs, each run by one process, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import api
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.recording import unsent
from orchestrator.driver.recording.unsent import Sent
from orchestrator.errors import OrchestratorError, UsageError
from orchestrator.experiments.compare import compare
from orchestrator.experiments.export import crate, lightning_checkpoint, trained_model
from orchestrator.experiments.rerun.repetition import repeat
from orchestrator.experiments.rerun.run import RerunRequest
from orchestrator.provenance.tracking import Store, Tracker, default_uri, outbox
from orchestrator.provenance.tracking.outbox import Outbox


class Client:
    """Knows the runs `known`; takes what it is told, or refuses it all."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.said: list[tuple[str, str]] = []
        self.fails = False

    def get_run(self, run_id: str) -> Any:
        if run_id not in self.known:
            raise ValueError(f"Run '{run_id}' not found")
        info = dict.fromkeys(("run_name", "experiment_id", "start_time", "artifact_uri"))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id, **info))

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        if self.fails:
            raise ConnectionError("gone again")
        self.said.append((run_id, f"{key}={value}"))

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self.said.append((run_id, f"{status} at {end_time}"))


def opened(folder: Path, client: Client, name: str | None = None, driver: tuple[str, str] = ("", "")) -> Any:
    """driver: who drove its runs last."""
    driving = SimpleNamespace(driver=driver)
    return SimpleNamespace(folder=folder, client=client, name=name, driving=lambda _: driving)


def left(folder: Path, run_id: str, store: str | None = None) -> Path:
    """A run whose last words MLflow has not heard."""
    kept = Outbox(folder / run_id, store)
    kept.add({"tag": [run_id, "digest", "5e9b"]})
    kept.add({"end": "FINISHED", "ms": 7})
    kept.close()
    return folder / run_id / outbox.FILE


def _rerun(run_id: str, _: Path) -> object:
    return repeat(run_id, [], None, RerunRequest())


def _export(run_id: str, folder: Path) -> object:
    return crate.export(run_id, crate.ExportRequest(folder / "run.zip", with_data=False, key=None, license=None), None)


def _compare(run_id: str, _: Path) -> object:
    return compare(f"{run_id},{run_id}", None)


def _export_model(run_id: str, folder: Path) -> object:
    return trained_model.export(run_id, folder / "model", None, trusted=False)


def _export_checkpoint(run_id: str, folder: Path) -> object:
    return lightning_checkpoint.export(run_id, folder / "model.ckpt", None, trusted=False)


def _ask(run_id: str, _: Path) -> object:
    return api.run(run_id)


def test_nothing_is_sent_of_a_run_that_has_gone_on_elsewhere(tmp_path: Path) -> None:
    """The trace of a driver that was lost would take the place of that of the whole run."""
    client = Client("a")
    file = left(tmp_path, "a")
    (file.parent / "journal.jsonl").write_text('{"step": 1}\n')
    store = opened(tmp_path, client, driver=("1", "another host"))
    store.fetch = lambda _, __, target, **___: (target / "journal.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert unsent.send(store) == [Sent("a", is_left_out=True)]
    assert "another process has gone on with it elsewhere" in unsent.Sent("a", is_left_out=True).sentence
    assert (client.said, file.exists()) == ([], False)


def test_each_run_of_a_store_is_sent_and_forgotten(tmp_path: Path) -> None:
    client = Client("a", "b", "c")
    files = [left(tmp_path, "a"), left(tmp_path, "b", default_uri(tmp_path))]
    other = left(tmp_path, "c", "http://elsewhere")
    assert unsent.send(opened(tmp_path, client)) == [Sent("a"), Sent("b")]
    assert client.said == [(run, said) for run in "ab" for said in ("digest=5e9b", "FINISHED at 7")]
    assert [file.exists() for file in (*files, other)] == [False, False, True]
    assert unsent.send_all(tmp_path, opened(tmp_path, client, "http://elsewhere")) == [Sent("c")]
    assert unsent.send_all(tmp_path, None) == []


def test_a_run_that_somebody_drives_or_sends_is_passed_over(tmp_path: Path) -> None:
    client = Client("a")
    file = left(tmp_path, "a")
    driven = RunFolder(tmp_path, "a")
    driven.lease()
    assert unsent.send(opened(tmp_path, client)) == []
    assert (client.said, file.exists()) == ([], True)
    driven.release()
    assert unsent.send(opened(tmp_path, client)) == [Sent("a")]
    assert not RunFolder(tmp_path, "a").is_driven


def test_a_run_in_a_folder_of_another_user_is_left_to_them(tmp_path: Path) -> None:
    """Else their run would keep this user from every launch in a project that they share. Root may open any file, so a folder
    stands in the place of the lock that this user may not open."""
    client = Client("a", "b")
    theirs, _ = left(tmp_path, "a"), left(tmp_path, "b")
    (theirs.parent / "sent.lock").mkdir()
    assert unsent.send(opened(tmp_path, client)) == [Sent("b")]
    assert theirs.exists()


def test_who_would_drive_a_run_waits_until_it_is_sent(tmp_path: Path) -> None:
    """A resume that is typed while another launch sends what a killed driver has left."""
    left(tmp_path, "a")
    told, sender = [], RunFolder(tmp_path, "a")
    with ThreadPoolExecutor(1) as beside:
        with sender.sending() as may:
            assert may
            driver = beside.submit(RunFolder(tmp_path, "a").lease)
            assert unsent.send(opened(tmp_path, Client("a"))) == []
            time.sleep(0.5)  # longer than `locks.take` tries
            told.append(driver.done())
        driver.result(10)
    assert told == [False]
    assert sender.is_driven
    with pytest.raises(UsageError, match="is being driven"):
        RunFolder(tmp_path, "a").lease()


def test_what_keeps_a_run_from_being_sent_is_said_and_the_rest_is_sent(tmp_path: Path) -> None:
    client = Client("b", "c")
    files = [left(tmp_path, run) for run in "abc"]
    files[1].write_text('{"store": null}\nnothing\n')
    missing, damaged, sent = unsent.send(opened(tmp_path, client))
    assert (missing.trouble, sent) == ("Run 'a' not found", Sent("c"))
    assert damaged.trouble == "line 2 is not what was written"
    assert "MLflow still lacks some of run a: Run 'a' not found" in missing.sentence
    assert "remove .orchestrator/a/mlflow.jsonl" in missing.sentence
    assert sent.sentence == "MLflow has got what it lacked of run c"
    assert "except for card.md" in Sent("c", None, ("card.md",)).sentence


def test_a_store_that_fails_again_is_asked_again(tmp_path: Path) -> None:
    client = Client("a")
    file = left(tmp_path, "a")
    client.fails = True
    assert unsent.send(opened(tmp_path, client)) == [Sent("a", "gone again")]
    client.fails = False
    assert unsent.send(opened(tmp_path, client)) == [Sent("a")]
    assert not file.exists()


def test_no_store_is_made_where_it_was(tmp_path: Path) -> None:
    left(tmp_path, "a")
    (each,) = unsent.send_all(tmp_path, None)
    assert str(each.trouble) == f"{tmp_path / 'mlflow.db'} is gone"
    assert not (tmp_path / "mlflow.db").exists()


def test_an_empty_file_lacks_nothing(tmp_path: Path) -> None:
    kept = Outbox(tmp_path / "a", None)
    kept.add({"tag": ["a", "digest", "5e9b"]})
    kept.clear()
    kept.close()
    assert unsent.send_all(tmp_path, None) == []
    assert not (tmp_path / "a" / outbox.FILE).exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
@pytest.mark.parametrize(
    "wanting",
    [_rerun, _export, _compare, _export_model, _export_checkpoint, _ask],
    ids=["a-rerun", "an-export", "a-comparison", "a-model", "a-checkpoint", "python"],
)
def test_who_reads_a_run_sends_first_what_its_store_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanting: Callable[[str, Path], object]
) -> None:
    """A run that had finished was told not to be at its end, and the verdict of its rerun left out its digest."""
    monkeypatch.chdir(tmp_path)
    store = Store(None, project_folder(tmp_path))
    tracker = Tracker.create(store, store.experiment("e"), "made", every_s=1.0)
    tracker.describe({}, {"identity": "0"})
    tracker.flush()
    left(store.folder, tracker.run_id)
    with suppress(OrchestratorError):  # it has no files
        wanting(tracker.run_id, tmp_path)
    assert store.find(tracker.run_id).digest == "5e9b"
