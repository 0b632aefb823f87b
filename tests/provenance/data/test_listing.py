"""The data that a `.dvc` file stands for, as files that are read where they lie."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import Files
from orchestrator.data.files.index import Kept, index
from orchestrator.provenance.data.listing import stored
from tests.refusals import refused

CONTENTS = {"a.jsonl": b'{"n": 1}\n', "b/c.jsonl": b'{"n": 2}\n{"n": 3}\n'}


def _put(store: Path, content: bytes, suffix: str = "") -> str:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
    place = store / "files" / "md5" / md5[:2] / md5[2:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return md5


def _pushed(project: Path, store: Path, config: str) -> Path:
    """A project that knows a folder which lies in a store of DVC only."""
    (project / ".dvc").mkdir(parents=True)
    (project / ".dvc" / "config").write_text(config)
    listed = [{"md5": _put(store, content), "relpath": name} for name, content in CONTENTS.items()]
    md5 = _put(store, json.dumps(listed).encode(), ".dir")
    return _written(project, {"outs": [{"md5": md5, "hash": "md5", "path": "corpus"}]})


def _written(folder: Path, described: Any) -> Path:
    (folder / "corpus.dvc").write_text(yaml.safe_dump(described))
    return folder / "corpus.dvc"


@pytest.mark.parametrize("kept_by", ["remote", "cache"])
def test_a_folder_that_dvc_keeps_is_read_from_there(kept_by: str, tmp_path: Path) -> None:
    store = tmp_path / "store" if kept_by == "remote" else tmp_path / "project" / ".dvc" / "cache"
    config = f"[core]\nremote = r\n['remote \"r\"']\nurl = {store}\n" if kept_by == "remote" else ""
    found = stored(_pushed(tmp_path / "project", store, config))
    made = index("corpus.dvc", None, {}, to=str(tmp_path / "corpus.json"), kept=Kept(found.place, found.at))
    assert [(file.path, file.samples) for file in made.files] == [("a.jsonl", 1), ("b/c.jsonl", 2)]
    assert all(file.at.endswith(file.md5[2:]) for file in made.files)
    assert [Files(tmp_path / "corpus.json")[number]["n"] for number in range(3)] == [1, 2, 3]


def test_an_import_of_versions_names_them(tmp_path: Path) -> None:
    source: dict[str, Any] = {"path": "s3://b/corpus", "files": [{"relpath": "a.jsonl", "version_id": "v1"}]}
    found = stored(_written(tmp_path, {"deps": [source], "outs": [{"path": "corpus"}]}))
    assert found == ("s3://b/corpus", {"a.jsonl": "a.jsonl?versionId=v1"})
    del source["files"]
    assert stored(_written(tmp_path, {"deps": [source], "outs": [{"path": "corpus"}]})) == ("s3://b/corpus", {})


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ([], "dvc.not-a-file"),
    "a file": ({"outs": [{"md5": "0" * 32, "path": "a"}]}, "dvc.no-folder"),
    "line ends of DVC 2": (
        {"outs": [{"md5": f"{'0' * 32}.dir", "hash": "md5-dos2unix"}]},
        "dvc.no-folder",
    ),
    "no project": ({"outs": [{"md5": f"{'0' * 32}.dir"}]}, "dvc.no-project"),
    "no version": (
        {"deps": [{"path": "s3://b", "files": [{"relpath": "a"}]}], "outs": [{}]},
        "dvc.no-version",
    ),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_stands_for_no_folder_is_refused(which: str, tmp_path: Path) -> None:
    described, code = WRONG[which]
    with refused(code):
        stored(_written(tmp_path, described))


def test_a_list_that_is_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").touch()
    with refused("dvc.no-list") as told:
        stored(_written(tmp_path, {"outs": [{"md5": f"{'0' * 32}.dir"}]}))
    assert "dvc push" in told.value.remedy
