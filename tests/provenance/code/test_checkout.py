"""A bundle alone makes a verified repository; a failure or a kill leaves nothing that the next start cannot clean."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.common import locks
from orchestrator.provenance.code import checkout, snapshot
from orchestrator.provenance.code import git as our_git
from tests.provenance.code.repositories import create, git, on_disk, take, untouchable, write
from tests.refusals import refused

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = create(tmp_path / "project", {"a.py": "a\n", "sub/b.py": "b\n", ".gitattributes": "*.txt text eol=crlf\n"})
    write(root, {"new.py": "new\n", "mixed.txt": "a\nb\r\n"})
    (root / "new.py").chmod(0o755)
    return root


@pytest.fixture
def bundle(repository: Path, tmp_path: Path) -> Path:
    snapshot.bundle(take(repository / "sub", "1"), tmp_path / "code.bundle")
    return tmp_path / "code.bundle"


def test_the_child_records_the_same_code(repository: Path, bundle: Path, tmp_path: Path) -> None:
    before, head = untouchable(repository), git(repository, "rev-parse", "HEAD")
    restored = checkout.restore(bundle, tmp_path / "code")
    again = take(restored.project, "2")
    assert untouchable(repository) == before
    assert (again.work.tree, again.commit, again.work.dirty) == (restored.tree, restored.commit, False)
    assert (again.work.origin, restored.origin, again.work.project) == (head, head, "sub")
    snapshot.bundle(again, tmp_path / "again.bundle")
    assert (tmp_path / "again.bundle").read_bytes() == bundle.read_bytes()


def test_nothing_of_the_users_configuration_reaches_it(
    repository: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked = tmp_path / "hooked"
    for folder in ("template/hooks", "hooks"):
        write(tmp_path / folder, {"post-checkout": f"#!/bin/sh\ntouch {hooked}\n"})
        (tmp_path / folder / "post-checkout").chmod(0o755)
    write(tmp_path, {"attributes": "* text eol=crlf\n"})
    (tmp_path / "configuration").write_text(
        f"[core]\n autocrlf = true\n hooksPath = {tmp_path}/hooks\n attributesFile = {tmp_path}/attributes\n"
        f"[init]\n templateDir = {tmp_path}/template\n defaultObjectFormat = sha256\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "configuration"))
    restored = checkout.restore(bundle, tmp_path / "code")
    assert on_disk(restored.root) == on_disk(repository)
    assert git(restored.root, "status", "--porcelain", GIT_CONFIG_GLOBAL=str(tmp_path / "configuration")) == ""
    assert not hooked.exists()


def test_a_damaged_bundle_is_refused_and_leaves_nothing(bundle: Path, tmp_path: Path) -> None:
    whole = bundle.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    none, torn = "git.not-a-snapshot", "git.not-restored"
    for damaged, code in ((b"", none), (b"text\n\n", none), (whole[:-1], torn), (changed, torn)):
        bundle.write_bytes(damaged)
        with refused(code, "code.bundle"):
            checkout.restore(bundle, tmp_path / "folder")
        assert sorted(place.name for place in tmp_path.iterdir()) == ["code.bundle", "project"]
    with refused("git.bundle-unreadable"):
        checkout.restore(tmp_path / "missing", tmp_path / "folder")


def test_a_target_that_exists_is_kept(bundle: Path, tmp_path: Path) -> None:
    write(tmp_path / "folder", {"mine.txt": "mine"})
    with refused("git.not-restored"):
        checkout.restore(bundle, tmp_path / "folder")
    assert [place.name for place in (tmp_path / "folder").iterdir()] == ["mine.txt"]


def test_a_checkout_that_wrote_other_bytes_is_found(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = our_git.run

    def spoil(folder: Path, *arguments: str, **rest: Any) -> bytes:
        answer = run(folder, *arguments, **rest)
        if arguments[0] == "reset":
            (folder / "new.py").chmod(0o644)
        return answer

    monkeypatch.setattr(our_git, "run", spoil)
    with refused("git.restored-other"):
        checkout.restore(bundle, tmp_path / "code")
    assert not (tmp_path / "code").exists()


class Stopped(BaseException):
    """A kill: nothing after it runs, not even what cleans up."""


def stopping_after(calls: int, monkeypatch: pytest.MonkeyPatch, run: Callable[..., bytes]) -> None:
    left = [calls]

    def counted(folder: Path, *arguments: str, **rest: Any) -> bytes:
        if left[0] == 0:
            raise Stopped
        left[0] -= 1
        return run(folder, *arguments, **rest)

    monkeypatch.setattr(our_git, "run", counted)


def test_a_kill_at_any_moment_can_be_repaired_by_the_next_start(
    repository: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves the folder beside the target, as far as it was."""
    run, target = our_git.run, tmp_path / "code"
    remove = shutil.rmtree
    for calls in range(20):
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        stopping_after(calls, monkeypatch, run)
        try:
            checkout.restore(bundle, target)
        except Stopped:
            assert not target.exists()
        monkeypatch.setattr(shutil, "rmtree", remove)
        monkeypatch.setattr(our_git, "run", run)
        if target.exists():
            break
        assert on_disk(checkout.restore(bundle, target).root) == on_disk(repository)
        remove(target)
    assert calls >= 4
    assert sorted(place.name for place in tmp_path.iterdir()) == ["code", "code.bundle", "project"]


# ---- disposable trees


def test_a_disposable_tree_goes_with_its_use(repository: Path, bundle: Path, tmp_path: Path) -> None:
    with checkout.disposable(bundle, tmp_path / "trees") as restored:
        assert on_disk(restored.root) == on_disk(repository)
        checkout.sweep(tmp_path / "trees")
        with checkout.disposable(bundle, tmp_path / "trees") as other:
            assert other.root != restored.root
        assert restored.project.is_dir()
    assert list((tmp_path / "trees").iterdir()) == []


def test_what_a_tool_wrote_into_a_tree_is_undone(bundle: Path, tmp_path: Path) -> None:
    """Files that git ignores may stay: no snapshot holds them."""
    restored = checkout.restore(bundle, tmp_path / "again")
    before = on_disk(restored.root)
    write(restored.root, {"a.egg-info/SOURCES.txt": "x", "build/lib/a.py": "x", "a.py": "changed"})
    assert on_disk(restored.root) != before
    checkout.tidy(restored)
    assert on_disk(restored.root) == before


def test_what_a_killed_process_left_is_swept(bundle: Path, tmp_path: Path) -> None:
    trees = tmp_path / "trees"
    script = (
        "import sys\nfrom pathlib import Path\nfrom orchestrator.provenance.code import checkout\n"
        "with checkout.disposable(Path(sys.argv[1]), Path(sys.argv[2])) as restored:\n"
        "    print(restored.root, flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(bundle), str(trees)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        root = Path(process.stdout.readline().strip())
        checkout.sweep(trees)
        alive = root.is_dir()
        process.kill()
    assert alive
    assert root.is_dir()
    checkout.sweep(trees)
    assert list(trees.iterdir()) == []
    checkout.sweep(tmp_path / "no such folder")


def test_runs_that_a_killed_repetition_left_come_home(tmp_path: Path) -> None:
    """Their checkpoints are in its tree alone."""
    home = tmp_path / ".orchestrator"
    runs = home / "worktrees" / "1" / "code" / "project" / ".orchestrator"
    for name in ("left", "copied", "looked", "driven", "own"):
        write(runs / name, {"lock": "", "settings.yaml": "", "checkpoints/step": "2"})
    for name in ("copied", "looked", "own"):
        write(home / name, {"lock": ""})  # as of a resume that was refused
    write(home, {f"copied/{name}": "as it stood" for name in ("settings.yaml", "trace", checkout.FETCHED)})
    write(home, {"own/settings.yaml": "", "own/checkpoints/step": "1"})
    write(tmp_path / "elsewhere", {"other/lock": ""})
    (home / "worktrees" / "2").mkdir()
    (home / "worktrees" / "2" / ".orchestrator").symlink_to(tmp_path / "elsewhere")  # as the restored code may have it

    driven = locks.take(runs / "driven" / "lock")
    checkout.sweep(home / "worktrees")
    assert [place.name for place in (home / "worktrees").iterdir()] == ["1"]
    assert not (home / "left").exists()
    os.close(driven)
    checkout.sweep(home / "worktrees")
    assert list((home / "worktrees").iterdir()) == []
    steps = {path.parents[1].name: path.read_text() for path in home.glob("*/checkpoints/step")}
    assert steps == {"left": "2", "copied": "2", "looked": "2", "driven": "2", "own": "1"}
    assert {place.name for place in (home / "copied").iterdir()} == {"lock", "settings.yaml", "checkpoints"}
    assert (tmp_path / "elsewhere" / "other" / "lock").exists()


@pytest.mark.ray  # DVC takes seconds to import
@pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise")  # DVC's own use of a library
def test_dvc_works_in_a_restored_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.repo import Repo

    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    root = create(tmp_path / "own", {"a.py": "a\n"})
    write(root, {"numbers.csv": "1,2\n"})
    with Repo.init(str(root)) as repository:
        repository.add([str(root / "numbers.csv")])
    taken = take(root, "1")
    assert b"numbers.csv" not in taken.work.entries
    snapshot.bundle(taken, tmp_path / "code.bundle")
    restored = checkout.restore(tmp_path / "code.bundle", tmp_path / "code")
    cache = {"dir": str(root / ".dvc" / "cache"), "type": ["reflink", "copy"]}
    with Repo(str(restored.root), config={"cache": cache}) as repository:
        repository.checkout(force=True)
    assert (restored.root / "numbers.csv").read_text() == "1,2\n"
    assert take(restored.root, "2").work.tree == taken.work.tree
