"""MLflow at a server, out of reach, gone in the middle of a run; several launches at once on a store that is not there yet."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.provenance.tracking import Store
from tests.cli.test_signals import SLOW
from tests.projects import PATIENCE_S, Done, Project
from tests.provenance.tracking.server import Server

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
    done = project.run(
        "conf=good", "cluster.workers=1", f"tracking.uri={server.uri}", "trace.timeline=true", "output=json"
    )
    assert done.code == 0, done.err
    run_id = done.report["run_id"]
    assert ray_and_record(project.folder(run_id) / "timeline.json") == ["Ray", "run in the store"]
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
            for name in (
                "journal.jsonl",
                "times.jsonl",
                "timeline.json",
                "trace.jsonl",
                "settings.yaml",
                "environment.json",
            )
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


def ray_and_record(timeline: Path) -> list[str]:
    """Which of the two began first: Ray's start, or the end of what made the run in the store."""
    spans = {each["name"]: each for each in json.loads(timeline.read_text())["traceEvents"] if each["ph"] == "X"}
    ray, store = spans["Ray"], spans["run in the store"]
    return ["Ray", store["name"]] if ray["ts"] < store["ts"] + store["dur"] else [store["name"], "Ray"]


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
        until_it_steps(project, process)
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
    run_id = done.report["run_id"]
    assert f"by `python -m orchestrator resume={run_id} tracking.uri={gone.uri}`" in err
    early = project.run("runs", "output=json")
    assert (early.code, early.report) == (0, {"runs": []})
    assert f"note: MLflow still lacks some of run {run_id}: no answer from the server: Connection refused" in early.err
    gone.start()
    try:
        senders = [
            project.start("runs", "output=json"),
            project.start("runs", "output=json", f"tracking.uri={gone.uri}"),
            project.start("conf=good", "cluster.workers=1", f"tracking.uri={gone.uri}", "output=json"),
        ]
        told = [sender.communicate(timeout=PATIENCE_S)[1] for sender in senders]
        assert [sender.returncode for sender in senders] == [0, 0, 0], told
        assert "".join(told).count(f"MLflow has got what it lacked of run {run_id}") == 1
        _check_whole(Store(gone.uri, project.path), run_id, done.report["digest"], len(trace))
        assert not (folder / "mlflow.jsonl").exists()
        late = project.run(f"resume={run_id}", f"tracking.uri={gone.uri}")
        assert (late.code, "has finished" in late.err) == (2, True)
    finally:
        gone.stop()


def _check_whole(store: Store, run_id: str, digest: str, steps: int) -> None:
    run = store.client.get_run(run_id)
    assert (run.info.status, run.data.tags["digest"]) == ("FINISHED", digest)
    assert run.data.tags["mlflow.note.content"].startswith(f"**Result:** finished, {steps} steps, loss")
    history = store.client.get_metric_history(run_id, "train/loss")
    assert [metric.step for metric in sorted(history, key=lambda metric: metric.step)] == list(range(steps))
    names = {Path(file.path).name for place in ("run", "model") for file in store.client.list_artifacts(run_id, place)}
    assert {"trace.jsonl", "card.html", "model.safetensors"} <= names
    assert len(store.client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")) == 1


@pytest.mark.long
def test_a_finished_run_that_a_server_does_not_know_of_is_finished_there_by_resuming_it(
    project: Project, tmp_path: Path
) -> None:
    gone = Server(tmp_path)
    gone.start()
    try:
        process = project.start(*SLOW, "run.steps=150", "cluster.workers=1", f"tracking.uri={gone.uri}")
        until_it_steps(project, process)
    finally:
        gone.stop()
    out, err = process.communicate(timeout=PATIENCE_S)
    ended = Done(process.returncode, out, err).report
    run_id = ended["run_id"]
    gone.start()
    try:
        done = project.run(f"resume={run_id[:8]}", f"tracking.uri={gone.uri}", "output=json")
        assert done.code == 0, done.err
        assert f"note: MLflow has got what it lacked of run {run_id}" in done.err
        kept = ("run_id", "status", "steps", "digest", "loss", "metrics")
        assert {key: done.report[key] for key in kept} == {key: ended[key] for key in kept}
        _check_whole(Store(gone.uri, project.path), run_id, ended["digest"], 150)
    finally:
        gone.stop()


def until_it_steps(project: Project, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not any(trace.stat().st_size for trace in project.path.glob(".orchestrator/*/trace.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
