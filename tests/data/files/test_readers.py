"""Formats of others: images and Arrow here, and by their own packages those of MosaicML, litData and WebDataset."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from orchestrator import Files
from orchestrator.common import temporary
from orchestrator.common.tested_versions import LITDATA
from orchestrator.data.files.index import index
from orchestrator.data.files.readers import LISTS, build
from orchestrator.data.files.readers.jsonl import jsonl
from orchestrator.data.files.readers.litdata import litdata
from orchestrator.data.files.readers.tar import tar
from tests.projects import REPOSITORY, packages
from tests.refusals import refused

PIXELS = {
    f"{label}/{number}.png": (place * 7 + number) for place, label in enumerate(("cat", "dog")) for number in (0, 1)
}


def _images(folder: Path) -> Path:
    for name, value in PIXELS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (3, 2), (value, value, value)).save(folder / name)
    return folder


@pytest.mark.parametrize(("options", "shape"), [({}, (2, 3, 3)), ({"mode": "L"}, (2, 3))])
def test_images_are_decoded_and_labelled_by_their_folders(options: Any, shape: Any, tmp_path: Path) -> None:
    made = index(str(_images(tmp_path)), "images" if options else None, options)
    assert made.options == {"classes": ("cat", "dog"), "mode": "RGB", **options}
    files = Files(tmp_path)
    for number, (name, value) in enumerate(PIXELS.items()):
        sample = files[number]
        assert (sample["name"], sample["label"]) == (name, number // 2)
        assert sample["image"].dtype == numpy.uint8
        assert sample["image"].shape == shape
        assert (sample["image"] == value).all()


def test_a_picture_that_is_none_is_refused_when_it_is_listed(tmp_path: Path) -> None:
    whole = (_images(tmp_path) / "cat/1.png").read_bytes()
    (tmp_path / "cat/1.png").write_bytes(whole[:40])
    with refused("data.index-file"):
        index(str(tmp_path), None, {})


@pytest.mark.parametrize("pixels", [numpy.uint16(4000), numpy.int32(4000), numpy.float32(0.5)])
def test_a_picture_of_more_than_8_bits_is_refused(pixels: Any, tmp_path: Path) -> None:
    """Pillow makes all of it white, or all of it black."""
    Image.fromarray(numpy.full((2, 3), pixels)).save(tmp_path / "1.tif")
    with refused("data.index-file", "more than 8 bits"):
        index(str(tmp_path), None, {})


def test_a_stream_of_arrow_is_read_as_a_file(tmp_path: Path) -> None:
    """Hugging Face writes its data sets so."""
    table = pyarrow.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    index(str(tmp_path), None, {})
    files = Files(tmp_path)
    assert [files[number] for number in range(len(files))] == table.to_pylist()
    files.close()
    content = (tmp_path / "a.arrow").read_bytes()
    for left_out in (8, 9, 100):
        (tmp_path / "a.arrow").write_bytes(content[:-left_out])
        with refused("data.index-file"):
            index(str(tmp_path), None, {})


def test_a_tar_with_a_sparse_member_is_refused(tmp_path: Path) -> None:
    """As of `tar --sparse`: the bytes behind its own were read as its own."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo("a.bin")
        member.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(member)
        archive.addfile(tarfile.TarInfo("b.bin"), io.BytesIO())
    with refused("data.index-file", "a.bin as a sparse file"):
        index(str(tmp_path), None, {})


@pytest.mark.parametrize("members", [("a/1.txt", "a/1.txt"), ("1.txt", "1.cls", "1.txt")])
def test_a_tar_with_a_member_twice_in_a_sample_is_refused(members: tuple[str, ...], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in members:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with refused("data.index-file", members[0]):
        index(str(tmp_path), None, {})


@pytest.mark.parametrize("how", ["cut", "damaged"])
def test_a_tar_whose_next_header_is_none_is_refused(how: str, tmp_path: Path) -> None:
    """tarfile ends there without a word, and samples behind it would be missing."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(3):
            archive.addfile(tarfile.TarInfo(f"{number}.txt"), io.BytesIO())
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[tarfile.BLOCKSIZE] ^= 1
    (tmp_path / "a.tar").write_bytes(content[: tarfile.BLOCKSIZE + 9] if how == "cut" else content)
    with refused("data.index-file", "its first 512 bytes"):
        index(str(tmp_path), None, {})


def test_no_read_of_a_member_moves_the_file(tmp_path: Path) -> None:
    """Workers of a DataLoader share where it stands: samples had the bytes of others."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 9
            archive.addfile(member, io.BytesIO(str(number).encode() * 9))
    members = tar(path, "a.tar")
    (opened,) = (each for each in Path("/proc/self/fd").iterdir() if each.resolve() == path.resolve())
    assert [members[number]["txt"] for number in (2, 0, 1)] == [b"2" * 9, b"0" * 9, b"1" * 9]
    assert os.lseek(int(opened.name), 0, os.SEEK_CUR) == 0
    members.close()


def test_empty_lines_of_any_system_are_no_samples(tmp_path: Path) -> None:
    for content in (b"", b"\n", b"\r\n", b"\r", b"1", b"\r\n1\r\n\r\n2\r\n\r", b"1\n\n2", b" 1\n \t\r\n\t2\n "):
        (tmp_path / "A.JSONL").write_bytes(content)
        (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(content))
        for name in ("A.JSONL", "A.JSONL.GZ"):
            lines = jsonl(tmp_path / name, name)
            assert [lines[number] for number in range(len(lines))] == [int(each) for each in content.split()]


def test_a_line_that_is_not_json_is_refused_when_it_is_listed(tmp_path: Path) -> None:
    """It would end a run after hours."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": \n{"x": 3}\n')
    with refused("data.index-file", "sample 1"):
        index(str(tmp_path), None, {})


@given(st.lists(st.sampled_from(["1", "22", ""]), max_size=9), st.integers(1, 4))
def test_lines_are_found_across_the_pieces_that_are_looked_through(lines: list[str], piece: int) -> None:
    with temporary.folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[jsonl.__module__], "_PIECE", piece)
        (folder / "a.jsonl").write_text("\n".join(lines))
        found = jsonl(folder / "a.jsonl", "a.jsonl")
        assert [found[number] for number in range(len(found))] == [int(line) for line in lines if line]


def test_members_without_key_or_extension_are_no_samples(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in (".hidden", "README", "1.txt", "a/.DS_Store"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    index(str(tmp_path), None, {})
    files = Files(tmp_path)
    assert [files[number] for number in range(len(files))] == [{"__key__": "1", "txt": b""}]
    files.close()


@pytest.mark.parametrize(("reader", "package"), [("mds", "mosaicml-streaming"), ("litdata", "litdata")])
def test_a_package_that_is_missing_is_named(reader: str, package: str) -> None:
    with refused("data.reader-package", package) as told:
        build(reader, {})
    assert "pip install" in told.value.remedy


INDICES: dict[str, tuple[str, dict[str, Any] | None, str]] = {
    "missing": ("litdata", None, "data.litdata-index"),
    "no list": ("litdata", {}, "data.list-unfit"),
    "a file": (
        "litdata",
        {"config": {"item_loader": "PyTreeLoader"}, "chunks": [{"filename": "b.bin", "chunk_size": 1}]},
        "data.listed-missing",
    ),
    "encrypted": (
        "litdata",
        {"config": {"item_loader": "PyTreeLoader", "encryption": {"level": "chunk"}}},
        "data.list-unfit",
    ),
    "parquet": ("litdata", {"config": {"item_loader": "ParquetLoader"}}, "data.list-unfit"),
    "tokens": ("litdata", {"config": {"item_loader": "TokensLoader"}}, "data.litdata-tokens"),
    "csv": ("mds", {"shards": [{"format": "csv"}]}, "data.list-unfit"),
}


@pytest.mark.parametrize("which", INDICES)
def test_a_list_of_another_package_that_cannot_be_used_is_refused(which: str) -> None:
    reader, content, code = INDICES[which]
    names = ["a.bin", "a.mds"] + ([] if content is None else ["index.json"])
    with refused(code):
        LISTS[reader](names, lambda _: json.dumps(content).encode(), {})


def test_another_litdata_without_what_is_needed_is_refused_with_the_version_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("litdata", "litdata.streaming", "litdata.streaming.serializers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    config = {"data_format": ["int"], "data_spec": None, "item_loader": "PyTreeLoader"}
    with refused("data.litdata-untested") as caught:
        litdata(tmp_path / "a.bin", "a.bin", config=config)
    assert caught.value.remedy == f"install {LITDATA.wanted}"


@pytest.mark.long
@pytest.mark.parametrize("which", ["mds", "litdata", "webdataset"])
def test_files_of_others_have_the_samples_that_their_packages_read(which: str, tmp_path: Path) -> None:
    paths = [str(packages("streams")), str(REPOSITORY)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(tmp_path)}
    (tmp_path / "written").mkdir()
    command = [sys.executable, "-m", "tests.data.files.foreign", which, str(tmp_path / "written")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
