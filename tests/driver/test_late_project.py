"""Members that start after files of the project were changed compute with what the run began with, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any, cast
from unittest.mock import Mock

import pytest

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement.project_transfer import Workspace
from orchestrator.driver.recording.project_files import ProjectFiles
from orchestrator.driver.recording.record import Record
from orchestrator.driver.run.late_project import LateProject
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.code.worktree import examine
from orchestrator.provenance.data.hashing import scan_input
from tests.provenance.code.repositories import create

HERE = ActorPlacement("/project", {"num_cpus": 1})


class Recording:
    """A record whose files are, or are not, as they were."""

    def __init__(self, restorable: bool = True) -> None:
        self.now: list[str] = []
        self.looked = 0
        self.outside: list[str] = []
        self.checkouts: list[str] = []
        self._restorable = restorable

    def changed(self) -> list[str]:
        self.looked += 1
        return self.now

    @contextlib.contextmanager
    def checked_out(self) -> Iterator[Path]:
        if not self._restorable:
            raise NotRerunnable("the data of this run cannot be restored", code="dvc.not-restored")
        self.checkouts.append("made")
        yield Path("/checkout")
        self.checkouts.append("gone")

    def search_path(self) -> tuple[str, ...]:
        return ("src",)

    def files_in(self, checkout: Path) -> Any:
        assert checkout == Path("/checkout")
        return self

    def changed_inputs(self, among: list[str]) -> list[str]:
        return [path for path in among if path in self.outside]


def late_project(record: Recording, held: contextlib.ExitStack, said: list[str]) -> LateProject:
    opening: Future[Any] = Future()
    begun = Event()
    opening.set_result(record)
    workspace = lambda place: Workspace(str(place), {"a": 1})  # noqa: E731
    found = LateProject(cast(Future[Record], opening), begun, held, said.append, workspace)
    assert found.place(HERE) is None  # one of the first members
    begun.set()
    return found


def test_those_after_the_first_that_is_refused_work_in_the_checkout() -> None:
    record = Recording()
    said: list[str] = []
    with contextlib.ExitStack() as held:
        late = late_project(record, held, said)
        record.now = ["data/digits"]
        assert late.check() is None  # the first members are not asked
        assert record.looked == 0
        assert late.place(HERE) is None
        assert late.check() == "data/digits changed since the run began"
        assert late.place(HERE) == ActorPlacement(
            "/checkout", {"num_cpus": 1, "runtime_env": {"a": 1}}, search_path=("src",)
        )
        assert late.check() is not None  # another one that had been placed before
        assert record.checkouts == ["made"]
        assert late.check(in_copy=True) is None
        record.outside = ["data/digits"]
        assert (
            late.check(in_copy=True)
            == "data/digits changed since the run began, outside of the repository; put it back"
        )
    assert record.checkouts == ["made", "gone"]
    assert said == [
        "note: data/digits changed since the run began; workers that start from now on have what it began with"
    ]


def test_a_copy_of_changed_files_is_not_used() -> None:
    """It is looked at anew, however lately it was."""
    record = Recording()
    with contextlib.ExitStack() as held:
        late = late_project(record, held, [])
        record.now = ["data/digits"]
        assert not late.has_changed()  # the first members are not asked
        record.now = []
        assert late.place(HERE) is None
        assert not late.has_changed()
        record.now = ["data/digits"]
        assert late.has_changed()
        assert late.place(HERE) is not None
    assert record.looked == 2


def test_what_cannot_be_restored_is_refused_until_it_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recording(restorable=False)
    said: list[str] = []
    now = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)) * 1000)
    with contextlib.ExitStack() as held:
        late = late_project(record, held, said)
        late.place(HERE)
        record.now = ["a", "b", "c", "d"]
        why = late.check()
        assert why is not None
        assert why.endswith("the data of this run cannot be restored; put back what the run began with")
        assert late.place(HERE) is None
        record.now = []
        for _ in range(20):
            late.check()
        assert late.check() is None
    assert said == []


def test_a_look_that_takes_long_is_not_made_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    record, now = Recording(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def changed() -> list[str]:
        record.looked += 1
        now[0] += 2.0
        return []

    record.changed = changed  # type: ignore[method-assign]
    with contextlib.ExitStack() as held:
        late = late_project(record, held, [])
        late.place(HERE)
        for _ in range(100):
            assert late.check() is None
            now[0] += 1.0
    assert record.looked == 20  # for five members each


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return create(tmp_path, {"data/rows.txt": "12", "data/more.txt": "3", "one.txt": "4", "code.py": "x = 1\n"})


def same_size_and_time(file: Path) -> None:
    status = file.stat()
    file.write_text("z" * status.st_size)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda _top: None, []),
        (lambda top: (top / "data" / "rows.txt").write_text("12"), []),  # the same bytes, written again
        (lambda top: same_size_and_time(top / "data" / "rows.txt"), ["data"]),
        (lambda top: (top / "data" / "new.txt").write_text(""), ["data"]),
        (lambda top: (top / "data" / "more.txt").unlink(), ["data"]),
        (lambda top: (top / "one.txt").unlink(), ["one.txt"]),
        (lambda top: (top / "code.py").write_text("x = 2\n"), ["code.py"]),
        (lambda top: (top / "code.py").unlink(), ["code.py"]),
        (lambda top: (top / "other.py").write_text(""), []),
    ],
)
def test_inputs_and_modules_are_looked_at_by_their_bytes(project: Path, change: Any, expected: list[str]) -> None:
    scans = {path: scan_input(project, path) for path in ("data", "one.txt")}
    sha256 = hashlib.sha256((project / "code.py").read_bytes()).hexdigest()
    modules: dict[str, dict[str, Any]] = {
        "code": {"kind": "snapshot", "path": "code.py", "sha256": sha256},
        "elsewhere": {"kind": "repository", "path": None, "sha256": ""},
    }
    files = ProjectFiles(project, examine(project), scans)
    change(project)
    for _ in range(2):
        assert [*files.changed_inputs(), *files.changed_modules(modules)] == expected
        assert [*files.changed_inputs(), *files.changed_modules({})] == expected  # no worker has told yet


def test_in_a_checkout_workers_may_write_a_cache(project: Path) -> None:
    files = ProjectFiles(Path("/elsewhere"), None, {"data": scan_input(project, "data")})
    assert files.names == {"data": {"rows.txt", "more.txt"}}
    assert files.changed_inputs() == ["data"]
    checkout = files.of(project)
    (project / "data" / "cache").write_text("c")
    assert checkout.changed_inputs() == []
    (project / "data" / "rows.txt").write_text("13")
    assert (checkout.changed_inputs([]), checkout.changed_inputs(["data"])) == ([], ["data"])


def test_a_disk_that_is_full_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record, now = Recording(), iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)) * 1000)
    checked_out = record.checked_out
    said: list[str] = []
    with contextlib.ExitStack() as held:
        late = late_project(record, held, said)
        late.place(HERE)
        record.now = ["nets.py"]
        record.checked_out = Mock(side_effect=OSError(28, "No space left on device"))  # type: ignore[method-assign]
        why = late.check()
        assert why is not None
        assert "No space left on device; put back what the run began with" in why
        record.checked_out = checked_out  # type: ignore[method-assign]
        while late.place(HERE) is None:
            assert late.check() is not None
        assert late.check() == "nets.py changed since the run began"
    assert len(said) == 1


def test_what_was_written_is_read_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ProjectFiles(project, None, {"data": scan_input(project, "data")})
    (project / "data" / "rows.txt").write_text("12")
    assert files.changed_inputs() == []
    monkeypatch.setattr("orchestrator.provenance.data.hashing._md5_of_file", lambda _path: pytest.fail("it was read"))
    assert files.changed_inputs() == []
