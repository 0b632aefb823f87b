"""Answers of `mlflow models serve` over HTTP: a row has the same bits in every batch, of several models, each trained by a
true command line. A model whose rows depend on each other is named when it is logged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from orchestrator.numerics import batch_invariance
from orchestrator.provenance.tracking import Store
from tests.portable.answering import MODELS, inputs_of, picked
from tests.projects import PATIENCE_S, REPOSITORY, Project

pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.filterwarnings(
        "ignore:The ..noload.. loader strategy is deprecated"  # MLflow's own use of SQLAlchemy
    ),
]
PIPELINE = """
import torch
from answering import MODELS, inputs_of
from orchestrator import Pipeline

class Rows(torch.utils.data.Dataset):
    def __init__(self, name):
        self.rows = inputs_of(name, 32)
    def __len__(self):
        return 32
    def __getitem__(self, index):
        if isinstance(self.rows, dict):
            return {key: part[index] for key, part in self.rows.items()}
        return self.rows[index], index

class Made(Pipeline):
    def __init__(self, name):
        self.name = name
    def model(self):
        return MODELS[self.name]()
    def datasets(self):
        return Rows(self.name), Rows(self.name)
    def loss(self, model, batch):
        found = model(self.example(batch))
        return (found["scores"] if isinstance(found, dict) else found).square().mean()

class Beside(Made):
    def predict(self, model, inputs):
        found = model(inputs)
        return found - found.mean(0)
"""
CONF = """\
run: {experiment: rows, steps: 2, seed: 3, arithmetic: portable}
data: {shards: 2, batch_size: 16}
cluster: {workers: 1}
optimizer: {name: adam, lr: 0.01}
"""
Ask = Callable[[Any], Any]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("served") / "project")
    (project.path / "conf").mkdir(parents=True)
    (project.path / "rows.py").write_text(PIPELINE)
    (project.path / "conf" / "rows.yaml").write_text(CONF)
    shutil.copy(REPOSITORY / "tests" / "portable" / "answering.py", project.path)
    project.commit()
    yield project
    assert project.leftovers() == []


@contextlib.contextmanager
def serving(project: Project, name: str, folder: Path) -> Iterator[Ask]:
    """`mlflow models serve` with the environment that is there, in a folder where the pipeline is not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ("-m", "mlflow", "models", "serve", "-m", f"models:/{name}@newest", "--env-manager", "local", "-p", port)
    uri = Store(None, project.path / ".orchestrator").uri
    log = folder / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, *command, "--workers", "1"],
            cwd=folder,
            env={**project.environment(), "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not answers(address):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield lambda request: asked(f"{address}/invocations", request)
        assert "UserWarning" not in log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/ping", timeout=5):
            return True
    except OSError:
        return False


def asked(address: str, request: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(request).encode(), headers)) as answer:
        return json.load(answer)["predictions"]


def listed(tree: Any) -> Any:
    return batch_invariance.mapped(lambda part: part.tolist(), tree, lists=False)


def table(rows: list[list[int]]) -> dict[str, Any]:
    """A request of rows of several lengths."""
    return {"dataframe_split": {"columns": ["words"], "data": [[row] for row in rows]}}


def row_of(answer: Any, row: int) -> Any:
    """One row of an answer as JSON has it: a list of rows, or a mapping of such lists or of lists of them."""
    if isinstance(answer, dict):
        return {"scores": answer["scores"][row], "others": answer["others"][0][row]}
    return answer[row]


def train(project: Project, target: str, name: str) -> str:
    done = project.run(
        "conf=rows", f"pipeline.target={target}", f"pipeline.args.name={name}", f"tracking.register={name}"
    )
    assert done.code == 0, done.err
    return done.err


@pytest.mark.parametrize("name", MODELS)
def test_the_served_endpoint_gives_a_row_the_same_bits_in_every_batch(
    project: Project, name: str, tmp_path: Path
) -> None:
    assert "when it is served" not in train(project, "rows:Made", name)
    rows = inputs_of(name, 64)
    with serving(project, name, tmp_path) as ask:
        alone = [row_of(ask({"inputs": listed(picked(rows, [row]))}), 0) for row in range(64)]
        order = numpy.random.default_rng(7)
        for number in range(1, 65):
            chosen = order.permutation(64)[:number].tolist()
            answer = ask({"inputs": listed(picked(rows, chosen))})
            assert [row_of(answer, place) for place in range(number)] == [alone[row] for row in chosen], number
        if name == "gru":
            words = [row[: 2 + number % 3] for number, row in enumerate(rows[:9].tolist())]
            assert ask(table(words)) == [ask(table([row]))[0] for row in words]


def test_a_model_whose_rows_depend_on_each_other_is_named_when_it_is_logged(project: Project) -> None:
    told = train(project, "rows:Beside", "mlp")
    assert (
        "note: when it is served, the model answers a whole request at once: the answer to a row depends on the rows "
        "beside it" in told
    )
    past = Store(None, project.path / ".orchestrator").past()
    (run_id,) = (each.run_id for each in past if each.settings["pipeline.target"] == "rows:Beside")
    assert "a whole request at once: the answer to a row depends on" in (project.folder(run_id) / "card.md").read_text()
