"""Sites as nodes of a true Ray: each reads its own files, one that is killed sits out and comes back, and a rerun is exact."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.watching import WatchedRun
from tests.cluster.clinics import WATCHED
from tests.cluster.conftest import raylets
from tests.projects import Project

pytestmark = [pytest.mark.long, pytest.mark.ray]

CONF = """
pipeline: {target: "clinics:Clinics"}
run: {steps: 2500, arithmetic: portable}
data:
  shards: 3
  batch_size: 24
  inputs: [data/clinics.json]
  partition: natural
  sites: {hospital_a: [0, 1], hospital_b: [2]}
local: {epochs: 1, optimizer: {name: sgd, lr: 0.01}}
optimizer: {name: sgd, lr: 1.0}
cluster: {workers: 2}
evaluation: {every: 100}
checkpoint: {every: 200}
environment: {variables: [OPENED]}
"""
SITES = ("2@hospital_a", "2@hospital_b")
OF = {"a1": "hospital_a", "a2": "hospital_a", "b1": "hospital_b"}  # the site of each clinic, in the order of clients


def clinics(path: Path) -> None:
    dice = random.Random(1)
    for name in OF:
        folder = path / name
        folder.mkdir(parents=True)
        for number in range(2):
            rows = [[dice.gauss(0, 1) for _ in range(4)] for _ in range(40)]
            lines = [json.dumps({"x": row, "y": int(row[0] + row[1] > 0) + int(row[2] > 1)}) for row in rows]
            (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    place = tmp_path / "project"
    (place / "conf").mkdir(parents=True)
    (place / "opened").mkdir()
    shutil.copy(Path(__file__).parent / "clinics.py", place)
    (place / "conf" / "clinics.yaml").write_text(CONF)
    (place / ".gitignore").write_text(".orchestrator\nopened\nsaved\n")
    (place / "data").mkdir()
    clinics(tmp_path / "clinics")
    project = Project(place)
    done = project.run(f"index={tmp_path / 'clinics'}", "to=data/clinics.json")
    assert done.code == 0, done.err
    project.commit()
    yield project
    assert project.leftovers() == []


def opened(folder: Path) -> dict[int, set[str]]:
    """By process, the clinics of which it has opened a file."""
    return {
        int(log.name): {line.split("/clinics/")[1].split("/")[0] for line in log.read_text().splitlines()}
        for log in folder.iterdir()
    }


def test_a_site_that_is_killed_sits_out_comes_back_and_the_rerun_is_exact(project: Project) -> None:
    folder = project.path / "opened"
    with raylets(0, *SITES) as joined:
        project.variables = {**joined.access, WATCHED: str(folder)}
        given = ("conf=clinics", f"cluster.address={joined.address}", f"checkpoint.uri=file://{project.path}/saved")
        run = WatchedRun(project, *given, "output=json")
        run.wait_for_steps(30)
        joined.kill_last_node()
        run.wait_for("generation_started", 2)
        run.wait_for_steps(run.steps + 30)
        joined.add_node(SITES[1])
        run.wait_for("generation_started", 3)
        done = run.end()
        assert done.code == 0, done.err
    assert "hospital_b away: shards 2 sit out until they are back" in done.err
    lines = [json.loads(line) for line in (run.folder / "trace.jsonl").read_text().splitlines()]
    absent = [line["step"] for line in lines if "absent" in line]
    assert {tuple(line["absent"]) for line in lines if "absent" in line} == {(2,)}
    assert absent == list(range(absent[0], absent[-1] + 1))
    assert absent[0] >= 30
    assert absent[-1] < len(lines) - 1 == 2499

    started = run.journal("worker_started")
    sites = {
        each["node"]: {OF[("a1", "a2", "b1")[shard]] for shard in each["shards"]} for each in started if each["shards"]
    }
    nodes = {each["pid"]: each["node"] for each in started}
    seen = opened(folder)
    assert set(seen) <= set(nodes), "nobody but workers has opened a file: not the driver, nor a process beside it"
    assert {frozenset(OF[each] for each in found) for found in seen.values()} == {
        frozenset([site]) for site in OF.values()
    }
    for pid, found in seen.items():
        if nodes[pid] in sites:
            assert {OF[each] for each in found} == sites[nodes[pid]]

    shutil.rmtree(folder)
    folder.mkdir()
    project.variables = {WATCHED: str(folder)}
    again = project.run(
        f"rerun={run.run_id}", "data.sites={}", "cluster.address=null", "cluster.workers=3", "output=json"
    )
    assert again.code == 0, again.err
    assert again.report["verdict"] == "exact"
