"""Runs are read from the tables of a store in SQLite as MLflow's client gives them, and without it."""

from __future__ import annotations

import itertools
import math
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from orchestrator.driver.folders import RunFolder, is_driven
from orchestrator.experiments.listing import runs, table
from orchestrator.provenance.tracking import Store, identity_of_process, tables
from orchestrator.provenance.tracking.asking import refuse_deleted
from orchestrator.provenance.tracking.store import BOOT, HOST, KIND, MACHINE, PID, tags_of_driver
from tests.refusals import refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated"),  # MLflow's own use of SQLAlchemy
]
NOTHING_IMPORTED = """
import sys
from orchestrator.__main__ import main
sys.argv = ["orchestrator", "runs"]
assert main() == 0
assert not {"mlflow", "torch", "ray", "sqlalchemy"} & set(sys.modules)
sys.argv = ["orchestrator", "look=nope"]
assert main() == 2
assert not {"mlflow", "ray", "sqlalchemy"} & set(sys.modules)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / ".orchestrator"
    folder.mkdir()
    made = Store(None, folder)
    first, second = made.experiment("first"), made.experiment("second")
    for number, experiment in enumerate([first, second, first, second, first]):
        run = made.client.create_run(experiment, start_time=1000 + number // 2, run_name=f"run {number}")
        name = run.info.run_id
        made.client.log_metric(name, "loss", [math.nan, math.inf, 0.1, -2.5, 3][number], step=3)
        made.client.log_metric(name, "loss", [1.5, math.nan, -math.inf, 7.25, 4][number], step=4)
        made.client.log_param(name, "optimizer.lr", number / 3)
        if number != 3:
            made.client.set_tag(name, HOST, "here")
            made.client.set_tag(name, BOOT, "é\n'%")
        made.client.set_tag(name, "identity", f"{number % 2}")
        made.client.set_terminated(name, "FINISHED", end_time=2000)
        if number == 4:
            made.client.delete_run(name)
    gone = made.experiment("gone")
    made.client.set_tag(made.client.create_run(gone).info.run_id, HOST, "here")
    made.client.delete_experiment(gone)
    return Store(None, folder)


def test_they_are_those_that_mlflow_tells_of(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    database = store.folder / "mlflow.db"
    for (tag, value), few in itertools.product(
        [(HOST, None), ("identity", "1"), ("identity", "5"), ("no such", None)], (0, 100)
    ):
        monkeypatch.setattr(tables, "_FEW", few)
        read = tables.runs(database, tag, value)
        assert read is not None
        asked = store._asked(f"tags.`{tag}` " + ("LIKE '%'" if value is None else f"= '{value}'"))
        assert repr(read) == repr(asked), tag
    assert [past.name for past in store.past()] == [row.name for row in store._asked(f"tags.`{HOST}` LIKE '%'")]


def test_a_run_of_a_whole_id_is_found_without_asking_for_all_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rerun of a sweep asks for each of its runs, at a server that may have thousands."""
    known = store.past()
    monkeypatch.setattr(Store, "past", lambda _: pytest.fail("all were asked for"))
    read = tables.runs
    for found in (read, lambda *_: None):
        monkeypatch.setattr(tables, "runs", found)
        assert repr([store.find(past.run_id) for past in known]) == repr(known)


def test_a_name_that_no_run_has_is_refused_alike_with_mlflow_and_without(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = store.client.search_runs(["1", "2"], run_view_type=3)
    foreign = next(run.info.run_id for run in runs if run.info.run_name == "run 3")
    deleted = next(run.info.run_id for run in runs if run.info.run_name == "run 4")
    gone = store.client.get_experiment_by_name("gone")
    assert gone is not None
    (of_gone,) = (run.info.run_id for run in store.client.search_runs([gone.experiment_id], run_view_type=3))
    wanted = {
        "nope": ("mlflow.no-such-run", "nope"),
        foreign: ("mlflow.other-run", foreign),
        deleted: ("mlflow.run-deleted", f"MLFLOW_TRACKING_URI={store.uri} mlflow runs restore --run-id {deleted}"),
        of_gone: ("mlflow.run-deleted", f"mlflow experiments restore --experiment-id {gone.experiment_id}"),
    }
    for stage in (tables.stage, lambda *_: None):
        monkeypatch.setattr(tables, "stage", stage)
        for name, (code, told) in wanted.items():
            with refused(code, told):
                store.find(name)
    store.client.restore_run(of_gone)  # which leaves its experiment deleted
    with refused("mlflow.run-deleted", "mlflow experiments restore"):
        store.find(of_gone)


def test_a_deleted_experiment_is_refused_alike_before_a_store_is_opened_and_after(store: Store) -> None:
    gone = store.client.get_experiment_by_name("gone")
    assert gone is not None
    command = f"MLFLOW_TRACKING_URI={store.uri} mlflow experiments restore --experiment-id {gone.experiment_id}"
    for refuse in (
        store.experiment,
        partial(refuse_deleted, None, store.folder),
        partial(refuse_deleted, store.uri, Path()),
    ):
        with refused("mlflow.experiment-deleted", command):
            refuse("gone")
    for name in ("first", "no such"):
        refuse_deleted(None, store.folder, name)
    refuse_deleted(None, store.folder / "without a store", "gone")


def test_tables_of_another_version_and_damaged_ones_are_left_to_mlflow(store: Store, tmp_path: Path) -> None:
    database = store.folder / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update alembic_version set version_num = 'of another time'")
    assert tables.runs(database, HOST) is None
    assert tables.stage(database, "nope") is None
    (tmp_path / "damaged.db").write_text("no database")
    assert tables.runs(tmp_path / "damaged.db", HOST) is None


def test_mlflow_is_not_imported_to_list_runs_or_to_miss_one(store: Store) -> None:
    subprocess.run([sys.executable, "-c", NOTHING_IMPORTED], check=True, cwd=store.folder.parent)


def test_a_run_whose_driver_is_gone_is_told_as_killed_to_the_user_and_to_mlflow(tmp_path: Path) -> None:
    """Not those that somebody drives, as far as this machine can tell, nor those of another machine with the same name."""
    folder = tmp_path / ".orchestrator"
    folder.mkdir()
    store = Store(None, folder)
    experiment = store.experiment("any")
    with subprocess.Popen(["true"]) as process:
        gone = {PID: str(process.pid)}
    changes = {"mine": {}, "gone": gone, "elsewhere": {**gone, HOST: "another"}, "locked": gone}
    changes["before"] = {BOOT: "x", MACHINE: tags_of_driver()[MACHINE]}
    changes["namesake"] = {BOOT: "x", MACHINE: "another"}
    changes["audit"] = {**gone, KIND: "audit"}
    left = ("gone", "before", "audit")
    ids = {
        name: store.client.create_run(experiment, run_name=name, tags={**identity_of_process(), **tags}).info.run_id
        for name, tags in changes.items()
    }
    files = RunFolder(folder, ids["locked"])  # such as from another container of this machine
    files.lease()
    marked = store.mark_orphans(experiment, partial(is_driven, folder))
    assert sorted(marked) == sorted(ids[name] for name in left)
    (folder / ids["before"]).mkdir()  # no trace, no journal: a resume refuses it
    for name in left:
        store.client.update_run(ids[name], "RUNNING")
    said: list[str] = []
    shown = {past.name: past.status for past in runs(tmp_path, say=said.append)}
    files.release()
    expected = dict.fromkeys(ids, "RUNNING") | dict.fromkeys(left, "KILLED")
    assert shown == expected
    assert {name: store.client.get_run(run_id).info.status for name, run_id in ids.items()} == expected
    assert sorted(said) == sorted(
        f"note: run {ids[name]} was left RUNNING by a driver that is gone; it is marked KILLED now; {what}"
        for name, what in (
            ("gone", f"`resume={ids['gone']}` goes on with it"),
            ("before", "it ended before its code was recorded, and before its first step: launch it again"),
            ("audit", "type `rerun=RUN_ID audit=N` once more"),
        )
    )
    assert "killed" in table(store.past())


@pytest.mark.parametrize("told", ["", "seven", "-1", "9" * 5000, "\u0663"])
def test_tags_of_others_that_are_no_numbers_are_none(store: Store, told: str) -> None:
    """Another user of the store may write any, and the list of runs is there for all."""
    run_id = store.past()[0].run_id
    for key in ("steps", PID):
        store.client.set_tag(run_id, key, told)
    store.client.set_tag(run_id, HOST, socket.gethostname())
    store.client.mlflow.update_run(run_id, status="RUNNING")
    (past,) = (each for each in Store(None, store.folder).past() if each.run_id == run_id)
    assert (past.steps, past.is_orphan) == (None, False)
    assert store.mark_orphans(store.client.get_run(run_id).info.experiment_id, lambda _: False) == []
