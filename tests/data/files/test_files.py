"""Data sets of many files: samples by number whatever the format, and never a wrong one."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import os
import pickle
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Files
from orchestrator.data.files import cache, manifest, waiting
from orchestrator.data.files.index import Kept, index
from orchestrator.data.files.manifest import File, Manifest
from orchestrator.data.mixture import Sources
from orchestrator.errors import DataDamaged
from tests.refusals import refused

ROWS = [[{"text": f"{file}-{row}", "n": row} for row in range(count)] for file, count in enumerate((3, 1, 4))]


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _tar(rows: list[dict[str, Any]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for row in rows:
            for extension, text in (("txt", row["text"]), ("meta.n", str(row["n"]))):
                member = tarfile.TarInfo(f"part/{row['text']}.{extension}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def _arrow(rows: list[dict[str, Any]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, row_group_size=2)
    return bytes(sink.getvalue())


def _as_is(sample: Any) -> Any:
    return sample


def _of_tar(sample: dict[str, Any]) -> dict[str, Any]:
    assert sample["__key__"] == f"part/{sample['txt'].decode()}"
    return {"text": sample["txt"].decode(), "n": int(sample["meta.n"])}


FORMATS: dict[str, Any] = {
    "jsonl": (_jsonl, _as_is),
    "jsonl.gz": (lambda rows: gzip.compress(_jsonl(rows)), _as_is),
    "parquet": (_parquet, _as_is),
    "arrow": (_arrow, _as_is),
    "tar": (_tar, _of_tar),
}


def _folder(at: Path, suffix: str = "jsonl") -> Path:
    at.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(ROWS):
        (at / f"{number}.{suffix}").write_bytes(FORMATS[suffix][0](rows))
    index(str(at), None, {})
    return at


@pytest.mark.parametrize("suffix", FORMATS)
def test_samples_are_found_by_number_in_every_format(suffix: str, tmp_path: Path) -> None:
    files = Files(_folder(tmp_path / "set", suffix))
    expected = [row for rows in ROWS for row in rows]
    read = FORMATS[suffix][1]
    assert len(files) == len(expected)
    assert list(files.file_lengths) == [3, 1, 4]
    for number in (7, 0, 3, 2, 5, 1, 6, 4):
        assert read(files[number]) == expected[number]
    with pytest.raises(IndexError):
        files[8]
    files.close()


def test_a_sample_that_is_twice_in_a_batch_is_two_objects(tmp_path: Path) -> None:
    """As where samples are drawn with replacement: what makes a batch of it may change it."""
    files = Files(_folder(tmp_path / "set", "jsonl"))
    found = files.__getitems__([3, 0, 3, 7])
    assert found == [files[3], files[0], files[3], files[7]]
    found[0].clear()
    assert found[2] == files[3]
    files.close()


def test_files_that_are_a_sample_each(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(label.encode())
    index(str(tmp_path), "whole", {})
    assert [Files(tmp_path)[number] for number in (0, 1)] == [
        {"bytes": label.encode(), "name": f"{label}/1.png", "label": label} for label in ("cat", "dog")
    ]


@given(
    st.lists(st.tuples(st.text(min_size=1), st.integers(0, 9), st.integers(0, 10**12), st.text()), max_size=9),
    st.dictionaries(st.text(), st.integers()),
    st.none() | st.text(),
)
def test_a_manifest_is_read_as_it_was_written(
    files: list[tuple[str, int, int, str]], options: dict[str, int], place: str | None
) -> None:
    made = Manifest("jsonl", tuple(File(path, n, size, "0" * 32, at) for path, n, size, at in files), options, place)
    assert manifest.begins(made.written()[:256])
    try:
        assert manifest.read(made.written(), "here") == made
    except DataDamaged as error:
        assert "times" in error.message or "lists" in error.message  # noqa: PT017


MD5 = "0" * 32
WRONG: dict[str, tuple[Any, str]] = {
    "not json": (b"{", "is no list of files: JSONDecodeError"),
    "another format": (b'{"format": "files-9"}', "its format is 'files-9'"),
    "twice": (Manifest("jsonl", (File("a", 1, 1, MD5), File("a", 1, 1, MD5))).written(), "lists a 2 times"),
    "outside": (Manifest("jsonl", (File("../a", 1, 1, MD5),)).written(), "lists '../a', which is not below its folder"),
    "nothing": (Manifest("jsonl", ()).written(), "lists no file"),
    "empty": (Manifest("jsonl", (File("a", 0, 1, MD5),)).written(), "lists files without samples"),
    "without end": (b"[" * 100_000, "is no list of files: RecursionError"),
    "endless": (b'{"format": "files-1", "files": [["a", Infinity, 1, ""]]}', "is no list of files: OverflowError"),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_manifest_that_is_none_is_refused(which: str) -> None:
    data, said = WRONG[which]
    with refused("data.manifest-unfit") as caught:
        manifest.read(data, "s3://b/files.json")
    assert caught.value.message.startswith("s3://b/files.json ")
    assert said in caught.value.message


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _other_rows(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b" ", 1))


def _no_json(path: Path) -> None:
    path.write_bytes(b"x" + path.read_bytes()[1:])


DAMAGED: dict[str, tuple[Any, str]] = {
    "missing": (Path.unlink, "cannot be read: No such file"),
    "truncated": (_truncated, "has 69 bytes; its manifest says 72"),
    "other rows": (_other_rows, "has the MD5"),
    "no json": (_no_json, "has the MD5"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_is_named_and_not_read(how: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    damage, said = DAMAGED[how]
    damage(folder / "0.jsonl")
    files = Files(folder)
    with refused("data.file-unfit") as caught:
        files[0]
    assert caught.value.message.startswith(f"{folder / '0.jsonl'} ")
    assert said in caught.value.message
    assert files[3]["text"] == "1-0"


def test_a_reader_whose_count_is_wrong_is_named_by_the_file(tmp_path: Path) -> None:
    """The bytes are those of the manifest; who wrote it counted otherwise."""
    folder = _folder(tmp_path)
    listed = manifest.read((folder / manifest.NAME).read_bytes(), "")
    wrong = Manifest(listed.reader, (listed.files[0]._replace(samples=4), *listed.files[1:]), listed.options)
    (folder / manifest.NAME).write_bytes(wrong.written())
    with refused("data.file-unfit", str(folder / "0.jsonl")):
        Files(folder)[0]


def test_a_file_that_changes_is_checked_anew(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    files = Files(folder)
    assert files[0]["text"] == "0-0"
    files.close()
    _no_json(folder / "0.jsonl")
    with refused("data.file-unfit"):
        files[0]


def test_a_manifest_elsewhere_says_where_its_files_are(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "set")
    made = index(str(folder), None, {}, to=str(tmp_path / "corpus.json"))
    assert made.place == str(folder)
    assert [Files(tmp_path / "corpus.json")[number]["text"] for number in (7, 0)] == ["2-3", "0-0"]
    with refused("data.index-target"):
        index(str(folder), None, {}, to=str(tmp_path / "corpus.txt"))
    with refused("data.no-manifest", f"index=PLACE to={tmp_path / 'none.json'}"):
        Files(tmp_path / "none.json")


def test_files_can_be_kept_under_other_names(tmp_path: Path) -> None:
    """As DVC keeps them: by their MD5."""
    folder = _folder(tmp_path / "set")
    listed = manifest.read((folder / manifest.NAME).read_bytes(), "").files
    at = {file.path: f"store/{file.md5}" for file in listed}
    for file in listed:
        (tmp_path / "store").mkdir(exist_ok=True)
        (folder / file.path).rename(tmp_path / at[file.path])
    made = index("set.dvc", None, {}, to=str(tmp_path / "set.json"), kept=Kept(str(tmp_path), at))
    assert [file[:4] for file in made.files] == [file[:4] for file in listed]
    assert Files(tmp_path / "set.json")[7]["text"] == "2-3"


def test_a_folder_without_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    with refused("data.no-manifest", f"index={tmp_path}"):
        Files(tmp_path)


def test_what_cannot_be_indexed_is_refused(tmp_path: Path) -> None:
    with refused("data.index-failed"):
        index(str(tmp_path / "nowhere"), None, {})
    with refused("data.index-which-reader"):
        index(str(tmp_path), None, {})
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with refused("data.index-file"):
        index(str(tmp_path), None, {})
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    with refused("data.index-which-reader") as caught:
        index(str(tmp_path), None, {})
    assert "reader=jsonl" in str(caught.value)
    with refused("settings.no-such-variant"):
        index(str(tmp_path), "parkett", {})


def test_files_behind_links_to_folders_are_listed_and_a_link_back_is_not_followed(tmp_path: Path) -> None:
    corpus, disk = tmp_path / "corpus", tmp_path / "disk"
    (corpus / "a").mkdir(parents=True)
    disk.mkdir()
    for name, rows in zip((corpus / "a" / "0.jsonl", disk / "1.jsonl"), ROWS, strict=False):
        name.write_bytes(_jsonl(rows))
    (corpus / "b").symlink_to(disk)
    (disk / "back").symlink_to(corpus)
    (corpus / "a" / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    assert [file.path for file in index(str(corpus), None, {}).files] == ["a/0.jsonl", "b/1.jsonl"]
    assert Files(corpus)[3]["text"] == "1-0"


def test_files_of_an_object_store_are_read_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    for number, rows in enumerate(ROWS):
        store.pipe_file(f"/corpus/{number}.jsonl", _jsonl(rows))
    index("memory://corpus", None, {})
    monkeypatch.setattr(cache, "_used", {})
    cache.use(120, str(tmp_path))
    files = Files("memory://corpus")
    texts = [row["text"] for rows in ROWS for row in rows]
    assert [files[number]["text"] for number in (7, 0, 3, 6, 1)] == [texts[number] for number in (7, 0, 3, 6, 1)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 120
    store.pipe_file("/corpus/1.jsonl", b"x" * len(_jsonl(ROWS[1])))
    files.close()
    for path in tmp_path.iterdir():
        path.unlink()
    with refused("data.file-altered"):
        files[3]
    store.rm_file("/corpus/1.jsonl")
    with refused("data.file-unreadable"):
        files[3]
    files.close()


def test_a_spawned_process_reads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a DataLoader of one's own: a lock was in the way."""
    store = fsspec.filesystem("memory")
    for number, rows in enumerate(ROWS):
        store.pipe_file(f"/spawned/{number}.jsonl", _jsonl(rows))
    index("memory://spawned", None, {})
    monkeypatch.setattr(cache, "_used", {})
    cache.use(10**6, str(tmp_path / "cache"))
    files = Files("memory://spawned")
    assert files[0]["text"] == "0-0"
    pickled = pickle.dumps(files)
    cache.use(10**6, str(tmp_path / "other"))
    copied = pickle.loads(pickled)
    assert [copied[number] for number in range(len(files))] == [row for rows in ROWS for row in rows]
    assert copied.cache.folder == tmp_path / "cache"
    assert not (tmp_path / "other").exists()
    copied.close()
    assert files[0]["text"] == "0-0"
    files.close()


def _in_a_forked_process(check: Callable[[], bool]) -> bool:
    """Whether it says yes there, in time, as in a worker of a DataLoader."""
    process = os.fork()
    if not process:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(process, 0)[1] == 0


@pytest.mark.slow
def test_a_forked_process_reads_from_a_store_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system was the parent's, whose threads it has not: it asked in vain for data.store_timeout_s."""

    class Served(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(tmp_path))

        def log_message(self, *given: Any) -> None:
            pass

    for number, rows in enumerate(ROWS):
        (tmp_path / f"{number}.jsonl").write_bytes(_jsonl(rows))
    index(str(tmp_path), None, {})
    monkeypatch.setattr(cache, "_used", {})
    cache.use(10**6, str(tmp_path / "cache"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        files = Files(f"http://127.0.0.1:{server.server_port}")
        assert files[0]["text"] == "0-0"
        assert _in_a_forked_process(lambda: files[3]["text"] == "1-0")
        server.shutdown()
    files.close()


@pytest.fixture
def read_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """From elsewhere; one file is open."""
    store = fsspec.filesystem("memory")
    for number, rows in enumerate(ROWS):
        store.pipe_file(f"/forked/{number}.jsonl", _jsonl(rows))
    index("memory://forked", None, {})
    monkeypatch.setattr(cache, "_used", {})
    cache.use(10**6, str(tmp_path))
    files = Files("memory://forked")
    assert files[0]["text"] == "0-0"
    yield files
    files.close()


def test_a_forked_process_waits_for_no_thread_of_its_parent(
    read_before: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that lets files go had the lock of what is open now and then; a worker of a DataLoader then never read."""
    within = threading.Event()

    def give_way(self: Files, *_: Any) -> None:
        with self._lock:
            within.set()
            threading.Event().wait(0.2)

    monkeypatch.setattr(Files, "give_way", give_way)
    assert within.wait(20)
    assert _in_a_forked_process(lambda: read_before[0]["text"] == "0-0")


def test_a_forked_process_lets_go_what_it_has_of_its_parent(read_before: Files) -> None:
    """It had no thread that does: where it read nothing, others waited for the room."""

    def lets_go() -> bool:
        assert read_before.cache is not None
        read_before.cache.call(cache.WANTED)
        while read_before._opened:
            threading.Event().wait(0.01)
        return True

    assert _in_a_forked_process(lets_go)


def test_a_store_that_fails_once_is_asked_again_for_a_file_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, failures = fsspec.filesystem("memory"), [OSError("503 SlowDown")]
    for number, rows in enumerate(ROWS):
        store.pipe_file(f"/slow/{number}.jsonl", _jsonl(rows))
    usual, told = type(store).open, list[str]()

    def opened(self: Any, *given: Any, **options: Any) -> Any:
        if failures and given[0].endswith("1.jsonl"):
            raise failures.pop()
        return usual(self, *given, **options)

    monkeypatch.setattr(type(store), "open", opened)
    monkeypatch.setattr(waiting, "_FIRST_PAUSE_S", 0.0)
    waiting.listen(told.append)
    try:
        assert [file.samples for file in index("memory://slow", None, {}).files] == [3, 1, 4]
    finally:
        waiting.listen(lambda _: None)
    assert "memory://slow/1.jsonl: 503 SlowDown; asked again" in told[0]


def test_its_listing_is_that_of_its_samples_wherever_they_lie(tmp_path: Path) -> None:
    for name, rows in (("a", [{"x": 1}, {"x": 2}]), ("b", [{"x": 1}, {"x": 2}]), ("c", [{"x": 1}, {"x": 3}])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_bytes(_jsonl(rows))
        index(str(tmp_path / name), None, {})
    listings = [Files(tmp_path / name).listing for name in "abc"]
    assert listings[0] == listings[1] != listings[2]
    (tmp_path / "b" / "0.jsonl").rename(tmp_path / "b" / "1.jsonl")  # a label may be made of it
    index(str(tmp_path / "b"), None, {})
    assert Files(tmp_path / "b").listing != listings[0]
    mixed, other = (Sources({"one": Files(tmp_path / "a"), "two": Files(tmp_path / name)}).listing for name in "bc")
    assert mixed is not None
    assert mixed != other
