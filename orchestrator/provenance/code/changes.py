"""The differences between two snapshots, from their bundles alone: the files, and a diff of each that a person can read.

The bundles are opened in a repository in a temporary folder that no configuration reaches. Bounded: a binary or large file
is only named, a long diff is cut, and beyond FILES_SHOWN files there are names only. Renames are not guessed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.common import temporary
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.code import checkout, git, objects, snapshot
from orchestrator.provenance.code.objects import Entries
from orchestrator.provenance.code.worktree import WorkTree, entries_of

Kind = Literal["added", "removed", "changed"]

FILES_SHOWN = 100
LINES_SHOWN = 400
_KINDS: dict[str, Kind] = {"A": "added", "D": "removed", "M": "changed", "T": "changed"}


@dataclass(frozen=True)
class Change:
    """The change of one file. added, removed: lines, None for a binary file; diff: "" where none is shown."""

    path: str
    kind: Kind
    added: int | None
    removed: int | None
    diff: str


def changes(old: Path, new: Path) -> list[Change]:
    """The changes that turn the snapshot in bundle `old` into `new`, by path. Raises NotRerunnable for a damaged bundle."""
    with temporary.folder() as folder:
        repository = folder / "both"
        return between(repository, *open_bundles(repository, old, new))


def between(repository: Path, before: str, after: str) -> list[Change]:
    """The same of two commits in one repository. Raises git.GitError."""
    paths = _differing(repository, before, after)
    counts = _counts(repository, before, after)
    diffs = _diffs(repository, before, after, paths[:FILES_SHOWN])
    diffs += [""] * (len(paths) - len(diffs))
    return [
        Change(objects.shown(path), _KINDS[letter], *counts[path], diff)
        for (letter, path), diff in zip(paths, diffs, strict=True)
    ]


def since(bundle: Path, work: WorkTree) -> list[str]:
    """The paths that differ between the snapshot in `bundle` and a work tree. Raises NotRerunnable for a damaged bundle."""
    with temporary.folder() as folder:
        repository = folder / "one"
        (commit,) = open_bundles(repository, bundle)
        return differing(entries_of(git.run(repository, "ls-tree", "-r", "-z", commit)), work.entries)


def differing(then: Entries, now: Entries) -> list[str]:
    """The paths at which two trees have other files."""
    return sorted(objects.shown(path) for path in {*then, *now} if then.get(path) != now.get(path))


def open_bundles(repository: Path, *bundles: Path) -> list[str]:
    """Put the bundles into a new repository; their commits. Raises NotRerunnable for a damaged one, and for
    one whose tree has no end."""
    headers = [checkout.read_header(bundle) for bundle in bundles]
    if len({header.algorithm for header in headers}) > 1:
        raise NotRerunnable(
            "the two snapshots have ids of different kinds (sha1, sha256)",
            "compare the restored trees",
            code="git.object-formats",
        )
    checkout.new_repository(repository, headers[0].algorithm, "--bare")
    for bundle in bundles:
        try:
            checkout.unpack(bundle, repository)
        except git.GitError as error:
            raise NotRerunnable(f"{bundle} is damaged: {error}", checkout.REMEDY, code="git.bundle-damaged") from None
    for header in headers:
        checkout.require_room(repository, header.commit)
    return [header.commit for header in headers]


def _differing(repository: Path, before: str, after: str) -> list[tuple[str, bytes]]:
    """(letter of the kind, path) in git's order."""
    fields = git.records(_diff(repository, "--raw", "-z", before, after))
    return [(header.decode().split(" ")[4], path) for header, path in zip(fields[::2], fields[1::2], strict=True)]


def _counts(repository: Path, before: str, after: str) -> dict[bytes, tuple[int | None, int | None]]:
    found: dict[bytes, tuple[int | None, int | None]] = {}
    for record in git.records(_diff(repository, "--numstat", "-z", before, after)):
        added, removed, path = record.split(b"\t", 2)
        found[path] = (None, None) if added == b"-" else (int(added), int(removed))
    return found


def _diffs(repository: Path, before: str, after: str, paths: list[tuple[str, bytes]]) -> list[str]:
    """One text for each path. A line of content never begins with `diff --git`, and a changed type makes two of them."""
    if not paths:
        return []
    names = [os.fsdecode(path) for _, path in paths]
    text = _diff(repository, "-p", before, after, "--", *names).decode(errors="backslashreplace")
    sections = ["diff --git " + section for section in ("\n" + text).split("\ndiff --git ")[1:]]
    found = []
    for letter, _ in paths:
        own = [sections.pop(0) for _ in range(2 if letter == "T" else 1)]
        found.append(_shortened("\n".join(own).rstrip("\n") + "\n"))
    return found


def _shortened(text: str) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) <= LINES_SHOWN:
        return text
    return "".join(lines[:LINES_SHOWN]) + f"... {len(lines) - LINES_SHOWN} more lines\n"


def _diff(repository: Path, *arguments: str) -> bytes:
    return git.run(repository, "--literal-pathspecs", *snapshot.DIFF, "--no-renames", *arguments, variables=git.ALONE)
