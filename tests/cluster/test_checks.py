"""On other nodes than the driver's: a machine that computes wrongly is left out, and the line of a standstill is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.test_checks import EVERY, FIRST, HANGS, WRONG, assert_alike, journal_of, with_pipeline
from tests.cluster.conftest import Joined

pytestmark = [pytest.mark.long, pytest.mark.ray]


def test_a_machine_that_computes_wrongly_is_left_out(tmp_path: Path, two_nodes: Joined) -> None:
    marks = tmp_path / "marks"
    here = with_pipeline(tmp_path / "project", "wrong", WRONG.format(marks=marks, first=FIRST))
    project = replace(here, variables=two_nodes.access)
    run = [
        "conf=digits",
        "pipeline.target=pipelines.wrong:Digits",
        "run.steps=60",
        f"check.every={EVERY}",
        "output=json",
    ]
    expected = here.run(*run)
    marks.mkdir()
    joined = [f"cluster.address={two_nodes.address}", f"checkpoint.uri={tmp_path}"]
    done = project.run(*run, *joined, "cluster.workers=3")
    assert_alike(project, done, expected)
    folder = project.folder(done.report["run_id"])
    (found,) = journal_of(folder, "answers_differ")
    nodes = {each["worker"]: each["node"] for each in journal_of(folder, "worker_started")}
    (wrong,) = found["workers"]
    lost = {each["worker"]: each["why"] for each in journal_of(folder, "worker_lost")}
    assert {worker for worker in lost if worker in (0, 1, 2)} == {
        worker for worker in (0, 1, 2) if nodes[worker] == nodes[wrong]
    }
    assert "without its machine" in done.err
    assert all(node != nodes[wrong] for worker, node in nodes.items() if worker > 2)


def test_a_line_is_seen_on_another_node(tmp_path: Path, two_nodes: Joined) -> None:
    marks = tmp_path / "marks"
    here = with_pipeline(tmp_path / "project", "hangs", HANGS.format(marks=marks))
    project = replace(here, variables=two_nodes.access)
    run = ["conf=digits", "pipeline.target=pipelines.hangs:Digits", "run.steps=20", "output=json"]
    expected = here.run(*run)
    marks.mkdir()
    joined = [f"cluster.address={two_nodes.address}", "cluster.workers=3", f"checkpoint.uri={tmp_path}"]
    done = project.run(*run, *joined, "cluster.step_timeout_s=6")
    assert_alike(project, done, expected)
    whys = [each["why"] for each in journal_of(project.folder(done.report["run_id"]), "worker_lost")]
    assert "; pipelines/hangs.py:19 in _hang: time.sleep(1000)" in whys[0]
    assert "; pipelines/hangs.py:21 in _hang: sum(itertools.repeat(0))" in whys[1]
