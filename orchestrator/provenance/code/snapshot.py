"""A commit of the exact work tree, kept by a ref; a bundle of it that restores anywhere; a patch for a person to read.

The files' own bytes become git's objects by `fast-import`, which knows no filters, needs no index (so the user's is never
copied or locked) and writes thousands of files as one pack. The user's repository changes in two ways only: objects are
added, and `refs/orchestrator/<run id>` keeps them from being collected. Author, date and message are functions of the code,
so the same code gives the same commit, and its bundle holds a parentless commit: complete without history, and leaking none.
A tree that is its commit's needs no commit of its own. See worktree.py for what belongs to the tree, checkout.py for the way
back. Sources: gitformat-bundle(5), git-fast-import(1).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.common import temporary
from orchestrator.provenance.code import git, objects
from orchestrator.provenance.code.objects import Entries, Entry
from orchestrator.provenance.code.worktree import TITLE, Unrecorded, WorkTree

BUNDLE_REF = "refs/heads/snapshot"
PATCH_BYTES = 4 * 10**6
_WHO = "orchestrator <orchestrator@localhost> 0 +0000"
_PLAIN = re.compile(rb"[A-Za-z0-9_./-]+")


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a work tree. commit: of the work tree, head itself where nothing is changed; ref: what keeps it."""

    work: WorkTree
    commit: str
    ref: str

    def as_dict(self) -> dict[str, Any]:
        """The code as a record tells it."""
        return {
            "tree": self.work.tree,
            "origin": self.work.origin,
            "snapshot": self.commit,
            "project": self.work.project,
            "dirty": self.work.dirty,
            "changed": list(self.work.changed),
            "nested": [dataclasses.asdict(nested) for nested in self.work.nested],
            "notes": list(self.work.notes),
            "obstacles": list(self.work.obstacles),
        }


def keep(work: WorkTree, run_id: str) -> Snapshot:
    """Write an examined tree into its repository. A file that has changed since is recorded as it is now. Raises Unrecorded."""
    ref = ref_of(run_id)
    try:
        missing = _missing(work)
        if (
            work.head is not None
            and not missing
            and work.tree == git.line(work.root, "rev-parse", f"{work.head}^{{tree}}")
        ):
            git.run(work.root, *_UNHOOKED, "update-ref", ref, work.head)
            return Snapshot(work, work.head, ref)
        with tempfile.TemporaryFile() as stream:
            work = _write(work, missing, ref, stream)
            stream.seek(0)
            arguments = ("--quiet", "--force", "--date-format=raw", "--done")
            git.run(work.root, *_UNHOOKED, "fast-import", *arguments, stdin=stream)
        commit = git.run(work.root, "rev-parse", "--verify", ref).decode().strip()
        found = git.run(work.root, "rev-parse", f"{commit}^{{tree}}").decode().strip()
    except (git.GitError, OSError) as error:
        raise Unrecorded(f"the code cannot be written into {work.root} ({error}); mend that") from None
    assert found == work.tree, f"git made {found} of the tree {work.tree}"
    return Snapshot(work, commit, ref)


def ref_of(run_id: str) -> str:
    if not re.fullmatch(r"\w[\w-]*", run_id, re.ASCII):
        raise ValueError(f"not the id of a run: {run_id!r}")
    return f"refs/orchestrator/{run_id}"


def bundle(snapshot: Snapshot, target: Path) -> None:
    """Write one file that restores the work tree into any repository, even an empty one: a commit without parents and its
    tree. The bytes depend on the code, its origin and the version of git. Raises git.GitError."""
    work = snapshot.work
    text = f"tree {work.tree}\nauthor {_WHO}\ncommitter {_WHO}\n\n{_message(work)}"
    commit = git.run(work.root, "hash-object", "-t", "commit", "-w", "--stdin", stdin=text.encode()).decode().strip()
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as file:
            if work.algorithm == "sha1":
                file.write(b"# v2 git bundle\n")
            else:
                file.write(f"# v3 git bundle\n@object-format={work.algorithm}\n".encode())
            file.write(f"{commit} {BUNDLE_REF}\n\n".encode())
            file.flush()
            git.run(work.root, *_PACK, stdin=f"{commit}\n".encode(), stdout=file)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)  # of a full disk it would take what is left


def patch(snapshot: Snapshot, target: Path) -> None:
    """Write what differs from the commit checked out, to be read: without the contents of binary files and of nested
    repositories, and no longer than PATCH_BYTES. Raises git.GitError."""
    work = snapshot.work
    before = f"{work.head}^{{tree}}" if work.head else objects.tree({}, work.algorithm)
    after = work.tree if work.shown == work.entries else _tree_of(work, work.shown)
    heading = [f"against {work.head or 'nothing: there is no commit'}", f"the whole tree is {work.tree}", *work.notes]
    with target.open("wb+") as file:
        file.write("".join(f"# {line}\n" for line in heading).encode(errors="backslashreplace"))
        file.flush()
        git.run(work.root, *DIFF, "-p", before, after, stdout=file)
        _cut(file, PATCH_BYTES)


# A diff says of a file above the threshold only that it differs. Plumbing, so that a user's taste changes nothing.
DIFF = (
    "-c",
    "core.bigFileThreshold=1m",
    "diff-tree",
    "-r",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
)
_UNHOOKED = (
    *("-c", f"core.hooksPath={os.devnull}", "-c", "core.logAllRefUpdates=false", "-c", "fastimport.unpackLimit=100"),
    # Any name that lies on disk, and each for itself.
    *("-c", "core.protectHFS=false", "-c", "core.protectNTFS=false", "-c", "core.ignoreCase=false"),
)
# Packed anew and without deltas: the same bytes for the same code, in half the time for 5 % more size.
_PACK = (
    *("-c", "pack.windowMemory=0", "-c", "pack.packSizeLimit=0", "-c", "core.bigFileThreshold=16m"),
    *("pack-objects", "--revs", "--stdout", "--quiet", "--threads=1", "--window=0", "--compression=6"),
    *("--no-reuse-delta", "--no-reuse-object", "--no-use-bitmap-index", "--delta-base-offset", "--no-sparse"),
)


def _missing(work: WorkTree) -> list[bytes]:
    """The paths whose bytes the repository does not hold yet."""
    unknown = [path for path, entry in work.entries.items() if entry.id not in work.present]
    if not unknown:
        return []
    question = "".join(f"{work.entries[path].id}\n" for path in unknown).encode()
    try:
        answers = git.run(work.root, "cat-file", "--batch-check=%(objecttype)", "--buffer", stdin=question).splitlines()
    except git.GitError:  # a partial clone that would ask its remote
        return unknown
    return [path for path, answer in zip(unknown, answers, strict=True) if answer.endswith(b"missing")]


def _write(work: WorkTree, missing: list[bytes], ref: str, stream: IO[bytes]) -> WorkTree:
    """Write the commands that make the snapshot; the tree as it was written, which is newer where a file has changed."""
    entries, sent = dict(work.entries), set()
    stream.write(b"feature done\n")
    for path in missing:
        try:
            content = objects.content(objects.at(work.root, path))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            del entries[path]
            continue
        id_ = objects.blob(content, work.algorithm)
        entries[path] = Entry(entries[path].mode, id_)
        if id_ not in sent:
            stream.write(b"blob\ndata %d\n" % len(content) + content + b"\n")
            sent.add(id_)
    work = _with(work, entries)
    message = _message(work).encode()
    stream.write(f"commit {ref}\ncommitter {_WHO}\ndata {len(message)}\n".encode() + message)
    if work.head is not None:
        stream.write(f"from {work.head}\ndeleteall\n".encode())
    stream.writelines(_placements(entries))
    stream.write(b"\ndone\n")
    return work


def _placements(entries: Entries) -> Iterator[bytes]:
    for path, entry in entries.items():
        yield f"M {entry.mode} {entry.id} ".encode() + _quoted(path) + b"\n"


def _with(work: WorkTree, entries: Entries) -> WorkTree:
    """`work` with other entries, shown the same way."""
    if entries == work.entries:
        return work
    newer = {path: entry for path, entry in entries.items() if entry != work.entries[path]}
    gone = work.entries.keys() - entries.keys()
    shown = {path: newer.get(path, entry) for path, entry in work.shown.items() if path not in gone}
    tree = objects.tree(entries, work.algorithm)
    return dataclasses.replace(work, entries=entries, shown=shown, tree=tree)


def _quoted(path: bytes) -> bytes:
    """A path as `fast-import` reads it."""
    if _PLAIN.fullmatch(path):
        return path
    return b'"' + b"".join(b"%c" % byte if _PLAIN.match(b"%c" % byte) else b"\\%03o" % byte for byte in path) + b'"'


def _message(work: WorkTree) -> str:
    lines = [TITLE, "", f"Project: {json.dumps(work.project)}"]
    if work.origin is not None:
        lines.append(f"Origin: {work.origin}")
    return "\n".join(lines) + "\n"


def _tree_of(work: WorkTree, entries: Entries) -> str:
    """Write a tree through an index of its own. Objects of a partial clone or a nested repository may be missing."""
    with temporary.folder() as folder:
        index = {"GIT_INDEX_FILE": str(folder / "index")}
        rows = b"".join(f"{entry.mode} {entry.id}\t".encode() + path + b"\0" for path, entry in entries.items())
        git.run(work.root, "update-index", "-z", "--index-info", stdin=rows, variables=index)
        return git.run(work.root, "write-tree", "--missing-ok", variables=index).decode().strip()


def _cut(file: IO[bytes], limit: int) -> None:
    """Keep whole lines up to `limit` bytes, and say so."""
    if file.seek(0, os.SEEK_END) <= limit:
        return
    file.seek(0)
    kept = file.read(limit).rpartition(b"\n")[0] + b"\n"
    file.seek(len(kept))
    file.truncate()
    file.write(b"# cut here: the rest is in the bundle only\n")
