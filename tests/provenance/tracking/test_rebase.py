"""A store that was copied to another place keeps its artifacts."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.common.tested_versions import Tables
from orchestrator.provenance.tracking import Store, Tracker, rebase
from orchestrator.provenance.tracking.addresses import absolute
from orchestrator.provenance.tracking.models import ModelFolder, fetch_folder
from orchestrator.provenance.tracking.store import accounts, user
from tests.refusals import refused


def _run_with_artifact(folder: Path, experiment: str = "e") -> str:
    store = Store(None, folder)
    tracker = Tracker.create(store, store.experiment(experiment), "named", every_s=1.0)
    (folder / "note.txt").write_text("kept")
    tracker.artifact(folder / "note.txt", "run")
    tracker.end("FAILED")
    assert tracker.trouble is None
    return tracker.run_id


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_a_copy_finds_its_own_artifacts_and_runs_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = tmp_path / "here" / ".orchestrator", tmp_path / "there" / ".orchestrator"
    original.mkdir(parents=True)
    run_id = _run_with_artifact(original)
    shutil.copytree(original, copy)
    shutil.rmtree(original)
    store = Store(None, copy)
    target = tmp_path / "fetched"
    target.mkdir()
    store.fetch(run_id, "run", target)
    assert (target / "note.txt").read_text() == "kept"
    other = _run_with_artifact(copy)
    assert (copy / "artifacts" / other / "artifacts" / "run" / "note.txt").exists()

    # Runs are named by their id, by its beginning, or by `last`.
    reopened = Tracker.reopen(store, run_id, every_s=1.0)
    assert store.find(run_id).status == "RUNNING"
    reopened.end("KILLED")
    assert store.find(run_id[:8]).status == "KILLED"
    past = store.find("last")
    assert past.run_id == other
    with refused("mlflow.no-such-run"):
        store.find("zzz")
    with refused("mlflow.unnamed"):  # which every id begins with, and the only run's, too
        store.find("")
    with monkeypatch.context() as patch, refused("mlflow.ambiguous", other):
        patch.setattr(store, "past", lambda: [replace(past, run_id=other[:8] + end) for end in (other[8:], "0" * 24)])
        store.find(other[:8])
    store.client.delete_run(run_id)
    with refused("mlflow.run-deleted", f"mlflow runs restore --run-id {run_id}"):
        store.find(run_id)
    foreign = store.client.create_run("0").info.run_id
    with refused("mlflow.other-run", foreign):
        store.find(foreign)
    store.client.delete_experiment(store.experiment("e"))
    with refused("mlflow.experiment-deleted", "--experiment-id 1"):
        store.experiment("e")


@pytest.mark.slow
def test_runs_of_a_copy_that_nobody_can_write_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a medium or a mount that is read-only: there is no lock, and the places of artifacts stay."""
    original, copy = tmp_path / "here" / ".orchestrator", tmp_path / "there" / ".orchestrator"
    original.mkdir(parents=True)
    run_id = _run_with_artifact(original)
    shutil.copytree(original, copy)
    (copy / "mlflow.lock").unlink()
    before = (copy / "mlflow.db").read_bytes()
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    store = Store.with_run(None, copy, run_id)
    assert store.find("last").run_id == run_id
    assert (copy / "mlflow.db").read_bytes() == before
    assert not (copy / "mlflow.lock").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")
def test_tables_that_were_not_tested_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifacts are found where the old place leads to the new one; otherwise the store is refused, as it is."""
    original, moved = tmp_path / "here" / ".orchestrator", tmp_path / "there" / ".orchestrator"
    original.mkdir(parents=True)
    run_id = _run_with_artifact(original)
    monkeypatch.setattr(rebase, "MLFLOW_TABLES", Tables("mlflow", ("of another time",)))
    assert Store(None, original).find("last").run_id == run_id
    shutil.move(original, moved)
    before = (moved / "mlflow.db").read_bytes()
    with refused("mlflow.store-moved") as caught:
        Store(None, moved)
    assert (moved / "mlflow.db").read_bytes() == before
    assert caught.value.remedy is not None
    link = re.search(r"ln -s (\S+) (\S+)\)", caught.value.remedy)
    assert link is not None
    original.mkdir()
    Path(link[2]).symlink_to(link[1])
    Store(None, moved).fetch(run_id, "run", moved)
    assert (moved / "note.txt").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")
def test_a_run_goes_on_whose_store_is_seen_by_another_path_meanwhile(tmp_path: Path) -> None:
    """As of a run in a container, which somebody looks at from its host."""
    folder, host = tmp_path / "workspace" / ".orchestrator", tmp_path / "home" / ".orchestrator"
    folder.mkdir(parents=True)
    Store(None, folder)
    store = Store(None, folder)
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    model = folder / tracker.run_id / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text("weights")
    (folder / tracker.run_id / "note.txt").write_text("kept")
    rebase.rebase(folder / "mlflow.db", host / "artifacts", list)
    tracker.artifact(folder / tracker.run_id / "note.txt", "run")
    tracker.model(ModelFolder(model, 1, {}), None)
    tracker.end("FINISHED")
    assert tracker.trouble is None
    assert not host.exists()
    host.parent.mkdir()
    folder.rename(host)
    seen = Store(None, host)
    seen.fetch(tracker.run_id, "run", tmp_path)
    assert (tmp_path / "note.txt").read_text() == "kept"
    assert fetch_folder(seen, tracker.run_id, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")
def test_a_store_moves_whose_only_experiment_is_the_one_that_mlflow_made(tmp_path: Path) -> None:
    original, moved = tmp_path / "here" / ".orchestrator", tmp_path / "there" / ".orchestrator"
    original.mkdir(parents=True)
    run_id = _run_with_artifact(original, "default")
    assert (original / "artifacts" / "0" / run_id / "artifacts" / "run" / "note.txt").exists()
    shutil.move(original, moved)
    store = Store(None, moved)
    store.fetch(run_id, "run", moved)
    assert (moved / "note.txt").read_text() == "kept"
    assert store.client.get_experiment("0").artifact_location == f"{(moved / 'artifacts').as_uri()}/0"


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")
def test_the_place_of_a_store_and_of_all_its_artifacts_is_one_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rerun works in another folder; and MLflow keeps artifacts of its own experiment below the working directory."""
    folder, elsewhere = tmp_path / "p" / ".orchestrator", tmp_path / "elsewhere"
    folder.mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(folder.parent)
    store = Store("sqlite:///own.db", folder)
    tracker = Tracker.create(store, store.experiment("Default"), "named", every_s=1.0)
    (tmp_path / "note.txt").write_text("kept")
    tracker.artifact(tmp_path / "note.txt", "run")
    tracker.end("FAILED")
    assert sorted(place.name for place in folder.parent.glob("[!.]*")) == ["artifacts", "mlflow.lock", "own.db"]
    monkeypatch.chdir(elsewhere)
    assert Store(store.uri, folder).find("last").run_id == tracker.run_id
    assert list(elsewhere.iterdir()) == []


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")
def test_there_is_one_experiment_default_and_what_others_keep_in_theirs_stays(tmp_path: Path) -> None:
    """MLflow makes `Default`, and `run.experiment` is `default` where nobody names one."""
    new, used = tmp_path / "new", tmp_path / "used"
    new.mkdir()
    used.mkdir()
    store = Store(None, new)
    assert [store.experiment("e"), store.experiment("default"), store.experiment("default")] == ["1", "0", "0"]
    assert sorted(each.name for each in Store(None, new).client.search_experiments()) == ["default", "e"]
    store.client.create_run("0")
    other = Store(None, used)
    other.client.delete_run(other.client.create_run("0").info.run_id)
    assert other.experiment("default") == "1"
    assert sorted(each.name for each in other.client.search_experiments()) == ["Default", "default"]


def test_a_store_is_not_made_to_look_for_a_run_in_it(tmp_path: Path) -> None:
    for uri in (None, f"sqlite:///{tmp_path / 'other.db'}"):
        for name in ("abc", "last"):
            with refused("mlflow.nothing-recorded", str(tmp_path)):
                Store.with_run(uri, tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_without_the_variable_a_user_has_the_name_of_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USER", raising=False)
    name = pwd.getpwuid(os.getuid()).pw_name
    assert (user(), accounts()) == (name, {name, str(os.getuid())})
    monkeypatch.setenv("USER", "other")
    assert (user(), accounts()) == ("other", {"other", name, str(os.getuid())})

    def nameless(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("USER")
    monkeypatch.setattr("pwd.getpwuid", nameless)
    assert user() == str(os.getuid())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sqlite:///own.db?timeout=3", "sqlite:////here/own.db?timeout=3"),
        ("sqlite:////there/own.db", "sqlite:////there/own.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("mlruns", "/here/mlruns"),
        ("http://host:5000", "http://host:5000"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("databricks", "databricks"),
    ],
)
def test_an_address_means_the_same_from_everywhere(monkeypatch: pytest.MonkeyPatch, given: str, meant: str) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    assert absolute(given) == meant


STRANGE = ["what?now", "100%25", "a'b\"te", "#;*[a]{b} $HOME `x`", "%s %(x)s {0}", "line\nend", "a:b :c\\d", "~ü"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.long
def test_a_project_may_lie_in_a_folder_of_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / name / ".orchestrator"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / name)
    store = Store(None, folder)
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    (folder / tracker.run_id).mkdir()
    (folder / tracker.run_id / "card.md").write_text("x")
    tracker.artifact(folder / tracker.run_id / "card.md", "run")
    tracker.end("FINISHED")
    assert tracker.trouble is None
    again = Store(store.uri, folder)
    assert (again.name, again.find("last").status) == (None, "FINISHED")
    assert [each.path for each in again.client.list_artifacts(tracker.run_id, "run")] == ["run/card.md"]
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        [tracker.run_id, "artifacts", "mlflow.db", "mlflow.lock"]
    )
    assert [each.name for each in tmp_path.iterdir()] == [name]
    moved = tmp_path / "moved 50%" / ".orchestrator"
    shutil.move(tmp_path / name, moved.parent)
    Store(None, moved).fetch(tracker.run_id, "run", moved)
    assert (moved / "card.md").read_text() == "x"


NEWCOMER = """
import pathlib, sys
from orchestrator.provenance.tracking import Store, Tracker, lean
lean.prefer()
store = Store(None, pathlib.Path(sys.argv[1]))
tracker = Tracker.create(store, store.experiment("e"), sys.argv[2], every_s=1.0)
tracker.end("FINISHED")
print(tracker.trouble)
"""


@pytest.mark.ray
@pytest.mark.long
def test_processes_that_open_a_new_store_at_once_make_one(tmp_path: Path) -> None:
    names = ["a", "b"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", NEWCOMER, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    ended = [process.communicate(timeout=240) for process in processes]
    assert [out for out, _ in ended] == ["None\n"] * len(names), ended
    connection = sqlite3.connect(tmp_path / "mlflow.db")
    runs = connection.execute("select name, status from runs order by name").fetchall()
    assert runs == [(name, "FINISHED") for name in names]
    assert connection.execute("select count(*) from experiments where name = 'e'").fetchone() == (1,)
    connection.close()
