"""The contract of a place for checkpoints, held by each kind; and what a local folder promises beyond it."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import secrets
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.storage import LocalFolder, Remote, Storage, open_shared, open_storage, try_out
from tests.checkpoint.stores import InMemory
from tests.refusals import refused

KINDS = ["path", "file url", "memory url", "local url by fsspec", "double"]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    places: dict[str, Any] = {
        "path": lambda: open_storage(tmp_path / "with space" / "checkpoints"),
        "file url": lambda: open_storage(f"file://{tmp_path}/with%20space/checkpoints"),
        "memory url": lambda: open_storage(f"memory://{secrets.token_hex(8)}/checkpoints"),
        "local url by fsspec": lambda: Remote(f"file://{tmp_path}/checkpoints"),
        "double": InMemory,
    }
    made: Storage = places[request.param]()
    return made


def test_what_was_put_is_there(storage: Storage) -> None:
    assert storage.sizes() == {}
    storage.put("a", [b"12", memoryview(b"345")])
    storage.put("b", [])
    storage.put("c", [memoryview(b"")])
    assert storage.sizes() == {"a": 5, "b": 0, "c": 0}
    assert (storage.get("a"), storage.get("b")) == (b"12345", b"")


def test_a_second_put_replaces(storage: Storage) -> None:
    storage.put("a", [b"a longer first one"])
    storage.put("a", [b"second"])
    assert (storage.sizes(), storage.get("a")) == ({"a": 6}, b"second")


def test_deleting_is_final_and_may_be_repeated(storage: Storage) -> None:
    storage.put("a", [b"1"])
    storage.delete("a")
    storage.delete("a")
    storage.delete("never there")
    assert storage.sizes() == {}
    with pytest.raises(FileNotFoundError):
        storage.get("a")


def test_file_urls_are_local_folders(tmp_path: Path) -> None:
    assert isinstance(open_storage(f"file://{tmp_path}"), LocalFolder)
    assert isinstance(open_storage("memory://x"), Remote)


def test_the_home_of_the_user_is_meant_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", f"{tmp_path}/me")
    try_out("~/kept")
    assert names(tmp_path) == ["me"]


@pytest.mark.parametrize("place", ["nosuch://bucket/x", "/dev/null/x", "file:///dev/null/x", "~nobody-at-all/x"])
def test_places_that_cannot_be_are_refused(place: str) -> None:
    with refused("settings.place", place.removeprefix("file://")):
        open_storage(place)


@pytest.mark.parametrize("place", ["file://", "file:///", "file:/data", "file:data", "s3://"])
def test_a_url_without_a_place_is_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints went to a folder `file:` of the project."""
    monkeypatch.chdir(tmp_path)
    with refused("checkpoint.no-place", place):
        try_out(place)
    assert names(tmp_path) == []


def test_a_place_is_tried_out_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_out(str(tmp_path))
    assert names(tmp_path) == []
    with monkeypatch.context() as patched:
        _fail(patched, "Path.replace", 0)
        with refused("checkpoint.place-unwritable"):
            try_out(str(tmp_path))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_this_node_lacks_or_may_not_write_is_refused_before_a_part_is(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checkpoint failed with a warning, and nothing was saved."""
    open_shared(f"{scheme}{tmp_path}").put("a", [b"1"])
    assert names(tmp_path) == ["a"]
    with refused("checkpoint.node-cannot-write", f"{tmp_path}/elsewhere"):
        open_shared(f"{scheme}{tmp_path}/elsewhere")
    assert names(tmp_path) == ["a"]
    _fail(monkeypatch, "Path.replace", 0)
    with refused("checkpoint.node-cannot-write") as raised:
        open_shared(f"{scheme}{tmp_path}")
    assert "as the user who launches" in raised.value.remedy


def test_a_missing_bucket_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs would: a slip of the pen in its name made a new one."""
    remote = Remote("memory://bucket")
    made: list[Any] = []

    def fails(*_: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(remote, "_root", "bucket/checkpoints")
    monkeypatch.setattr(remote._files, "pipe_file", fails)
    monkeypatch.setattr(remote._files, "mkdir", made.append)
    with pytest.raises(OSError, match="bucket does not exist"):
        remote.put("a", [b"1"])
    assert made == []


def test_no_byte_is_asked_for_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 gives the whole file for such a range, or refuses it."""
    place = Remote(f"memory://{secrets.token_hex(8)}")
    place.put("a", [b"12345"])
    monkeypatch.setattr(place._files, "cat_file", lambda *_arguments, **_options: b"12345")
    assert place.get("a", 3, 3) == b""


def test_errors_of_other_libraries_become_os_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote("memory://errors")

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("token expired")

    monkeypatch.setattr(remote._files, "pipe_file", fails)
    with pytest.raises(OSError, match="ValueError: token expired"):
        remote.put("a", [b"1"])


@pytest.mark.parametrize("call", ["os.write", "os.fsync", "Path.replace", "os.open"])
@pytest.mark.parametrize("after", range(3))
def test_a_put_that_fails_anywhere_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: int
) -> None:
    storage = LocalFolder(tmp_path)
    storage.put("a", [b"old"])
    with monkeypatch.context() as patched:
        _fail(patched, call, after)
        try:
            storage.put("a", [b"n", b"ew"])
            expected = {b"new"}
        except OSError:
            expected = {b"old", b"new"}
    assert storage.get("a") in expected
    assert names(tmp_path) == ["a"]
    storage.put("a", [b"another"])
    assert storage.get("a") == b"another"


def test_no_call_writes_so_much_that_the_kernel_makes_room_for_large_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 300 MB take up to 0.7 s of processor time in place of 0.08 s (docs/benchmarks/engine.md)."""
    sizes: list[int] = []
    write = os.write

    def counted(file: int, data: memoryview) -> int:
        sizes.append(len(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", counted)
    LocalFolder(tmp_path).put("a", [b"x" * (1 << 20), b"y"])
    assert max(sizes) <= 512 << 10
    assert sum(sizes) == (1 << 20) + 1


def test_a_file_system_without_locks_holds_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre mounted without them. The unfinished file of a dead writer stays there."""

    def lock(descriptor: int, operation: int) -> None:  # noqa: ARG001
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", lock)
    (tmp_path / ".writing-0123").write_bytes(b"torn")
    LocalFolder(tmp_path).put("a", [b"1"])
    assert (LocalFolder(tmp_path).sizes(), names(tmp_path)) == ({"a": 1}, [".writing-0123", "a"])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_that_does_not_sync_folders_holds_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A disk that fails is an error all the same."""
    true_fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        true_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    with pytest.raises(OSError, match="Input/output") if number == errno.EIO else nullcontext():
        LocalFolder(tmp_path / "new").put("a", [b"1"])
        assert LocalFolder(tmp_path / "new").get("a") == b"1"


def test_a_file_that_may_not_grow_is_given_up_whole(tmp_path: Path) -> None:
    """A true refusal by the kernel, half way through a write."""
    storage = LocalFolder(tmp_path)
    with _file_size_limit(1 << 16), pytest.raises(OSError, match="File too large"):
        storage.put("a", [b"x" * (1 << 17)])
    assert names(tmp_path) == []


def test_what_a_dead_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    storage = LocalFolder(tmp_path)
    (tmp_path / ".writing-0123").write_bytes(b"torn")
    reached, go_on = threading.Event(), threading.Event()

    class Slow(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"1"
            reached.set()
            assert go_on.wait(60)
            yield b"2"

    writer = threading.Thread(target=storage.put, args=("a", Slow()))
    writer.start()
    assert reached.wait(60)
    assert storage.sizes() == {}
    LocalFolder(tmp_path)
    assert ".writing-0123" not in names(tmp_path)
    go_on.set()
    writer.join()
    assert (storage.sizes(), storage.get("a")) == ({"a": 2}, b"12")


def test_what_a_dead_writer_left_stays_where_nothing_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalFolder(tmp_path).put("a", [b"1"])
    (tmp_path / ".writing-0123").write_bytes(b"torn")

    def refused_by_kernel(path: Path, *, missing_ok: bool) -> None:  # noqa: ARG001
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refused_by_kernel)
    assert LocalFolder(tmp_path).get("a") == b"1"


@pytest.mark.parametrize(("call", "number"), [("open", errno.EROFS), ("write", errno.ENOSPC)])
def test_all_writers_say_the_same_of_a_folder_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Each part of a checkpoint was told by a random name, so that one trouble had a warning for each."""
    storage = LocalFolder(tmp_path)

    def refused_by_kernel(file: Path | int, *_: object) -> None:
        raise OSError(number, os.strerror(number), *([str(file)] if isinstance(file, Path) else []))

    monkeypatch.setattr(os, call, refused_by_kernel)
    for name in ("a", "b"):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            storage.put(name, [b"1"])
        assert str(caught.value) == f"[Errno {number}] {os.strerror(number)}: '{tmp_path}'"


KILLED = """
import os, signal, sys
from pathlib import Path
from orchestrator.checkpoint.storage import LocalFolder
def pieces():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)
LocalFolder(Path(sys.argv[1])).put("a", pieces())
"""


@pytest.mark.slow
def test_a_writer_killed_half_way_leaves_nothing_that_counts(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode < 0
    assert len(names(tmp_path)) == 1
    assert LocalFolder(tmp_path).sizes() == {}
    assert names(tmp_path) == []


def test_a_writer_whose_file_was_taken_for_abandoned_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between making the file and locking it."""
    storage = LocalFolder(tmp_path)
    true_open, sweeps = os.open, iter([True])

    def open_then_sweep(path: Path, flags: int, *mode: int) -> int:
        descriptor = true_open(path, flags, *mode)
        if flags & os.O_CREAT and next(sweeps, False):
            LocalFolder(tmp_path)
            assert names(tmp_path) == []
        return descriptor

    monkeypatch.setattr(os, "open", open_then_sweep)
    storage.put("a", [b"1"])
    assert (names(tmp_path), storage.get("a")) == (["a"], b"1")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _fail(patched: pytest.MonkeyPatch, call: str, after: int) -> None:
    holder = {"os": os, "Path": Path}[call.split(".")[0]]
    name = call.split(".")[1]
    true, left = getattr(holder, name), iter(range(after))

    def fails(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise OSError(f"{call} fails")
        return true(*arguments, **options)

    patched.setattr(holder, name, fails)


@contextmanager
def _file_size_limit(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
