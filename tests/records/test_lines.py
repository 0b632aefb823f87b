"""Files of JSON lines: what was appended is read, and a crash costs at most the line that was being written."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.records.lines import LineFile, read
from orchestrator.records.redaction import Redactor

halves = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)  # as Python reads names that are not UTF-8
texts = st.text(st.characters(exclude_categories=["Cs"]) | halves, max_size=12)
values = st.one_of(st.none(), st.booleans(), st.integers(), texts, st.lists(texts, max_size=2))
lines = st.dictionaries(texts, values, max_size=3)
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _write(path: Path, entries: list[dict[str, Any]]) -> None:
    file = LineFile(path)
    file.append(entries)
    file.close()


@pytest.mark.slow
@quick
@given(st.lists(st.lists(lines, max_size=3), max_size=4))
def test_what_is_appended_is_read(tmp_path: Path, batches: list[list[dict[str, Any]]]) -> None:
    """Also line separators, quotes and anything else that a text may hold; over several writers, one after another."""
    path = tmp_path / "lines.jsonl"
    path.unlink(missing_ok=True)
    for batch in batches:
        _write(path, batch)
    entries = [entry for batch in batches for entry in batch]
    assert list(read(path)) == entries if batches else not path.exists()
    assert not batches or path.read_bytes().count(b"\n") == len(entries)


@pytest.mark.slow
@quick
@given(st.lists(lines, min_size=1, max_size=4), st.data())
def test_a_torn_file_yields_the_whole_lines(tmp_path: Path, entries: list[dict[str, Any]], data: st.DataObject) -> None:
    """Torn at any byte, also inside a character; and whoever writes next does not glue a line to the torn one."""
    path = tmp_path / "lines.jsonl"
    path.unlink(missing_ok=True)
    _write(path, entries)
    whole = path.read_bytes()
    torn = whole[: data.draw(st.integers(0, len(whole)))]
    path.write_bytes(torn)
    survivors = entries[: torn.count(b"\n")]
    assert list(read(path)) == survivors
    _write(path, [{"after": "é"}])
    assert list(read(path)) == [*survivors, {"after": "é"}]


def test_credentials_are_taken_out_and_every_line_stays_json(tmp_path: Path) -> None:
    """Also where a text has the quote right behind one, where one is not whole, and where JSON writes one with escapes."""
    known = Redactor({}, {"STORE_PASSWORD": 'sword"fish\\123'})
    told = [
        'GET "https://host/x?token=abcdef123456" failed',
        'no sword"fish\\123 here',
        "-----BEGIN PRIVATE KEY-----\nMIIB",
        "the end",
    ]
    with contextlib.closing(LineFile(tmp_path / "lines.jsonl", known.text)) as file:
        file.append({"event": "failed", "why": [text], text: {"why": text}} for text in told)
    clean = ['GET "https://host/x?token=***" failed', "no *** here", "***", "the end"]
    assert list(read(file.path)) == [{"event": "failed", "why": [text], text: {"why": text}} for text in clean]


def test_a_line_is_readable_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines.jsonl")
    file.append([{"a": 1}])
    assert list(read(tmp_path / "lines.jsonl")) == [{"a": 1}]
    file.append([])
    file.append([{"b": 2}, {"c": 3}])
    assert list(read(tmp_path / "lines.jsonl")) == [{"a": 1}, {"b": 2}, {"c": 3}]
    file.close()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path / "none.jsonl"))


class Disk:
    """A file with room for so many bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file = file
        self.room = room

    def write(self, data: bytes) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self._file.write(taken))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", range(0, 26, 5))
def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(tmp_path: Path, room: int) -> None:
    """In order, each byte once, though a line was torn; and nobody is told that it is on the disk before it is."""
    path = tmp_path / "lines.jsonl"
    file = LineFile(path)
    disk = file._file = Disk(file._file, room)  # type: ignore[assignment]
    entries = [{"step": step} for step in range(4)]
    for entry in entries[:3]:
        file.append([entry])
    assert "No space left" in str(file.trouble)
    with pytest.raises(OSError, match="No space"):
        file.sync()
    assert list(read(path)) == entries[: room // 12]
    disk.room = 1000
    file.append(entries[3:])
    file.sync()
    file.close()
    assert file.trouble is None
    assert list(read(path)) == entries


@pytest.mark.slow
@quick
@given(st.lists(lines, max_size=4), st.lists(lines, max_size=3), st.data())
def test_what_is_written_is_replaced(
    tmp_path: Path, entries: list[dict[str, Any]], after: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Also where a full disk has not taken the last of it."""
    path = tmp_path / "lines.jsonl"
    path.unlink(missing_ok=True)
    with contextlib.closing(LineFile(path)) as file:  # also where hypothesis leaves while it draws
        file.append(entries)
        whole = path.read_bytes()
        taken = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:taken])
        file._missing = whole[taken:]
        kept = data.draw(st.integers(0, len(entries)))
        file.keep(kept)
        file.append(after)
    assert list(read(path)) == [*entries[:kept], *after]
