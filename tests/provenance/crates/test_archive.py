"""Crates that were written by hand are refused before they reach anything outside of their folder."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.experiments.export import crate
from orchestrator.provenance.crates import archive
from tests.refusals import refused

NAMES = {
    "/etc/passwd": "leads out of the crate",
    "../outside": "leads out of the crate",
    "a/../../outside": "leads out of the crate",
    "C:/windows": "leads out of the crate",
    "a\\..\\b": "is no name of a file in a crate",
    "a//b": "is no name of a file in a crate",
    "./a": "is no name of a file in a crate",
    "": "is no name of a file in a crate",
    "a\nb": "is no name of a file in a crate",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    problem = archive.problem_of(["fine.txt", name])
    assert problem is not None
    assert NAMES[name] in problem


def test_two_things_in_one_place_are_refused() -> None:
    assert "twice" in str(archive.problem_of(["a", "b", "a"]))
    assert "a file and a folder" in str(archive.problem_of(["a", "a/b"]))
    assert archive.problem_of(["a/b", "a/c", "d", "e with space", "\u00e9"]) is None


def test_spaces_of_any_width_and_joiners_may_stand_in_a_name_and_marks_that_turn_it_may_not() -> None:
    """As in the names of screenshots, and of files in Japanese and Persian."""
    assert (
        archive.problem_of(["5.04\u202fPM.png", "\u5199\u771f\u3000 1", "a\xa0b", "\u0645\u06cc\u200c\u062e"]) is None
    )
    for mark in "\u202e\u2066\u2028\x1b\x85\ud800":
        assert archive.problem_of([f"a{mark}b"]) is not None


@pytest.mark.parametrize("name", ["data/a\\b", "data/a\nb", "data/\udcff"])
def test_data_of_a_name_that_no_crate_can_have_is_refused(name: str) -> None:
    with refused("export.name", repr(name)):
        crate._require_names(["run.json", name])


@given(st.lists(st.text(max_size=20), max_size=6))
def test_whatever_passes_stays_inside(names: list[str]) -> None:
    if archive.problem_of(names) is None:
        for name in names:
            place = os.path.normpath(f"/crate/{name}")
            assert place.startswith("/crate/")
            assert place == f"/crate/{name}"


@pytest.mark.parametrize("name", [name for name in NAMES if name])
def test_a_zip_with_such_a_name_writes_nothing(tmp_path: Path, name: str) -> None:
    source = tmp_path / "x.zip"
    with zipfile.ZipFile(source, "w") as written:
        written.writestr("first.txt", "a")
        written.writestr(zipfile.ZipInfo(name), "b")
    with refused("crate.refused"):
        archive.unpack(source, tmp_path / "place")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["place", "x.zip"]
    assert list((tmp_path / "place").iterdir()) == []


def test_links_are_refused(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("link")
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as written:
        written.writestr(entry, "/etc/passwd")
    with refused("crate.refused"):
        archive.unpack(tmp_path / "x.zip", tmp_path / "one")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("/etc")
    with refused("crate.refused"):
        archive.unpack(tmp_path / "folder", tmp_path / "two")
    (tmp_path / "folder" / "link").unlink()
    os.mkfifo(tmp_path / "folder" / "pipe")
    with refused("crate.refused"):
        archive.unpack(tmp_path / "folder", tmp_path / "three")


def test_too_much_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as written:
        for number in range(3):
            written.writestr(str(number), b"\0" * 10_000)
    monkeypatch.setattr(archive, "MOST_FILES", 2)
    with refused("crate.refused"):
        archive.unpack(tmp_path / "x.zip", tmp_path / "one")
    monkeypatch.setattr(archive, "MOST_FILES", 3)
    monkeypatch.setattr(archive, "MOST_BYTES", 29_999)
    with refused("crate.refused"):
        archive.unpack(tmp_path / "x.zip", tmp_path / "two")
    monkeypatch.setattr(archive, "MOST_BYTES", 30_000)
    assert len(archive.unpack(tmp_path / "x.zip", tmp_path / "three")) == 3


def test_a_size_that_lies_is_found(tmp_path: Path) -> None:
    """The directory at the end of the zip says one byte."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as written:
        written.writestr("long", b"x" * 500)
    content = bytearray((tmp_path / "x.zip").read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = (1).to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(content)
    with refused("crate.member-damaged"):
        archive.unpack(tmp_path / "x.zip", tmp_path / "place")


def test_what_is_no_zip_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with refused("crate.damaged"):
        archive.unpack(tmp_path / "x.zip", tmp_path / "place")


def test_a_name_that_is_not_what_it_says_is_damage(tmp_path: Path) -> None:
    """One bit of a name beyond ASCII has turned."""
    path = tmp_path / "crate.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("é.txt", b"")
    whole = path.read_bytes()
    places = {"crate.member-damaged": whole.index("é".encode()), "crate.damaged": whole.rindex("é".encode())}
    for code, place in places.items():
        turned = bytearray(whole)
        turned[place + 1] ^= 0x80
        path.write_bytes(turned)
        with refused(code):
            archive.unpack(path, tmp_path / f"unpacked {place}")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_are_not_written_are_refused(tmp_path: Path, method: int) -> None:
    path = tmp_path / "crate.zip"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("file", b"content")
    with refused("crate.refused", "compressed by a method"):
        archive.unpack(path, tmp_path / "unpacked")


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    files: dict[str, archive.Content] = {"b/c": b"2", "a": b"1", "big.bundle": bytes(5000)}
    archive.write(files, tmp_path / "one.zip")
    archive.write(dict(reversed(files.items())), tmp_path / "two.zip")
    archive.write(files, tmp_path / "three")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert archive.unpack(tmp_path / "one.zip", tmp_path / "x") == archive.unpack(tmp_path / "three", tmp_path / "y")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one.zip", "three", "two.zip", "x", "y"]


def test_a_zip_has_the_folders_of_its_files(tmp_path: Path) -> None:
    """Validators of crates ask it for each folder that the metadata name."""
    files: dict[str, archive.Content] = {"a.txt": b"1", "data/é b/c.txt": b"2", "data/d": b"3"}
    archive.write(files, tmp_path / "crate.zip")
    with zipfile.ZipFile(tmp_path / "crate.zip") as written:
        assert written.namelist() == ["a.txt", "data/", "data/d", "data/é b/", "data/é b/c.txt"]
    assert archive.unpack(tmp_path / "crate.zip", tmp_path / "unpacked").keys() == files.keys()
    assert {name: (tmp_path / "unpacked" / name).read_bytes() for name in files} == files
