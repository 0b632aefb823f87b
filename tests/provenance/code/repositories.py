"""Repositories for tests, and a picture of everything in one that a snapshot must leave alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.provenance.code import snapshot, worktree


def git(folder: Path, *arguments: str, **variables: str) -> str:
    options = ["-c", "user.name=t", "-c", "user.email=t@t.invalid", "-c", "protocol.file.allow=always"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_CONFIG")}
    done = subprocess.run(
        ["git", *options, *arguments], cwd=folder, check=True, capture_output=True, env={**kept, **variables}
    )
    return os.fsdecode(done.stdout).strip()


def create(folder: Path, files: dict[str, str], *options: str) -> Path:
    """A repository with one commit of `files`."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", *options)
    write(folder, files)
    commit(folder)
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def commit(folder: Path, message: str = "a commit") -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def take(project: Path, run_id: str) -> snapshot.Snapshot:
    """Record the work tree of the repository that holds `project`."""
    return snapshot.keep(worktree.examine(project), run_id)


def tree_id(project: Path) -> str:
    """The code's part of a run's identity."""
    return worktree.examine(project).tree


Content = dict[bytes, tuple[str, bytes]]


def on_disk(root: Path) -> Content:
    """Every file and link below `root` apart from `.git`, read by other means than the code's."""
    found: Content = {}
    for name, folders, files in os.walk(root):
        folders[:] = [inner for inner in folders if inner != ".git"]
        for place in (Path(name) / inner for inner in [*folders, *files] if inner != ".git"):
            key = os.fsencode(place.relative_to(root))
            if place.is_symlink():
                found[key] = ("link", os.fsencode(os.readlink(place)))  # noqa: PTH115 - its text, untidied
            elif place.is_file():
                found[key] = ("executable" if place.stat().st_mode & 0o100 else "file", place.read_bytes())
    return found


def untouchable(root: Path) -> dict[str, object]:
    """All of `.git` apart from objects and our own refs, with times; and the files, with times."""
    metadata = root / ".git"
    found: dict[str, object] = {}
    for place in sorted(metadata.rglob("*")):
        name = place.relative_to(metadata).as_posix()
        if place.is_file() and not name.startswith(("objects/", "refs/orchestrator/")):
            found[name] = (place.stat().st_mtime_ns, place.read_bytes())
    for folder, _, files in os.walk(root):
        if ".git" not in Path(folder).parts:
            found.update({f"{folder}/{name}": os.lstat(f"{folder}/{name}").st_mtime_ns for name in files})
    return found
