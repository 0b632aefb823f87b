"""`run.arithmetic: portable` in true processes: one result wherever it is started from, and refusals by the operator's name."""

from __future__ import annotations

import json
import sys

import pytest

from orchestrator.numerics import determinism
from tests.portable.golden import GOLDEN
from tests.projects import Project, make_project

FILES = ["tests/__init__.py", "tests/portable", "pipelines", "data", "conf", "dvc.yaml", "dvc.lock", ".gitignore"]
LOADED = """
import torch
torch.rand(9, 9) @ torch.rand(9, 9).sqrt()
import orchestrator
run = orchestrator.launch("digits", "run.steps=60", "cluster.workers=3", "topology=tree")
print(run.run_id, run.digest)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("portable"), FILES)
    for name in ("Twisted", "Integrals"):
        conf = {
            "run": {"steps": 2, "arithmetic": "portable"},
            "pipeline": {"target": f"tests.portable.pipelines:{name}"},
            "data": {"shards": 2, "batch_size": 8},
            "optimizer": {"name": "adam"},
        }
        (project.path / "conf" / f"{name.lower()}.yaml").write_text(json.dumps(conf))
    (project.path / "loaded.py").write_text(LOADED)
    project.commit()
    return project


@pytest.mark.long
@pytest.mark.ray
def test_a_launch_in_a_python_that_has_torch_loaded_gives_the_golden_digest(project: Project) -> None:
    """Its own torch computes natively; the workers' does not. The record has the variables, and no processor among what the
    result depends on."""
    done = project.shell(f"{sys.executable} loaded.py")
    assert done.code == 0, done.err
    run_id, digest = done.out.split()[-2:]
    assert digest == GOLDEN["digits"]["60"]
    folder = project.folder(run_id)
    (node,) = json.loads((folder / "environment.json").read_text())["nodes"].values()
    assert node["bits"]["variables"].items() >= determinism.PORTABLE.items()
    assert "cpu" not in node["bits"]
    assert node["host"]["cpu"]
    assert project.leftovers() == []


@pytest.mark.long
@pytest.mark.ray
def test_an_operator_whose_bits_depend_on_the_processor_is_refused_by_name(project: Project) -> None:
    done = project.run("conf=twisted", "output=json")
    assert done.code == 2
    assert "run.arithmetic: atan (atan) has other bits on other processors" in done.err
    assert "set run.arithmetic=native" in done.err
    assert "Traceback" not in done.err
    assert done.report["steps"] == 0
    assert project.leftovers() == []


@pytest.mark.ray
@pytest.mark.long
def test_an_operator_that_is_on_no_page_is_told(project: Project) -> None:
    done = project.run("conf=integrals", "output=json")
    assert done.code == 0, done.err
    assert "nobody knows" in done.err
    assert "special_i1e" in done.err
