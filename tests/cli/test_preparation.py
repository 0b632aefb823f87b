"""The preparation of data is repeated by a true command line, and a library that has changed is seen in what it makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Project, make_project

pytestmark = [pytest.mark.ray, pytest.mark.long]

# In the place of scikit-learn: what it gives, one pixel apart.
CHANGED = """\
import csv, gzip, importlib.util, types
import numpy
def load_digits():
    with gzip.open({file!r}, "rt") as opened:
        rows = numpy.array([[float(value) for value in row] for row in csv.reader(opened)])
    rows[0, 2] += 1
    return types.SimpleNamespace(images=rows[:, :-1].reshape(-1, 8, 8), target=rows[:, -1].astype(int))
"""
LAUNCH = ("conf=digits", "run.steps=20", "cluster.workers=2", "data.shards=4", "output=json")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Launched; then DVC's cache and the data are gone."""
    files = ["conf", "pipelines", "dvc.yaml", "dvc.lock", ".gitignore"]
    project = make_project(tmp_path_factory.mktemp("digits") / "project", files)
    project.commit()
    made = project.shell("dvc init -q && dvc config core.analytics false && dvc repro -q prepare_digits")
    assert made.code == 0, made.err
    project.commit()
    assert project.run(*LAUNCH).code == 0
    project.shell("rm -rf data/digits .dvc/cache")
    yield project
    assert project.leftovers() == []


def shadow(folder: Path) -> Path:
    """A folder with another scikit-learn."""
    (place,) = (Path(entry) for entry in sys.path if (Path(entry) / "sklearn" / "datasets" / "data").is_dir())
    (folder / "sklearn").mkdir(parents=True)
    (folder / "sklearn" / "__init__.py").write_text("")
    data = place / "sklearn" / "datasets" / "data" / "digits.csv.gz"
    (folder / "sklearn" / "datasets.py").write_text(CHANGED.format(file=str(data)))
    return folder


def test_the_digits_are_prepared_again_and_a_changed_library_is_seen(digits: Project, tmp_path: Path) -> None:
    """Though nobody has the data any more."""
    assert "cannot be restored" in digits.run("rerun=last").err
    done = digits.run("rerun=last", "stages=true", "cluster.workers=1", "output=json")
    assert done.code == 0, done.err
    assert done.report["verdict"] == "exact"
    (stage,) = done.report["stages"]
    assert (stage["stage"], stage["same"], stage["changed"]) == ("prepare_digits", True, [])
    assert "from the raw data on: stage prepare_digits made data/digits again, byte for byte" in done.err
    runs = digits.runs()
    digits.variables = {"PYTHONPATH": f"{shadow(tmp_path)}:{REPOSITORY}"}
    other = digits.run(f"rerun={done.report['rerun_of']}", "stages=true", "output=json")
    digits.variables = {}
    assert other.code == 3, other.err
    assert other.report["verdict"] == "diverged"
    assert "diverged: stage prepare_digits: data/digits was 4e8dbba9f9f4, is " in other.err
    assert (other.report["run_id"], digits.runs()) == (None, runs)
    assert list((digits.path / ".orchestrator" / "worktrees").iterdir()) == []


def test_a_stage_that_fails_is_shown_with_its_words(digits: Project, tmp_path: Path) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise RuntimeError('not today')")
    digits.variables = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    done = digits.run("rerun=last", "stages=true")
    digits.variables = {}
    assert done.code == 1
    assert "error: stage prepare_digits failed in a clean checkout of the run's code:" in done.err
    assert "RuntimeError: not today" in done.err
    assert "orchestrator/cli" not in done.err
