"""Shards that are dealt by measured speed among true processes: the slow worker ends up with fewer, with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.alone import trace_of
from tests.projects import make_digits

pytestmark = [pytest.mark.long, pytest.mark.ray]

SLOW = '''
import os, time
from pathlib import Path
from pipelines.digits import Digits as Plain

MARKS = Path("{marks}")


class Digits(Plain):
    """A micro-batch takes 50 ms more where the folder is. At the worker that asks first it takes 250 ms."""

    def loss(self, model, batch):
        if model.training and MARKS.exists():
            time.sleep(0.25 if self._is_slow() else 0.05)
        return super().loss(model, batch)

    def _is_slow(self):
        own = MARKS / "slow"
        try:
            with own.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        return own.read_text() == str(os.getpid())
'''
RUN = ["conf=digits", "pipeline.target=pipelines.slow:Digits", "run.steps=100", "run.threads=1", "data.shards=12"]


def test_a_slow_worker_gets_fewer_shards_and_is_named(tmp_path: Path) -> None:
    project, marks = make_digits(tmp_path / "project"), tmp_path / "marks"
    (project.path / "pipelines" / "slow.py").write_text(SLOW.format(marks=marks))
    project.commit()
    expected = project.run(*RUN, "cluster.workers=1", "output=json")
    assert expected.code == 0, expected.err
    marks.mkdir()
    done = project.run(*RUN, "cluster.workers=3", "transport=tcp", "output=json")
    assert done.code == 0, done.err
    assert done.report["digest"] == expected.report["digest"]
    assert trace_of(project, done) == trace_of(project, expected)
    journal = (project.folder(done.report["run_id"]) / "journal.jsonl").read_text().splitlines()
    redealt = [event for event in map(json.loads, journal) if event["event"] == "shards_redealt"]
    assert len(redealt) == done.report["redealt"] <= 3
    assert redealt[0]["expected_s"] < 0.75 * redealt[0]["step_s"]
    assert min(done.report["hosted"]) <= 2
    assert f"  dealt    {', '.join(map(str, done.report['hosted']))}, after " in done.err
    (slow,) = done.report["slow"]
    assert "warning: a worker has been far slower than the others for" in done.err
    assert slow in done.err
