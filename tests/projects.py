"""True command lines in a project of their own, watched for what they leave behind."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
MARK = "ORCHESTRATOR_TEST_MARK"
PATIENCE_S = 900.0  # for what has to come, on a machine with thirty other processes too; reached only when a test hangs


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The JSON object on the last line of stdout."""
        report: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return report


def _temporary_folder() -> str:
    """With a short path, since Ray puts Unix sockets into it; removed at the end of the tests."""
    folder = tempfile.mkdtemp(prefix="t-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclass
class Project:
    """A working directory with a git repository. Its processes carry a mark, so that any that stay are found."""

    path: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    before: tuple[str, ...] = ()  # a command that starts the others, such as `ip netns exec NAME`
    variables: dict[str, str] = field(default_factory=dict)
    temporary: str = field(default_factory=_temporary_folder)  # what other runs on this machine leave is not ours

    def environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "GIT_", "MLFLOW_", "PYTEST_", "MAKE", "MFLAGS"))
        }
        # The code beside these tests is tested, also if another checkout is the one that is installed.
        ours = {"PYTHONPATH": str(REPOSITORY), MARK: self.mark, "TMPDIR": self.temporary}
        # Bytecode that pytest has written is read, and none is written: a project's files are those that its test looks for.
        return {**inherited, **ours, "PYTHONDONTWRITEBYTECODE": "1", **self.variables}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.before, sys.executable, "-m", "orchestrator", *arguments],
            cwd=self.path,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> Done:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return Done(process.returncode, out, err)

    def shell(self, command: str) -> Done:
        """As typed in the project, with the environment's programs at hand."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**self.environment(), "PATH": path, "DVC_SITE_CACHE_DIR": f"{self.temporary}/dvc"}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def git(self, *arguments: str) -> None:
        name = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
        subprocess.run(
            ["git", *name, *arguments], cwd=self.path, env=self.environment(), check=True, capture_output=True
        )

    def commit(self) -> None:
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "as it is")

    def processes(self) -> list[str]:
        """The command lines of living processes that a command of this project started."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environment and command:
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def runs(self) -> dict[str, str]:
        """run id -> MLflow's status, read from the store without MLflow."""
        store = self.path / ".orchestrator" / "mlflow.db"
        if not store.exists():
            return {}
        connection = sqlite3.connect(store)
        try:
            return dict(connection.execute("select run_uuid, status from runs"))
        except sqlite3.OperationalError:  # a launch is creating the tables at this moment
            return {}
        finally:
            connection.close()

    def folder(self, run_id: str) -> Path:
        return self.path / ".orchestrator" / run_id

    def leftovers(self) -> list[str]:
        """The things that a command must not leave: processes, folders of its Ray, runs that say RUNNING."""
        folders = [str(folder) for folder in Path(self.temporary).glob("orc-*")]
        running = [f"run {run_id}" for run_id, status in self.runs().items() if status == "RUNNING"]
        return [*self.processes(), *folders, *running]


def packages(name: str) -> Path:
    """A folder of packages that only some tests need. `make test-long` fills it first, pytest by itself does not."""
    folder = Path(sys.prefix) / name
    assert folder.is_dir(), f"{folder} is not there: type make {name}"
    return folder


def make_digits(path: Path) -> Project:
    """A project with the digits pipeline and its data. It computes natively, so that its runs can be compared with some in a
    thread of the tests, where torch is loaded so."""
    project = make_project(path, ["conf", "pipelines", "data", "dvc.yaml", "dvc.lock", ".gitignore"])
    conf = path / "conf" / "digits.yaml"
    conf.write_text(conf.read_text().replace("  arithmetic: portable\n", ""))
    project.commit()
    return project


def make_clone(path: Path, steps: int | None = None) -> Project:
    """The files of a clone of this tree, with this environment as its `.venv`. steps: of the digits, instead of a
    reader's."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    project = make_project(path, [name for name in listing.stdout.splitlines() if (REPOSITORY / name).exists()])
    (path / ".venv").symlink_to(sys.prefix)
    (Path(sys.prefix) / ".installed").touch()
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(path / name, (0, 0))  # older than the stamp of the environment, so that it is not made again
    project.variables["PYTHONDONTWRITEBYTECODE"] = ""  # as a reader's: what is compiled once need not be again
    _copy_bytecode(path)
    if steps is None:
        project.commit()
    else:
        with_steps(project, steps)
    return project


def _copy_bytecode(clone: Path) -> None:
    """The source has the same time and size there, so what is compiled of it here is valid."""
    for compiled in (REPOSITORY / "orchestrator").rglob(f"__pycache__/*.{sys.implementation.cache_tag}.pyc"):
        target = clone / compiled.relative_to(REPOSITORY)
        if target.parent.parent.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(compiled, target)


def with_steps(clone: Project, steps: int) -> None:
    """The digits have so many steps, which is committed."""
    conf = clone.path / "conf" / "digits.yaml"
    text = conf.read_text()
    assert "steps: 400\n" in text
    conf.write_text(text.replace("steps: 400\n", f"steps: {steps}\n"))
    clone.commit()


def make_project(path: Path, files: Sequence[str]) -> Project:
    for name in files:
        source, target = REPOSITORY / name, path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    return Project(path)
