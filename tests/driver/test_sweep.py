"""The journal of a sweep survives a torn line, and its progress is a table or calm lines."""

from __future__ import annotations

import contextlib
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.transformers import Trainable
from orchestrator.common import card_faults, gpu_memory
from orchestrator.config.settings import kept, load, to_yaml
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.errors import ConfigurationError, OrchestratorError, UsageError, code_of
from orchestrator.experiments import pictures
from orchestrator.experiments.rerun import sweep as repeated
from orchestrator.experiments.rerun.sweep import SweepRerun, parting
from orchestrator.experiments.search.asking import Trial
from orchestrator.experiments.search.outlook import Cut, Ended, TrialRung
from orchestrator.experiments.search.space import Choice, Range, Space
from orchestrator.experiments.search.sweeps import load_sweep
from orchestrator.experiments.sweep import combining, trials
from orchestrator.experiments.sweep.record import (
    SweepHistory,
    SweepRecord,
    folder_of,
    of_runs,
    parameters,
    recorded_trial,
    recorded_trials,
)
from orchestrator.experiments.sweep.report import SweepReport, again, summary_of_whole
from orchestrator.experiments.sweep.trial_board import (
    Seen,
    TrialBoard,
    TrialDisplay,
    TrialRow,
    ranked,
    show_point,
    summary,
    table,
)
from orchestrator.pipeline import Pipeline
from orchestrator.provenance.code.worktree import examine
from orchestrator.provenance.data.hashing import scan
from orchestrator.provenance.tracking import Past
from orchestrator.records import phases
from tests.products import thinned
from tests.provenance.code.repositories import create, write
from tests.refusals import refused

EVENTS = [
    {
        "event": "asked",
        "batch": 0,
        "trials": [{"number": 0, "point": {"run.seed": 1}}, {"number": 1, "point": {"run.seed": 2}}],
    },
    {"event": "begun", "trial": 0, "rung": 0, "run_id": "a"},
    {"event": "begun", "trial": 1, "rung": 0, "run_id": "b"},
    {"event": "ended", "trial": 1, "rung": 0, "run_id": "b", "value": 0.1, "digest": "d", "why": None},
    {"event": "ended", "trial": 0, "rung": 0, "run_id": "a", "value": None, "digest": None, "why": "NonFinite: nan"},
    {"event": "kept", "batch": 0, "rung": 0, "kept": [1]},
    {"event": "begun", "trial": 1, "rung": 1, "run_id": "c"},
    {"event": "combined", "whole": {"digest": "w"}},
    {"event": "sweep_ended", "status": "killed"},
]
WHOLE = {
    "digest": "w" * 64,
    "weights": [0.5, 0.5],
    "samples": 10,
    "chosen_on": 10,
    "metrics": {"validation/loss": 0.3, "validation/accuracy": 0.9},
    "mean_of_members": {"validation/loss": 0.4, "validation/accuracy": None},
    "of_members": [
        {"validation/loss": 0.5, "validation/accuracy": 0.8},
        {"validation/loss": 0.3, "validation/accuracy": None},
    ],
    "disagreement": 0.25,
    "agreed": {"validation/loss": 0.1, "validation/accuracy": 1.0},
    "disagreed": {},
}


def test_the_record_of_a_sweep_holds_no_credentials_and_asks_for_them(tmp_path: Path) -> None:
    file, record = tmp_path / "search.yaml", tmp_path / "sweep.yaml"
    file.write_text(
        "run: {steps: 3}\npipeline: {target: 'a:B', args: {password: swordfish, url: 'https://me:sword@host'}}\n"
        "space: {run.seed: {choices: [1, 2]}}\nsearch: {name: grid}\n"
    )
    described = load_sweep(str(file), [])
    record.write_text(described.as_yaml())
    (tmp_path / "sweep.jsonl").touch()
    assert not re.search("swordfish|sword@", record.read_text() + json.dumps(parameters(described)))
    with pytest.raises(ConfigurationError) as caught:
        kept.given_again(record, ["cluster.workers=2", "parallel=2"])
    assert caught.value.remedy == "give it again: pipeline.args.password=VALUE"
    again = ["pipeline.args.password=swordfish", "pipeline.args.url=https://me:sword@host"]
    assert load_sweep(str(record), again).determining() == described.determining()
    assert of_runs([*again, "parallel=2", "search.token=x"]) == again


def test_a_credential_is_not_searched(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(
        "run: {steps: 3}\npipeline: {target: 'a:B'}\nspace: {pipeline.args.password: {choices: [a, b]}}\n"
        "search: {name: grid}\n"
    )
    with refused("sweep.credentials", "pipeline.args.password"):
        load_sweep(str(file), [])


def test_the_journal_is_a_fold(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.jsonl"
    assert SweepHistory.read(journal) == SweepHistory()
    journal.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    known = SweepHistory.read(journal)
    assert known.asked == [[Trial(0, {"run.seed": 1}), Trial(1, {"run.seed": 2})]]
    assert known.begun == {(0, 0): "a", (1, 0): "b", (1, 1): "c"}
    assert known.ended == {(1, 0): Ended("b", 0.1, "d"), (0, 0): Ended("a", None, None, "NonFinite: nan")}
    assert known.cuts == [Cut(0, 0, (1,))]
    assert known.combined == {"digest": "w"}


@given(st.data())
def test_a_torn_journal_tells_what_its_whole_lines_tell(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    journal = tmp_path_factory.getbasetemp() / "torn.jsonl"
    whole = "".join(json.dumps(event) + "\n" for event in EVENTS)
    end = data.draw(st.integers(0, len(whole)))
    journal.write_text(whole[:end])
    torn = SweepHistory.read(journal)
    journal.write_text("".join(json.dumps(event) + "\n" for event in EVENTS[: whole[:end].count("\n")]))
    assert SweepHistory.read(journal) == torn


def scripted(record: Any) -> Any:
    """Trials whose settings are their names, and whose runs end as `launch` does."""

    class Scripted(trials.Trials):
        def _settings(self, place: TrialRung, _: object) -> Any:
            return f"trial {place[0]}"

        def _beside(self, _: TrialRung) -> Any:
            return None

        def _valued(self, run_id: str, *_: object) -> Ended:
            return Ended(run_id, 0.0, None)

    sweep: Any = SimpleNamespace(noun="trial", kind="sweep", ensemble=None, course=MagicMock())
    return Scripted(sweep, record, MagicMock(), MagicMock(), MagicMock(signal=None), Path())


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (gpu_memory.full("worker 0", "", "a long row", "raise data.shards", ""), False),
        (card_faults.BY_CODE["gpu.assertion"].told("device-side assert triggered"), False),
        (card_faults.BY_CODE["gpu.illegal-access"].told("an illegal memory access"), False),
        (card_faults.BY_CODE["gpu.ecc"].told("uncorrectable ECC error"), True),
        (card_faults.BY_CODE["gpu.driver-old"].told("driver version is insufficient"), True),
    ],
)
def test_a_trial_fails_by_what_it_does_to_a_gpu_and_a_sweep_ends_by_a_broken_one(
    error: OrchestratorError, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "launch", lambda settings, *_, **__: (settings, RunOutcome(error=error)))
    record: Any = MagicMock(known=SweepHistory())
    with contextlib.nullcontext() if not ends else pytest.raises(type(error), match=re.escape(error.message)):
        scripted(record)._run((3, 0), {})
    assert record.ended.call_count == (not ends)
    if not ends:
        assert record.ended.call_args[0][1].why == f"{error.kind}: {error.message}"


def test_models_of_transformers_are_no_members_and_modules_around_them_are() -> None:
    class Around(Trainable):
        def model(self) -> torch.nn.Module:
            return torch.nn.Sequential(super().model())

    assert [code_of(problem) for problem in combining.problems(Trainable)] == ["ensemble.of-transformers"]
    assert combining.problems(Around) == combining.problems(Pipeline) == []


def test_trials_have_the_same_data(tmp_path: Path) -> None:
    """One may write a cache beside them."""
    each = scripted(MagicMock(sweep_id="abc"))
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "first").write_text("1")

    def begins() -> None:
        each._check_project(SimpleNamespace(work=None, scans={"rows": scan(rows)}))

    begins()
    (rows / "cache").write_text("2")
    begins()
    (rows / "first").write_text("3")
    with refused("sweep.data-changed", "rows changed since the sweep began"):
        begins()
    (rows / "first").write_text("1")
    begins()


def test_files_that_a_trial_has_written_into_the_code_are_named(tmp_path: Path) -> None:
    each = scripted(MagicMock(sweep_id="abc"))
    project = create(tmp_path / "p", {"a.py": "1"})

    def begins() -> None:
        each._check_project(SimpleNamespace(work=examine(project), scans={}))

    begins()
    begins()
    write(project, {"cached.txt": "2"})
    with refused("sweep.code-changed", "cached.txt"):
        begins()


def test_the_timeline_of_a_trial_shows_no_phase_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials with a thread of their own, and those that follow another one in its thread."""
    told: dict[str, list[dict[str, Any]]] = {}

    def launched(settings: str, *_: object, **__: object) -> tuple[str, RunOutcome]:
        phases.note(f"start of {settings}", 1.0, 2.0, "driver")
        told[settings] = phases.recorded()
        return settings, RunOutcome()

    monkeypatch.setattr(trials, "launch", launched)
    each = scripted(MagicMock(known=SweepHistory()))
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(each._run, (number, 0), {}) for number in range(6)]:
            run.result()
    assert told == {
        f"trial {number}": [
            {"member": "driver", "started": 1.0, "spans": [[f"start of trial {number}", None, None, 0.0, 1.0]]}
        ]
        for number in range(6)
    }


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    journal = tmp_path / "sweep.jsonl"
    for text in ("{\n", '{"event": "ended", "trial": 0}\n', "[]\n"):
        journal.write_text(text)
        with refused("sweep.journal-damaged"):
            SweepHistory.read(journal)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


POINT = {"optimizer.lr": 0.00123456, "pipeline.args.hidden": 64}


def drive(stream: io.StringIO) -> None:
    board = TrialBoard(Seen("validation/loss", 3), stream)
    for number in range(2):
        board.begins((number, 0), POINT, 60)
    TrialDisplay(board, (0, 0)).step(60, 0.5)
    TrialDisplay(board, (1, 0)).say("note: nothing for people")
    for number in range(2):
        TrialDisplay(board, (number, 0)).say("warning: the disk is nearly full")
    board.ends((0, 0), 0.25, None, last=True)
    board.ends((1, 0), None, "NonFinite: the loss is nan\nand more", last=True)
    board.close()


def test_elsewhere_than_on_a_terminal_there_is_one_line_for_what_happened() -> None:
    stream = io.StringIO()
    drive(stream)
    assert stream.getvalue().splitlines() == [
        "trial 0: warning: the disk is nearly full",
        "trial 0, 60 steps: validation/loss 0.25, the best so far (lr=0.001235, hidden=64)",
        "trial 1: failed: NonFinite: the loss is nan (lr=0.001235, hidden=64)",
    ]


def shown(text: str) -> list[str]:
    """The lines that stand on a terminal after the text."""
    lines = [""]
    for part in text.replace("\x1b[J", "").split("\x1b["):
        up, separator, rest = part.partition("A")
        if separator and up.isdigit():
            lines = lines[: len(lines) - 1 - int(up)] + [""]
            part = rest
        for piece in part.splitlines(keepends=True):
            lines[-1] += piece.rstrip("\n")
            lines += [""] if piece.endswith("\n") else []
    return lines[:-1]


def test_on_a_terminal_the_table_stays_below_what_is_said() -> None:
    stream = Terminal()
    board = TrialBoard(Seen("validation/loss", 3), stream)
    board.say("sweep x")
    board.begins((0, 0), POINT, 60)
    board.begins((1, 0), POINT, 60)
    lines = shown(stream.getvalue())
    assert lines[0] == "sweep x"
    assert [line.split()[0] for line in lines[1:]] == ["trial", "0", "1", "0"]
    board.ends((1, 0), 0.25, None, last=True)
    lines = shown(stream.getvalue())
    assert [line.split()[0] for line in lines] == ["sweep", "trial", "trial", "0", "1"]
    assert lines[-1].startswith("1 of 3 trials; best: trial 1, validation/loss 0.25")
    board.close()
    assert len(shown(stream.getvalue())) == 2


def test_the_table_fits_its_width_and_names_what_runs() -> None:
    seen = Seen("loss", 9, running={(7, 0): TrialRow(7, POINT, 3, 60, 0.5), (2, 0): TrialRow(2, POINT)})
    lines = table(seen, 60)
    assert [line.split()[:2] for line in lines[1:3]] == [["2", "starting"], ["7", "3/60"]]
    assert all(len(line) <= 30 for line in table(seen, 30))
    assert summary(seen) == "0 of 9 trials"


def test_keys_are_shown_by_their_last_part_where_that_is_clear() -> None:
    assert show_point({"a.lr": 0.1, "b.lr": "x"}) == "a.lr=0.1, b.lr=x"
    assert show_point({"a.lr": 0.1, "b.size": None}) == "lr=0.1, size=None"


def test_the_best_comes_first() -> None:
    trials = [
        {"number": n, "value": value, "status": status, "run_id": "r", "digest": "d", "settings": {"a": n}}
        for n, (value, status) in enumerate([(2.0, "finished"), (1.0, "pruned"), (None, "failed"), (3.0, "finished")])
    ]
    assert [line.split()[0] for line in ranked(trials, "minimize").splitlines()] == ["trial", "0", "3"]
    assert [line.split()[0] for line in ranked(trials, "maximize").splitlines()] == ["trial", "3", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("trials", thinned([1, 6], 2))
def test_pictures_of_few_and_of_more_trials(tmp_path: Path, trials: int) -> None:
    space: Space = {
        "optimizer.lr": Range(0.1, 1.0, log=True),
        "run.seed": Range(1, 9),
        "topology": Choice(("ring", "tree")),
    }
    rows = [
        {
            "number": n,
            "value": float(n + 1),
            "status": "pruned" if n == 4 else "finished",
            "settings": {"optimizer.lr": 0.1 + n / 10, "run.seed": n + 1, "topology": "ring" if n % 2 else "tree"},
        }
        for n in range(trials)
    ]
    seen = pictures.SweepSeen("s", "validation/loss", "minimize", space, rows)
    assert pictures.draw_sweep(tmp_path / "p", seen) is None
    drawn = {path.name for path in (tmp_path / "p").iterdir()}
    assert drawn == {"history.png", "parallel.png"} | ({"importance.png"} if trials > 4 else set())
    empty = pictures.SweepSeen("s", "validation/loss", "minimize", space, [])
    assert pictures.draw_sweep(tmp_path / "none", empty) is None
    assert not (tmp_path / "none").exists()


def test_repetitions_of_an_ensemble_part_where_its_whole_differs() -> None:
    before, after = (
        SweepHistory(combined=dict(WHOLE)),
        SweepHistory(combined={**WHOLE, "weights": [1.0, 0.0], "digest": "x"}),
    )
    assert parting(before, SweepHistory(combined=dict(WHOLE))) is None
    assert parting(before, after) == "the whole of the same members came to another digest and weights"
    assert parting(before, SweepHistory()) is not None


def test_an_ensemble_is_logged_whatever_its_name(tmp_path: Path) -> None:
    described = load_sweep("ensemble", ["run.name=digits.v2"])
    known = SweepHistory(combined=dict(WHOLE))
    record: Any = SimpleNamespace(known=known, tracker=MagicMock(), files=SimpleNamespace(model=tmp_path))
    SweepRecord.log_model(record, described)
    folder, _ = record.tracker.model.call_args.args
    assert folder.name == "digits-v2"


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_runs_that_chance_has_a_part_in_are_repeated_one_by_one(tmp_path: Path, sync: str) -> None:
    """A repetition of such a sweep came out as diverged, whatever the machine."""
    run = {"run": {"steps": 3}, "pipeline": {"target": "a:B"}, "optimizer": {"name": "sgd", "lr": 0.1}}
    settings = load([{**run, "sync": sync, "topology": "parameter_server"}], [])
    recorded = Recorded(Past("a" * 32, "n", "e", "FINISHED", 0, 3, {}, "4a4d"), RunFolder(tmp_path, "a" * 32))
    recorded.files.settings.write_text(to_yaml(settings))
    described: Any = SimpleNamespace(settings=settings)
    report = SweepReport("b" * 32, best={"run_id": "a" * 32})
    if sync == "bsp":
        repeated.require_none_left_to_chance(recorded.past, [recorded])
        assert again(described, report) == f"python -m orchestrator rerun={'b' * 32}"
    else:
        with refused("sweep.left-to-chance", "sync=asp"):
            repeated.require_none_left_to_chance(recorded.past, [recorded])
        assert again(described, report) == f"python -m orchestrator rerun={'a' * 32}"


@pytest.mark.slow
def test_an_ensemble_is_told_beside_its_members_and_drawn(tmp_path: Path) -> None:
    described = load_sweep("ensemble", ["ensemble.members=2", "ensemble.combine=weighted"])
    text = summary_of_whole(described, SweepReport("e", whole=WHOLE))
    assert "2 members, judged by 10 validation samples; weights chosen on 10 others, disagreement 0.25 nats" in text
    assert "validation/accuracy  - (0.8 to 0.8)" in text
    assert "rerun=e" in text
    assert pictures.draw_ensemble(tmp_path / "pictures", WHOLE, "ensemble") is None
    assert (tmp_path / "pictures" / "members.png").stat().st_size > 5000
    assert table(Seen("loss", 2, noun="member"), 80) == ["0 of 2 members"]


def test_the_copy_of_a_sweep_of_elsewhere_is_made_anew_once_it_has_gone_on(tmp_path: Path) -> None:
    told = {"sweep.yaml": "", "sweep.jsonl": "asked"}

    class Uploads:
        def fetch(self, _: str, __: str, target: Path, *, anew: bool) -> list[str]:
            new = {name: text for name, text in told.items() if anew or not (target / name).exists()}
            for name, text in new.items():
                (target / name).write_text(text)
            return [*new]

    def journal(status: str, ended_ms: int) -> str:
        past = Past("b" * 32, "n", "e", status, 0, None, {}, None, kind="sweep", ended_ms=ended_ms)
        return folder_of(cast("Any", Uploads()), tmp_path, past).journal.read_text()

    assert journal("KILLED", 5) == "asked"
    told["sweep.jsonl"] = "asked and ended"
    assert journal("KILLED", 5) == "asked"
    assert journal("FINISHED", 7) == "asked and ended"


@pytest.mark.parametrize(
    ("code", "remedy"), [("mlflow.no-such-run", "launch the ensemble again"), ("mlflow.run-deleted", "bring it back")]
)
def test_a_run_of_a_sweep_that_was_removed_is_told_by_its_number(tmp_path: Path, code: str, remedy: str) -> None:
    """As by `mlflow gc`. The message named an id that nobody had typed."""
    past = Past("5eeb", "swept", "default", "FINISHED", 0, None, {}, None, kind="ensemble")
    store = MagicMock(find=MagicMock(side_effect=UsageError("there is no run a1", "bring it back", code=code)))
    with refused("sweep.trial-gone", "ensemble 5eeb lacks its member 2: there is no run a1") as found:
        recorded_trial(store, tmp_path, past, (2, 0), "a1")
    assert remedy in found.value.remedy
    store.find.side_effect = UsageError("no answer", "start it", code="mlflow.out-of-reach")
    with refused("mlflow.out-of-reach"):
        recorded_trial(store, tmp_path, past, (2, 0), "a1")


def test_a_sweep_goes_on_and_is_repeated_without_a_trial_that_mlflow_has_lost(tmp_path: Path) -> None:
    """It was refused wholly, though the journal holds the digest of that trial. The trial that had not ended is begun anew."""
    past = Past("5eeb", "swept", "default", "KILLED", 0, None, {}, None, kind="sweep")
    there = Past("a0", "of it", "default", "FINISHED", 0, 3, {}, "d1")

    def find(run_id: str) -> Past:
        if run_id != there.run_id:
            raise UsageError(f"there is no run {run_id}", code="mlflow.no-such-run")
        return there

    store: Any = SimpleNamespace(find=find, fetch=lambda *_, **__: [])
    known = SweepHistory(begun={(1, 0): "a1", (0, 0): "a0"})
    assert [(place, each.past) for place, each in recorded_trials(store, tmp_path, past, known)] == [((0, 0), there)]
    with refused("sweep.trial-gone", "lacks its trial 1"):
        [*recorded_trials(store, tmp_path, past, SweepHistory(begun={(1, 0): "a1"}))]
    record: Any = SimpleNamespace(known=known, store=store)
    gone_on = trials.Trials(cast("Any", None), record, *cast("Any", (None, None, None, tmp_path)))
    assert [gone_on._earlier((number, 0)) for number in range(3)] == [there, None, None]
    done = SweepRerun("again", "5eeb", "exact", [{}, {}], gone=[1])
    assert done.text.endswith(
        "MLflow has lost trial 1: only digest and value of the journal were compared, not the steps"
    )
