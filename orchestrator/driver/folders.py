"""The folder of a project in which runs write: `.orchestrator/`, which git ignores because it holds its own `.gitignore`."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.storage import sync_folder
from orchestrator.common import locks
from orchestrator.errors import ConfigurationError, UsageError
from orchestrator.provenance.code import checkout

NAME = ".orchestrator"
_JOURNAL, _TRACE = "journal.jsonl", "trace.jsonl"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ID = re.compile(r"\w[\w-]*", re.ASCII)


def project_folder(project: Path) -> Path:
    """The project's `.orchestrator`, created when it is missing. Raises ConfigurationError when it cannot be."""
    folder = project / NAME
    try:
        folder.mkdir(exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists() or not ignore.stat().st_size:  # a full disk has left an empty one
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _unwritable(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        [f"{folder} cannot be written: {error.strerror}"],
        "make room on its disk" if error.errno in _FULL else "run from a folder in which you may write",
        code="project.unwritable",
    )


class RunFolder:
    """The files of one run, in `.orchestrator/<run id>/`."""

    def __init__(self, folder: Path, run_id: str) -> None:
        """Raises UsageError, and ConfigurationError where the folder is missing and cannot be made."""
        if not _ID.fullmatch(run_id):  # a store of others has given it
            raise UsageError(
                f"{run_id!r} is no id of a run",
                "list the runs with: python -m orchestrator runs",
                code="record.not-an-id",
            )
        self.path = folder / run_id
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        _require_own_files(self.path)
        self._held: int | None = None
        self._synced: dict[Path, tuple[int, int]] = {}  # inode and time of change
        self.lock = self.path / "lock"
        self._sent = self.path / "sent.lock"  # of who sends MLflow what it lacks of the run, and has the lease for that
        self.journal = self.path / _JOURNAL
        self.trace = self.path / _TRACE
        self.barriers = self.path / "rests.jsonl"
        self.untold = self.path / "untold.jsonl"  # of a driver that died, which MLflow is to be told
        self.streams = self.path / "streams.jsonl"
        self.times = self.path / "times.jsonl"
        self.tuning = self.path / "tuning.json"
        self.spans = self.path / "timeline.jsonl"  # of which `timeline` is made at the end, of a resumed run anew
        self.timeline = self.path / "timeline.json"
        self.settings = self.path / "settings.yaml"
        self.origins = self.path / "settings_from.json"
        self.bundle = self.path / "code.bundle"
        self.patch = self.path / "code.patch"
        self.code = self.path / "code.json"
        self.data = self.path / "data.json"
        self.input_audit = self.path / "reads.json"
        self.environment = self.path / "environment.json"
        self.dockerfile = self.path / "Dockerfile"
        self.pylock = self.path / "pylock.toml"
        self.privacy = self.path / "privacy.json"
        self.identity = self.path / "identity.json"
        self.card = self.path / "card.md"
        self.page = self.path / "card.html"
        self.verdict = self.path / "verdict.json"
        self.weights = self.path / "model.safetensors"
        self.model = self.path / "model"
        self.error = self.path / "error.txt"
        self.memory = self.path / "memory_snapshot.pickle"
        self.pictures = self.path / "pictures"
        self.checkpoints = self.path / "checkpoints"
        self.inspections = self.path / "looks"  # requests of who looks at it while it runs
        self.fetched = self.path / checkout.FETCHED

    def lease(self) -> None:
        """Keep every other driver away from this run, for as long as this process lives. Waits for a process that sends MLflow
        what it lacks of the run. Raises UsageError."""
        try:
            self._lease_now()
        except UsageError:
            with locks.held(self._sent):
                self._lease_now()

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        """As `lease`, until the block raises, which gives it back: a process that lives on, such as a notebook's, may be asked
        again."""
        self.lease()
        try:
            yield
        except BaseException:
            self.release()
            raise

    def _lease_now(self) -> None:
        try:
            self._held = locks.take(self.lock)
        except locks.LockTaken as taken:
            raise UsageError(
                f"run {self.path.name} is being driven by {taken.who}",
                "wait for its end, or end that process",
                code="record.being-driven",
            ) from None

    @contextlib.contextmanager
    def sending(self) -> Iterator[bool]:
        """Within the block this process alone may send what MLflow lacks of the run; False if somebody drives or sends it, or
        if the folder is another user's, who is to send it."""
        try:
            sent = locks.take(self._sent)
        except (locks.LockTaken, UsageError):
            yield False
            return
        try:
            self._lease_now()
        except UsageError:
            yield False
        else:
            try:
                yield True
            finally:
                self.release()
        finally:
            os.close(sent)

    def release(self) -> None:
        """Let other drivers have it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def checkpoints_at(self, uri: str | None) -> str:
        """The place of its checkpoints: a path, or a URL under which several runs may lie. A relative path begins in the
        project's folder, wherever this process works, and `~` is the home of whoever does."""
        if uri is None:
            return str(self.checkpoints)
        place = uri if "://" in uri else str(self.path.parent.parent / Path(uri).expanduser())
        return f"{place.rstrip('/')}/{self.path.name}"

    @property
    def is_driven(self) -> bool:
        """Whether a process keeps others away from this run."""
        return locks.is_held(self.lock)

    def was_last_leased_by(self, process: str, host: str) -> bool:
        """Whether this process had the lease last; also where nobody knows."""
        note = locks.note(self.lock)
        return not note or (note.startswith(f"process {process} of ") and note.endswith(f" on {host}"))

    def sync(self) -> None:
        """Wait until what the run is made of is on the disk, and the new folders: without them a checkpoint is of no use. A
        file that has not changed since is not waited for again. Raises OSError."""
        found = {path: path.stat() for path in self._inputs if path.exists()}
        new = {path: (each.st_ino, each.st_mtime_ns) for path, each in found.items()}
        changed = [path for path, state in new.items() if self._synced.get(path) != state]
        for path in changed:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        for folder in (
            [self.path, *([] if self._synced else [self.path.parent, self.path.parent.parent])] if changed else []
        ):
            sync_folder(folder)
        self._synced = new

    @property
    def _inputs(self) -> list[Path]:
        """The files that say what the run is made of, whether or not they exist."""
        code = [self.bundle, self.patch, self.code]
        surroundings = [self.environment, self.dockerfile, self.pylock]
        return [
            self.settings,
            self.origins,
            *code,
            self.data,
            self.input_audit,
            *surroundings,
            self.privacy,
            self.identity,
        ]

    def artifacts(self) -> list[Path]:
        """The existing files that are logged under `run/`, the journal after what reaches the checkpoints that it tells of."""
        written = [self.trace, self.barriers, self.journal, self.streams, self.times, self.timeline, self.tuning]
        files = [*self._inputs, *written, self.card, self.page, self.verdict, self.error, self.memory]
        return [file for file in files if file.exists()]


def _require_own_files(folder: Path) -> None:
    """Raises UsageError if a file of a record is a link that leads out of it, or a device. Another user of a shared store may
    have put it there, so that a file of this user's is read or written, or something without end. Folders and weights may lie
    on another disk."""
    try:
        entries = list(os.scandir(folder))
    except PermissionError as error:
        raise UsageError(
            f"the record {folder} cannot be read: {error.strerror}",
            "ask the user who launched the run for the right to read it, such as chmod -R g+rwX for your group",
            code="record.not-yours",
        ) from error
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # it has just got its final name
            kind = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(kind) or entry.is_dir() or entry.name.endswith(".safetensors"):
                continue
            if stat.S_ISLNK(kind) and Path(os.path.realpath(entry)).is_relative_to(os.path.realpath(folder)):
                continue
            what = "a link that leads out of the record" if stat.S_ISLNK(kind) else "no plain file"
            raise UsageError(
                f"{entry.path} is refused: it is {what}",
                "ask who put it there, and remove it; the file itself may be among the artifacts of the run",
                code="record.file-refused",
            )


def is_driven(folder: Path, run_id: str) -> bool:
    """Whether a process keeps others away from this run. folder: the project's `.orchestrator`."""
    place = folder / run_id
    if not place.exists():
        return False
    # Nobody else can tell of one that another user keeps to themselves.
    return not os.access(place, os.R_OK | os.X_OK) or RunFolder(folder, run_id).is_driven


def has_begun(place: Path) -> bool:
    """Whether the run of this folder came as far as to have its code recorded: before that nothing is computed."""
    return any((place / name).exists() for name in (_JOURNAL, _TRACE))


def read_json(path: Path) -> dict[str, Any]:
    """The contents of a file of a run's folder; empty if there is no such file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    put(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def put(path: Path, content: str | bytes) -> None:
    """Write the whole file, or leave the one before: a disk that takes nothing is reported by the trace, and does not end
    the run here. Half of a character, as of a file's name that is not UTF-8, is written as JSON and Python escape it."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_bytes(content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
        unfinished.rename(path)
    except OSError:
        with contextlib.suppress(OSError):  # of a file system that has become read-only
            unfinished.unlink()
