"""The record of a run, given what its workers say: here the identity, when there is no snapshot of the code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from orchestrator.config.settings import load
from orchestrator.driver.folders import RunFolder, write_json
from orchestrator.driver.recording.record import Contents, Record
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.errors import OutOfDeviceMemory, RunFailed, from_dict
from orchestrator.provenance.tracking.models import ModelFolder
from orchestrator.records.lines import read

ENVIRONMENT = {"packages": {}, "bits": {"packages_sha256": "p"}}


MODULE: dict[str, Any] = {
    "name": "a",
    "file": "/a.py",
    "inside": "a.py",
    "sha256": "1",
    "ids": {},
    "repository": None,
    "tracked": False,
}


def record_of(folder: Path, run_id: str, *given: str) -> tuple[Record, list[str]]:
    """The record of a run without git, and the statuses with which it has ended."""
    settings = load([{"run": {"steps": 2}, "pipeline": {"target": "a:B"}}], given)
    files = RunFolder(folder, run_id)
    nothing = lambda *_: None  # noqa: E731
    ended: list[str] = []
    told = {"run_id": run_id, "name": "n", "started_ms": 0, "trouble": None, "registered": None}
    tracker: Any = SimpleNamespace(**told, tag=nothing, artifact=nothing, end=ended.append)
    store: Any = SimpleNamespace(of_identity=lambda _: [], uri="http://there", name="http://there")
    feed: Any = SimpleNamespace(end=lambda *_: [])
    record = Record(settings, store, tracker, files, [], Contents([], [], None), feed)
    record.run_manifest = {"initial_parameters": "i"}
    return record, ended


def identity_of(folder: Path, code: str) -> str:
    """The identity of a run without git whose pipeline's module has this hash."""
    record, _ = record_of(folder, code)
    assert record.describe("n", ENVIRONMENT, [{**MODULE, "sha256": code}]) == ([], [])
    record.compare_digest("d")
    record.journal.close()
    record.trace.close()
    return str(json.loads(record.files.identity.read_text())["identity"])


def test_without_git_other_code_is_another_identity(tmp_path: Path) -> None:
    """Or every change would be an alarm."""
    first = identity_of(tmp_path, "1")
    assert identity_of(tmp_path, "2") != first


def test_a_folder_that_was_removed_is_there_again_for_the_end_of_the_record(tmp_path: Path) -> None:
    record, ended = record_of(tmp_path, "1")
    record.trace.append([{"step": 0}])
    record.journal.append([{"event": "begun"}])
    assert not record.restored()
    shutil.rmtree(tmp_path / "1")
    record.trace.append([{"step": 1}])
    assert record.seals(2) == {}
    assert record.restored()
    assert not record.restored()
    record.trace.append([{"step": 2}])
    shutil.rmtree(tmp_path / "1")
    record.close(RunOutcome(error=RunFailed("the folder was removed", code="record.folder")))
    assert ended == ["FAILED"]
    assert [line["step"] for line in read(record.files.trace)] == [0, 1, 2]
    (_, ended_line) = read(record.files.journal)
    assert (ended_line["event"], ended_line["code"]) == ("run_ended", "record.folder")
    assert record.files.error.read_text().startswith("the folder was removed")


def test_the_memory_of_a_gpu_that_was_full_is_kept_as_a_file_and_logged(tmp_path: Path) -> None:
    record, _ = record_of(tmp_path, "1")
    error = OutOfDeviceMemory("no memory left")
    error.snapshot = b"a pickle"
    record.close(RunOutcome(error=from_dict(error.as_dict())))
    assert record.files.memory.read_bytes() == b"a pickle"
    assert record.files.memory in record.files.artifacts()


def test_a_full_disk_ends_a_run_with_one_message_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose trace is not whole has not finished, and what is written again at the end is not torn."""
    record, ended = record_of(tmp_path, "1")
    record.describe("n", ENVIRONMENT, [MODULE])
    before = record.files.environment.read_text()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record.trace, "sync", full)
    for writes in ("write_text", "write_bytes"):
        monkeypatch.setattr(Path, writes, full)
    outcome = RunOutcome(steps=2, digest="d")
    outcome = record.close(outcome)
    assert ended == ["FAILED"]
    assert outcome.error is not None
    assert outcome.error.message == f"{record.files.trace} is not whole: No space left on device"
    assert record.files.environment.read_text() == before
    assert not record.files.error.exists()
    assert not list(record.files.path.glob("*.unfinished"))


@pytest.mark.parametrize("trouble", [None, "no answer from the server"])
def test_the_card_names_the_version_that_its_run_has_registered(tmp_path: Path, trouble: str | None) -> None:
    """An alias stands for the model of another run once that registers one. A store that does not answer registers later:
    then the card has the name by the run's own id."""
    record, _ = record_of(tmp_path, "1", "tracking.register=m")
    save_file({"weight": numpy.zeros(3, numpy.float32)}, record.files.weights)
    record._model._folder = ModelFolder(record.files.model, 2, {})
    tracker: Any = record.tracker
    asked = []
    tracker.trouble = trouble
    tracker.model = lambda _, registration: asked.append(registration)
    tracker.flush = lambda: vars(tracker).update(registered=f"models:/{asked[0].name}/3")
    record.close(RunOutcome(steps=2))
    named = "models:/m/3" if trouble is None else "runs:/1/trained"
    card = record.files.card.read_text()
    assert (f'load_model("{named}")' in card, f"initial={named}" in card, "@newest" in card) == (True, True, False)


def test_other_packages_and_modules_than_a_run_began_with_are_told_where_it_goes_on(tmp_path: Path) -> None:
    """Bits of the first micro-batch show nothing of an optimizer that was installed anew."""
    records = [record_of(tmp_path, "a")[0] for _ in range(2)]
    newer = {**ENVIRONMENT, "packages": {"adam": "2"}}
    records[0].describe("n", ENVIRONMENT, [MODULE])
    assert records[0].describe("another node", newer, [MODULE]) == ([], [])
    write_json(records[0].files.environment, {"nodes": {"n": ENVIRONMENT}})
    records += [record_of(tmp_path, "a")[0] for _ in range(2)]
    assert records[2].describe("m", ENVIRONMENT, [MODULE]) == ([], [])
    told = "it goes on with other code or packages than it began with: "
    package = f"{told}package adam: none -> 2"
    assert records[3].describe("o", newer, [MODULE]) == ([package], [])
    changed, _ = records[3].describe("o", ENVIRONMENT, [{**MODULE, "sha256": "2"}])
    assert changed == [f"{told}code module a: 1 -> 2"]
    assert json.loads(records[3].files.code.read_text())["obstacles"][-2:] == [package, *changed]
    for record in records:
        record.journal.close()
        record.trace.close()


def test_other_bits_than_a_run_began_with_are_told_where_it_is_resumed(tmp_path: Path) -> None:
    """On another processor, say: then nobody can repeat it."""
    began = {"reference": "r", "machine": {"CPU": "c", "instruction set": "AVX512"}}
    elsewhere = {"reference": "s", "machine": {"CPU": "c", "instruction set": "AVX2"}}
    records = [
        record_of(tmp_path, "a", *words)[0]
        for words in ([], [], ["cluster.stages=2", "cluster.workers=2"], ["strict=true"])
    ]
    first, resumed, staged, strict = records
    assert [each.other_bits(began) for each in (first, resumed)] == [None, None]
    told = resumed.other_bits(elsewhere)
    assert told is not None
    assert told.endswith("began with (instruction set AVX512 then and AVX2 now)")
    assert resumed.other_bits({**elsewhere, "reference": ""}) is None  # of live streams, which are not computed before
    assert staged.other_bits(elsewhere) is None  # computed in another way
    assert strict.goes_on_with_other_bits(told) is not None
    assert (strict.obstacles, resumed.goes_on_with_other_bits(told)) == ([], None)
    assert (resumed.obstacles, json.loads(resumed.files.code.read_text())["obstacles"]) == ([told], [told])
    for record in records:
        record.journal.close()
        record.trace.close()


def test_a_resumed_run_is_refused_where_its_workers_have_other_data(tmp_path: Path) -> None:
    """In another order of samples some would be lost, and others repeated."""
    agreed = {"samples": 100, "evaluation_batches": 2, "files": "f", "steps": 5}
    first, _ = record_of(tmp_path, "a")
    assert first.other_data(agreed) is None
    resumed, _ = record_of(tmp_path, "a")
    assert resumed.other_data({**agreed, "steps": 6}) is None
    fewer = resumed.other_data({**agreed, "samples": 90})
    assert fewer is not None
    assert fewer.message.endswith("began with: 90 training samples, and 100 then")
    others = resumed.other_data({**agreed, "files": "g", "partition": "p"})
    assert others is not None
    assert others.message.endswith("another list of training files, other owners or weights of samples")
    assert resumed.other_data(agreed) is None
    for record in (first, resumed):
        record.journal.close()
        record.trace.close()
