"""MLflow at a server, out of reach, gone in the middle of a run; several launches at once on a store that is not there yet."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.tracking import Store
from tests.commands.test_signals import SLOW
from tests.projects import PATIENCE_S, Done, Project
from tests.tracking.server import Server

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def project(faulty: Project, tmp_path: Path) -> Iterator[Project]:
    """The project of mistakes, anew: without a store."""
    shutil.copytree(faulty.path, tmp_path / "project", ignore=shutil.ignore_patterns(".orchestrator", "__pycache__"))
    anew = Project(tmp_path / "project")
    yield anew
    assert anew.processes() == []


@pytest.mark.long
def test_a_run_at_a_server_is_as_complete_as_one_in_the_projects_store(project: Project, server: Server) -> None:
    done = project.run("conf=good", "cluster.workers=1", f"tracking.uri={server.uri}", "output=json")
    assert done.code == 0, done.err
    run_id = done.report["run_id"]
    assert not (project.path / ".orchestrator" / "mlflow.db").exists()
    store = Store(server.uri, project.path)
    run = store.client.get_run(run_id)
    assert f"{server.uri}/#/experiments/{run.info.experiment_id}/runs/{run_id}" in done.err
    assert "mlflow ui" not in done.err
    assert "View run" not in done.err  # MLflow's own words
    assert (run.info.status, run.data.tags["digest"]) == ("FINISHED", done.report["digest"])
    assert len(store.client.get_metric_history(run_id, "train/loss")) == 4
    artifacts = {
        file.path for folder in ("run", "model", "pictures") for file in store.client.list_artifacts(run_id, folder)
    }
    assert artifacts == {
        *(
            f"run/{name}"
            for name in ("journal.jsonl", "times.jsonl", "trace.jsonl", "settings.yaml", "environment.json")
        ),
        *(f"run/{name}" for name in ("card.md", "card.html", "Dockerfile")),
        *(
            f"run/{name}"
            for name in ("settings_from.json", "code.bundle", "code.patch", "code.json", "data.json", "identity.json")
        ),
        "model/model.safetensors",
        "pictures/loss.png",
        "pictures/time.png",
        "pictures/topology.svg",
    }
    (model,) = store.client.search_logged_models([run.info.experiment_id])
    assert (model.source_run_id, model.tags["digest"]) == (run_id, done.report["digest"])
    logged = {file.path for file in store.client.list_logged_model_artifacts(model.model_id)}
    assert {"MLmodel", "model.safetensors", "training_state.safetensors"} <= logged
    fetched = store.client.download_artifacts(run_id, "run/trace.jsonl", str(project.path))
    assert Path(fetched).read_bytes() == (project.folder(run_id) / "trace.jsonl").read_bytes()
    listed = project.run("runs", f"tracking.uri={server.uri}", "output=json")
    assert [past["run_id"] for past in listed.report["runs"]] == [run_id]
    assert project.run("runs", "output=json").report == {"runs": []}


@pytest.mark.long
def test_a_server_out_of_reach_is_said_before_anything_is_started(project: Project) -> None:
    with socket.socket() as silent:  # takes the connection, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
        for uri in (address, f"http://127.0.0.1:{silent.getsockname()[1]}"):
            started = time.monotonic()
            done = project.run("conf=good", f"tracking.uri={uri}")
            assert time.monotonic() - started < 300  # MLflow itself goes on trying the silent one for longer
            assert (done.code, done.out) == (2, "")
            assert f"tracking.uri: the MLflow server {uri} cannot be used" in done.err
            assert "starting" not in done.err
            assert "Traceback" not in done.err
    assert [path.name for path in (project.path / ".orchestrator").glob("*/trace.jsonl")] == []


@pytest.mark.long
def test_a_server_that_goes_away_costs_the_run_nothing(project: Project, tmp_path: Path) -> None:
    gone = Server(tmp_path)
    gone.start()
    try:
        process = project.start(*SLOW, "run.steps=150", "cluster.workers=1", f"tracking.uri={gone.uri}")
        deadline = time.monotonic() + PATIENCE_S
        while not any(trace.stat().st_size for trace in project.path.glob(".orchestrator/*/trace.jsonl")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        gone.stop()
    out, err = process.communicate(timeout=PATIENCE_S)
    done = Done(process.returncode, out, err)
    assert done.code == 0, err
    assert done.report["status"] == "finished"
    assert done.report["not_recorded"] == "no answer from the server: Connection refused"
    assert err.count("MLflow does not take what this run reports") == 1
    assert err.count("MLflow has not got all of this run") == 1
    assert "Traceback" not in err
    folder = project.folder(done.report["run_id"])
    trace = (folder / "trace.jsonl").read_text().splitlines()
    assert len(trace) == 150
    assert json.loads(trace[-1])["parameters"] == done.report["digest"]
    for name in ("model.safetensors", "pictures/loss.png", "pictures/topology.svg", "settings.yaml"):
        assert (folder / name).exists()


@pytest.mark.long
def test_three_launches_at_once_make_one_store(project: Project) -> None:
    processes = [
        project.start("conf=good", "cluster.workers=1", f"run.seed={seed}", "output=json") for seed in range(3)
    ]
    ended = [(process.communicate(timeout=PATIENCE_S), process.returncode) for process in processes]
    dones = [Done(code, out, err) for (out, err), code in ended]
    assert [done.code for done in dones] == [0, 0, 0], [done.err for done in dones]
    assert project.runs() == {done.report["run_id"]: "FINISHED" for done in dones}
    assert len({done.report["digest"] for done in dones}) == 3
    for done in dones:
        assert len((project.folder(done.report["run_id"]) / "trace.jsonl").read_text().splitlines()) == 4
