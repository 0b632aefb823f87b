"""The commit that a folder stands at, and whether the work tree differs from it. Plain git, read only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.provenance import git


@dataclass(frozen=True)
class Code:
    """root: the work tree's top folder; commit: None before the first one; changed: paths that differ from the commit."""

    root: Path
    commit: str | None
    changed: tuple[str, ...]

    @property
    def dirty(self) -> bool:
        return bool(self.changed) or self.commit is None


def capture(folder: Path) -> Code | None:
    """The state of the repository that holds `folder`; None where there is no git or no repository."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = Path(top.rstrip("\n"))
    commit = _git(root, "rev-parse", "--verify", "-q", "HEAD")
    status = _git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames") or ""
    changed = tuple(entry[3:] for entry in status.split("\0") if entry)
    return Code(root, commit.strip() if commit else None, changed)


def files(folder: Path) -> list[str] | None:
    """The files below `folder` that git tracks, or would if they were added, relative to it; None without a repository."""
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return None if listed is None else sorted(set(listed.split("\0")) - {""})


def _git(folder: Path, *arguments: str) -> str | None:
    """git's answer, or None when it has none."""
    try:
        return git.run(folder, *arguments).decode("utf-8", "surrogateescape")
    except (git.GitError, git.GitMissing):
        return None
