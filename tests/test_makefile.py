"""The output of `make setup`: what failed, and nothing of what pip warns of on the way. Also the environment that makes the
data, and the two halves of `make gpu`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.projects import REPOSITORY

WARNING = "WARNING: Location 'a folder' is ignored"


def make_setup(folder: Path, *, pip_exits: int) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, with a pip that warns and comes to nothing."""
    shutil.copy(REPOSITORY / "Makefile", folder)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@"\necho "{WARNING}" >&2\nexit {pip_exits}\n')
    python.chmod(0o755)
    return subprocess.run(["make", "setup"], cwd=folder, capture_output=True, text=True, check=False)


def test_where_pip_succeeds_nothing_of_it_is_shown(tmp_path: Path) -> None:
    done = make_setup(tmp_path, pip_exits=0)
    assert done.returncode == 0, done.stderr
    assert WARNING not in done.stdout + done.stderr
    log = (tmp_path / ".venv" / "install.log").read_text()
    assert "-m pip install --constraint constraints.txt --editable .[examples,dev]" in log
    assert WARNING in log
    assert (tmp_path / ".venv" / ".installed").exists()


def test_where_pip_fails_all_that_it_said_is_shown(tmp_path: Path) -> None:
    done = make_setup(tmp_path, pip_exits=1)
    assert done.returncode == 2
    assert WARNING in done.stderr
    assert "it failed: .venv/bin/python -m pip install" in done.stderr
    assert not (tmp_path / ".venv" / ".installed").exists()


def make_data(folder: Path, active: str, *, has_all: bool) -> subprocess.CompletedProcess[str]:
    """The commands that `make data` would execute while the environment of this name is active."""
    shutil.copy(REPOSITORY / "Makefile", folder)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    python = folder / active / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {int(not has_all)}\n")
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "VIRTUAL_ENV": str(folder / active)}
    return subprocess.run(
        ["make", "--dry-run", "data"], cwd=folder, capture_output=True, text=True, check=True, env=environment
    )


def test_data_are_made_by_the_environment_that_is_active_where_it_has_what_they_need(tmp_path: Path) -> None:
    for name, has_all, installs in (("own", True, False), ("bare", False, True), (".venv", True, True)):
        folder = tmp_path / name
        folder.mkdir()
        said = make_data(folder, name, has_all=has_all).stdout
        assert ("-m pip install" in said) == installs, said
        assert (f"in the active environment {folder}/own" in said) == (not installs)
        assert "dvc repro --quiet prepare_digits" in said


@pytest.mark.parametrize(
    ("checks", "times", "code"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (2, None, 2)],
    ids=["all is well", "a check failed", "a part failed", "no GPU"],
)
def test_times_are_measured_also_where_a_check_failed_and_not_where_no_gpu_is(
    checks: int, times: int | None, code: int, tmp_path: Path
) -> None:
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    python, asked = tmp_path / ".venv" / "bin" / "python", tmp_path / "asked"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >>{asked}\ncase "$*" in *--check*) exit {checks};; esac\nexit {times}\n')
    python.chmod(0o755)
    done = subprocess.run(["make", "gpu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    page = "--page docs/benchmarks/gpu.md"
    wanted = [f"-m benchmarks.gpu --check {page}", f"-m benchmarks.gpu {page}"]
    assert asked.read_text().splitlines() == wanted[: 1 if times is None else 2]
    assert (f"Error {code}" in done.stderr) == (done.returncode != 0) == (code != 0)
