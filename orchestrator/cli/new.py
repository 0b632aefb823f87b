"""`new NAME`: a project to start from, in a new folder: data made by a DVC stage, a pipeline, a configuration, a test.

Work of git and DVC is left to their own programs. Within a repository the project becomes a folder of it, and committing it
is left to the user; otherwise it is a repository of its own, with a first commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.answer import Answer
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.template import FILES
from orchestrator.errors import RunFailed, UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_HOW = "python -m orchestrator new NAME, with letters, digits, - and _"


def run(arguments: Arguments) -> Answer:
    name = _name([*([arguments.value] if arguments.value else []), *arguments.rest])
    return Answer(stdout=make(Path.cwd() / name, name))


def _name(words: Sequence[str]) -> str:
    """Raises UsageError."""
    if len(words) != 1 or not _NAME.fullmatch(words[0]):
        raise UsageError(
            f"new: expected the name of a project, got {' '.join(words) or 'none'}", _HOW, code="project.name"
        )
    return words[0]


def make(folder: Path, name: str) -> str:
    """Returns what to do next. Raises UsageError where there is such a folder, RunFailed where git or DVC fails; then nothing
    is left."""
    is_within = _git(folder.parent, "rev-parse", "--is-inside-work-tree").returncode == 0
    try:
        folder.mkdir()
    except OSError as error:
        raise UsageError(
            f"new: {folder} cannot be made: {error.strerror}", "choose another name", code="project.not-made"
        ) from None
    try:
        committed = _fill(folder, name, is_within=is_within)
    except BaseException:
        shutil.rmtree(folder)
        raise
    kept = (
        "" if committed else "  git add --all && git commit    # then what a run was made of is in your history too\n"
    )
    return (
        f"{name}/ has data, a pipeline, a configuration and a test; try it:\n"
        f"  cd {name}\n{kept}"
        f"  python -m orchestrator conf={name}\n"
        "  python -m unittest"
    )


def _fill(folder: Path, name: str, *, is_within: bool) -> bool:
    """Whether it is committed."""
    for path, text in FILES.items():
        target = folder / path.replace("NAME", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("NAME", name), encoding="utf-8")
    if not is_within:
        _checked(_git(folder, "init", "--quiet"))
    _checked(_dvc(folder, "init", "--quiet", *(["--subdir"] if is_within else [])))
    _checked(_dvc(folder, "repro", "--quiet"))
    if is_within:
        return False
    _checked(_git(folder, "add", "--all"))
    return _git(folder, "commit", "--quiet", "--message", f"{name}, as made by orchestrator new").returncode == 0


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _done(folder, ["git", *arguments])


def _dvc(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _done(folder, [sys.executable, "-m", "dvc", *arguments])


def _done(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    # A stage's `python` is this one, whether its environment is activated or not.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    variables = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    """Raises RunFailed."""
    if done.returncode != 0:
        command = " ".join(done.args).replace(sys.executable, "python")
        raise RunFailed(
            f"new: `{command}` failed: {done.stderr.strip() or done.stdout.strip()}",
            "see to that, and repeat",
            code="project.command-failed",
        )
