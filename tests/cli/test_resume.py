"""A resume, given the files that the run has left."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.storage import open_storage
from orchestrator.cluster.actors.driver_loss import PREFIX, written
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load, to_yaml
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.launch.resume import beginning_of, recorded_project, resume
from orchestrator.driver.preflight import begin
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.run.event_sink import Audience, EventSink
from orchestrator.driver.run.job import storage_of
from orchestrator.driver.run.startup import RunStart
from orchestrator.driver.supervision import TakenOver
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import CheckpointDamaged
from orchestrator.provenance.code import snapshot
from orchestrator.provenance.data import dvc_files
from orchestrator.provenance.tracking import Past, Store, Tracker
from orchestrator.provenance.tracking.store import KIND, USER, user
from orchestrator.records import lines
from orchestrator.records.hash_seal import Seal, of_barriers, of_trace
from orchestrator.records.lines import LineFile
from tests.checkpoint.stores import events, example
from tests.provenance.code.repositories import create, take, write
from tests.provenance.data.dvc_project import capture
from tests.refusals import refused

PLAN = resolve(load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}}], []))


def files_with(folder: Path, journal: list[dict[str, Any]]) -> RunFolder:
    files = RunFolder(folder, "a" * 32)
    with_lines = LineFile(files.journal)
    with_lines.append(journal)
    with_lines.close()
    return files


def test_numbers_of_members_and_generations_are_never_given_again(tmp_path: Path) -> None:
    """Those of a spare, of a joiner that was lost before it took part and of a server too (rule F9)."""
    started = [{"event": "worker_started", "worker": worker} for worker in (0, 1, 5)]
    generations = [{"event": "generation_started", "number": number, "members": [0, 1]} for number in (0, 1)]
    for event, role in (("worker_started", "worker"), ("worker_lost", "worker"), ("server_started", "server")):
        (tmp_path / event).mkdir()
        files = files_with(tmp_path / event, [*started, *generations, {"event": event, role: 7}])
        requirements = beginning_of(PLAN, files, lambda _sentence: None).requirements
        assert (requirements.member, requirements.generation, requirements.checkpoint) == (8, 2, None)


def ended(project: Path, status: Literal["FINISHED", "KILLED"], tags: dict[str, str]) -> str:
    """The id of a run in the store of this project, with these tags, that ended so."""
    store = Store(None, project_folder(project))
    tracker = Tracker.create(store, store.experiment("e"), "ended", every_s=1.0)
    tracker.describe({}, tags)
    tracker.end(status)
    return tracker.run_id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_a_process_that_lives_on_may_be_asked_again_after_a_wrong_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook's: it was told that this process drives the run."""
    monkeypatch.chdir(tmp_path)
    run_id = ended(tmp_path, "KILLED", {USER: user()})
    files = RunFolder(project_folder(tmp_path), run_id)
    files.settings.write_text(to_yaml(load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}}], [])))
    files.data.write_text('{"inputs": []}')
    files.trace.touch()
    for _ in range(2):
        with refused("settings.no-such-key", "run.stepps"):
            resume(run_id, ["run.stepps=9"], None)
    assert not files.is_driven


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_a_sweep_has_no_state_to_begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of settings was missed in its folder."""
    monkeypatch.chdir(tmp_path)
    run_id = ended(tmp_path, "FINISHED", {KIND: "sweep"})
    settings = load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}}], [f"begin={run_id}"])
    with refused("begin.not-a-run", "is not a run: sweep"):
        begin.pinned(settings, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_a_run_whose_files_are_elsewhere_is_told_as_such_where_one_would_begin_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in another clone. The message named a file of settings that nobody had typed."""
    monkeypatch.chdir(tmp_path)
    run_id = ended(tmp_path, "KILLED", {})
    settings = load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}}], [f"begin={run_id}"])
    with refused("begin.elsewhere", run_id):
        begin.pinned(settings, tmp_path)


def test_a_run_that_has_left_nothing_begins_as_a_new_one(tmp_path: Path) -> None:
    said: list[str] = []
    begin = beginning_of(PLAN, RunFolder(tmp_path, "b" * 32), said.append)
    assert (begin.requirements.member, begin.requirements.generation, begin.written, list(begin.cut)) == (0, 0, 0, [])
    assert said == ["no checkpoint: from the beginning"]


def test_what_was_told_until_the_checkpoint_is_told_again(tmp_path: Path) -> None:
    """The metrics of the last step that stands, and of the last evaluation until there, also if later ones were done once
    more."""
    metrics = [{"validation/loss": float(step), "validation/odd": "nan"} for step in range(4)]
    evaluated = [{"event": "evaluated", "step": step, "metrics": metrics[step]} for step in (0, 1, 2, 3, 1)]
    files = files_with(tmp_path, evaluated)
    catalog, state = Catalog(open_storage(storage_of(PLAN, files)), 1), example(3)
    catalog.commit(3, events(open_storage(storage_of(PLAN, files)), state, 3))
    trace = LineFile(files.trace)
    trace.append({"step": step, "loss": float(step).hex()} for step in range(5))
    trace.close()
    begin = beginning_of(PLAN, files, lambda _sentence: None)
    assert (begin.written, begin.loss, begin.metrics["validation/loss"]) == (3, 2.0, 2.0)
    assert math.isnan(begin.metrics["validation/odd"])
    assert [line["step"] for line in begin.cut] == [3, 4]


@pytest.mark.parametrize(("heard", "lost"), [(0, 5), (7, 7)])
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_driver_that_takes_over_tells_how_many_steps_are_done_again(
    tmp_path: Path, sync: str, heard: int, lost: int
) -> None:
    """No step was lost, by the journal and the terminal, in asynchronous modes and wherever the trace was lost with the machine
    of the last driver. heard: the number of steps of which MLflow knows."""
    plan = resolve(load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}, "sync": sync}], []))
    files = files_with(tmp_path, [])
    with contextlib.closing(LineFile(files.trace)) as trace:
        trace.append({"step": step, "loss": float(step).hex()} for step in range(5))
    run_start = beginning_of(plan, files, lambda _sentence: None)
    assert run_start.written == 0
    with contextlib.closing(LineFile(files.journal)) as journal:
        record: Any = SimpleNamespace(tracker=SimpleNamespace(reached=heard), journal=journal, files=files)
        EventSink(record, Audience(for_stream())).takes_over(TakenOver(4711, 0.0), run_start.redone)
    (event,) = (each for each in lines.read(files.journal) if each["event"] == "driver_lost")
    assert (event["pid"], event["steps_lost"]) == (4711, lost)


AT_SITES: dict[str, Any] = {
    "cluster": {"address": "h:1", "workers": 2},
    "data": {"shards": 2, "sites": {"a": [0], "b": [1]}, "absent": "sit_out", "partition": "natural"},
}


@pytest.mark.parametrize("settings", [{"sync": "asp"}, AT_SITES], ids=["asp", "sites"])
def test_what_is_passed_over_is_not_gone_on_with_later_where_steps_come_out_otherwise(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are done again in another order, or with fewer sites. Its place may have failed for a moment alone."""
    plan = resolve(load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}, **settings}], []))
    assert not plan.repeats
    files = files_with(tmp_path, [{"event": "checkpoint_saved", "step": 3}])
    storage = open_storage(storage_of(plan, files))
    Catalog(storage, 2).commit(3, events(storage, example(3), 3))

    def fail(*_: Any) -> Any:
        raise BlockingIOError("the place is away")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "read_part", fail)
        assert beginning_of(plan, files, lambda _sentence: None).requirements.checkpoint is None
    assert beginning_of(plan, files, lambda _sentence: None).requirements.checkpoint is None


def test_lines_that_members_have_left_replace_those_of_a_step_that_was_done_again_without_a_site(
    tmp_path: Path,
) -> None:
    """The driver was gone before it heard of it."""
    plan = resolve(load([{"run": {"steps": 9}, "pipeline": {"target": "a:B"}, **AT_SITES}], []))
    files = files_with(tmp_path, [{"event": "generation_started", "number": number} for number in range(2)])
    with contextlib.closing(LineFile(files.trace)) as trace:
        trace.append({"step": step, "loss": float(step).hex()} for step in range(3))
    storage = open_storage(storage_of(plan, files))
    Catalog(storage, 2).commit(3, events(storage, example(3), 3))
    again = {"step": 2, "loss": (7.0).hex(), "absent": [1]}
    storage.put(f"{PREFIX}1.jsonl", [written([{"trace": again, "generation": 1}])])
    assert beginning_of(plan, files, lambda _sentence: None).loss == 7.0


def test_a_checkpoint_of_replicas_that_differed_is_refused_and_its_files_stay(tmp_path: Path) -> None:
    """If there is none, the run begins anew."""
    ended = {"event": "run_ended", "status": "failed", "code": "record.two-ways"}
    files = files_with(tmp_path, [{"event": "checkpoint_saved", "step": 3}, ended])
    with contextlib.closing(LineFile(files.trace)) as trace:
        trace.append({"step": step, "loss": float(step).hex()} for step in range(5))
    before = files.trace.read_bytes()
    storage = open_storage(storage_of(PLAN, files))
    Catalog(storage, 2).commit(3, events(storage, example(3), 3))
    with refused("resume.of-mixed"):
        beginning_of(PLAN, files, lambda _sentence: None)
    assert files.trace.read_bytes() == before
    (tmp_path / "anew").mkdir()
    anew = files_with(tmp_path / "anew", [ended])
    assert beginning_of(PLAN, anew, lambda _sentence: None).written == 0


def test_files_from_the_store_that_are_older_than_the_newest_checkpoint_lead_to_the_one_before(tmp_path: Path) -> None:
    """As a machine leaves them that was lost. If the journal tells of the checkpoint, lines are missing."""
    files = files_with(tmp_path, [{"event": "checkpoint_saved", "step": 3}])
    storage = open_storage(storage_of(PLAN, files))
    catalog = Catalog(storage, 2)
    for step in (3, 5):
        catalog.commit(step, events(storage, example(step), step))
    with contextlib.closing(LineFile(files.trace)) as trace:
        trace.append({"step": step, "loss": float(step).hex()} for step in range(4))
    said: list[str] = []
    begin = beginning_of(PLAN, files, said.append)
    assert (begin.requirements.checkpoint, begin.written, [line["step"] for line in begin.cut]) == (3, 3, [3])
    assert said[0] == "note: what the store has of the run ends before the checkpoint of step 5, which is made again"
    found = catalog.latest().manifest
    assert found is not None
    assert found.step == 3
    catalog.commit(5, events(storage, example(5), 5))
    files_with(tmp_path, [{"event": "checkpoint_saved", "step": 5}])
    refused = refusal(files)
    assert refused is not None
    assert "the trace ends at step 3, before the checkpoint of step 5" in refused.message


def test_a_checkpoint_that_has_vanished_is_missed(tmp_path: Path) -> None:
    files = files_with(tmp_path, [{"event": "checkpoint_saved", "step": step} for step in (20, 40)])
    said: list[str] = []
    assert beginning_of(PLAN, files, said.append).requirements.checkpoint is None
    warning = "warning: the checkpoint of step 40, of which the journal tells, is gone from its place"
    assert said == [warning, "no checkpoint: from the beginning"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_what_members_left_reaches_mlflow_once_though_the_first_resume_found_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow lacked those steps for ever: only the process that had taken what the members left knew of them."""
    store = Store(None, tmp_path)
    tracker = Tracker.create(store, store.experiment("e"), "killed", every_s=1.0)
    files = RunFolder(tmp_path, tracker.run_id)
    lines = [{"step": step, "loss": float(step).hex()} for step in range(6)]
    files.journal.touch()
    with contextlib.closing(LineFile(files.trace)) as trace:
        trace.append(lines[:3])
    for step in range(3):
        tracker.metrics(step, {"train/loss": float(step)})
    tracker.flush()
    storage = open_storage(storage_of(PLAN, files))
    evaluated = {"event": "evaluated", "step": 4, "metrics": {"validation/loss": 0.5}}
    news: list[Any] = [*({"trace": line} for line in lines[2:]), evaluated, *events(storage, example(6), 6)]
    storage.put(f"{PREFIX}0.jsonl", [written(news)])

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the server is away")

    def opened() -> tuple[RunStart, Tracker]:
        run_start = beginning_of(PLAN, files, lambda _sentence: None)
        return run_start, Tracker.reopen(store, tracker.run_id, every_s=1.0, since=run_start.told_from)

    def caught_up(run_start: RunStart, tracker: Tracker) -> None:
        with contextlib.closing(LineFile(files.journal)) as journal:
            record: Any = SimpleNamespace(tracker=tracker, journal=journal, files=files)
            EventSink(record, Audience(for_stream())).catches_up(run_start.untold)

    with monkeypatch.context() as patched:
        patched.setattr(store.client, "log_batch", away)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                opened()
    run_start, again = opened()
    monkeypatch.setattr(again, "sync", lambda: interrupted(again))
    with pytest.raises(KeyboardInterrupt):  # it is killed as it tells MLflow
        caught_up(run_start, again)
    caught_up(*opened())
    run_start, last = opened()
    assert (run_start.written, list(run_start.untold)) == (6, [])
    caught_up(run_start, last)
    last.end("FINISHED")
    for key, told in (("train/loss", [(step, float(step)) for step in range(6)]), ("validation/loss", [(4, 0.5)])):
        history = store.client.get_metric_history(tracker.run_id, key)
        assert [(each.step, each.value) for each in history] == told


def interrupted(tracker: Tracker) -> None:
    tracker.flush()
    raise KeyboardInterrupt


LEFT = {
    "journal.jsonl": [
        {"event": "worker_started", "worker": 1},
        {"event": "generation_started", "number": 0},
        {"event": "evaluated", "step": 2, "metrics": {"validation/loss": 0.5, "validation/odd": "nan"}},
        {"event": "checkpoint_saved", "step": 3},
    ],
    "trace.jsonl": [{"step": step, "loss": float(step).hex()} for step in range(5)],
    "rests.jsonl": [{"rest": 0, "steps": 5, "clocks": [5, 5]}],
}


def refusal(files: RunFolder) -> CheckpointDamaged | None:
    try:
        beginning_of(PLAN, files, lambda _sentence: None)
    except CheckpointDamaged as error:
        return error
    return None


@given(name=st.sampled_from(sorted(LEFT)), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_of_what_was_left_is_named_or_costs_nothing(name: str, place: int, bit: int) -> None:
    """One that is still a line of its kind passes: whether a number is the one that was written, only a rerun tells."""
    with tempfile.TemporaryDirectory() as folder:
        files = RunFolder(Path(folder), "c" * 32)
        for each, entries in LEFT.items():
            with contextlib.closing(LineFile(files.path / each)) as file:
                file.append(entries)
        catalog, state = Catalog(open_storage(storage_of(PLAN, files)), 1), example(3)
        catalog.commit(3, events(open_storage(storage_of(PLAN, files)), state, 3))
        whole = bytearray((files.path / name).read_bytes())
        whole[place % len(whole)] ^= 1 << bit
        (files.path / name).write_bytes(whole)
        if (refused := refusal(files)) is not None:
            assert f"{name} is damaged: line " in refused.message
            assert "restore it from the artifacts" in refused.remedy
            assert (files.path / name).read_bytes() == whole


@given(name=st.sampled_from(["trace.jsonl", "rests.jsonl"]), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_of_the_steps_of_a_checkpoint_turns_unseen(name: str, place: int, bit: int) -> None:
    """The journal has a hash of the lines before it."""
    with tempfile.TemporaryDirectory() as folder:
        files = RunFolder(Path(folder), "d" * 32)
        seals = {}
        for path, belongs in ((files.trace, of_trace), (files.barriers, of_barriers)):
            with contextlib.closing(LineFile(path)) as file:
                file.append(LEFT[path.name])
                seals[path.stem] = Seal(file, belongs).of(5)
        with contextlib.closing(LineFile(files.journal)) as file:
            file.append([{"event": "checkpoint_saved", "step": 5, **seals}])
        catalog, state = Catalog(open_storage(storage_of(PLAN, files)), 1), example(5)
        catalog.commit(5, events(open_storage(storage_of(PLAN, files)), state, 5))
        assert refusal(files) is None
        whole = bytearray((files.path / name).read_bytes())
        whole[place % len(whole)] ^= 1 << bit
        (files.path / name).write_bytes(whole)
        refused = refusal(files)
        assert refused is not None
        assert name in refused.message


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_of_a_seal_in_the_journal_is_not_told_as_one_of_the_trace_alone(place: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = RunFolder(Path(folder), "e" * 32)
        with contextlib.closing(LineFile(files.trace)) as file:
            file.append(LEFT["trace.jsonl"])
            seal = Seal(file, of_trace).of(5)
        with contextlib.closing(LineFile(files.journal)) as file:
            file.append([{"event": "checkpoint_saved", "step": 5, "trace": seal}])
        catalog, state = Catalog(open_storage(storage_of(PLAN, files)), 1), example(5)
        catalog.commit(5, events(open_storage(storage_of(PLAN, files)), state, 5))
        whole = bytearray(files.journal.read_bytes())
        whole[whole.index(seal.encode()) + place % len(seal)] ^= 1 << bit
        files.journal.write_bytes(whole)
        refused = refusal(files)
        assert refused is None or "journal.jsonl" in refused.message


@pytest.mark.slow
def test_what_a_run_began_with_is_taken_where_it_lies_as_long_as_it_is_that(tmp_path: Path) -> None:
    """Also data of which `.dvcignore` leaves out a part; and a checkout knows the DVC cache of the folder it was made for."""
    files = {"code.py": "1\n", "data/a.csv": "1\n", "data/a.tmp": "", ".dvcignore": "*.tmp\n", ".dvc/config": ""}
    project = create(tmp_path / "p", files)
    run = RunFolder(project_folder(project), "c" * 32)
    kept = take(project, run.path.name)
    snapshot.bundle(kept, run.bundle)
    run.code.write_text(json.dumps(kept.as_dict()))
    run.data.write_text(json.dumps({"inputs": [item.as_dict() for item in capture(project, ["data"])]}))
    run.settings.write_text("run: {steps: 1}\npipeline: {target: 'a:B'}\noptimizer: sgd\n")
    recorded = Recorded(Past(run.path.name, "a run", "default", "KILLED", 0, 3, {}, None), run)
    with recorded_project(recorded, project, project / ".orchestrator", for_stream()) as place:
        assert place == project
    write(project, {"code.py": "2\n"})
    with recorded_project(recorded, project, project / ".orchestrator", for_stream()) as place:
        assert (place / "code.py").read_text() == "1\n"
        storage = dvc_files.storage(place)
        assert storage is not None
        assert storage.cache == project / ".dvc" / "cache"
