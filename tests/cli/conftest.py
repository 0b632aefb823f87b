"""The projects in which commands are tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.projects import Project, make_digits, make_project


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the digits pipeline and its data."""
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def characters(tmp_path: Path) -> Project:
    """A project of its own, with DVC as a user sets it up."""
    project = make_project(tmp_path, ["conf", "pipelines", "data", "dvc.yaml", "dvc.lock", ".gitignore", ".dvc/config"])
    project.commit()
    return project


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose pipelines do what users do by mistake; see faults.py."""
    project = Project(tmp_path_factory.mktemp("faulty"))
    shutil.copy2(Path(__file__).with_name("faults.py"), project.path / "faults.py")
    (project.path / "conf").mkdir()
    (project.path / "conf" / "good.yaml").write_text(
        "run: {steps: 4}\n"
        "pipeline: {target: 'faults:Good'}\n"
        "data: {shards: 4, batch_size: 16}\n"
        "cluster: {workers: 2}\n"
        "optimizer: {name: sgd, lr: 0.1}\n"
    )
    (project.path / "conf" / "own.yaml").write_text(  # of a pipeline with an optimizer of its own
        "run: {steps: 4}\npipeline: {target: 'faults:Good'}\ndata: {shards: 4, batch_size: 16}\n"
    )
    (project.path / "conf" / "broken.yaml").write_text("run: {steps: 4}\npipeline: [\n")
    (project.path / "conf" / "empty.yaml").write_text("")
    (project.path / "unimportable.py").write_text("import not_installed\n")
    (project.path / "exploding.py").write_text("1 / 0\n")
    (project.path / ".gitignore").write_text("ignored.bin\n")
    (project.path / "ignored.bin").write_text("bytes that nothing keeps")
    project.commit()
    return project


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing of what a test did to a project may still be there."""
    yield
    for name in ("digits", "faulty"):
        if name in request.fixturenames:
            assert request.getfixturevalue(name).leftovers() == []
