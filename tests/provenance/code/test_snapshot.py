"""The exact work tree goes into a snapshot and comes back out of its bundle, and the user's repository stays as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.provenance.code import snapshot, worktree
from orchestrator.provenance.code.checkout import restore
from orchestrator.provenance.code.snapshot import Snapshot
from orchestrator.provenance.code.worktree import Unrecorded, examine
from tests.provenance.code.repositories import Content, commit, create, git, on_disk, take, tree_id, untouchable, write

pytestmark = pytest.mark.slow

RUN = "0123abc"


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's configuration: a file that a test may fill."""
    configuration = tmp_path / "gitconfig"
    configuration.touch()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return configuration


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return create(tmp_path / "project", {"a.py": "a\n", "sub/b.py": "b\n", ".gitignore": "*.tmp\n"})


def back(taken: Snapshot, folder: Path) -> Content:
    """The files that come out of the bundle, in a folder of their own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    snapshot.bundle(taken, place / "code.bundle")
    restored = restore(place / "code.bundle", place / "code")
    assert restored.tree == taken.work.tree
    assert git(restored.root, "status", "--porcelain") == ""
    return on_disk(restored.root)


# ---- any tree

NAMES = st.sampled_from(
    [b"a", b"a.py", b"a-b", b"a0", b"B", b" b", b'q"', b"n\nl", b"t\t", b"\xff\xfe", b"\xc3\xa9", b"\\x", b"-n"]
)
FILES = st.tuples(st.sampled_from(["file", "executable"]), st.sampled_from([b"", b"x\n", b"a\r\nb\n", b"\0\xff" * 40]))
LINKS = st.tuples(st.just("link"), st.sampled_from([b"a", b"./a//", b"/nowhere", b"\xff"]))
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(b"/".join), FILES | LINKS, max_size=6)


def put(root: Path, tree: Content) -> None:
    """Make the work tree hold `tree`; of a path that is a file and a folder, the first stays."""
    for old in root.iterdir():
        if old.name != ".git":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for path, (kind, content) in tree.items():
        place = root / os.fsdecode(path)
        if any(parent.is_symlink() or parent.is_file() for parent in place.parents) or os.path.lexists(place):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            place.symlink_to(os.fsdecode(content))
        else:
            place.write_bytes(content)
            place.chmod(0o755 if kind == "executable" else 0o644)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(committed=TREES, staged=TREES, now=TREES, born=st.booleans())
def test_any_work_tree_comes_back(
    tmp_path: Path, committed: Content, staged: Content, now: Content, born: bool
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    root = folder / "project"
    root.mkdir()
    git(root, "init", "--quiet")
    put(root, committed)
    if born:
        commit(root)
    put(root, staged)
    git(root, "add", "--all")
    put(root, now)
    before, status = untouchable(root), git(root, "status", "--porcelain")
    taken = take(root, RUN)
    assert back(taken, folder) == on_disk(root)
    assert git(root, "status", "--porcelain") == status
    assert {**untouchable(root), "index": None} == {**before, "index": None}
    git(root, "add", "--all", GIT_INDEX_FILE=str(folder / "index"))
    assert git(root, "write-tree", GIT_INDEX_FILE=str(folder / "index")) == taken.work.tree
    assert taken.work.dirty == (not born or git(root, "rev-parse", "HEAD^{tree}") != taken.work.tree)


# ---- the user's repository


def test_nothing_of_the_users_is_touched(repository: Path) -> None:
    write(repository, {"a.py": "stashed\n"})
    git(repository, "stash")
    git(repository, "branch", "other")
    for hook in ("reference-transaction", "post-index-change", "post-commit", "pre-auto-gc"):
        write(repository / ".git", {f"hooks/{hook}": f"#!/bin/sh\ntouch {repository}/hooked\n"})
        (repository / ".git" / "hooks" / hook).chmod(0o755)
    git(repository, "config", "core.logAllRefUpdates", "always")
    write(repository, {"a.py": "changed\n", "new.py": "new\n", "staged.py": "1\n"})
    (repository / "sub" / "b.py").unlink()
    git(repository, "-c", f"core.hooksPath={os.devnull}", "add", "staged.py")
    write(repository, {"staged.py": "2\n"})
    os.utime(repository / ".gitignore")  # what a refresh of the index would write down
    before = untouchable(repository)
    taken = take(repository, RUN)
    snapshot.bundle(taken, repository.parent / "code.bundle")
    snapshot.patch(taken, repository.parent / "snapshot.patch")
    assert untouchable(repository) == before
    assert taken.work.changed == ("a.py", "new.py", "staged.py", "sub/b.py")
    assert git(repository, "for-each-ref", "--format=%(refname)", "refs/orchestrator") == f"refs/orchestrator/{RUN}"
    assert git(repository, "rev-parse", f"{taken.ref}^") == git(repository, "rev-parse", "HEAD")


def test_a_clean_tree_is_its_commit(repository: Path) -> None:
    taken = take(repository, RUN)
    assert (taken.commit, taken.work.dirty) == (git(repository, "rev-parse", "HEAD"), False)
    assert taken.work.tree == git(repository, "rev-parse", "HEAD^{tree}")


def test_the_ref_keeps_it_and_without_it_the_bundle_does(repository: Path, tmp_path: Path) -> None:
    write(repository, {"new.py": "new\n"})
    taken, expected = take(repository, RUN), on_disk(repository)
    (repository / "new.py").unlink()
    git(repository, "gc", "--quiet", "--prune=now")
    snapshot.bundle(taken, tmp_path / "code.bundle")
    git(repository, "update-ref", "-d", taken.ref)
    git(repository, "gc", "--quiet", "--prune=now")
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "cat-file", "-e", taken.commit)
    shutil.rmtree(repository)
    assert on_disk(restore(tmp_path / "code.bundle", tmp_path / "code").root) == expected


def test_the_same_code_gives_the_same_commit_and_bundle(repository: Path, tmp_path: Path) -> None:
    similar = "".join(f"{number}\n" for number in range(5000))
    write(repository, {"new.py": "new\n", "1.txt": similar, "2.txt": similar + "end\n"})
    commit(repository)
    first, second = take(repository, "1"), take(repository, "2")
    assert first.commit == second.commit
    snapshot.bundle(first, tmp_path / "1")
    git(repository, "gc", "--quiet")
    snapshot.bundle(second, tmp_path / "2")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_a_run_id_is_no_path(repository: Path) -> None:
    with pytest.raises(ValueError, match="not the id of a run"):
        take(repository, "../heads/main")


def test_hundreds_of_files_are_one_pack(repository: Path) -> None:
    write(repository, {f"many/{number}.py": f"{number}\n" for number in range(150)})
    before = len(list((repository / ".git" / "objects").rglob("*")))
    taken = take(repository, RUN)
    assert len(list((repository / ".git" / "objects").rglob("*"))) < before + 20
    assert take(repository, RUN).commit == taken.commit


# ---- identity


def test_the_identity_is_of_bytes_wherever_they_lie(repository: Path, tmp_path: Path, no_configuration: Path) -> None:
    write(repository, {"new.py": "a\r\nb\n"})
    uncommitted = tree_id(repository)
    no_configuration.write_text(
        "[core]\n autocrlf = true\n quotePath = false\n fileMode = false\n[status]\n short = true\n"
    )
    commit(repository)
    assert tree_id(repository) == uncommitted
    shutil.copytree(repository, tmp_path / "copy", ignore=shutil.ignore_patterns(".git"))
    git(tmp_path / "copy", "init", "--quiet")
    assert tree_id(tmp_path / "copy") == uncommitted
    (repository / "a.py").chmod(0o755)
    assert tree_id(repository) != uncommitted


def test_a_change_that_keeps_size_and_time_is_seen(repository: Path) -> None:
    before, time = tree_id(repository), (repository / "a.py").stat().st_mtime_ns
    git(repository, "config", "core.trustctime", "false")
    (repository / "a.py").write_text("b\n")
    os.utime(repository / "a.py", ns=(time, time))
    assert tree_id(repository) != before


def test_ids_of_the_other_kind(tmp_path: Path) -> None:
    root = create(tmp_path / "project", {"a.py": "a\n"}, "--object-format=sha256")
    write(root, {"new.py": "new\n"})
    taken = take(root, RUN)
    assert len(taken.work.tree) == 64
    assert back(taken, tmp_path) == on_disk(root)


# ---- bytes that filters change


FILTERS = {
    "text eol=crlf": b"a\r\nb\r\n",
    "text eol=lf": b"a\nb\n",
    "ident": b"$Id: 0123 $\n",
    "working-tree-encoding=UTF-16LE": "a\n".encode("utf-16-le"),
    "filter=swap": b"ab\n",
}


@pytest.mark.parametrize("attribute", FILTERS)
def test_the_bytes_on_disk_come_back(repository: Path, tmp_path: Path, attribute: str) -> None:
    git(repository, "config", "filter.swap.clean", "tr ab ba")
    git(repository, "config", "filter.swap.smudge", "tr ab ba")
    write(repository, {".gitattributes": f"*.txt {attribute}\n"})
    (repository / "f.txt").write_bytes(FILTERS[attribute])
    commit(repository)
    (repository / "f.txt").unlink()
    git(repository, "checkout", "f.txt")
    taken = take(repository, RUN)
    assert back(taken, tmp_path) == on_disk(repository)
    assert taken.work.changed == ()
    differ = git(repository, "rev-parse", "HEAD:f.txt") != git(repository, "hash-object", "--no-filters", "f.txt")
    assert bool(taken.work.notes) == differ == (attribute != "text eol=lf")
    (repository / "f.txt").write_bytes(b"changed\n")
    assert take(repository, RUN).work.changed == ("f.txt",)


def test_line_endings_that_only_the_user_wants(repository: Path, tmp_path: Path, no_configuration: Path) -> None:
    no_configuration.write_text("[core]\n autocrlf = true\n")
    (repository / "a.py").unlink()
    git(repository, "-c", "core.autocrlf=true", "checkout", "a.py")
    taken = take(repository, RUN)
    assert back(taken, tmp_path)[b"a.py"] == ("file", b"a\r\n")
    assert taken.work.notes == (
        "1 files have other bytes on disk than in git (line endings, filters or encodings); recorded: disk",
    )


def test_a_filter_that_is_not_installed(repository: Path, tmp_path: Path) -> None:
    write(repository, {".gitattributes": "*.bin filter=lfs\n", "m.bin": "version https://git-lfs\n"})
    commit(repository)
    git(repository, "config", "filter.lfs.clean", "no-such-program")
    git(repository, "config", "filter.lfs.required", "true")
    write(repository, {"m.bin": "the weights\n"})
    taken = take(repository, RUN)
    assert taken.work.changed == ("m.bin",)
    assert back(taken, tmp_path) == on_disk(repository)


# ---- what git was told to overlook


def test_files_that_git_was_told_not_to_look_at(repository: Path, tmp_path: Path) -> None:
    git(repository, "update-index", "--assume-unchanged", "a.py")
    git(repository, "update-index", "--skip-worktree", "sub/b.py")
    write(repository, {"a.py": "changed\n", "sub/b.py": "changed too\n"})
    taken = take(repository, RUN)
    assert back(taken, tmp_path) == on_disk(repository)
    assert taken.work.changed == ("a.py", "sub/b.py")
    assert "2 changed files are hidden from git" in taken.work.notes[0]


def test_a_sparse_checkout_is_what_lies_on_disk(repository: Path, tmp_path: Path) -> None:
    write(repository, {"other/c.py": "c\n"})
    commit(repository)
    git(repository, "sparse-checkout", "set", "--sparse-index", "sub")
    assert not (repository / "other").exists()
    taken = take(repository, RUN)
    assert back(taken, tmp_path) == on_disk(repository)
    assert (taken.work.changed, len(taken.work.notes)) == ((), 1)
    snapshot.patch(taken, tmp_path / "patch")
    assert "diff" not in (tmp_path / "patch").read_text()


# ---- repositories in the repository


@pytest.fixture
def outer(repository: Path, tmp_path: Path) -> Path:
    library = create(tmp_path / "library", {"lib.py": "1\n", "deep/d.py": "d\n"})
    git(repository, "submodule", "--quiet", "add", str(library), "lib")
    commit(repository)
    return repository


def test_a_submodule_is_plain_files_with_its_state(outer: Path, tmp_path: Path) -> None:
    inner = git(outer / "lib", "rev-parse", "HEAD")
    assert take(outer, RUN).work.changed == ()
    write(outer, {"lib/lib.py": "2\n", "lib/new.py": "new\n"})
    taken = take(outer, RUN)
    assert back(taken, tmp_path) == on_disk(outer)
    assert taken.work.changed == ("lib/lib.py", "lib/new.py")
    assert taken.work.nested == (worktree.Nested("lib", inner, 2, submodule=True),)
    snapshot.patch(taken, tmp_path / "patch")
    assert "diff --git" not in (tmp_path / "patch").read_text()
    moved = commit(outer / "lib")
    snapshot.patch(take(outer, RUN), tmp_path / "patch")
    assert f"+Subproject commit {moved}" in (tmp_path / "patch").read_text()


def test_a_submodule_that_is_not_checked_out(outer: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(outer), "clone")
    work = examine(tmp_path / "clone")
    assert (work.changed, work.nested, work.obstacles) == ((), (), ())
    assert work.notes == ("submodule lib is not checked out, so nothing of it is recorded",)
    assert not [path for path in work.entries if path.startswith(b"lib")]
    write(tmp_path / "clone", {"lib/lib.py": "copied here\n"})
    (obstacle,) = examine(tmp_path / "clone").obstacles
    assert obstacle.startswith(
        "lib is a submodule without its repository, so its files are not recorded; git rm --cached"
    )


@pytest.mark.parametrize("born", [True, False])
def test_an_embedded_repository_is_plain_files(repository: Path, tmp_path: Path, born: bool) -> None:
    write(repository, {"vendor/v.py": "v\n", "vendor/x.tmp": "ignored outside only\n", "vendor/in/w.py": "w\n"})
    git(repository / "vendor", "init", "--quiet")
    git(repository / "vendor" / "in", "init", "--quiet")
    if born:
        commit(repository / "vendor" / "in")
        commit(repository / "vendor")
    taken = take(repository, RUN)
    assert back(taken, tmp_path) == on_disk(repository)
    assert {nested.path for nested in taken.work.nested} == {"vendor", "vendor/in"}
    snapshot.patch(taken, tmp_path / "patch")
    assert ("Subproject commit" in (tmp_path / "patch").read_text()) == born


def test_an_embedded_repository_that_is_broken_is_named(repository: Path) -> None:
    write(repository, {"vendor/v.py": "v\n"})
    git(repository / "vendor", "init", "--quiet")
    commit(repository / "vendor")
    (repository / "vendor" / ".git" / "index").write_bytes(b"rubbish")
    (obstacle,) = examine(repository).obstacles
    assert obstacle.startswith("the repository vendor inside the project cannot be read")


# ---- what is left out, and what cannot be recorded


def test_what_is_ignored_and_what_is_made_is_left_out(repository: Path) -> None:
    before = tree_id(repository)
    made = ["x.tmp", "__pycache__/a.pyc", "sub/__pycache__/b.pyc", ".orchestrator/run/journal.jsonl", ".pytest_cache/v"]
    environment = ["env/pyvenv.cfg", "env/lib/site.py"]
    made += ["mlflow.db", "mlruns/0/meta.yaml", "lightning_logs/version_0/hparams.yaml", ".ipynb_checkpoints/a.ipynb"]
    write(repository, dict.fromkeys([*made, *environment, ".dvc/cache/files/md5/00/1", ".dvc/tmp/lock"], "1"))
    assert tree_id(repository) == before
    write(repository, {".dvc/config": "[core]\n"})
    assert tree_id(repository) != before


def test_links_to_an_environment_and_to_folders_of_other_trackers_are_left_out(
    repository: Path, tmp_path: Path
) -> None:
    """A project on a small disk has some. They made the same code another one on the next machine."""
    before = tree_id(repository)
    write(tmp_path / "away", {"pyvenv.cfg": "1", "mlruns/0/meta.yaml": "1"})
    for name in (".venv", "mlruns", "lightning_logs"):
        (repository / name).symlink_to(tmp_path / "away")
    assert tree_id(repository) == before
    (repository / "notes").symlink_to(tmp_path)
    assert tree_id(repository) != before


def test_a_link_to_the_folder_of_runs_is_left_out(repository: Path, tmp_path: Path) -> None:
    """A project on a small disk has one. A repetition had it too, and its record was written behind it and lost."""
    before = tree_id(repository)
    (repository / ".orchestrator").symlink_to(tmp_path)
    write(repository, {"inner/a.py": "a\n"})
    assert not examine(repository).entries.keys() & {b".orchestrator"}
    commit(repository)
    (repository / "inner/.orchestrator").symlink_to(tmp_path)
    taken = take(repository, RUN)
    assert not taken.work.dirty
    assert sorted(back(taken, tmp_path)) == sorted({*on_disk(repository)} - {b".orchestrator", b"inner/.orchestrator"})
    snapshot.patch(taken, tmp_path / "patch")
    assert "diff" not in (tmp_path / "patch").read_text()
    (repository / "inner/a.py").unlink()
    (repository / "inner/.orchestrator").unlink()
    assert tree_id(repository) == before


def test_a_file_too_large_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repository, {"old.bin": "o" * 5000})
    commit(repository)
    write(repository, {"new.bin": "n" * 5000, "a.py": "a" * 6000})
    monkeypatch.setattr(worktree, "LARGE_FILE_BYTES", 4000)
    work = examine(repository)
    assert [obstacle.split(" (")[0] for obstacle in work.obstacles] == ["a.py", "new.bin"]
    assert b"old.bin" in work.entries
    assert not {b"new.bin", b"a.py"} & work.entries.keys()
    assert "put it under DVC" in work.obstacles[0]
    monkeypatch.setattr(worktree, "LARGE_TREE_BYTES", 1)
    write(repository, {"small.py": "small"})
    with pytest.raises(Unrecorded, match=r"too large together \(small.py: 0 MB\).*gitignore"):
        examine(repository)


def test_a_file_that_cannot_be_read_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal is made."""
    read = Path.read_bytes

    def refuse(place: Path) -> bytes:
        if place.name == "a.py":
            raise PermissionError(13, "Permission denied")
        return read(place)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (obstacle,) = examine(repository).obstacles
    assert obstacle.startswith("a.py cannot be read, so it is not recorded; chmod")


def test_a_path_that_git_restores_nowhere_is_named(repository: Path) -> None:
    """It was recorded, and no rerun could check it out."""
    refused = ["sub/.Git/x.py", "sub/.gitModules"]
    write(repository, {"sub/.Git/x.py": "1", "mine/.gitmodules": ""})
    (repository / "sub/.gitModules").symlink_to("a.py")
    found = examine(repository)
    assert not {os.fsencode(each) for each in refused} & found.entries.keys()
    assert b"mine/.gitmodules" in found.entries
    assert sorted(each.partition(" is not recorded")[0] for each in found.obstacles) == refused


def test_no_repository_and_no_git_are_named(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unrecorded, match=r"in no git repository.*git init"):
        examine(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unrecorded, match=r"git is not installed.*install git"):
        take(repository, RUN)


def test_other_refusals_are_named(tmp_path: Path, repository: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
    for folder in (tmp_path / "bare.git", repository / ".git"):
        with pytest.raises(Unrecorded, match="bare repository"):
            examine(folder)
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    (tmp_path / "linked" / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(Unrecorded, match=r"not a git repository: /nowhere.*mend"):
        examine(tmp_path / "linked")
    (repository / ".git" / "index").write_bytes(b"rubbish")
    with pytest.raises(Unrecorded, match="mend the repository"):
        examine(repository)


@pytest.mark.root
def test_the_repository_of_another_user_is_named(repository: Path) -> None:
    for place in (repository, repository / ".git"):
        os.chown(place, 12345, 12345)
    with pytest.raises(Unrecorded, match=r"another user.*safe\.directory"):
        examine(repository)


def test_an_object_store_that_cannot_be_written_is_named(repository: Path) -> None:
    write(repository, {"new.py": "new\n"})
    shutil.rmtree(repository / ".git" / "objects" / "pack", ignore_errors=True)
    (repository / ".git" / "objects" / "pack").write_text("")
    with pytest.raises(Unrecorded, match="cannot be written into"):
        take(repository, RUN)


# ---- other kinds of repositories


def test_a_project_below_the_top(repository: Path, tmp_path: Path) -> None:
    write(repository, {"sub/new.py": "new\n", "beside.py": "beside\n"})
    taken = take(repository / "sub", RUN)
    assert (taken.work.root, taken.work.project) == (repository.resolve(), "sub")
    assert taken.work.tree == tree_id(repository)
    snapshot.bundle(taken, tmp_path / "code.bundle")
    restored = restore(tmp_path / "code.bundle", tmp_path / "code")
    assert restored.project == tmp_path / "code" / "sub"
    assert (restored.project / "new.py").read_text() == "new\n"


def test_a_project_that_its_repository_ignores(repository: Path) -> None:
    write(repository, {".gitignore": "/drafts/\n", "drafts/a.py": "a\n"})
    (obstacle,) = examine(repository / "drafts").obstacles
    assert obstacle.endswith("records nothing of drafts (ignored, or empty); git init in the project")


def test_linked_shallow_and_partial_clones(repository: Path, tmp_path: Path) -> None:
    commit(repository, "second")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    git(tmp_path, "clone", "--quiet", "--depth=1", repository.as_uri(), "shallow")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", "--sparse", repository.as_uri(), "partial")
    for name in ("linked", "shallow", "partial"):
        if name == "shallow":
            repository.rename(tmp_path / "away")  # nobody can be asked for what a clone lacks
        root = tmp_path / name
        write(root, {"a.py": "changed\n", "new.py": "new\n"})
        taken = take(root, RUN)
        assert back(taken, tmp_path) == on_disk(root)
        assert taken.work.changed == ("a.py", "new.py")
        snapshot.patch(taken, tmp_path / "patch")
        assert "+changed" in (tmp_path / "patch").read_text()


def test_a_folder_that_became_a_link_and_a_file_that_became_a_folder(repository: Path, tmp_path: Path) -> None:
    (repository / "sub").rename(tmp_path / "moved")
    (repository / "sub").symlink_to(tmp_path / "moved")
    (repository / "a.py").unlink()
    write(repository, {"a.py/inner.py": "inner\n"})
    taken = take(repository, RUN)
    assert set(taken.work.entries) == {b".gitignore", b"a.py/inner.py", b"sub"}
    assert back(taken, tmp_path) == on_disk(repository)


def test_a_name_that_other_systems_mistake(repository: Path, tmp_path: Path) -> None:
    write(repository, {"git~1": "an ordinary name here\n"})
    assert back(take(repository, RUN), tmp_path) == on_disk(repository)


def test_names_that_differ_in_case_where_git_was_told_not_to_see_it(repository: Path, tmp_path: Path) -> None:
    """The configuration of a repository that came from another system."""
    git(repository, "config", "core.ignoreCase", "true")
    write(repository, {"Name": "1", "name": "2", "NAME/in": "3"})
    assert back(take(repository, RUN), tmp_path) == on_disk(repository)


def test_a_pipe_in_place_of_a_file_is_no_file(repository: Path) -> None:
    (repository / "a.py").unlink()
    os.mkfifo(repository / "a.py")
    os.mkfifo(repository / "pipe")
    assert set(examine(repository).entries) == {b".gitignore", b"sub/b.py"}


def test_files_that_move_while_they_are_read(repository: Path, tmp_path: Path) -> None:
    write(repository, {"log.txt": "1\n", "gone.txt": "1\n"})
    work = examine(repository)
    write(repository, {"log.txt": "1\n2\n"})
    (repository / "gone.txt").unlink()
    taken = snapshot.keep(work, RUN)
    assert taken.work.tree == tree_id(repository) != work.tree
    assert back(taken, tmp_path) == on_disk(repository)


def test_variables_of_an_outer_git_are_not_obeyed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tree_id(repository)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, "/nowhere")
    assert take(repository, RUN).work.tree == expected


# ---- the patch


def test_the_patch_makes_the_work_tree_of_the_commit(repository: Path, tmp_path: Path) -> None:
    write(repository, {"a.py": "changed\n", "new é.py": "new\n"})
    (repository / "sub" / "b.py").unlink()
    (repository / ".gitignore").chmod(0o755)
    snapshot.patch(take(repository, RUN), tmp_path / "snapshot.patch")
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    git(tmp_path / "clone", "apply", str(tmp_path / "snapshot.patch"))
    assert on_disk(tmp_path / "clone") == on_disk(repository)
    assert f"# against {git(repository, 'rev-parse', 'HEAD')}\n" in (tmp_path / "snapshot.patch").read_text()


def test_a_patch_is_bounded(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repository, {"large.txt": "line\n" * 400_000, "many.txt": "line\n" * 5000})
    (repository / "data.bin").write_bytes(bytes(range(256)) * 100)
    monkeypatch.setattr(snapshot, "PATCH_BYTES", 10_000)
    snapshot.patch(take(repository, RUN), tmp_path / "patch")
    text = (tmp_path / "patch").read_text()
    assert len(text) < 10_100
    assert "Binary files /dev/null and b/large.txt differ" in text
    assert "Binary files /dev/null and b/data.bin differ" in text
    assert text.endswith("+line\n# cut here: the rest is in the bundle only\n")


def test_a_patch_before_the_first_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "project")
    write(tmp_path / "project", {"a.py": "a\n"})
    snapshot.patch(take(tmp_path / "project", RUN), tmp_path / "patch")
    assert "+a\n" in (tmp_path / "patch").read_text()
