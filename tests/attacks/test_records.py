"""Records and settings that were made by hand: whatever stands in them, there is one message, and nothing is executed."""

from __future__ import annotations

import base64
import copy
import errno
import hashlib
import itertools
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.settings import load, to_yaml
from orchestrator.driver.folders import RunFolder, is_driven
from orchestrator.driver.recording import trust
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import ConfigurationError, NotRerunnable, OrchestratorError
from orchestrator.provenance.crates import archive as archive_
from orchestrator.provenance.crates import crate, statement
from orchestrator.provenance.environment import packages
from orchestrator.provenance.tracking import Past
from orchestrator.records import lines
from tests.attacks import strangers
from tests.attacks.strangers import NODE, SETTINGS
from tests.products import thinned
from tests.refusals import refused

PAST = Past("0123abcd", "a gift", "default", "FINISHED", 0, 2, {}, "4a4d", user="mallory")
FULL: dict[str, Any] = {
    "node": {
        **NODE,
        "packages": {"numpy": "1"},
        "origins": {"numpy": {"url": "https://host.invalid/numpy", "commit": "c"}},
        "bits": {"variables": {"MKL_CBWR": "1"}, "python": "3.11.7"},
        "conda": [{"name": "a", "version": "1", "build": "b", "url": "https://host.invalid/a.conda"}],
    },
    "code": {"modules": {"m": {"kind": "snapshot", "sha256": "a"}}, "search_path": ["a"], "obstacles": ["x"]},
    "reads": {"files": {"f": {"path": "/f", "inside": None}}, "hosts": ["h"], "variables": {"A": ["1"]}, "more": 0},
    "data": {
        "inputs": [{"path": "a", "md5": "b", "size": 1, "files": 1, "outs": [], "lists": [1, 2]}],
        "profile": None,
    },
}
WRONG = [None, 7, "text", [1], {"a": 1}, [None], True, "\ud800"]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*above, key))


def changed(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    found = copy.deepcopy(value)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return found


def examined(folder: Path, files: dict[str, bytes]) -> None:
    recorded = Recorded(PAST, RunFolder(folder, PAST.run_id))
    for name, content in files.items():
        (recorded.files.path / name).write_bytes(content)
    recorded.require()
    trust.examine(recorded, [], rebuilding=True)


@pytest.mark.slow
def test_any_value_of_another_type_anywhere_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed", lambda: ({}, {}))  # which takes most of the time
    whole = strangers.record(**FULL)
    examined(tmp_path, whole)
    wrong = itertools.cycle(WRONG)
    refused = 0
    for name in ("code.json", "data.json", "environment.json", "reads.json"):
        document = json.loads(whole[name])
        for place, other in zip(places(document), wrong, strict=False):
            content = json.dumps(changed(document, place, other)).encode()
            try:
                examined(tmp_path, {**whole, name: content})
            except OrchestratorError:
                refused += 1
    assert refused > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["code.json", "data.json", "environment.json", "reads.json", "trace.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"null", b"NaN", b"[NaN]"])
def test_rubbish_is_one_message(tmp_path: Path, name: str, content: bytes) -> None:
    if (name, content) == ("code.json", b""):  # as where there is no git
        return
    with pytest.raises(OrchestratorError):
        examined(tmp_path, {**strangers.record(**FULL), name: content})


BOMBS = {
    "levels": "a: " + "[" * 100_000,
    "levels that end": "a: " + "[" * 100_000 + "]" * 100_000,
    "blocks": "".join(f"{' ' * level}-\n" for level in range(6000)),
    "dashes": "- " * 100_000,
    "mappings": "{a: " * 100_000,
    "aliases": "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
    "merges": "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30)),
    "digits": f"run: {{steps: {'9' * 100_000}}}",
    "interpolations": f"run: {{name: '{'${' * 3000}'}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", thinned(BOMBS, 9))
def test_settings_that_grow_when_they_are_read_are_refused(tmp_path: Path, bomb: str) -> None:
    """In a process of its own, which what overflows its stack would end, and in 1 GB of memory and 30 s of a processor."""
    (tmp_path / "settings.yaml").write_text(BOMBS[bomb])
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (30, 30))\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "from orchestrator.config.settings import load\nfrom orchestrator.errors import ConfigurationError\n"
        "try:\n    load(['settings.yaml'], [])\nexcept ConfigurationError as error:\n    print(str(error)[:300])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    assert "the configuration is wrong" in done.stdout


HUGE = {  # file of the crate -> how it begins, and what is repeated to 100 MiB
    statement.FILE: (b"[", b"{},"),
    "ro-crate-metadata.json": (b"[", b"{},"),
    "run.json": (b"[", b"{},"),
    "record/code.json": (b"[", b"{},"),
    "record/trace.jsonl": (b"", b"\n"),
}


def sent_huge(folder: Path, name: str, begins: bytes, repeated: bytes) -> Path:
    """A crate of some hundred kB, of which one file takes gigabytes once it is parsed. Its statement is right."""
    huge, target = folder / "huge", folder / "sent.zip"
    with huge.open("wb") as file:
        file.write(begins)
        for _ in range(100):
            file.write(repeated * ((1 << 20) // len(repeated)))
    strangers.sent(target, strangers.record())
    with zipfile.ZipFile(target) as archive:
        files: dict[str, Any] = {each: archive.read(each) for each in archive.namelist()} | {name: huge}
    if name != statement.FILE:
        hashes = {
            each: hashlib.sha256(content if isinstance(content, bytes) else content.read_bytes()).hexdigest()
            for each, content in files.items()
            if each != statement.FILE
        }
        files[statement.FILE] = statement.envelope(statement.payload(hashes, {}), None)
    target.unlink()
    archive_.write(files, target)
    assert target.stat().st_size < 1 << 20
    return target


@pytest.mark.long
@pytest.mark.parametrize("name", HUGE)
def test_a_crate_that_grows_when_it_is_read_is_refused(tmp_path: Path, name: str) -> None:
    """In a process of its own, and in 1 GB of memory."""
    target = sent_huge(tmp_path, name, *HUGE[name])
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "from orchestrator.errors import NotRerunnable\nfrom orchestrator.experiments.rerun.run import RerunRequest, rerun\n"
        f"try:\n    rerun({str(target)!r}, [], None, RerunRequest())\nexcept NotRerunnable as error:\n    print(error.codes)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    assert "crate." in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("content", [b'{"step": 0}', b"[" + b"{}," * (30 << 20) + b"{}]\n"])
def test_a_line_that_grows_when_it_is_read_is_damage(tmp_path: Path, content: bytes) -> None:
    """A torn last line is none."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    if content.endswith(b"\n"):
        with pytest.raises(ValueError, match="line 1"):
            list(lines.read(path))
    else:
        assert list(lines.read(path)) == []


CYCLES = {
    "run: {name: '${run.experiment}', experiment: '${run.name}'}": "Recursive interpolation detected",
    "pipeline: {target: a:B, args: {a: '${.b}', b: '${.a}'}}": "Recursive interpolation detected",
    "run: {seed: .nan}": "expected a whole number",
    "data: {batch_size: .inf}": "expected",
}


@pytest.mark.parametrize("text", CYCLES)
def test_cycles_and_numbers_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as error:
        load([SETTINGS, str(tmp_path / "a.yaml")], [])
    assert CYCLES[text] in error.value.message


SENDS: dict[str, Any] = {
    "checkpoint": {"checkpoint": {"uri": "http://host.invalid/${oc.env:TOKEN}"}},
    "behind a backslash that is one": {"run": {"steps": 2, "note": "\\\\${oc.env:TOKEN}"}},
    "behind one that is text": {"run": {"steps": 2, "note": "\\${a} ${oc.env:TOKEN}"}},
    "in a list": {"data": {"inputs": ["a", "${oc.env:TOKEN}"]}},
    "of a key of the pipeline's": {"pipeline": {**SETTINGS["pipeline"], "args": {"a": [{"b": "${oc.env:TOKEN}"}]}}},
    "as a pair": {"pipeline": {**SETTINGS["pipeline"], "args": {"a": [("x", "${oc.decode:${oc.env:TOKEN}}")]}}},
    "of another key": {"run": {"steps": 2, "name": "${run.experiment}"}},
}


@pytest.mark.parametrize("beside", ["with its data", "alone"])
@pytest.mark.parametrize("case", SENDS)
def test_a_record_with_an_interpolation_is_refused_and_resolves_nothing(
    tmp_path: Path, case: str, beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a-secret-of-mine")
    files = strangers.record({**SETTINGS, **SENDS[case]}, **FULL)
    recorded = Recorded(PAST, RunFolder(tmp_path, PAST.run_id))
    for name, content in files.items():
        (recorded.files.path / name).write_bytes(content)
    if beside == "alone":
        recorded.files.data.unlink()
    for read in (lambda: recorded.held, recorded.settings, lambda: trust.examine(recorded, [])):
        with refused("settings.recorded-interpolation") as error:
            read()
        assert "a-secret-of-mine" not in str(error.value)


@pytest.mark.slow
def test_what_is_typed_beside_a_record_may_have_interpolations_and_what_it_escapes_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "mine")
    note = "costs ${5} or \\${x}"
    text = to_yaml(
        load([SETTINGS, {"run": {"steps": 2, "note": note.replace("\\", "\\\\\\").replace(" ${", " \\${")}}], [])
    )
    recorded = Recorded(PAST, RunFolder(tmp_path, PAST.run_id))
    for name, content in strangers.record(text, **FULL).items():
        (recorded.files.path / name).write_bytes(content)
    found = recorded.settings(["checkpoint.uri=${oc.env:TOKEN}"])
    assert (found.run.note, found.checkpoint.uri) == (note, "mine")


@pytest.mark.parametrize("name", ["settings.yaml", "trace.jsonl", "lock", "reads.json"])
@pytest.mark.parametrize("leads_to", ["/dev/zero", "../../elsewhere", "a pipe"])
def test_a_file_of_a_record_that_is_none_of_it_is_refused(tmp_path: Path, name: str, leads_to: str) -> None:
    (tmp_path / "elsewhere").write_text("mine\n")
    folder = tmp_path / "store"
    (folder / PAST.run_id).mkdir(parents=True)
    place = folder / PAST.run_id / name
    os.mkfifo(place) if leads_to == "a pipe" else place.symlink_to(leads_to)
    with refused("record.file-refused"):
        RunFolder(folder, PAST.run_id)
    assert (tmp_path / "elsewhere").read_text() == "mine\n"


def test_a_record_that_another_user_keeps_to_themselves_is_named_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared folder, of users whose umask is 077. Root may read all, so the refusal is the system's in part."""

    def denied(place: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    (tmp_path / PAST.run_id).mkdir()
    monkeypatch.setattr(os, "scandir", denied)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with refused("record.not-yours", "chmod"):
        RunFolder(tmp_path, PAST.run_id)
    assert is_driven(tmp_path, PAST.run_id), "a launch does not mark it as left alone by its driver"


def test_folders_and_weights_of_a_record_may_lie_on_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "weights").write_bytes(b"")
    folder = RunFolder(tmp_path, PAST.run_id)
    folder.checkpoints.symlink_to(tmp_path / "disk")
    folder.weights.symlink_to(tmp_path / "weights")
    (folder.path / "also.json").symlink_to("settings.yaml")
    assert RunFolder(tmp_path, PAST.run_id).path == folder.path


@pytest.mark.parametrize("run_id", ["../outside", "a/b", "/tmp/outside", "..", ".", "", "a\0b", "-rf"])
def test_the_id_of_a_run_is_no_path(tmp_path: Path, run_id: str) -> None:
    """One that a store of others gives its runs."""
    (tmp_path / "inside").mkdir()
    with refused("record.not-an-id"):
        RunFolder(tmp_path / "inside", run_id)
    assert [each.name for each in tmp_path.rglob("*")] == ["inside"]


@pytest.mark.parametrize("name", ["run.json", "record/code.json", "ro-crate-metadata.json", "statement"])
@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_crate_that_is_nested_deeply_is_refused_in_one_message(tmp_path: Path, name: str, content: bytes) -> None:
    """Also where its statement holds for what was changed."""
    place = strangers.sent(tmp_path / "sent", strangers.record())
    (place / (statement.FILE if name == "statement" else name)).write_bytes(content)
    if name.endswith(("run.json", "code.json")):
        told = json.loads(_payload(place))
        hashes = {each["name"]: each["digest"]["sha256"] for each in told["subject"]}
        hashes[name] = hashlib.sha256(content).hexdigest()
        (place / statement.FILE).write_bytes(statement.envelope(statement.payload(hashes, told["predicate"]), None))
    with pytest.raises(NotRerunnable):
        crate.read(place, tmp_path / "read")


def _payload(place: Path) -> bytes:
    return base64.b64decode(json.loads((place / statement.FILE).read_text())["payload"])
