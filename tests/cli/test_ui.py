"""`ui` really serves the pages of a project's store, tells where, and leaves nothing behind when it is ended."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from orchestrator.cli.ui import ui
from orchestrator.provenance.tracking import Store
from tests.projects import PATIENCE_S, REPOSITORY
from tests.refusals import refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:The ..noload.. loader strategy is deprecated"  # MLflow's own use of SQLAlchemy
    ),
]
KIND = {"key": "mlflow.experimentKind", "value": "custom_model_development"}


@pytest.mark.long
def test_the_runs_are_shown_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / ".orchestrator").mkdir()
    store = Store(None, tmp_path / ".orchestrator")
    store.client.create_run(store.experiment("digits"), run_name="the run")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "ui"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        page = r"/#/experiments/1/runs\?workflowType=machine_learning"
        match = re.fullmatch(rf"the runs are shown, until Ctrl-C, at (http://127\.0\.0\.1:\d+){page}\n", told)
        assert match is not None, (told, process.communicate())
        address = match.group(1)
        assert "<title>MLflow</title>" in read(address)
        found = json.loads(read(f"{address}/api/2.0/mlflow/experiments/get-by-name?experiment_name=digits"))
        assert KIND in found["experiment"]["tags"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, "")
        with pytest.raises(urllib.error.URLError):
            read(address)
    finally:
        process.kill()
        process.communicate()


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def test_a_port_that_is_taken_and_a_project_without_runs_are_said(tmp_path: Path) -> None:
    with refused("mlflow.no-runs"):
        ui(tmp_path, None)
    (tmp_path / ".orchestrator").mkdir()
    Store(None, tmp_path / ".orchestrator")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refused("mlflow.port-taken", f"port={port}"):
            ui(tmp_path, port)


@pytest.mark.long
def test_an_experiment_of_an_older_version_gets_its_kind_and_another_kind_stays(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    older = store.client.create_experiment("older")
    chosen = store.client.create_experiment("chosen", tags={KIND["key"]: "finetuning"})
    assert [store.experiment("older"), store.experiment("chosen")] == [older, chosen]
    kinds = [store.client.get_experiment(each).tags[KIND["key"]] for each in (older, chosen)]
    assert kinds == [KIND["value"], "finetuning"]
