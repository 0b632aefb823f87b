"""From a bundle back to a work tree: a repository of its own with exactly the recorded bytes, proved by hashing them.

It is a standalone repository (`git init`, the bundle's pack, a checkout), because a rerun's child records its own snapshot
there and DVC wants a repository. A `git worktree` would share the user's objects, and stay registered with them after a kill.
Its attributes switch every filter off, whatever the tree's own .gitattributes and the user's settings say. A target exists if
and only if it is complete and verified: the work happens beside it. Folders of `disposable` are locked while they are in use,
and a lock dies with its process, so the next start can tell what a killed one has left.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.common import locks
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.code import git, objects, snapshot, worktree

_SETTINGS = """
[core]
    protectHFS = false  # names that only other systems' file systems mistake for .git
    protectNTFS = false
[gc]
    auto = 0
"""
_ATTRIBUTES = "* -text !eol -crlf -filter -ident !working-tree-encoding\n"
FOLDER = "worktrees"  # of disposable trees, below `.orchestrator`
FETCHED = "fetched.txt"  # in a folder of copies, of a run that is driven elsewhere: how it stood when they were brought
MOST_ENTRIES = 2_000_000  # files and folders of a tree
REMEDY = "take the bundle from the run's artifacts again"


@dataclass(frozen=True)
class Restored:
    """A work tree that was restored. root: the repository's top; project: the folder to start in. origin: the commit of the
    original repository that the code was made from, None where there was none."""

    root: Path
    project: Path
    tree: str
    commit: str
    origin: str | None


@dataclass(frozen=True)
class Header:
    """The header of a bundle. algorithm: of ids; commit: the snapshot; length in bytes of the header, behind which the pack
    begins."""

    algorithm: str
    commit: str
    length: int


def restore(bundle: Path, target: Path) -> Restored:
    """Make `target`, which must not exist, from the bundle alone. Raises NotRerunnable; then there is no target."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        restored = _restore(bundle, partial)
        partial.rename(target)
    except (git.GitError, git.GitMissing, OSError) as error:
        remedy = f"make room on the disk of {target.parent}" if os.strerror(errno.ENOSPC) in str(error) else REMEDY
        raise NotRerunnable(
            f"the code cannot be restored from {bundle}: {error}", remedy, code="git.not-restored"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Restored(
        target, target / restored.project.relative_to(partial), restored.tree, restored.commit, restored.origin
    )


def tidy(restored: Restored) -> None:
    """The recorded bytes and nothing else again, but for what git ignores: tools write into a tree from which they install.
    Raises NotRerunnable."""
    try:
        git.run(restored.root, "clean", "--quiet", "--force", "-d", variables=git.ALONE)
        git.run(restored.root, "reset", "--quiet", "--hard", variables=git.ALONE)
    except git.GitError as error:
        raise NotRerunnable(f"{restored.root} cannot be made clean: {error}", REMEDY, code="git.not-clean") from None


@contextmanager
def disposable(bundle: Path, folder: Path, tree: str | None = None) -> Iterator[Restored]:
    """A restored tree below `folder`, gone after use; what killed processes have left there goes first. tree: the one it
    has to be, None for any. Raises NotRerunnable."""
    with disposable_folder(folder) as place:
        restored = restore(bundle, place / "code")
        if tree not in (None, restored.tree):
            raise NotRerunnable(
                f"{bundle} holds the code {restored.tree}, and the run was recorded with {tree}: one of them was changed",
                REMEDY,
                code="git.other-tree",
            )
        yield restored


@contextmanager
def disposable_folder(folder: Path) -> Iterator[Path]:
    """An empty folder below `folder`, in the same way."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _sweep(folder)
        place = folder / secrets.token_hex(8)
        place.mkdir(mode=0o700)  # whoever may read a folder may lock it
        held = _opened(place)
        locks.lock(held)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(held)


def require_inside(restored: Restored) -> None:
    """Raises NotRerunnable for a link that leads out of the tree: who reads the code of somebody else by it reads what is here,
    or a device without end."""
    root = os.path.realpath(restored.root)
    for folder, below, files in os.walk(restored.root):
        for place in (Path(folder, name) for name in (*below, *files)):
            if place.is_symlink() and not Path(os.path.realpath(place)).is_relative_to(root):
                name, leads_to = str(place.relative_to(restored.root)), str(place.readlink())
                raise NotRerunnable(
                    f"the code of the record is refused: {name!r} is a link that leads out of it, to {leads_to!r}",
                    "ask who made it for a record without that link",
                    code="git.link-leads-out",
                )


def sweep(folder: Path) -> None:
    """Remove the disposable trees below `folder` that no living process uses; runs that are left in them go beside it."""
    if folder.is_dir():
        with _locked(folder):
            _sweep(folder)


def bring_home(files: Path, home: Path) -> None:
    """Move the folder of a run out of a tree, in place of what a look has left meanwhile, but for locks, which somebody
    may hold. home: the project's `.orchestrator`."""
    target = home / files.name
    for held in target.glob("*lock"):
        held.rename(files / held.name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(files, target)


def read_header(bundle: Path) -> Header:
    """Raises NotRerunnable for a file that is no complete snapshot."""
    algorithm, length, tips = "sha1", 0, []
    try:
        with bundle.open("rb") as file:
            for line in iter(file.readline, b""):
                length += len(line)
                if line == b"\n":
                    break
                if line.startswith(b"@object-format="):
                    algorithm = line.partition(b"=")[2].decode().strip()
                elif not line.startswith(b"#"):
                    tips.append(line.decode().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise NotRerunnable(f"{bundle} cannot be read: {error}", REMEDY, code="git.bundle-unreadable") from None
    if len(tips) != 1 or not tips[0].endswith(f" {snapshot.BUNDLE_REF}") or algorithm not in ("sha1", "sha256"):
        raise NotRerunnable(f"{bundle} is not the bundle of a snapshot", REMEDY, code="git.not-a-snapshot")
    return Header(algorithm, tips[0].split()[0], length)


def unpack(bundle: Path, repository: Path) -> Header:
    """Add the bundle's objects to a repository of the same format; their ids are computed anew. Raises git.GitError."""
    header = read_header(bundle)
    with bundle.open("rb", buffering=0) as file:
        file.seek(header.length)
        git.run(repository, "index-pack", "--stdin", stdin=file, variables=git.ALONE)
    return header


def new_repository(folder: Path, algorithm: str, *options: str) -> None:
    """An empty repository without templates and hooks."""
    arguments = (
        "init",
        "--quiet",
        "--template=",
        f"--object-format={algorithm}",
        "--initial-branch=snapshot",
        *options,
    )
    folder.mkdir(parents=True)
    git.run(folder, *arguments, variables=git.ALONE)


def _restore(bundle: Path, root: Path) -> Restored:
    header = read_header(bundle)
    new_repository(root, header.algorithm)
    with (root / ".git" / "config").open("a") as file:
        file.write(_SETTINGS)
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "attributes").write_text(_ATTRIBUTES)
    unpack(bundle, root)
    git.run(root, "update-ref", snapshot.BUNDLE_REF, header.commit, variables=git.ALONE)
    require_room(root, header.commit)
    git.run(root, "reset", "--quiet", "--hard", variables=git.ALONE)
    fields, _, message = git.run(root, "cat-file", "commit", header.commit, variables=git.ALONE).partition(b"\n\n")
    tree = fields.split(b"\n")[0].removeprefix(b"tree ").decode()
    found = objects.tree(objects.below(root, header.algorithm), header.algorithm)
    if found != tree:
        raise NotRerunnable(
            f"the restored code is {found}, and the recorded one is {tree}", REMEDY, code="git.restored-other"
        )
    named = worktree.trailers(message.decode(errors="replace"))
    project = _project(root, named.get("Project", ""))
    project.mkdir(parents=True, exist_ok=True)
    return Restored(root, project, tree, header.commit, named.get("Origin"))


def require_room(root: Path, commit: str) -> None:
    """A pack of a few hundred bytes can hold a tree with more files than any disk: the same one below each of its names. Raises
    NotRerunnable for such a tree, which nobody can write out, list or compare."""
    count, size, free = 0, 0, shutil.disk_usage(root).free
    with git.entries(root, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", commit, variables=git.ALONE) as found:
        for entry in found:
            length = entry.split(b"\t", 1)[0].split()[-1]
            count, size = count + 1, size + (int(length) if length.isdigit() else 0)
            if count > MOST_ENTRIES or size > free:
                raise NotRerunnable(
                    f"the code unpacks to more than {MOST_ENTRIES} files and folders, or to more than the {free / 1e9:.1f} GB "
                    f"that are left at {root.parent}",
                    "make room, or ask who made the record",
                    code="git.no-room",
                )


def _project(root: Path, told: str) -> Path:
    """The folder of the project in the restored tree. told: as the snapshot says it. Raises NotRerunnable for what is none, or
    not in the tree."""
    try:
        place: Path = root / json.loads(told)
        inside = Path(os.path.realpath(place)).relative_to(os.path.realpath(root))
    except (ValueError, TypeError, RecursionError):
        raise NotRerunnable(
            f"the code says that its project lies in {told!r}, which is no folder of it", REMEDY, code="git.no-project"
        ) from None
    if inside.parts[:1] == (".git",):
        raise NotRerunnable(
            f"the code says that its project lies in {told!r}, which is git's", REMEDY, code="git.project-in-git"
        )
    return place


def _locked(folder: Path) -> AbstractContextManager[None]:
    """One process at a time makes or sweeps."""
    return locks.held(folder.with_name(f"{folder.name}.lock"))


def _opened(place: Path) -> int:
    return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _sweep(folder: Path) -> None:
    for place in folder.iterdir():
        with suppress(OSError):  # a file, a link, another user's
            held = _opened(place)
            try:
                if locks.try_lock(held) and _bring_home(place, folder.parent):
                    shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(held)


def _bring_home(place: Path, home: Path) -> bool:
    """Move the runs that are left in a tree to those of the project: their checkpoints are there alone. False while one of
    them is being driven, which has a lock. home: the project's `.orchestrator`."""
    top = os.path.realpath(place)
    found = [path.parent for path in place.rglob(f"{home.name}/*/lock")]
    found = [files for files in found if Path(os.path.realpath(files)).is_relative_to(top)]  # no link of the code's own
    if any(locks.is_held(files / "lock") for files in found):
        return False
    for files in found:
        if not _is_own(home / files.name):
            bring_home(files, home)
    return True


def _is_own(files: Path) -> bool:
    """Whether a folder is that of the run itself. A look at a run that is driven elsewhere leaves copies, or a lock alone."""
    return (files / "lock").exists() and any(files.glob("*.yaml")) and not (files / FETCHED).exists()
