"""The cache of a node: whole files by content, never more bytes than the limit, whoever dies in between."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.data.files import cache as module
from orchestrator.data.files import waiting
from orchestrator.data.files.cache import Cache, NoRoom
from orchestrator.data.files.manifest import File
from orchestrator.errors import StopsWaiting
from tests.refusals import refused

pytestmark = pytest.mark.slow


def _content(name: str, size: int) -> bytes:
    return (name.encode() * size)[:size]


def _file(name: str, size: int) -> File:
    return File(name, 1, size, hashlib.md5(_content(name, size)).hexdigest())


class Store:
    """Files whose content follows from their names. answers: what to raise first, by turn."""

    folder = None

    def __init__(self, *answers: OSError, sizes: dict[str, int] | None = None) -> None:
        self.answers = list(answers)
        self.sizes = sizes or {}
        self.fetched: list[str] = []

    def describe(self, path: str) -> str:
        return f"store/{path}"

    def names(self) -> list[str]:
        return []

    def write(self, path: str, data: bytes) -> None:
        pass

    def chunks(self, path: str) -> Iterator[bytes]:
        if self.answers:
            raise self.answers.pop(0)
        self.fetched.append(path)
        data = _content(path, self.sizes[path])
        yield data[: len(data) // 2]
        yield data[len(data) // 2 :]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != "taken")


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    asked=st.lists(st.integers(0, 7), max_size=30),
    limit=st.integers(40, 120),
)
def test_what_is_held_is_right_and_within_the_limit(
    sizes: list[int], asked: list[int], limit: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    files = [_file(f"f{number}", size) for number, size in enumerate(sizes)]
    store, cache = Store(sizes={file.path: file.size for file in files}), Cache(folder, limit)
    held: list[module.HeldFile] = []
    for number in asked:
        file = files[number % len(files)]
        try:
            held.append(cache.hold(file, store, wait=False))
        except NoRoom:
            assert sum(os.fstat(each.descriptor).st_size for each in held) + file.size > limit
            while held:
                held.pop().close()
            held.append(cache.hold(file, store))
        assert held[-1].path.read_bytes() == _content(file.path, file.size)
        assert _bytes(folder) <= limit
        if len(held) > 2:
            held.pop(0).close()
    for each in held:
        each.close()


def test_the_home_of_the_user_is_meant_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a folder `~` appears in the project."""
    monkeypatch.setenv("HOME", str(tmp_path))
    limit, before, patience_s = module.used()
    try:
        module.use(limit, "~/kept", patience_s)
        assert module.folder() == tmp_path / "kept"
        module.use(limit, "~nobody-at-all/kept", patience_s)
        with refused("settings.place", "data.cache_folder: ~nobody-at-all/kept"):
            module.folder()
    finally:
        module.use(limit, before, patience_s)


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    files = {name: _file(name, 30) for name in "abcd"}
    store, cache = Store(sizes=dict.fromkeys("abcd", 30)), Cache(tmp_path, 90)
    for name in "abcab":
        cache.hold(files[name], store).close()
    cache.hold(files["d"], store).close()
    assert [cache.has(files[name]) for name in "abcd"] == [True, True, False, True]
    assert store.fetched == ["a", "b", "c", "d"]


def test_many_small_files_are_seldom_counted_and_stay_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    usual = Cache._files

    def files(cache: Cache) -> dict[str, int]:
        found = usual(cache)
        counted.append(len(found))
        return found

    monkeypatch.setattr(Cache, "_files", files)
    cache, names = Cache(tmp_path, 200), [str(number) for number in range(400)]
    store = Store(sizes=dict.fromkeys(names, 1))
    for name in names:
        cache.hold(_file(name, 1), store).close()
        assert _bytes(tmp_path) <= 200
    assert len(counted) < 25
    assert [cache.has(_file(name, 1)) for name in names[-150:]] == [True] * 150


@pytest.mark.parametrize("left", [b"", b"\0\0\0\0", b"7", b"many"])
def test_a_number_that_a_power_cut_has_left_is_none(left: bytes, tmp_path: Path) -> None:
    cache, store = Cache(tmp_path, 90), Store(sizes=dict.fromkeys("abc", 40))
    for name in "ab":
        cache.hold(_file(name, 40), store).close()
    (tmp_path / "taken").write_bytes(left)
    cache.hold(_file("c", 40), store).close()
    assert _bytes(tmp_path) == 80


def test_nothing_is_written_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "own").write_text("mine")
    (tmp_path / "cache" / "taken").symlink_to(tmp_path / "own")
    Cache(tmp_path / "cache", 90).hold(_file("a", 40), Store(sizes={"a": 40})).close()
    assert (tmp_path / "own").read_text() == "mine"


def test_what_else_lies_in_its_folder_is_neither_removed_nor_counted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_bytes(bytes(80))
    (tmp_path / "results").mkdir()
    store, cache = Store(sizes=dict.fromkeys("abc", 30)), Cache(tmp_path, 90)
    for name in "abcabc":
        cache.hold(_file(name, 30), store).close()
    assert store.fetched == ["a", "b", "c"]
    store.sizes["d"] = 30
    cache.hold(_file("d", 30), store).close()
    assert (tmp_path / "thesis.tex").exists()
    assert (tmp_path / "results").exists()


def test_who_fetches_ahead_gives_a_store_up_that_hangs_and_who_reads_has_its_turn(tmp_path: Path) -> None:
    answers, store = threading.Event(), Store(sizes={"a": 30})

    class Hanging(Store):
        def chunks(self, path: str) -> Iterator[bytes]:
            answers.wait(20)
            yield from super().chunks(path)

    cache = Cache(tmp_path, 90, patience_s=0.2)
    try:
        with pytest.raises(OSError, match="does not answer"):
            cache.bring(_file("a", 30), Hanging(sizes={"a": 30}))
        with cache.hold(_file("a", 30), store).path.open("rb") as held:
            assert held.read() == _content("a", 30)
    finally:
        answers.set()
    assert cache.has(_file("a", 30))


def test_what_a_power_cut_has_left_is_hashed_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may have given it its size and not its content."""
    files = {name: _file(name, 30) for name in "ab"}
    store, cache = Store(sizes=dict.fromkeys("ab", 30)), Cache(tmp_path, 90)
    for file in files.values():
        cache.hold(file, store).close()
    (tmp_path / files["a"].md5).write_bytes(bytes(30))
    with monkeypatch.context() as patched:
        patched.setattr(time, "clock_gettime_ns", lambda _: 0)  # the machine has come up just now
        for file in files.values():
            cache.expects(file)
            cache.forgets(file)
            with cache.hold(file, store).path.open("rb") as held:
                assert held.read() == _content(file.path, 30)
    assert store.fetched == ["a", "b", "a"]


def test_a_full_disk_is_told_with_the_setting_and_a_folder_that_is_gone_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = Store(sizes={"a": 30}), Cache(tmp_path / "cache", 90)
    shutil.rmtree(tmp_path / "cache")
    with monkeypatch.context() as patched, refused("data.cache-disk", "No space left on device"):
        patched.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(28))))
        cache.hold(_file("a", 30), store)
    shutil.rmtree(tmp_path / "cache")
    cache.hold(_file("a", 30), store).close()
    assert cache.has(_file("a", 30))


class Clock:
    """Time passes while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        monkeypatch.setattr("orchestrator.data.files.waiting.time.monotonic", lambda: self._now)
        monkeypatch.setattr("orchestrator.data.files.waiting.time.sleep", self._pass)

    def _pass(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def told() -> Iterator[list[str]]:
    lines: list[str] = []
    waiting.listen(lines.append)
    yield lines
    waiting.listen(lambda _: None)


def test_a_store_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    Clock(monkeypatch)
    store = Store(*[ConnectionResetError("reset")] * 7, sizes={"a": 9})
    cache = Cache(tmp_path, 90)
    assert cache.hold(_file("a", 9), store).path.read_bytes() == _content("a", 9)
    asked = [line for line in told if "asked again" in line]
    assert asked[0] == "waiting for store/a: reset; asked again in 0.5 s (0 s so far)"
    assert [line.partition(" in ")[2] for line in asked[3:]] == [
        *("4 s (4 s so far)", "8 s (8 s so far)", "15 s (16 s so far)", "15 s (30 s so far)")
    ]
    impatient = Cache(tmp_path, 90, patience_s=0.1)
    with refused("data.store-timeout"):
        impatient.hold(_file("b", 9), Store(ConnectionResetError("reset"), sizes={"b": 9}))


def test_who_waits_for_a_store_lives_and_can_be_called_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    lives: list[int] = []

    def alive() -> None:
        lives.append(1)
        if len(lives) == 9:
            raise StopsWaiting("regroup")

    waiting.listen(lambda _: None, alive)
    try:
        with pytest.raises(StopsWaiting):
            Cache(tmp_path, 90).hold(_file("a", 9), Store(*[ConnectionResetError("reset")] * 9, sizes={"a": 9}))
    finally:
        waiting.listen(lambda _: None)
    assert _bytes(tmp_path) == 0


def test_a_store_that_hangs_is_waited_for_as_long_as_is_said(tmp_path: Path) -> None:
    hangs = threading.Event()

    class Hanging(Store):
        def chunks(self, path: str) -> Iterator[bytes]:
            hangs.wait(60)
            yield from super().chunks(path)

    with refused("data.store-timeout"):
        Cache(tmp_path, 90, patience_s=0.6).hold(_file("a", 9), Hanging(sizes={"a": 9}))
    hangs.set()


def test_random_numbers_are_those_of_a_store_that_answers_at_once(tmp_path: Path) -> None:
    """Libraries draw from them for the pauses between their tries."""

    class Drawing(Store):
        def chunks(self, path: str) -> Iterator[bytes]:
            random.random()
            return super().chunks(path)

    random.seed(3)
    expected = random.random()
    random.seed(3)
    Cache(tmp_path, 90).hold(_file("a", 9), Drawing(sizes={"a": 9}))
    assert random.random() == expected


def test_bytes_are_counted_by_where_they_came_from(tmp_path: Path) -> None:
    store, cache = Store(sizes={"a": 60, "b": 30}), Cache(tmp_path, 90)
    waiting.take_counts()
    for name, size in (("a", 60), ("b", 30), ("a", 60)):
        cache.hold(_file(name, size), store).close()
    assert waiting.take_counts() == waiting.BytesRead(fetched=90, cached=60)
    assert waiting.take_counts() == waiting.BytesRead()


def test_what_is_fetched_ahead_takes_the_room_of_what_nobody_expects(tmp_path: Path) -> None:
    files = {name: _file(name, 30) for name in "abcd"}
    store, cache = Store(sizes=dict.fromkeys("abcd", 30)), Cache(tmp_path, 90)
    for name in "abc":
        assert cache.bring(files[name], store)
    cache.forgets(files["c"])
    assert cache.bring(files["d"], store)
    assert [cache.has(files[name]) for name in "abcd"] == [True, True, False, True]
    held = [cache.hold(files[name], store) for name in "abd"]
    assert not cache.bring(files["c"], store)
    assert not cache.bring(files["a"], store)
    assert store.fetched == ["a", "b", "c", "d"]
    assert cache.sign(module.WISHED) > cache.sign(module.WANTED) == 0
    held.pop().close()
    with pytest.raises(ConnectionResetError):
        cache.bring(files["c"], Store(ConnectionResetError("reset")))
    assert _bytes(tmp_path) == 60


def test_a_file_that_is_not_what_was_listed_is_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 90)
    for store, code in (
        (Store(sizes={"a": 8}), "data.file-altered"),
        (Store(FileNotFoundError("gone")), "data.file-unreadable"),
        (Store(PermissionError("no right")), "data.file-unreadable"),
    ):
        with refused(code, "store/a"):
            cache.hold(_file("a", 9), store)
        assert not cache.has(_file("a", 9))
        assert _bytes(tmp_path) == 0
    with refused("data.cache-file", "data.cache_gb"):
        cache.hold(_file("a", 91), Store())


def _fetch_and_hang(folder: Path, begun: Any) -> None:
    class Slow(Store):
        def chunks(self, path: str) -> Iterator[bytes]:  # noqa: ARG002
            yield b"half"
            begun.set()
            signal.pause()

    Cache(folder, 90).hold(_file("a", 60), Slow())


def test_room_that_a_killed_process_took_is_free_again(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_fetch_and_hang, args=(tmp_path, begun))
    process.start()
    assert begun.wait(60)
    with pytest.raises(NoRoom):
        Cache(tmp_path, 90).hold(_file("b", 60), Store(sizes={"b": 60}), wait=False)
    process.kill()
    process.join()
    store = Store(sizes={"a": 60, "b": 60})
    assert Cache(tmp_path, 90).hold(_file("b", 60), store).path.read_bytes() == _content("b", 60)
    assert _bytes(tmp_path) <= 90


def test_who_finds_no_room_waits_for_one_who_reads(tmp_path: Path) -> None:
    store, cache = Store(sizes={"a": 60, "b": 60}), Cache(tmp_path, 90)
    reading = cache.hold(_file("a", 60), store)
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(cache.hold(_file("b", 60), store).path.read_bytes()))
    waiting.start()
    reading.close()
    waiting.join(30)
    assert found == [_content("b", 60)]


def test_who_waits_for_one_that_wants_room_gives_way(tmp_path: Path) -> None:
    """One fetches a file and lacks the room that the other keeps, who waits for this file."""
    store, cache = Store(sizes={"a": 60, "b": 60}), Cache(tmp_path, 90)
    kept = cache.hold(_file("a", 60), store)
    fetching = threading.Thread(target=lambda: cache.hold(_file("b", 60), store).close())
    fetching.start()
    with pytest.raises(NoRoom):
        cache.hold(_file("b", 60), store, wait=False)
    kept.close()
    fetching.join(30)
    assert cache.has(_file("b", 60))


def test_two_who_want_the_same_fetch_it_once(tmp_path: Path) -> None:
    store = Store(sizes={"a": 60})
    caches = [Cache(tmp_path, 90) for _ in range(4)]
    threads = [threading.Thread(target=cache.hold, args=(_file("a", 60), store)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.fetched == ["a"]
