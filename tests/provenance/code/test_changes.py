"""The differences between two snapshots, from two files alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.provenance.code import changes, snapshot
from orchestrator.provenance.code.changes import Change
from orchestrator.provenance.code.worktree import examine
from tests.provenance.code.repositories import create, take, write
from tests.refusals import refused

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    names = {
        "a.py": "1\n2\n3\n",
        "gone.py": "gone\n",
        "tool.sh": "x\n",
        "link": "text\n",
        "same.py": "same\n",
        "b.bin": "\0",
    }
    return create(tmp_path / "project", names)


def bundled(repository: Path, target: Path) -> Path:
    snapshot.bundle(take(repository, "1"), target)
    return target


@pytest.fixture
def old(repository: Path, tmp_path: Path) -> Path:
    return bundled(repository, tmp_path / "old.bundle")


def test_every_kind_of_change(repository: Path, old: Path, tmp_path: Path) -> None:
    write(repository, {"a.py": "1\nzwei\n3\n", "new \t\n.py": "new\n", "b.bin": "\0\1", "zz[a]*.py": "z\n"})
    (repository / "gone.py").unlink()
    (repository / "tool.sh").chmod(0o755)
    (repository / "link").unlink()
    (repository / "link").symlink_to("a.py")
    new = bundled(repository, tmp_path / "new.bundle")
    shutil.rmtree(repository)
    found = {change.path: change for change in changes.changes(old, new)}
    assert {path: (change.kind, change.added, change.removed) for path, change in found.items()} == {
        "a.py": ("changed", 1, 1),
        "b.bin": ("changed", None, None),
        "gone.py": ("removed", 0, 1),
        "link": ("changed", 1, 1),
        "new \t\n.py": ("added", 1, 0),
        "tool.sh": ("changed", 0, 0),
        "zz[a]*.py": ("added", 1, 0),
    }
    assert "@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n" in found["a.py"].diff
    assert "Binary files a/b.bin and b/b.bin differ\n" in found["b.bin"].diff
    assert "new mode 100755" in found["tool.sh"].diff
    assert found["link"].diff.count("diff --git") == 2
    assert found["zz[a]*.py"].diff.endswith("+z\n")


def test_equal_snapshots_do_not_differ(repository: Path, old: Path, tmp_path: Path) -> None:
    assert changes.changes(old, bundled(repository, tmp_path / "new.bundle")) == []
    assert changes.since(old, examine(repository)) == []


def test_what_has_changed_since(repository: Path, old: Path) -> None:
    write(repository, {"a.py": "other\n", "new.py": "new\n"})
    (repository / "gone.py").unlink()
    assert changes.since(old, examine(repository)) == ["a.py", "gone.py", "new.py"]


def test_it_is_bounded(repository: Path, old: Path, tmp_path: Path) -> None:
    files = {f"many/{number:03}.py": f"{number}\n" for number in range(changes.FILES_SHOWN)}
    write(repository, {"a.py": "diff --git a/x b/x\n" * 2000, "b.txt": "large\n" * 200_000, **files})
    found = changes.changes(old, bundled(repository, tmp_path / "new.bundle"))
    assert len(found) == changes.FILES_SHOWN + 2
    assert len(found[0].diff.splitlines()) == changes.LINES_SHOWN + 1
    assert found[0].diff.endswith("more lines\n")
    assert "Binary files /dev/null and b/b.txt differ" in found[1].diff
    assert [change.diff == "" for change in found[-3:]] == [False, True, True]
    assert found[-1] == Change("many/099.py", "added", 1, 0, "")


def test_damaged_bundles_are_refused(old: Path, repository: Path, tmp_path: Path) -> None:
    new = bundled(repository, tmp_path / "new.bundle")
    new.write_bytes(new.read_bytes()[:-3])
    with refused("git.bundle-damaged"):
        changes.changes(old, new)
    other = create(tmp_path / "other", {"a.py": "a\n"}, "--object-format=sha256")
    with refused("git.object-formats"):
        changes.changes(old, bundled(other, tmp_path / "other.bundle"))
