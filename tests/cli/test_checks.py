"""True processes: one that computes wrongly is named and left out, one that stands still is seen where it stands, and a run
that its user disturbs says what that has shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.lines import read
from orchestrator.worker.step.checking import Checks
from tests.cli.alone import trace_of
from tests.projects import Done, Project, make_digits

pytestmark = [pytest.mark.long, pytest.mark.ray]

SEED, EVERY = 1, 10  # the seed of conf/digits.yaml
FIRST = next(step for step in range(30, 50) if Checks(SEED, EVERY).due(step))
WRONG = '''
import os
from pathlib import Path
from pipelines.digits import Digits as Plain

MARKS = Path("{marks}")


class Digits(Plain):
    """Where the folder is, one worker computes wrongly from a step on."""

    def loss(self, model, batch, step=0):
        found = super().loss(model, batch)
        return found * 1.001 if model.training and step >= {first} and self._is_wrong() else found

    def _is_wrong(self):
        own = MARKS / "wrong"
        try:
            with own.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        except FileNotFoundError:
            return False
        return own.read_text() == str(os.getpid())
'''
HANGS = '''
import itertools, os, signal, time
from pathlib import Path
from pipelines.digits import Digits as Plain

MARKS = Path("{marks}")


class Digits(Plain):
    """Where the folder is, one worker stands still in steps 5, 15 and 25, each time in another way."""

    def loss(self, model, batch, step=0):
        if model.training and MARKS.exists():
            self._hang(step)
        return super().loss(model, batch)

    def _hang(self, step):
        if step == 5 and self._is_first("sleeps"):
            time.sleep(1000)
        if step == 15 and self._is_first("computes"):
            sum(itertools.repeat(0))
        if step == 25 and self._is_first("stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _is_first(self, name):
        try:
            (MARKS / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
'''
SLOW = """
import time
from pipelines.digits import Digits as Plain


class Digits(Plain):
    def loss(self, model, batch):
        if model.training:
            time.sleep(0.01)
        return super().loss(model, batch)
"""


def journal_of(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    return [each for each in read(folder / "journal.jsonl") if each["event"] in kinds]


def assert_alike(project: Project, done: Done, expected: Done) -> None:
    assert (expected.code, done.code) == (0, 0), (expected.err, done.err)
    assert done.report["digest"] == expected.report["digest"]
    assert trace_of(project, done) == trace_of(project, expected)


def with_pipeline(folder: Path, name: str, source: str) -> Project:
    project = make_digits(folder)
    (project.path / "pipelines" / f"{name}.py").write_text(source)
    project.commit()
    return project


def test_a_worker_that_computes_wrongly_is_named_and_left_out(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    project = with_pipeline(tmp_path / "project", "wrong", WRONG.format(marks=marks, first=FIRST))
    run = [
        "conf=digits",
        "pipeline.target=pipelines.wrong:Digits",
        "run.steps=60",
        "output=json",
        f"check.every={EVERY}",
    ]
    expected = project.run(*run)
    marks.mkdir()
    done = project.run(*run, "cluster.workers=3")
    assert_alike(project, done, expected)
    (told,) = done.report["wrong"]
    assert f" of step {FIRST} wrongly" in told
    assert f"warning: {told}" in done.err
    folder = project.folder(done.report["run_id"])
    (found,) = journal_of(folder, "answers_differ")
    (lost,) = journal_of(folder, "worker_lost")
    assert found["workers"] == [lost["worker"]]
    assert lost["why"] == f"computed wrongly in step {FIRST}"
    (wrong,) = (each for each in journal_of(folder, "worker_started") if each["worker"] == lost["worker"])
    assert str(wrong["pid"]) == (marks / "wrong").read_text()
    assert "computed wrongly" in (folder / "card.md").read_text()


def test_where_a_worker_stands_still_is_seen_before_it_is_killed(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    project = with_pipeline(tmp_path / "project", "hangs", HANGS.format(marks=marks))
    run = ["conf=digits", "pipeline.target=pipelines.hangs:Digits", "run.steps=40", "output=json"]
    expected = project.run(*run)
    marks.mkdir()
    done = project.run(*run, "cluster.workers=3", "cluster.step_timeout_s=5")
    assert_alike(project, done, expected)
    events = journal_of(project.folder(done.report["run_id"]), "stacks", "worker_lost")
    lost = [place for place, each in enumerate(events) if each["event"] == "worker_lost"]
    assert len(lost) == 3
    for first, last in zip([0, *(place + 1 for place in lost)], lost, strict=False):
        assert [each["worker"] for each in events[first:last] if each["stuck"]] == [events[last]["worker"]]
    whys = [each["why"] for each in events if each["event"] == "worker_lost"]
    assert "; pipelines/hangs.py:19 in _hang: time.sleep(1000)" in whys[0]
    assert "; pipelines/hangs.py:21 in _hang: sum(itertools.repeat(0))" in whys[1]
    assert "; its process is stopped (SIGSTOP) and answers nothing" in whys[2]
    assert all(why in done.err for why in whys)
    waits = [each for each in events if each["event"] == "stacks" and not each["stuck"]]
    assert waits
    assert all("no line of the project" in each["why"] for each in waits)  # of the others, who wait


def test_a_run_that_is_disturbed_on_purpose_says_what_that_has_shown(tmp_path: Path) -> None:
    project = with_pipeline(tmp_path / "project", "slow", SLOW)
    run = ["conf=digits", "pipeline.target=pipelines.slow:Digits", "run.steps=400", "output=json"]
    expected = project.run(*run)
    done = project.run(*run, "cluster.workers=3", "chaos={every: 2s, seed: 1}")
    assert_alike(project, done, expected)
    folder = project.folder(done.report["run_id"])
    assert done.report["disturbed"] == Counter(each["kind"] for each in journal_of(folder, "disturbed"))
    assert done.report["disturbed"]["kill"] == len(journal_of(folder, "worker_lost")) >= 1
    assert "what members reported of a step was the same each time" in done.err
