"""Data of others are data: a list of files chooses no code and leads nowhere, and no sample is unpickled unasked."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from orchestrator import Files, load_ensemble
from orchestrator.data.files import cache, manifest
from orchestrator.data.files.index import Kept, index
from orchestrator.data.files.manifest import File, Manifest
from orchestrator.data.files.places import place_of
from orchestrator.data.files.readers.litdata import litdata
from orchestrator.errors import DataDamaged
from orchestrator.provenance.data import dvc_files, restoring
from orchestrator.provenance.data.dvc_files import Out, Storage
from orchestrator.provenance.data.listing import stored
from orchestrator.provenance.data.versions import Input
from tests.attacks import strangers
from tests.attacks.strangers import EXECUTED
from tests.refusals import refused


class Evil:
    """A pickle that makes a file."""

    def __reduce__(self) -> Any:
        return os.mkdir, (EXECUTED,)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the victim types. Nothing is executed, imported or written there."""
    place = strangers.victim(tmp_path / "victim")
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    before = sorted(place.iterdir())
    yield place
    assert sorted(place.iterdir()) == before
    assert "stranger_module" not in sys.modules


def data_set(folder: Path, reader: str, options: Mapping[str, Any], content: bytes = b"{}\n", **more: Any) -> Path:
    """A data set of somebody else: one file, and a list that says how it is read."""
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(content)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    listed = {"format": "files-1", "reader": reader, "options": options, "files": [["a", 1, len(content), md5]], **more}
    (folder / manifest.NAME).write_text(json.dumps(listed))
    return folder


def by_url(folder: Path) -> str:
    """The same at an address."""
    memory = fsspec.filesystem("memory")
    for file in folder.iterdir():
        memory.pipe(f"/{folder.name}/{file.name}", file.read_bytes())
    return f"memory://{folder.name}"


READERS: dict[str, Mapping[str, Any]] = {
    "torch:load": {"weights_only": False},
    "joblib:load": {},
    "pandas:read_pickle": {},
    "shutil:copy": {},
    "stranger_module:few": {},
}


@pytest.mark.parametrize("remote", [False, True], ids=["folder", "url"])
@pytest.mark.parametrize("reader", READERS)
def test_a_list_chooses_no_code(reader: str, remote: bool, tmp_path: Path) -> None:
    folder = data_set(tmp_path / f"theirs-{reader.partition(':')[0]}", reader, READERS[reader], pickle.dumps(Evil()))
    place = by_url(folder) if remote else str(folder)
    with strangers.watched() as seen, refused("data.reader-code") as error:
        Files(place)
    assert (seen.written, seen.started, seen.unpickled) == ([], [], [])
    assert f"names code as the reader, {reader!r}" in error.value.message
    assert f"Files({place!r}, reader={reader!r})" in str(error.value.remedy)


def test_a_list_that_names_another_reader_than_the_pipeline_is_refused(tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "stranger_module:few", {})
    with refused("data.reader-differs"):
        Files(folder, reader="jsonl")


def test_a_reader_that_the_pipeline_names_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_reader.py").write_text(
        "from orchestrator.data.files.readers.jsonl import jsonl\n\ndef rows(path, name):\n    return jsonl(path, name)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text('{"n": 7}\n')
    index(str(tmp_path / "mine"), "own_reader:rows", {})
    files = Files(tmp_path / "mine", reader="own_reader:rows")
    assert files[0] == {"n": 7}
    files.close()


PLACES = (
    "/etc",
    "data",
    "file:///etc",
    "FILE:///etc",
    "local:///etc",
    "simplecache::file:///etc",
    "zip://a::/etc/a.zip",
    "git:///home",
    "dvc:///home",
    "s3://b::file:///etc",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_list_that_came_by_url_leads_to_no_folder_of_this_machine(place: str, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "whole", {}, place=place)
    with refused("data.list-elsewhere"):
        Files(by_url(folder))


@pytest.mark.parametrize("given", [True, 1, "yes", {"a": 1}])
def test_a_list_does_not_say_that_pickles_may_be_read(given: Any, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "mds", {"unsafe": given})
    with refused("data.reader-unsafe") as error:
        Files(folder)
    assert "unsafe=True)" in str(error.value.remedy)


def test_a_reader_that_executes_nothing_is_never_unsafe(tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "jsonl", {})
    with refused("settings.no-such-option"):
        Files(folder, unsafe=True)


DEFAULTS = {"default_factory_module": "stranger_module", "default_factory_name": "few", "dict_context": []}
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
# Indexes of a stranger, each with the words in which the refusal names its fault.
CONFIGS: dict[str, tuple[Any, str]] = {
    "pickle": ({"data_format": ["pickle"]}, "'pickle'"),
    "pickles of a kind": ({"data_format": ["int", "pickle:x"]}, "'pickle:x'"),
    "graph": ({"data_format": ["graph"]}, "'graph'"),
    "what comes next": ({"data_format": ["marshal"]}, "'marshal'"),
    "module": (
        {
            "data_format": ["int"],
            "data_spec": json.dumps(
                [1, {"type": "builtins.list", "context": "null", "children_spec": [
                    {"type": "collections.defaultdict", "context": DEFAULTS, "children_spec": [LEAF]}]}]
            ),
        },
        "'collections.defaultdict'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", CONFIGS)
def test_chunks_of_litdata_are_not_unpickled_unasked(which: str, tmp_path: Path) -> None:
    config, named = CONFIGS[which]
    with refused("data.can-execute", named) as error:
        litdata(tmp_path / "a.bin", "a.bin", config=config)
    assert "unsafe=True" in str(error.value.remedy)


@pytest.mark.parametrize("config", [{}, [], "x", {"data_format": 7}, {"data_format": [], "data_spec": "[1, 2]"}])
def test_a_config_of_litdata_of_another_form_is_refused(config: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a list that cannot be understood"):
        litdata(tmp_path / "a.bin", "a.bin", config=config)


def test_a_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript make a picture of what is called PNG and is PostScript."""
    (tmp_path / "gs").write_text("#!/bin/sh\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    with strangers.watched() as seen, refused("data.index-file"):
        index(str(tmp_path / "theirs"), None, {})
    assert seen.started == []


HASHES = ("../../secret", "/etc/passwd", "", "0" * 31, "0" * 33, "0" * 31 + "G", "A" * 32, "0" * 32 + "\n", "..")


@pytest.mark.parametrize("md5", HASHES)
def test_what_a_list_calls_an_md5_is_no_path(md5: str, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "whole", {}, files=[["a", 1, 3, md5]])
    with refused("data.manifest-unfit"):
        Files(folder)
    secret, part = tmp_path / "secret", tmp_path / "secret.part"
    for file in (secret, part):
        file.write_text("mine")
        os.utime(file, (1, 1))
    held = cache.Cache(tmp_path / "cache" / "files", 10**6)
    named = File("a", 1, 3, md5)
    for act in (held.hold, held.bring):
        with refused("data.not-md5"):
            act(named, place_of(folder))
    for date in (held.expects, held.forgets):
        with refused("data.not-md5"):
            date(named)
    assert [(file.read_text(), file.stat().st_mtime) for file in (secret, part)] == [("mine", 1), ("mine", 1)]
    assert list((tmp_path / "cache" / "files").iterdir()) == []


def test_a_link_in_a_shared_cache_empties_nothing(tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "whole", {})
    (file,) = manifest.read((folder / manifest.NAME).read_bytes(), "").files
    held = cache.Cache(tmp_path / "cache", 10**6)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "cache" / f"{file.md5}.part").symlink_to(tmp_path / "mine")
    with refused("settings.place"):
        held.hold(file, place_of(folder))
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("md5", [*HASHES, "../../secret.dir"])
def test_what_dvc_calls_an_md5_is_no_path(md5: str, tmp_path: Path) -> None:
    """In a record, in a `.dvc` file, and in the list of a folder."""
    storage = Storage(tmp_path / "cache", {}, None)
    (tmp_path / "secret").write_text("mine")
    assert [storage.place(md5, kind) for kind in (dvc_files.MD5, dvc_files.LEGACY)] == [None, None]
    assert not storage.holds(md5)
    assert dvc_files.listed(json.dumps([{"relpath": "a", "md5": md5}]).encode()) is None
    (tmp_path / "a.dvc").write_text(yaml.safe_dump({"outs": [{"md5": f"{md5}.dir", "path": "a"}]}))
    with refused("dvc.no-folder"):
        stored(tmp_path / "a.dvc")


def test_a_record_restores_no_file_of_this_machine_by_its_hash(tmp_path: Path) -> None:
    project, target = tmp_path / "project", tmp_path / "target"
    (project / ".dvc" / "cache" / "files" / "md5" / "aa").mkdir(parents=True)
    (project / ".dvc" / "config").touch()
    (tmp_path / "secret").write_text("mine")
    target.mkdir()
    asked = f"aa{tmp_path / 'secret'}"
    out = Out("a", asked, dvc_files.MD5, "a.dvc")
    with refused("dvc.not-restored") as error:
        restoring.restore(target, [Input("a", asked, 4, 1, place="a", outs=(out,), as_recorded=True)], project)
    assert "is damaged" not in error.value.message  # as is said of an object that was read
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("at", ["../a", "/a", "b/../../a", "a\0"])
def test_what_dvc_lists_outside_is_not_read(at: str, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "a").write_text("{}\n")
    with refused("data.index-leads-out"):
        index("x.dvc", "jsonl", {}, to=str(tmp_path / "x.json"), kept=Kept(str(tmp_path / "theirs"), {"a": at}))


def test_a_device_behind_a_link_is_not_read_without_end(tmp_path: Path) -> None:
    folder = data_set(tmp_path / "theirs", "whole", {}, b"")
    (folder / "a").unlink()
    (folder / "a").symlink_to("/dev/zero")
    with refused("data.file-unfit"):
        Files(folder)[0]


def test_an_ensemble_of_others_calls_nothing(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    described: dict[str, Any] = {
        "target": "stranger_module:Net",
        "args": {},
        "seeds": [1],
        "output": None,
        "classes": 0,
    }
    told = {**described, "combine": "stranger_module:few", "options": {}, "digest": "0" * 64}
    (tmp_path / "ensemble.json").write_text(json.dumps(told))
    save_file({}, str(tmp_path / "model.safetensors"))
    with refused("ensemble.names-code"):
        load_ensemble(tmp_path)
    with refused("ensemble.other-combination"):
        load_ensemble(tmp_path, combine="mine:blend")


def test_lists_of_others_made_by_hand_are_read_or_refused(tmp_path: Path) -> None:
    """Any value in any place of a list gives one message."""
    whole = json.loads((data_set(tmp_path / "theirs", "jsonl", {}) / manifest.NAME).read_text())
    values: tuple[Any, ...] = (None, 7, 1e400, "x", [], [[]], {}, {"a": 1}, [[None]], True)
    for key, value in itertools.product(whole, values):
        with contextlib.suppress(DataDamaged):
            assert isinstance(manifest.read(json.dumps({**whole, key: value}).encode(), "x"), Manifest)
