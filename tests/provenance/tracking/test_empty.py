"""The tables of a new store: made by MLflow once, and taken from what was kept afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.provenance.tracking import Store, empty

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated"),  # MLflow's own use of SQLAlchemy
]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which tables are kept in a test."""
    folder = tmp_path / "kept"
    monkeypatch.setattr(empty, "_folders", lambda: iter([folder]))
    return folder


def lines(database: Path) -> Iterator[str]:
    """All that is in a database, without the times of its experiments."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("update experiments set creation_time = 0, last_update_time = 0")
        yield from connection.iterdump()


@pytest.mark.long
def test_a_store_from_kept_tables_is_the_one_that_mlflow_makes_and_a_damaged_file_is_not_taken(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []
    place = empty.place

    def placed(database: Path, artifacts: str) -> bool:
        made.append(not place(database, artifacts))
        return not made[-1]

    monkeypatch.setattr(empty, "place", placed)
    stores = [tmp_path / name for name in ("first", "second")]
    for folder in stores:
        folder.mkdir()
        Store(None, folder).experiment("any")
    assert made == [True, False]
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert not place(tmp_path / "mlflow.db", "file:///artifacts")
    assert not (tmp_path / "mlflow.db").exists()
    first, second = (
        [line.replace(str(folder), "HERE") for line in lines(folder / "mlflow.db")] for folder in stores[:2]
    )
    assert sorted(first) == sorted(second)
    assert any("HERE/artifacts" in line for line in second)
    assert sorted(path.name for path in stores[1].iterdir()) == ["mlflow.db", "mlflow.lock"]


@pytest.mark.long
def test_where_nothing_can_be_kept_a_store_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(empty, "_folders", lambda: iter([tmp_path / "file" / "kept"]))
    assert Store(None, tmp_path).experiment("any") == "1"
