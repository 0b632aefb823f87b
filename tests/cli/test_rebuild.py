"""The environment of a run is made anew from its record: in a virtual environment, and in an image."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.pylock import Pylock

from tests.cli.images import Image
from tests.cli.test_rerun import COMMANDS, CONF, points, shell, write
from tests.projects import Done, Project

pytestmark = pytest.mark.ray

PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"

[tool.setuptools]
py-modules = ["{name}"]
"""
STEPS = 20
OF_MLFLOW = ("mlflow", "mlflow-skinny", "mlflow-tracing")
OLDER_MLFLOW = "3.16.1"  # its stores have another schema than 3.17's
PAGE_ARGUMENTS = "environment=rebuild wheels=FOLDER"  # docs/rerun.md


@dataclass(frozen=True)
class Somewhere:
    """A project whose run imports a package of an index, and one of the repository in editable mode. run_id: of the run;
    wheels: the folder that stands for the index; python: of the environment that the commands run in."""

    project: Project
    run_id: str
    wheels: Path
    python: str

    def install(self, *arguments: str) -> None:
        pip(self.python, "install", "--no-index", "--no-build-isolation", "--find-links", str(self.wheels), *arguments)

    def rerun(self, *arguments: str) -> Done:
        done = self.project.run(f"rerun={self.run_id}", *arguments, "output=json")
        assert "Traceback" not in done.err, done.err
        assert list((self.project.path / ".orchestrator" / "worktrees").iterdir()) == []
        return done


def pip(python: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, *arguments, "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def source(folder: Path, name: str, version: str, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name, version=version))
    (folder / f"{name}.py").write_text(text)
    return folder


def wheel(folder: Path, sources: Path) -> None:
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Somewhere]:
    """The environment is that of the tests with the two packages above it; after the run one of them is changed."""
    place = tmp_path_factory.mktemp("somewhere")
    wheels = place / "wheels"
    for version, scale in (("1.0", "3.0"), ("1.1", "4.0")):
        wheel(wheels, source(place / version, "scales", version, f"SCALE = {scale}\n"))
    environment = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (below,) = Path(sys.prefix).glob("lib/python*/site-packages")
    (site / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
    python = str(environment / "bin" / "python")
    # The interpreter that the tests name is the first of the arguments, and this one takes its place.
    project = Project(place / "project", before=("sh", "-c", f'shift; exec {python} "$@"', "sh"))
    here = Somewhere(project, "", wheels, python)
    write(project, {"study.py": Path(__file__).with_name("study.py").read_text(), "conf/study.yaml": CONF})
    write(
        project,
        {
            "helper.py": "from offsets import OFFSET\nfrom scales import SCALE as OF_SCALES\nSCALE = OF_SCALES + OFFSET\n"
        },
    )
    source(project.path / "libs" / "offsets", "offsets", "0.5", "OFFSET = 0.25\n")
    write(project, {"data/points.csv": points(1)})
    here.install("scales==1.0", "--editable", str(project.path / "libs" / "offsets"))
    pip(python, "install", "--no-deps", "--no-compile", *(f"{name}=={OLDER_MLFLOW}" for name in OF_MLFLOW))
    shell(
        project,
        "rm -rf libs/offsets/*.egg-info libs/offsets/build",  # setuptools' own; they belong to no snapshot
        f"git init -q && dvc init -q && dvc config core.analytics false && dvc remote add -q -d far {place / 'remote'}",
        "dvc add -q data/points.csv && dvc push -q",
    )
    project.commit()
    done = project.run("conf=study", "output=json")
    assert done.code == 0, done.err
    assert "cannot be repeated" not in done.err, done.err
    write(project, {"libs/offsets/offsets.py": "OFFSET = 0.5\n"})
    here.install("scales==1.1")
    pip(python, "uninstall", "--yes", *OF_MLFLOW)  # now it is that of the tests, below
    yield Somewhere(project, done.report["run_id"], wheels, python)
    assert project.leftovers() == []
    shutil.rmtree(project.path / ".orchestrator" / "environments", ignore_errors=True)


@pytest.mark.long
def test_a_run_is_exact_in_its_environment_made_anew_and_differs_in_another(
    somewhere: Somewhere, tmp_path: Path
) -> None:
    """A package of an index was changed since, and so was one of the repository in editable mode; and the MLflow, of which the
    older one can no longer open the store. The first takes minutes, the others find what the first has built."""
    assert f"python -m orchestrator rerun=RUN_ID {PAGE_ARGUMENTS}" in COMMANDS
    there = somewhere.rerun()
    assert there.code == 4, there.err
    assert there.report["verdict"] == "inputs-differ"
    result = [each for each in there.report["differences"] if each["share"] == "result"]
    assert [(each["kind"], each["name"]) for each in result] == [("package", name) for name in (*OF_MLFLOW, "scales")]
    assert (result[-1]["a"].split()[0], result[-1]["b"].split()[0]) == ("1.0", "1.1")
    arguments = PAGE_ARGUMENTS.replace("FOLDER", str(somewhere.wheels)).split()
    first = somewhere.rerun(*arguments)
    assert first.code == 0, first.err
    assert "building the environment: " in first.err
    assert (first.report["verdict"], first.report["differences"]) == ("exact", [])
    assert f"exact: all {STEPS} steps and the final parameters agree to the last bit" in first.err
    for run_id in (somewhere.run_id, first.report["run_id"]):
        text = (somewhere.project.folder(run_id) / "pylock.toml").read_text()
        lock = Pylock.from_dict(tomllib.loads(text))
        (scales,) = (each for each in lock.packages if each.name == "scales")
        assert scales.wheels is not None
        assert [each.filename for each in scales.wheels] == ["scales-1.0-py3-none-any.whl"]
        assert all(each.hashes["sha256"] for package in lock.packages for each in package.wheels or [])
        assert not {"offsets", "orchestrator"} & {each.name for each in lock.packages}
    second = somewhere.rerun(*arguments, "cluster.workers=1", "topology=tree")
    assert second.code == 0, second.err
    assert "is the one in " in second.err
    assert "building the environment" not in second.err
    assert second.report["verdict"] == "exact"
    _repeat_elsewhere(somewhere, tmp_path)


def _repeat_elsewhere(somewhere: Somewhere, place: Path) -> None:
    """From a crate, in a folder and an environment that know neither of the packages; pip's wheels travel along."""
    made = somewhere.project.run(
        f"export={somewhere.run_id}",
        f"to={place / 'run.zip'}",
        "data=true",
        f"wheels={somewhere.wheels}",
        "output=json",
    )
    assert made.code == 0, made.err
    there = Project(place / "there")
    (there.path / ".orchestrator").mkdir(parents=True)
    kept = Path(".orchestrator", "environments")  # building it once more would show nothing new
    (there.path / kept).symlink_to(somewhere.project.path / kept)
    asked = there.run(f"rerun={place / 'run.zip'}", "environment=rebuild", "output=json")
    assert (asked.code, asked.report["error"]["kind"]) == (2, "Untrusted")
    assert "scales 1.0" in asked.report["would_execute"]["installs"]
    assert "packages that would be installed: " in asked.err
    done = there.run(f"rerun={place / 'run.zip'}", "environment=rebuild", "trust=true", "output=json")
    assert done.code == 0, done.err
    assert "building the environment" not in done.err
    assert (done.report["verdict"], done.report["differences"]) == ("exact", [])
    assert there.leftovers() == []


@pytest.mark.long
@pytest.mark.root
def test_the_dockerfile_of_a_run_builds_its_environment_and_repeats_it(somewhere: Somewhere, tmp_path: Path) -> None:
    """Each instruction is executed, in a root of its own (images.py: what stands for the image), the last without network."""
    name = f"run-{somewhere.run_id[:8]}"
    text = (somewhere.project.folder(somewhere.run_id) / "Dockerfile").read_text()
    commands = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    assert commands[0] == f"python -m orchestrator export={somewhere.run_id} to={name} data=true"
    assert commands[1] == f"docker build --file {name}/record/Dockerfile --tag {name} {name}"
    made = somewhere.project.run(*commands[0].split()[3:], f"wheels={somewhere.wheels}", "output=json")
    assert made.code == 0, made.err
    context = tmp_path / name
    shutil.move(somewhere.project.path / name, context)
    assert sorted(each.name.split("-")[0] for each in (context / "wheels").iterdir()) == ["orchestrator", "scales"]
    image = Image(tmp_path / "image", context, settings_of_pip())
    image.build(context / "record" / "Dockerfile")
    done = image.run("output=json")
    assert done.code == 0, done.err
    assert (done.report["verdict"], done.report["differences"]) == ("exact", [])
    shutil.rmtree(image.root)


def settings_of_pip() -> dict[str, str]:
    """The sources from which pip takes packages on this machine, as arguments of a build."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        if key.startswith(("global.", ":env:.")):
            found["PIP_" + key.rpartition(".")[2].replace("-", "_").upper()] = value.strip("'")
    return {name: value for name, value in found.items() if name not in ("PIP_USER", "PIP_TARGET")}
