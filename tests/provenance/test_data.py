"""Hashes of inputs are DVC's own, and what DVC's files record is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.provenance import data

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "data" / "imgs" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "imgs" / "b.txt").write_text("b")
    (tmp_path / "data" / "imgs" / "deep" / "a.txt").write_text("a")
    (tmp_path / "raw.csv").write_text("1,2\n")
    return tmp_path


def add_with_dvc(project: Path, *paths: str) -> None:
    from dvc.repo import Repo

    with Repo.init(str(project), no_scm=True) as repository:
        for path in paths:
            repository.add([str(project / path)])


@pytest.mark.ray  # DVC takes seconds to import and to hash
@pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise")  # DVC's own use of a library
def test_hashes_and_records_are_those_of_dvc(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(project / "site"))
    add_with_dvc(project, "data/imgs", "raw.csv")
    folder, file = data.capture(project, ["data/imgs", "raw.csv"])
    assert folder.md5 == folder.recorded_md5
    assert folder.md5.endswith(".dir")
    assert (folder.files, folder.size, folder.stage) == (2, 2, None)
    assert file.md5 == file.recorded_md5


def test_a_change_that_keeps_size_and_time_is_seen(project: Path) -> None:
    file = project / "raw.csv"
    before, stat = data.md5_of(file), file.stat()
    file.write_text("1,3\n")
    import os

    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert data.md5_of(file) != before


def test_unknown_data_has_no_record(project: Path) -> None:
    (item,) = data.capture(project, ["raw.csv"])
    assert (item.recorded_md5, item.stage) == (None, None)


def test_outputs_of_stages_are_found_in_the_lock_and_in_the_pipeline(project: Path) -> None:
    lock = {"stages": {"prepare": {"cmd": "x", "outs": [{"path": "data/imgs", "md5": "5.dir"}]}}}
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    (project / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {"prepare": {"outs": [{"data/imgs": {"cache": False}}]}}})
    )
    (item,) = data.capture(project, ["data/imgs"])
    assert (item.recorded_md5, item.stage) == ("5.dir", "prepare")
    assert data.stage_of(project, "./data/imgs/") == "prepare"
    assert data.stage_of(project, "other") is None


def test_a_missing_path_is_an_error(project: Path) -> None:
    with pytest.raises(FileNotFoundError):
        data.capture(project, ["nothing"])


def test_the_digits_are_made_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines import prepare_digits

    shutil.copy2(REPOSITORY / "dvc.lock", tmp_path)
    monkeypatch.chdir(tmp_path)
    prepare_digits.main()
    (item,) = data.capture(tmp_path, ["data/digits"])
    assert item.md5 == item.recorded_md5
    assert item.stage == "prepare_digits"


def test_the_lock_is_of_the_scripts_as_they_are() -> None:
    """Otherwise `dvc repro` in a fresh clone would change a committed file."""
    stages = yaml.safe_load((REPOSITORY / "dvc.lock").read_text())["stages"]
    recorded = {dep["path"]: dep["md5"] for stage in stages.values() for dep in stage.get("deps", [])}
    scripts = {path: md5 for path, md5 in recorded.items() if path.endswith(".py")}
    assert scripts == {path: data.md5_of(REPOSITORY / path)[0] for path in scripts}
    assert len(scripts) >= 2
