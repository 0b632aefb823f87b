"""Audits by true command lines: segments of a run on other workers, refused where nothing can be audited, differing where one
does; with the record in a crate; and lines of a trace that are verified alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store
from orchestrator.records import audit
from orchestrator.records.audit import Segment
from tests.cli.test_models import make_points
from tests.projects import Project

pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated"),
]
GIVEN = ("conf=points", "run.steps=60", "evaluation.every=20", "checkpoint.archive=10")
ELSEWHERE = ("cluster.workers=3", "topology=tree", "output=json")
BY_CHANCE = """
    def loss(self, model, batch, step):
        import time
        chance = 1 + (time.time_ns() % 1000 + 1) * 1e-6 if step == 25 else 1.0
        return super().loss(model, batch) * chance
"""


@dataclass
class Run:
    project: Project
    report: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.report["run_id"])

    @property
    def root(self) -> str:
        return str(Store(None, self.project.path / ".orchestrator").find(self.run_id).trace)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    project = make_points(tmp_path_factory.mktemp("points") / "project")
    done = project.run(*GIVEN, "output=json")
    assert done.code == 0, done.err
    yield Run(project, done.report)
    assert project.leftovers() == []


def test_segments_are_repeated_on_other_workers_and_the_seed_draws_them_again(trained: Run) -> None:
    project, run_id = trained.project, trained.run_id
    done = project.run(f"rerun={run_id}", "audit=3", *ELSEWHERE)
    found = done.report["audit"]
    assert (done.code, done.report["verdict"], found["segments"]) == (0, "audited", 6), done.err
    drawn = [(each["first"], each["end"]) for each in found["drawn"]]
    segments = [Segment(first, first + 10, None, None) for first in range(0, 60, 10)]
    assert drawn == [each[:2] for each in audit.drawn(segments, 3, found["seed"])]
    trace = project.folder(done.report["run_id"]) / "trace.jsonl"
    steps = [json.loads(line)["step"] for line in trace.read_text().splitlines()]
    assert steps == [step for first, end in drawn for step in range(first, end)]
    assert done.err.count("starting 3 workers") == 1
    again = project.run(f"rerun={run_id}", "audit=3", f"audit.seed={found['seed']}", "output=json")
    assert [(each["first"], each["end"]) for each in again.report["audit"]["drawn"]] == drawn
    store = Store(None, project.path / ".orchestrator")
    past = store.find(done.report["run_id"])
    assert (past.kind, past.rerun_of, past.parent, past.digest) == ("audit", run_id, run_id, None)
    assert store.find(run_id).verdict == "audited"
    for command in ("resume", "rerun"):
        refused = project.run(f"{command}={done.report['run_id']}")
        assert (refused.code, "audit" in refused.err) == (2, True), refused.err


def test_what_comes_out_otherwise_is_named_by_its_first_step(tmp_path: Path) -> None:
    project = make_points(tmp_path / "project")
    (project.path / "chance.py").write_text(f"from points import Points\n\nclass Chance(Points):{BY_CHANCE}")
    project.commit()
    done = project.run(*GIVEN, "pipeline.target=chance:Chance", "output=json")
    assert done.code == 0, done.err
    again = project.run("rerun=last", "audit=6", "output=json")
    assert (again.code, again.report["verdict"]) == (3, "diverged"), again.err
    assert again.report["first_divergence"]["step"] == 25
    parted = [each["first"] for each in again.report["audit"]["drawn"] if each["first_divergence"]]
    assert parted == [20]
    assert "diverged: step 25: loss was" in again.err


def test_a_changed_trace_and_another_checkpoint_are_refused_before_anything_starts(trained: Run) -> None:
    project, run_id = trained.project, trained.run_id
    runs, files = project.runs(), project.folder(run_id)
    trace = (files / "trace.jsonl").read_text()
    (files / "trace.jsonl").write_text(trace.replace('"gradient": "', '"gradient": "0', 1))
    changed = project.run(f"rerun={run_id}", "audit=2")
    (files / "trace.jsonl").write_text(trace)
    assert (changed.code, "its root is 60:" in changed.err) == (4, True), changed.err
    other = project.run(*GIVEN, "run.seed=9", "output=json").report["run_id"]
    aside = shutil.copytree(files / "checkpoints", files / "aside")
    shutil.copytree(project.folder(other) / "checkpoints", files / "checkpoints", dirs_exist_ok=True)
    replaced = project.run(f"rerun={run_id}", "audit=2")
    assert (replaced.code, "the checkpoint of step 10 in" in replaced.err) == (4, True), replaced.err
    journal = (files / "journal.jsonl").read_text()
    events = [json.loads(line) for line in journal.splitlines()]
    untold = [{key: value for key, value in event.items() if key != "state"} for event in events]
    (files / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in untold))
    told = project.run(f"rerun={run_id}", "audit=6", "output=json")
    (files / "journal.jsonl").write_text(journal)
    shutil.rmtree(files / "checkpoints")
    gone = project.run(f"rerun={run_id}", "audit=2")
    aside.rename(files / "checkpoints")
    assert (told.code, told.report["first_divergence"]["what"]) == (3, "state"), told.err
    assert [each["first_divergence"]["step"] for each in told.report["audit"]["drawn"]][:2] == [9, 9]
    assert (gone.code, "there is no checkpoint of run" in gone.err) == (4, True), gone.err
    assert "checkpoint.archive=STEPS" in gone.err
    assert len(project.runs()) == len(runs) + 2


@pytest.mark.parametrize(
    ("settings", "arguments", "code", "problem"),
    [
        (("sync=ssp",), ("audit=2",), 2, "whose updates are repeated in their order from the first one on"),
        (("checkpoint.archive=null",), ("audit=2",), 4, "kept no checkpoint on its way"),
        ((), ("audit=7",), 2, "audit=6 repeats all of them"),
        ((), ("audit=0",), 2, "audit=0: expected a whole number, at least 1"),
        ((), ("audit=2", "explain=true"), 2, "explain=true goes with the repetition of a whole run"),
        ((), ("audit.seed=x",), 2, "add audit=N"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_starts(
    trained: Run, settings: tuple[str, ...], arguments: tuple[str, ...], code: int, problem: str
) -> None:
    project, name = trained.project, trained.run_id
    if settings:
        name = project.run(*GIVEN, *settings, "output=json").report["run_id"]
    runs = project.runs()
    done = project.run(f"rerun={name}", *arguments)
    assert (done.code, problem in done.err) == (code, True), done.err
    assert "Traceback" not in done.err
    assert project.runs() == runs


def test_a_crate_with_checkpoints_is_audited_elsewhere(trained: Run, tmp_path: Path) -> None:
    project, elsewhere = trained.project, Project(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    for name, more in (("with", ["checkpoints=true"]), ("without", [])):
        given = (f"export={trained.run_id}", f"to={tmp_path}/{name}.zip", "data=true", *more, "output=json")
        made = project.run(*given)
        assert (made.code, made.report["trace"]) == (0, trained.root), made.err
        assert (made.report["checkpoints"] > 0) == bool(more)
    done = elsewhere.run(f"rerun={tmp_path}/with.zip", "audit=2", "trust=true", *ELSEWHERE)
    assert (done.code, done.report["verdict"]) == (0, "audited"), done.err
    refused = elsewhere.run(f"rerun={tmp_path}/without.zip", "audit=2", "trust=true")
    assert (refused.code, "export=RUN_ID to=PATH checkpoints=true" in refused.err) == (4, True), refused.err
    assert elsewhere.leftovers() == []


def test_lines_of_a_trace_are_verified_alone(trained: Run, tmp_path: Path) -> None:
    project, file = trained.project, tmp_path / "lines.json"
    made = project.run(f"export={trained.run_id}", "steps=20-29", f"to={file}")
    assert made.code == 0, made.err
    assert f"verify={file} root={trained.root}" in made.out
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.path.mkdir()
    done = elsewhere.run(f"verify={file}", f"root={trained.root}", "output=json")
    assert (done.code, done.report["begin"], done.report["last"]) == (0, 20, 29), done.err
    told = json.loads(file.read_text())
    told["lines"][3] = told["lines"][3].replace('"loss": "', '"loss": "-', 1)
    file.write_text(json.dumps(told))
    refused = elsewhere.run(f"verify={file}", f"root={trained.root}")
    assert (refused.code, "do not lead to the root" in refused.err) == (4, True), refused.err
    for steps in ("20-60", "5-4", "x"):
        wrong = project.run(f"export={trained.run_id}", f"steps={steps}", f"to={tmp_path}/no.json")
        assert (wrong.code, "Traceback" in wrong.err) == (2, False), wrong.err
    assert elsewhere.run(f"verify={file}", "root=3").code == 2
    assert elsewhere.run(f"verify={file}").code == 2
    card = (project.folder(trained.run_id) / "card.md").read_text()
    assert trained.root in card
