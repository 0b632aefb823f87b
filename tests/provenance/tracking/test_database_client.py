"""A launch writes into the tables of a store what MLflow's client would write, and leaves what is out of the ordinary to it."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store, Tracker, database_client
from orchestrator.provenance.tracking.client import Client, Dataset, Metric, Param, RunTag
from orchestrator.provenance.tracking.database_client import DatabaseClient
from orchestrator.provenance.tracking.models import ModelFolder, Registration
from orchestrator.provenance.tracking.predecessors import predecessor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated"),  # MLflow's own use of SQLAlchemy
]
_CHANCE = re.compile(r"[0-9a-f]{32}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A database that was there, by MLflow or from tables that were kept."""
    Store(None, tmp_path).experiment("e")
    return Store(None, tmp_path)


def asked(client: Client, name: str) -> list[str]:
    """Note what MLflow's own client is opened for from now on."""
    opened: list[str] = []
    usual = client._open

    def open_() -> Any:
        opened.append(name)
        return usual()

    client._open = open_
    return opened


def history(folder: Path, *, direct: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The history of two runs in a store, told as launches tell it: all rows that they have left, without what is chance."""
    folder.mkdir()
    with monkeypatch.context() as patched:
        if not direct:
            patched.setattr(database_client, "fits", lambda *_: False)
        store = Store(None, folder)
        assert [store.experiment(name) for name in ("e", "default", "other", "e")] == ["1", "0", "2", "1"]
        store.client.set_experiment_tag("2", "mlflow.experimentKind", "finetuning")
        assert store.client.get_experiment("2").tags == {"mlflow.experimentKind": "finetuning"}
        assert isinstance(store.client, DatabaseClient) is direct
    for number in range(2):
        tell(store, folder, number)
    if direct:
        assert "mlflow" not in vars(store.client), "nothing was asked of MLflow's own client"
    return rows(folder)


def tell(store: Store, folder: Path, number: int) -> None:
    tracker = Tracker.create(store, store.experiment("e"), f"run {number}", every_s=1000.0)
    tracker.describe({"pipeline.target": "a:B", "empty": None, "long": "x" * 6000}, {"tag.a/b": "é\n'%", "t": "1"})
    tracker.describe({"pipeline.target": "a:B", "later": 1.5}, {"t": "2"})
    tracker.inputs([("data", "d41d8cd98f00b204e9800998ecf8427e.dir", "data"), ("data", "d41d8cd98f00", "data")])
    for step in (0, 2, 1):
        tracker.metrics(step, {"loss": [1.5, math.nan, -2.0][step], "up": [1, math.inf, -math.inf][step]})
    tracker.flush()
    tracker._pending = [Metric("loss", 1.5, 7, 3), Metric("loss", 1.5, 7, 3), Metric("loss", 0.5, 7, 3)]
    tracker.flush()
    tracker._pending = [Metric("loss", 1.5, 7, 3), Metric("loss", 9.5, 6, 3)]
    made = folder / tracker.run_id
    (made / "below").mkdir(parents=True)
    for name in ("card.md", "below/model.safetensors"):
        (made / name).write_text(f"{name} {number}")
    tracker.artifact(made / "card.md", "run")
    tracker.tag("identity", "i")
    if number:
        tracker.tag_other(store.find("last").run_id, "confirms", "this")
    tracker.model(ModelFolder(made / "below", 3, {"p": "1"}, {"digest": "d"}, code="code", tag="model"), None)
    assert predecessor(store, tracker, "a:B") is None
    tracker.end("FINISHED" if number else "FAILED")
    assert tracker.trouble is None


def rows(folder: Path) -> dict[str, list[Any]]:
    """By table, and of the artifacts what they are."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        found = {name: sorted(map(told, connection.execute(f'select * from "{name}"'))) for name in tables}
    files = (file for file in (folder / "artifacts").rglob("*") if file.is_file())
    found["files"] = sorted(
        told((str(file.relative_to(folder)), oct(file.stat().st_mode), text_of(file))) for file in files
    )
    return found


def text_of(file: Path) -> str:
    return re.sub(r"'\d{4}-.*'", "'then'", file.read_text())


def told(row: tuple[Any, ...]) -> str:
    known = [re.sub(r"file://.*/artifacts", "file:///artifacts", str(value)) for value in row]
    times = [re.sub(r"^1[78]\d{11}$", "now", value) for value in known]
    return repr([_CHANCE.sub("id", value).replace(str(os.getpid()), "process") for value in times])


def test_what_it_writes_is_what_mlflow_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first").mkdir()
    Store(None, tmp_path / "first")  # of which the empty tables are kept for the others
    ours, theirs = (
        history(tmp_path / name, direct=name == "ours", monkeypatch=monkeypatch) for name in ("ours", "theirs")
    )
    assert {name for name, found in ours.items() if found} >= {"runs", "latest_metrics", "logged_model_tags", "files"}
    for name, found in theirs.items():
        assert ours[name] == found, name


def unusual(client: Client, run_id: str) -> Iterator[tuple[str, Any]]:
    """Each with the error of MLflow's, and None where it takes it."""
    yield "a long tag is cut or refused", lambda: client.set_tag(run_id, "t", "x" * 9000)
    yield "a parameter is another one", lambda: client.log_batch(run_id, params=[Param("p", "2")])
    yield "a name that MLflow refuses", lambda: client.log_batch(run_id, metrics=[Metric("a//b", 1.0, 1, 1)])
    yield "a run that is not there", lambda: client.log_batch("f" * 32, tags=[RunTag("t", "1")])
    yield "a name by a tag", lambda: client.set_tag(run_id, "mlflow.runName", "other")
    yield "a name of a model that MLflow refuses", lambda: client.begin_model(run_id, "resnet.v2", {}, {})
    yield "inputs", lambda: client.log_datasets(run_id, [Dataset("n" * 400, "d", "dvc", "{}")], {})


def test_what_is_out_of_the_ordinary_is_asked_of_mlflow(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = store.client
    run_id = client.create_run("1", run_name="name").info.run_id
    client.log_batch(run_id, params=[Param("p", "1")])
    assert "mlflow" not in vars(client)
    for name, verb in unusual(client, run_id):
        vars(client).pop("mlflow", None)
        opened = asked(client, name)
        outcomes = []
        for each in (verb, dict(unusual(Client(client._open), run_id))[name]):
            try:
                each()
                outcomes.append("done")
            except Exception as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1], name
        assert opened == [name, name]
    assert client.get_run(run_id).info.run_name == "other"
    assert client.get_run(run_id).data.params == {"p": "1"}
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    assert not database_client.fits(store.folder / "mlflow.db", store.uri)


def test_a_model_is_registered_by_mlflow(store: Store) -> None:
    tracker = Tracker.create(store, store.experiment("e"), "n", every_s=1.0)
    (store.folder / tracker.run_id).mkdir()
    tracker.model(ModelFolder(store.folder / tracker.run_id, 1, {}), Registration.parse("m"))
    tracker.end("FINISHED")
    assert (tracker.trouble, tracker.registered) == (None, "models:/m/1")


def test_a_large_file_that_never_changes_is_linked_and_any_other_is_copied(store: Store, tmp_path: Path) -> None:
    """Also a second time, when the file has been written anew."""
    tracker = Tracker.create(store, "1", "r", every_s=0.0)
    place = tmp_path / "artifacts" / tracker.run_id / "artifacts" / "a"
    for content in (b"first", b"second"):
        weights, text = tmp_path / "model.safetensors", tmp_path / "trace.jsonl"
        for each in (weights, text):
            each.unlink(missing_ok=True)
            each.write_bytes(content)
            store.client.log_artifact(tracker.run_id, str(each), "a")
            store.client.log_artifact(tracker.run_id, str(each), "a")
            assert (place / each.name).read_bytes() == content
        assert (place / weights.name).samefile(weights)
        assert not (place / text.name).samefile(text)
    assert sorted(each.name for each in place.iterdir()) == ["model.safetensors", "trace.jsonl"]


def test_where_nothing_can_be_linked_a_large_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    source, target = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    source.write_bytes(b"weights")
    database_client._put(source, target)
    assert target.read_bytes() == b"weights"
    assert not target.samefile(source)


def test_a_locked_database_holds_the_driver_up_for_seconds_and_is_told_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a backup, which the end waits for."""
    monkeypatch.setattr("orchestrator.provenance.tracking.tracker._LOCKED_S", 0.05)
    run = Tracker.create(store, store.experiment("e"), "run", every_s=0.0)
    opened = asked(store.client, "mlflow")
    run.metrics(0, {"loss": 1.0})
    database = store.folder / "mlflow.db"
    with closing(sqlite3.connect(database, isolation_level=None, check_same_thread=False)) as backup:
        backup.execute("begin immediate")
        since = time.monotonic()
        run.tick()
        assert time.monotonic() - since < 5.0, "MLflow waits for 20 s"
        trouble = run.trouble
        assert trouble == "database is locked"
        assert not opened, "MLflow's own client would wait once more"
        threading.Timer(0.5, backup.rollback).start()
        run.end("FINISHED")
    assert run.trouble is None
    assert not opened
    assert store.client.get_run(run.run_id).data.metrics == {"loss": 1.0}
