"""The code of a record that was made by hand: it stays in the folder that is made for it, runs nothing, and has an end."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.code import changes, checkout, snapshot
from orchestrator.provenance.code.worktree import TITLE
from tests.attacks import strangers
from tests.products import thinned
from tests.provenance.code.repositories import create, git, write
from tests.refusals import refused

pytestmark = pytest.mark.slow


def bundle_of(root: Path, project: str, target: Path, tree: str = "HEAD^{tree}") -> Path:
    """A bundle as a snapshot is one, of any tree, with any text as the place of its project."""
    message = f"{TITLE}\n\n{project}"
    commit = git(root, "commit-tree", git(root, "rev-parse", tree), "-m", message)
    git(root, "update-ref", snapshot.BUNDLE_REF, commit)
    git(root, "bundle", "create", "--quiet", str(target), snapshot.BUNDLE_REF)
    return target


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """Their repository."""
    return create(tmp_path / "stranger", {"a.py": "a\n"})


@pytest.fixture
def kept(tmp_path: Path, stranger: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the victim restores a bundle; beside it there is nothing new afterwards, and nothing is written
    elsewhere."""
    place = tmp_path / "victim" / "worktrees"
    place.mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with strangers.watched() as seen:
        yield place
    assert seen.outside(place, stranger, tmp_path / "sent.bundle", scratch) == []
    assert {each.name for each in tmp_path.iterdir()} <= {"stranger", "victim", "scratch", "sent.bundle"}
    assert list((tmp_path / "victim").iterdir()) == [place]


OUTSIDE = {
    "an absolute path": "/{outside}",
    "a path upwards": "../../../outside",
    "a link in the tree": "link/deeper",
    "a link to a link": "also/deeper",
    "a name with a NUL": "a\0b",
    "git's own folder": ".git/hooks",
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_project_outside_of_the_code_is_refused(stranger: Path, kept: Path, tmp_path: Path, case: str) -> None:
    (stranger / "link").symlink_to(tmp_path / "outside")
    (stranger / "also").symlink_to("link")
    git(stranger, "add", "--all")
    git(stranger, "commit", "--quiet", "-m", "links")
    named = json.dumps(OUTSIDE[case].format(outside=str(tmp_path / "outside").lstrip("/")))
    bundle = bundle_of(stranger, f"Project: {named}\n", tmp_path / "sent.bundle")
    with pytest.raises(NotRerunnable):
        checkout.restore(bundle, kept / "code")
    assert not (tmp_path / "outside").exists()
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize(
    "message", thinned(["", "Project: {", "Project: 7", "Project: [1]", "Project: null", 'Project: "a\\ud800b"'], 3)
)
def test_a_message_that_says_no_project_is_refused(stranger: Path, kept: Path, tmp_path: Path, message: str) -> None:
    bundle = bundle_of(stranger, f"{message}\n", tmp_path / "sent.bundle")
    with pytest.raises(NotRerunnable):
        checkout.restore(bundle, kept / "code")


def nested(root: Path, kind: str, leaf: str, levels: int) -> str:
    """A tree with ten names for one tree below it, and so on down to the leaf: 10 ** levels of these in a few hundred bytes."""
    for _ in range(levels):
        leaf = made_of(root, "".join(f"{kind} {leaf}\t{number}\n" for number in range(10)))
        kind = "040000 tree"
    return leaf


def made_of(root: Path, entries: str) -> str:
    done = subprocess.run(["git", "mktree"], cwd=root, input=entries, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def files_without_end(root: Path) -> str:
    return nested(root, "100644 blob", git(root, "rev-parse", "HEAD:a.py"), 10)


def folders_without_end(root: Path) -> str:
    return nested(root, "040000 tree", made_of(root, ""), 10)


def bytes_without_end(root: Path) -> str:
    """A file of 64 MiB of zeros, which is 64 kB in a pack, under a hundred thousand names."""
    write(root, {"zeros": "\0" * (64 << 20)})
    return nested(root, "100644 blob", git(root, "hash-object", "-w", "zeros"), 5)


@pytest.mark.parametrize("made", thinned([files_without_end, folders_without_end, bytes_without_end], 2))
@pytest.mark.long
def test_a_bomb_is_refused_before_it_is_unpacked(
    stranger: Path, kept: Path, tmp_path: Path, made: Callable[[Path], str]
) -> None:
    tree = made(stranger)
    bundle = bundle_of(stranger, 'Project: "."\n', tmp_path / "sent.bundle", tree)
    assert bundle.stat().st_size < 1 << 20
    with refused("git.no-room"):
        checkout.restore(bundle, kept / "code")


@pytest.mark.parametrize("made", thinned([files_without_end, folders_without_end, bytes_without_end], 2))
@pytest.mark.long
def test_a_bomb_is_refused_before_it_is_compared(
    stranger: Path, kept: Path, tmp_path: Path, made: Callable[[Path], str]
) -> None:
    """`compare=` asks for no trust, since it executes nothing."""
    own = bundle_of(stranger, 'Project: "."\n', kept / "own.bundle")
    bundle = bundle_of(stranger, 'Project: "."\n', tmp_path / "sent.bundle", made(stranger))
    with refused("git.no-room"):
        changes.changes(own, bundle)


@pytest.mark.parametrize("name", [".git/hooks/post-checkout", ".git/config"])
def test_gits_own_files_are_not_in_the_tree(stranger: Path, kept: Path, tmp_path: Path, name: str) -> None:
    """Such a tree is made without git, which refuses to."""
    blob = git(stranger, "rev-parse", "HEAD:a.py")
    tree, *above = reversed(name.split("/"))
    made = raw_tree(stranger, "100755", tree, blob)
    for folder in above:
        made = raw_tree(stranger, "40000", folder, made)
    bundle = bundle_of(stranger, 'Project: "."\n', tmp_path / "sent.bundle", made)
    with pytest.raises(NotRerunnable):
        checkout.restore(bundle, kept / "code")


def raw_tree(root: Path, mode: str, name: str, id_: str) -> str:
    file = root.parent / "sent.bundle"  # any place that is the stranger's
    file.write_bytes(f"{mode} {name}\0".encode() + bytes.fromhex(id_))
    return git(root, "hash-object", "-t", "tree", "-w", "--literally", str(file))


def test_filters_hooks_and_submodules_that_the_tree_asks_for_are_not_run(
    stranger: Path, kept: Path, tmp_path: Path
) -> None:
    executed = tmp_path / "executed"
    write(
        stranger,
        {
            ".gitattributes": "* filter=evil diff=evil merge=evil\n[attr]evil filter=evil\n",
            ".gitconfig": f'[filter "evil"]\n  smudge = touch {executed}\n',
            ".gitmodules": f'[submodule "x"]\n  path = x\n  url = ext::touch {executed}\n  update = !touch {executed}\n',
        },
    )
    git(stranger, "add", "--all")
    git(stranger, "commit", "--quiet", "-m", "traps")
    bundle = bundle_of(stranger, 'Project: "."\n', tmp_path / "sent.bundle")
    checkout.restore(bundle, kept / "code")
    changes.changes(bundle, bundle)
    assert not executed.exists()
