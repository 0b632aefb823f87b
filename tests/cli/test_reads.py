"""Reads of a pipeline beside its code and its inputs: named at launch, refused by strict, set again by a rerun."""

from __future__ import annotations

import http.server
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.projects import Project

pytestmark = [pytest.mark.ray, pytest.mark.long]

PIPELINE = """\
import os
import urllib.request

import torch

from orchestrator import Pipeline

SCALE = float(os.environ["SCALE"])


class Scaled(Pipeline):
    def __init__(self, url, shift):
        self.offset = float(urllib.request.urlopen(url).read())
        with open(shift) as file:
            self.shift = float(file.read())
        self.token = os.getenv("SERVICE_TOKEN")

    def model(self):
        return torch.nn.Linear(3, 1)

    def datasets(self):
        x = torch.randn(64, 3)
        y = SCALE * x.sum(1, keepdim=True) + self.shift + self.offset
        return torch.utils.data.TensorDataset(x, y), None

    def loss(self, model, batch):
        x, y = batch
        return ((model(x) - y) ** 2).mean()
"""
TOKEN = "abcdef0123456789abcdef"


class Quarter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"0.25")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quarter)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"localhost:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def project(tmp_path: Path, service: str) -> Iterator[Project]:
    made = Project(tmp_path / "project", variables={"SCALE": "2", "SERVICE_TOKEN": TOKEN})
    made.path.mkdir()
    (tmp_path / "shift.txt").write_text("0.5")
    (made.path / "scaled.py").write_text(PIPELINE)
    args = {"url": f"http://{service}/", "shift": str(tmp_path / "shift.txt")}
    conf = {
        "run": {"steps": 6},
        "pipeline": {"target": "scaled:Scaled", "args": args},
        "data": {"shards": 4, "batch_size": 16},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "cluster": {"workers": 2},
    }
    (made.path / "scaled.yaml").write_text(json.dumps(conf))
    made.commit()
    yield made
    assert made.leftovers() == []


def test_each_is_named_refused_by_strict_and_set_again_by_a_rerun(
    project: Project, service: str, tmp_path: Path
) -> None:
    launched = project.run("conf=scaled.yaml", "data.loaders=1", "output=json")
    assert launched.code == 0, launched.err
    folder = project.folder(launched.report["run_id"])
    record = (folder / "reads.json").read_text()
    card = (folder / "card.md").read_text()
    for name in (str(tmp_path / "shift.txt"), service, "SCALE", "SERVICE_TOKEN"):
        assert name in launched.err
        assert name in record
        assert name in card
    assert TOKEN not in record + card
    strict = project.run("conf=scaled.yaml", "strict=true")
    assert strict.code == 4
    assert all(name in strict.err for name in (str(tmp_path / "shift.txt"), service, "SCALE", "SERVICE_TOKEN"))
    assert (
        len(list((project.path / ".orchestrator").glob("*/lock"))) == 1
    )  # the other was refused before a run was opened
    project.variables["SCALE"] = "3"
    again = project.run(f"rerun={folder.name}", "cluster.workers=3", "topology=tree", "output=json")
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err
    assert "SCALE is set to 2 as recorded; here it is 3" in again.err
    project.variables["SERVICE_TOKEN"] = TOKEN[::-1]
    other = project.run(f"rerun={folder.name}", "cluster.workers=1", "output=json")
    assert (other.code, other.report["verdict"]) == (4, "inputs-differ"), other.err
    assert "SERVICE_TOKEN has another value here" in other.err
    assert [each["name"] for each in other.report["differences"]] == ["read SERVICE_TOKEN"]


def test_declared_variables_and_inputs_pass_strict(project: Project, service: str, tmp_path: Path) -> None:
    code = PIPELINE.replace("float(urllib.request.urlopen(url).read())", "0.25")
    (project.path / "scaled.py").write_text(code)
    (project.path / "shift.txt").write_text((tmp_path / "shift.txt").read_text())
    project.commit()
    args = ["pipeline.args.shift=shift.txt", "environment.variables=[SCALE, SERVICE_TOKEN]"]
    done = project.run("conf=scaled.yaml", *args, "strict=true", "output=json")
    assert done.code == 0, done.err
    assert service not in done.err
    assert "note: SCALE" not in done.err


LISTING = """\
import glob
import torch
from orchestrator import Pipeline


class Listed:
    def __init__(self):
        self.found = glob.glob("data/*")

    def __len__(self):
        return len(self.found)

    def __getitem__(self, index):
        if glob.glob("data/*") != sorted(self.found):
            raise ValueError("not by name")
        return torch.tensor([float(len(self.found[index]))])


class Listing(Pipeline):
    def model(self):
        return torch.nn.Linear(1, 1)

    def datasets(self):
        return Listed(), None

    def loss(self, model, batch):
        return model(batch).mean()
"""


@pytest.mark.parametrize("loaders", [0, 1])
def test_folders_are_listed_by_name_in_workers_and_loaders(tmp_path: Path, loaders: int) -> None:
    made = Project(tmp_path / "project")
    (made.path / "data").mkdir(parents=True)
    for number in random.sample(range(64), 64):
        (made.path / "data" / f"{number:03}").touch()
    found = [*(made.path / "data").iterdir()]
    assert found != sorted(found)
    (made.path / "listing.py").write_text(LISTING)
    (made.path / "conf.yaml").write_text(
        "run: {steps: 2}\npipeline: {target: 'listing:Listing'}\noptimizer: {name: sgd, lr: 0.1}\n"
        f"data: {{shards: 1, batch_size: 8, loaders: {loaders}}}\ncluster: {{workers: 1}}\n"
    )
    made.commit()
    done = made.run("conf=conf.yaml")
    assert done.code == 0, done.err
    assert made.leftovers() == []


def test_code_that_goes_to_another_folder_is_still_the_projects(project: Project) -> None:
    (project.path / "scaled.py").write_text(f"import os\n\nos.chdir('..')\n{PIPELINE}")
    project.commit()
    done = project.run("conf=scaled.yaml", "output=json")
    assert done.code == 0, done.err
    assert "SCALE" in done.err
    assert "is imported" not in done.err


def test_a_dry_run_names_them_too(project: Project, service: str) -> None:
    done = project.run("conf=scaled.yaml", "plan=true", "output=json")
    assert any(service in each for each in done.report["obstacles"])
    assert any("SCALE=2" in each for each in done.report["notes"])
