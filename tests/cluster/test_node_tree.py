"""The trees that nodes compare, and the files that are carried to those that differ."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cluster.placement import node_tree
from orchestrator.cluster.placement.node_tree import capture, differences, foreign, listing, outside, pack

pytestmark = pytest.mark.slow

INPUTS = ["data/numbers"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository: one file tracked, one new, one ignored, and data that git ignores too."""
    root = tmp_path / "project"
    for name in (
        "pipes/good.py",
        "new.py",
        "notes.tmp",
        "data/numbers/1.txt",
        ".orchestrator/run.json",
        "data/other.txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / ".gitignore").write_text("*.tmp\n/data/\n")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    subprocess.run(["git", "add", "pipes"], cwd=root, check=True)
    return root


def unpacked(project: Path, target: Path) -> Path:
    pack(project, INPUTS, target.with_suffix(".zip"))
    with zipfile.ZipFile(target.with_suffix(".zip")) as archive:
        archive.extractall(target)
    return target


def test_code_is_what_git_would_track(project: Path) -> None:
    assert listing(project, INPUTS) == [".gitignore", "new.py", "pipes/good.py"]


def test_without_git_it_is_everything_but_data_and_caches(project: Path) -> None:
    found = listing(project, INPUTS, git=False)
    assert found == [".gitignore", "data/other.txt", "new.py", "notes.tmp", "pipes/good.py"]


def test_a_file_that_git_knows_and_the_folder_lacks_is_not_listed(project: Path) -> None:
    (project / "pipes/good.py").unlink()
    assert listing(project, INPUTS) == [".gitignore", "new.py"]


def test_a_carried_copy_is_equal_and_stays_so_when_it_is_used(project: Path, tmp_path: Path) -> None:
    copy = unpacked(project, tmp_path / "copy")
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__/new.pyc").write_text("")
    assert differences(capture(project, INPUTS), capture(copy, INPUTS, git=False)) == []


def test_data_behind_a_link_to_a_folder_are_carried(project: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/2.txt").write_text("2")
    (project / "data/numbers/more").symlink_to(tmp_path / "disk")
    copy = unpacked(project, tmp_path / "copy")
    assert differences(capture(project, INPUTS), capture(copy, INPUTS, git=False)) == []


def test_the_same_content_packs_to_the_same_bytes(project: Path, tmp_path: Path) -> None:
    pack(project, INPUTS, tmp_path / "1.zip")
    (project / "new.py").touch()
    pack(project, INPUTS, tmp_path / "2.zip")
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()


def test_each_difference_is_named(project: Path, tmp_path: Path) -> None:
    copy = unpacked(project, tmp_path / "copy")
    (copy / "new.py").write_text("changed")
    (copy / "pipes/good.py").unlink()
    (copy / "pipes/more.py").write_text("")
    (copy / "data/numbers/1.txt").write_text("2")
    assert differences(capture(project, INPUTS), capture(copy, INPUTS, git=False)) == [
        "new.py differs",
        "pipes/good.py is missing",
        "pipes/more.py is extra",
        "data/numbers differs",
    ]


def test_a_missing_folder_and_missing_data_are_named(project: Path, tmp_path: Path) -> None:
    expected = capture(project, INPUTS)
    assert differences(expected, capture(tmp_path / "nowhere", INPUTS)) == ["the folder is missing"]
    (project / "data/numbers/1.txt").unlink()
    (project / "data/numbers").rmdir()
    assert differences(expected, capture(project, INPUTS)) == ["data/numbers is missing"]


def test_other_libraries_are_foreign(project: Path) -> None:
    expected = capture(project, INPUTS)
    assert foreign(expected, expected) == []
    other = replace(expected, package="", versions={**expected.versions, "torch": "1.0"})
    assert foreign(expected, other) == [
        f"torch is 1.0 instead of {expected.versions['torch']}",
        "the source of orchestrator differs",
    ]


def test_inputs_outside_the_project_are_found(project: Path) -> None:
    assert outside(project, ["data/numbers", "data/../data", "../elsewhere", "/abs"]) == ["../elsewhere", "/abs"]


def test_this_package_is_carried_only_with_its_own_repository(project: Path) -> None:
    assert not node_tree.holds_package(project)
    assert node_tree.holds_package(Path(node_tree.__file__).parents[2])
