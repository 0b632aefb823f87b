"""The wheel of this package installs, and trains a model from an empty folder that knows nothing of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.projects import Project, make_project

PIPELINE = """
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import orchestrator


class Line(orchestrator.Pipeline):
    def model(self):
        return torch.nn.Linear(1, 1)

    def datasets(self):
        x = torch.arange(32.0).reshape(-1, 1) / 32
        return TensorDataset(x, 2 * x + 1), None

    def loss(self, model, batch):
        x, y = batch
        return functional.mse_loss(model(x), y)
"""
CONF = """
run: {steps: 3, arithmetic: portable}
pipeline: {target: "line:Line"}
data: {shards: 2, batch_size: 8}
cluster: {workers: 1}
optimizer: {name: sgd, lr: 0.1}
"""


def pip(*arguments: str, cwd: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        *arguments,
        "--no-deps",
        "--no-index",
    ]
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)


@pytest.mark.ray
@pytest.mark.long
def test_the_wheel_trains_from_an_empty_folder(tmp_path: Path) -> None:
    source, wheels, installed = (tmp_path / name for name in ("source", "wheels", "installed"))
    make_project(source, ["pyproject.toml", "README.md", "LICENSE", "orchestrator"])  # a build leaves files
    pip("wheel", ".", "--no-build-isolation", "--wheel-dir", str(wheels), cwd=source)
    (wheel,) = wheels.iterdir()
    pip("install", str(wheel), "--target", str(installed), cwd=tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "orchestrator/py.typed" in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"orchestrator"}

    project = Project(tmp_path / "empty", variables={"PYTHONPATH": os.fspath(installed)})
    project.path.mkdir()
    where = project.shell("python -c 'import orchestrator; print(orchestrator.__file__)'")
    assert Path(where.out.strip()).is_relative_to(installed)
    (project.path / "line.py").write_text(PIPELINE)
    (project.path / "line.yaml").write_text(CONF)
    done = project.run("conf=line.yaml", "output=json")
    assert done.code == 0, done.err
    assert (done.report["status"], done.report["steps"]) == ("finished", 3)
    assert project.leftovers() == []
