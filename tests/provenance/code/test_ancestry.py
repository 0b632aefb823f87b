"""Two sides of one history, each from its bundle, against the commit that both were made from; and whether others have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.provenance.code import snapshot
from orchestrator.provenance.code.ancestry import Ancestry, ancestry
from orchestrator.provenance.code.pushed import unpushed
from orchestrator.provenance.code.worktree import examine
from tests.provenance.code.repositories import commit, create, git, take, write

pytestmark = pytest.mark.slow

LINES = "".join(f"{number}\n" for number in range(20))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository with one commit."""
    origin = create(tmp_path / "origin", {"near.py": LINES, "far.py": LINES, "same.py": "1\n", "mine.py": "1\n"})
    git(tmp_path, "clone", "--quiet", str(origin), str(tmp_path / "clone"))
    return tmp_path / "clone"


def side(repository: Path, files: dict[str, str], target: Path) -> tuple[str | None, Path]:
    write(repository, files)
    snapshot.bundle(take(repository, target.stem), target)
    return examine(repository).origin, target


def test_both_sides_are_shown_against_their_ancestor(clone: Path, tmp_path: Path) -> None:
    base = git(clone, "rev-parse", "HEAD")
    changed = {
        "near.py": LINES.replace("5\n", "five\n", 1),
        "far.py": "zero\n" + LINES,
        "same.py": "2\n",
        "new.py": "a\n",
    }
    one = side(tmp_path / "origin", changed, tmp_path / "a.bundle")
    commit(clone, "gone on")
    other = {
        "near.py": LINES.replace("5\n", "FIVE\n", 1),
        "far.py": LINES + "end\n",
        "same.py": "2\n",
        "mine.py": "2\n",
    }
    two = side(clone, other, tmp_path / "b.bundle")
    found = ancestry(clone, (one[0], two[0]), (one[1], two[1]))
    assert isinstance(found, Ancestry)
    assert found.commit == base
    assert {each.path: each.kind for each in found.a} == {
        **dict.fromkeys(("near.py", "far.py", "same.py"), "changed"),
        "new.py": "added",
    }
    assert [each.path for each in found.b] == ["far.py", "mine.py", "near.py", "same.py"]
    assert (found.both, found.conflicts) == (["far.py", "near.py"], ["near.py"])
    assert f"since their common ancestor {base}:" in found.text
    assert "both changed far.py, in different places" in found.text
    assert "both changed the same lines of near.py" in found.text
    assert git(clone, "status", "--porcelain") != ""


def test_a_commit_that_is_not_here_is_named_with_the_remedy(clone: Path, tmp_path: Path) -> None:
    write(tmp_path / "origin", {"mine.py": "later\n"})
    later = commit(tmp_path / "origin")
    one = side(tmp_path / "origin", {"mine.py": "x\n"}, tmp_path / "a.bundle")
    two = side(clone, {"mine.py": "y\n"}, tmp_path / "b.bundle")
    told = ancestry(clone, (one[0], two[0]), (one[1], two[1]))
    assert told == f"commit {later}, which run a was made from, is not in this repository; git fetch"
    git(clone, "fetch", "--quiet")
    found = ancestry(clone, (one[0], two[0]), (one[1], two[1]))
    assert isinstance(found, Ancestry)
    assert found.conflicts == ["mine.py"]


def test_histories_without_a_common_commit_are_said(clone: Path, tmp_path: Path) -> None:
    git(clone, "checkout", "--quiet", "--orphan", "other")
    commit(clone, "a beginning of its own")
    one = side(clone, {"mine.py": "x\n"}, tmp_path / "a.bundle")
    told = ancestry(clone, (one[0], git(clone, "rev-parse", "origin/HEAD")), (one[1], one[1]))
    assert isinstance(told, str)
    assert "have no common ancestor" in told
    assert ancestry(clone, (None, one[0]), (one[1], one[1])) == "the code of run a was made from no commit"


def test_a_commit_that_was_not_pushed_is_said_with_the_command(clone: Path, tmp_path: Path) -> None:
    assert unpushed(examine(clone)) is None
    write(clone, {"mine.py": "not committed, and yet in the record\n"})
    assert unpushed(examine(clone)) is None
    own = commit(clone)
    assert unpushed(examine(clone)) == f"commit {own[:12]} is on no branch of a remote; git push"
    git(clone, "push", "--quiet", "origin", "HEAD:refs/heads/pushed")
    assert unpushed(examine(clone)) is None
    assert "the repository has no remote" in str(unpushed(examine(tmp_path / "origin")))
