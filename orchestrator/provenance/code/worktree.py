"""The exact work tree of the repository that holds a folder: which files belong to it, and the ids of their bytes.

A file belongs to it when git tracks it or would (`git add --all`) and it lies on disk; what is ignored never does, nor do
caches and virtual environments. The files on disk count, not what git would make of them: filters, line endings, flags such
as assume-unchanged, and sparse checkouts change nothing. Repositories inside the repository (submodules, embedded ones) are
walked in the same way and count as plain files, because an id of a commit restores nothing elsewhere. Nothing is written:
neither objects nor the index, and no index is refreshed. Reads every file once, a size and a time are not trusted. Source:
the traps measured in the field notes on git; the order and rules are those of gitignore(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from orchestrator.provenance.code import git, objects, secrets
from orchestrator.provenance.code.objects import Entries, Entry

LARGE_FILE_BYTES = 50 * 10**6
LARGE_TREE_BYTES = 500 * 10**6
TITLE = "orchestrator snapshot"  # the first line of a snapshot's message
_NEVER = (
    ".DS_Store",
    ".hypothesis/",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".orchestrator",
    ".pytest_cache/",
    ".ruff_cache/",
    "__pycache__/",
    "lightning_logs",
    "mlflow.db",
    "mlruns",
    "**/.dvc/cache/",
    "**/.dvc/tmp/",
)
# A file only where it is a link to a folder on another disk, in which a repetition would write.
_HOME = b".orchestrator"


class Unrecorded(Exception):
    """The code cannot be recorded at all; the message is the obstacle, with its remedy."""


@dataclass(frozen=True)
class Nested:
    """A repository inside the repository, recorded as plain files. commit: None before its first one; changed: how many of
    its files differ from that."""

    path: str
    commit: str | None
    changed: int
    submodule: bool

    def __str__(self) -> str:
        kind = "submodule" if self.submodule else "repository"
        state = f"at {self.commit}" if self.commit else "without a commit"
        return f"{kind} {self.path} {state}, {self.changed} changed files: recorded as plain files"


@dataclass(frozen=True)
class WorkTree:
    """The files that belong to a repository, and what a reader of their snapshot should know."""

    root: Path  # the repository's top folder
    project: str  # the folder asked for, relative to it ("" for the top itself)
    head: str | None  # the commit checked out; None before the first
    # the commit that the code was made from: in a restored snapshot that of the original repository, else head
    origin: str | None
    tree: str  # the id of all entries
    algorithm: str  # of ids
    entries: Entries  # of the files on disk, by path
    present: frozenset[str]  # ids that the repository holds
    # entries as the patch shows them, without what only filters, sparse checkouts and nested repositories change
    shown: Entries
    changed: tuple[str, ...]  # paths that differ from head
    untracked: tuple[str, ...]  # those of the changed paths that git does not know
    left_out: tuple[str, ...]  # untracked files that are not recorded, because their names are typical of secrets
    nested: tuple[Nested, ...]  # repositories inside the repository
    notes: tuple[str, ...]  # what a reader should know
    obstacles: tuple[str, ...]  # what keeps this tree from being restored exactly, with remedies

    @property
    def dirty(self) -> bool:
        return bool(self.changed) or self.head is None

    @property
    def is_restored(self) -> bool:
        """Whether it is a snapshot that was unpacked, as for a rerun, and no repository of anybody's."""
        return self.head != self.origin


def examine(project: Path) -> WorkTree:
    """The work tree as it is now. Raises Unrecorded."""
    root = _root(project)
    try:
        algorithm = git.line(root, "rev-parse", "--show-object-format") or "sha1"
        reading = _Reading(root, algorithm)
        main = _read(reading, _Repository(root, b""))
    except git.GitError as error:
        raise Unrecorded(
            f"git cannot read {root} ({error}), so the code is not recorded; mend the repository"
        ) from None
    relative = os.path.relpath(os.path.realpath(project), root)
    place = "" if relative == "." else relative
    _check_whole(reading, place)
    return WorkTree(
        root=root,
        project=place,
        head=main.head,
        origin=_origin(root, main.head),
        tree=objects.tree(reading.entries, algorithm),
        algorithm=algorithm,
        entries=reading.entries,
        present=main.ids,
        shown=_shown(reading),
        changed=tuple(sorted(reading.changed)),
        untracked=tuple(sorted(reading.untracked)),
        left_out=tuple(sorted(reading.left_out)),
        nested=tuple(reading.nested),
        notes=(*(str(nested) for nested in reading.nested), *reading.notes),
        obstacles=tuple(reading.obstacles),
    )


def _root(project: Path) -> Path:
    """The top folder of the work tree that holds `project`."""
    try:
        inside = git.run(project, "rev-parse", "--is-inside-work-tree")
    except git.GitMissing as error:
        raise Unrecorded(f"{error}, so the code is not recorded; install git") from None
    except git.GitError as error:
        raise Unrecorded(_why_no_repository(project, str(error))) from None
    top = git.line(project, "rev-parse", "--show-toplevel") if inside.strip() == b"true" else None
    if top is None:
        raise Unrecorded("the project is in a bare repository, so its code is not recorded; work in a clone of it")
    return Path(top)


def _why_no_repository(project: Path, said: str) -> str:
    if "dubious ownership" in said:
        remedy = f"git config --global --add safe.directory {project}"
        return f"git does not trust the repository of another user, so the code is not recorded; {remedy}"
    if "(or any" in said:
        return "the project is in no git repository, so its code is not recorded; git init"
    return f"git cannot read the repository of the project ({said}), so the code is not recorded; mend it"


def entries_of(answer: bytes) -> dict[bytes, Entry]:
    """The entries in the answer of `git ls-tree -r -z`."""
    found = {}
    for record in git.records(answer):
        fields, path = record.split(b"\t", 1)
        mode, _, id_ = fields.decode().split(" ")
        found[path] = Entry(mode, id_)
    return found


class _Tracked(NamedTuple):
    """An entry of the index. flagged: git was told not to look at the file; sparse: and that it need not be there."""

    entry: Entry
    flagged: bool
    sparse: bool


@dataclass(frozen=True)
class _Repository:
    """The main repository (prefix empty), or one nested in it (prefix ends in a slash)."""

    root: Path
    prefix: bytes

    def run(self, *arguments: str) -> bytes:
        folder = self.root / os.fsdecode(self.prefix)
        own = ("--git-dir=.git", "--work-tree=.") if self.prefix else ()  # never fall through to the outer one
        return git.run(folder, *own, *arguments)

    def head(self) -> str | None:
        try:
            return self.run("rev-parse", "--verify", "-q", "HEAD").decode().strip()
        except git.GitError:
            return None

    def tracked(self) -> dict[bytes, _Tracked]:
        found = {}
        for record in git.records(self.run("ls-files", "-z", "-v", "--stage")):
            fields, path = record.split(b"\t", 1)
            tag, mode, id_, stage = fields.decode().split(" ")
            entry = Entry(mode, id_ if stage == "0" else "")  # in a conflict the index says nothing
            found[path] = _Tracked(entry, flagged=tag.islower() or tag in "Ss", sparse=tag in "Ss")
        return found

    def untracked(self) -> list[bytes]:
        """Relative paths; a nested repository ends in a slash."""
        never = [f"--exclude={pattern}" for pattern in _NEVER]
        listed = git.records(self.run("ls-files", "-z", "--others", "--exclude-standard", *never))
        environments = tuple(path.removesuffix(b"pyvenv.cfg") for path in listed if path.endswith(b"/pyvenv.cfg"))
        return [path for path in listed if not path.startswith(environments) and not self._is_environment(path)]

    def _is_environment(self, path: bytes) -> bool:
        """Whether it is a link to a virtual environment, of which git lists no files."""
        place = self.root / os.fsdecode(self.prefix + path)
        return place.is_symlink() and (place / "pyvenv.cfg").exists()

    def committed(self, head: str | None) -> dict[bytes, Entry]:
        return {} if head is None else entries_of(self.run("ls-tree", "-r", "-z", head))

    def modified(self) -> set[bytes] | None:
        """The tracked files that git itself finds changed, its filters applied; None where they fail."""
        quiet = ("--porcelain=v1", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=all")
        try:
            return {record[3:] for record in git.records(self.run("status", *quiet)) if record[1:2] != b" "}
        except git.GitError:
            return None


@dataclass
class _Reading:
    """The findings while the repositories are walked. Paths of bytes are relative to the main root."""

    root: Path  # the main repository's top folder
    algorithm: str  # of ids
    entries: dict[bytes, Entry] = field(default_factory=dict)  # of the files on disk, by path
    instead: dict[bytes, Entry] = field(default_factory=dict)  # what the patch shows in place of these paths
    # by folder, whether no symbolic link is on the way there
    free_of_links: dict[bytes, bool] = field(default_factory=dict)
    hidden: list[bytes] = field(default_factory=list)  # folders whose files the patch does not show
    changed: list[str] = field(default_factory=list)  # as of `WorkTree`
    untracked: list[str] = field(default_factory=list)  # as of `WorkTree`
    left_out: list[str] = field(default_factory=list)  # as of `WorkTree`
    nested: list[Nested] = field(default_factory=list)  # as of `WorkTree`
    notes: list[str] = field(default_factory=list)  # as of `WorkTree`
    obstacles: list[str] = field(default_factory=list)  # as of `WorkTree`
    # sizes in bytes of what git does not hold yet, by folder at the top
    new_bytes: dict[str, int] = field(default_factory=dict)


class _Seen(NamedTuple):
    head: str | None
    ids: frozenset[str]
    changed: int


def _read(reading: _Reading, repository: _Repository) -> _Seen:
    """Walk one repository and what is nested in it."""
    head = repository.head()
    tracked, committed = repository.tracked(), repository.committed(head)
    homes = {path for path in {*tracked, *committed} if path.rpartition(b"/")[2] == _HOME}
    reading.instead.update({repository.prefix + path: committed[path] for path in homes & {*committed}})
    tracked = {path: item for path, item in tracked.items() if path not in homes}
    committed = {path: item for path, item in committed.items() if path not in homes}
    ids = frozenset(item.entry.id for item in tracked.values()) | {item.id for item in committed.values()}
    everything = repository.untracked()
    left_out = {path for path in everything if secrets.is_suspicious(objects.shown(path))}
    untracked = [path for path in everything if path not in left_out]
    reading.left_out += [objects.shown(repository.prefix + path) for path in everything if path in left_out]
    links = [path for path, item in tracked.items() if item.entry.mode == objects.REPOSITORY]
    own = {}
    for path in [*tracked, *untracked]:
        if path not in links and not path.endswith(b"/"):
            found = _file(reading, repository, path, tracked.get(path), ids)
            if found is not None:
                own[path] = reading.entries[repository.prefix + path] = found
    reading.untracked += [objects.shown(repository.prefix + path) for path in untracked if path in own]
    inner = [path + b"/" for path in links] + [path for path in untracked if path.endswith(b"/")]
    for path in inner:
        _nested(reading, repository, path, tracked.get(path[:-1]))
    committed = {path: item for path, item in committed.items() if item.mode != objects.REPOSITORY}
    changed = _compare(reading, repository, own, tracked, committed)
    return _Seen(head, ids, changed)


def _file(
    reading: _Reading, repository: _Repository, path: bytes, item: _Tracked | None, ids: frozenset[str]
) -> Entry | None:
    """The entry of a file, or None when it is not there or cannot be recorded, which is then an obstacle."""
    name = repository.prefix + path
    place, shown = objects.at(reading.root, name), objects.shown(name)
    if not objects.free_of_links(reading.root, name, reading.free_of_links):
        return None
    parts = name.lower().split(b"/")
    if b".git" in parts or (parts[-1] == b".gitmodules" and place.is_symlink()):
        reading.obstacles.append(
            f"{shown} is not recorded: git restores no such path; rename it, or list it in .gitignore"
        )
        return None
    size = place.lstat().st_size if os.path.lexists(place) else 0
    if size > LARGE_FILE_BYTES and (item is None or size != _stored_size(repository, item.entry.id)):
        megabytes = f"{size / 1e6:.0f} MB"
        remedy = "put it under DVC, commit it, or list it in .gitignore"
        reading.obstacles.append(f"{shown} ({megabytes}) is too large to be recorded with the code; {remedy}")
        return None
    try:
        found = objects.entry(place, reading.algorithm)
    except PermissionError:
        reading.obstacles.append(
            f"{shown} cannot be read, so it is not recorded; chmod u+r it, or list it in .gitignore"
        )
        return None
    if found is not None and found.id not in ids:
        top = shown.split("/")[0]
        reading.new_bytes[top] = reading.new_bytes.get(top, 0) + size
    return found


def _stored_size(repository: _Repository, id_: str) -> int | None:
    try:
        return int(repository.run("cat-file", "-s", id_))
    except git.GitError:
        return None


def _nested(reading: _Reading, repository: _Repository, path: bytes, item: _Tracked | None) -> None:
    """Walk a repository inside the repository; the patch shows it as the commit it stands at."""
    prefix = repository.prefix + path
    shown = objects.shown(prefix[:-1])
    if not os.path.lexists(objects.at(reading.root, prefix) / ".git"):
        assert item is not None
        reading.instead[prefix[:-1]] = item.entry
        folder = objects.at(reading.root, prefix)
        if folder.is_dir() and any(folder.iterdir()):
            remedy = f"git rm --cached {shown}, or git submodule update --init"
            reading.obstacles.append(
                f"{shown} is a submodule without its repository, so its files are not recorded; {remedy}"
            )
        else:
            reading.notes.append(f"submodule {shown} is not checked out, so nothing of it is recorded")
        return
    try:
        seen = _read(reading, _Repository(reading.root, prefix))
    except git.GitError as error:
        remedy = "mend it, or list it in .gitignore"
        reading.obstacles.append(f"the repository {shown} inside the project cannot be read ({error}); {remedy}")
        return
    reading.hidden.append(prefix)
    if seen.head is not None:
        reading.instead[prefix[:-1]] = Entry(objects.REPOSITORY, seen.head)
    if item is None or seen.head != item.entry.id:
        reading.changed.append(shown)
    reading.nested.append(Nested(shown, seen.head, seen.changed, submodule=item is not None))


def _compare(
    reading: _Reading,
    repository: _Repository,
    own: Entries,
    tracked: dict[bytes, _Tracked],
    committed: dict[bytes, Entry],
) -> int:
    """Note what differs from the commit, and what only seems to; how many files differ."""
    differing = {path for path in {*own, *committed} if own.get(path) != committed.get(path)}
    absent = {path for path in differing - {*own} if path in tracked and tracked[path].sparse}
    filtered = _filtered(repository, differing - absent, own, tracked, committed)
    changed = differing - absent - filtered
    reading.instead.update({repository.prefix + path: committed[path] for path in absent | filtered})
    reading.changed.extend(objects.shown(repository.prefix + path) for path in changed)
    flagged = [path for path in changed & {*own} if path in tracked and tracked[path].flagged]
    where = f" of {objects.shown(repository.prefix[:-1])}" if repository.prefix else ""
    if absent:
        reading.notes.append(f"{len(absent)} files{where} are left out by a sparse checkout, and so by the snapshot")
    if filtered:
        why = "line endings, filters or encodings"
        reading.notes.append(
            f"{len(filtered)} files{where} have other bytes on disk than in git ({why}); recorded: disk"
        )
    if flagged:
        why = "assume-unchanged, skip-worktree"
        reading.notes.append(f"{len(flagged)} changed files{where} are hidden from git ({why}); they are recorded")
    return len(changed)


def _filtered(
    repository: _Repository,
    differing: Iterable[bytes],
    own: Entries,
    tracked: dict[bytes, _Tracked],
    committed: dict[bytes, Entry],
) -> set[bytes]:
    """The files that differ from the commit in bytes, but not for git: a filter stands between."""
    doubtful = {
        path
        for path in differing
        if path in own
        and path in committed
        and own[path].mode == committed[path].mode
        and tracked.get(path) == _Tracked(committed[path], flagged=False, sparse=False)
    }
    modified = repository.modified() if doubtful else set()
    return set() if modified is None else doubtful - modified


def _check_whole(reading: _Reading, project: str) -> None:
    """Raises Unrecorded for a tree that is far too large; an ignored project is an obstacle."""
    if sum(reading.new_bytes.values()) > LARGE_TREE_BYTES:
        largest = sorted(reading.new_bytes, key=lambda top: -reading.new_bytes[top])[:3]
        listed = ", ".join(f"{top}: {reading.new_bytes[top] / 1e6:.0f} MB" for top in largest)
        raise Unrecorded(
            f"the files that are not in git are too large together ({listed}), so the code is not recorded; "
            "put data under DVC, or list them in .gitignore"
        )
    prefix = os.fsencode(project) + b"/"
    if project and not any(path.startswith(prefix) for path in reading.entries):
        reading.obstacles.append(
            f"the repository {reading.root} records nothing of {project} (ignored, or empty); git init in the project"
        )


def _shown(reading: _Reading) -> Entries:
    """The entries as the patch shows them."""
    hidden = tuple(reading.hidden)
    return {path: item for path, item in {**reading.entries, **reading.instead}.items() if not path.startswith(hidden)}


def _origin(root: Path, head: str | None) -> str | None:
    """The commit in the original repository where `head` is a restored snapshot, else `head`."""
    if head is None:
        return None
    message = git.run(root, "cat-file", "commit", head).partition(b"\n\n")[2].decode(errors="replace")
    if not message.startswith(f"{TITLE}\n"):
        return head
    return trailers(message).get("Origin")


def trailers(message: str) -> dict[str, str]:
    """The `Name: value` lines of a snapshot's message."""
    pairs = (line.partition(": ") for line in message.splitlines()[1:])
    return {name: value for name, colon, value in pairs if colon}
