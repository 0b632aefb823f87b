"""`new NAME`: a project to start from, in a new folder: data made by a DVC stage, a pipeline, a configuration, a test; with
`from=ORIGIN,...` the configuration alone, of what there is (`origins.py`).

Work of git and DVC is left to their own programs. Within a repository the project becomes a folder of it, and committing it
is left to the user; otherwise it is a repository of its own, with a first commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult
from orchestrator.cli.origins import Found, read, with_defaults
from orchestrator.cli.template import FILES
from orchestrator.config.settings.sections import KeyPath
from orchestrator.errors import RunFailed, UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# The sections of a file in their usual order, and what a run needs beside what is found.
_USUAL: Mapping[KeyPath, Any] = {
    ("run", "name"): "",
    ("pipeline", "target"): "",
    ("data", "shards"): 4,
    ("cluster", "workers"): 1,
}
_NEEDED = (("pipeline", "args", "model"), ("pipeline", "args", "data"))
_HOW = "python -m orchestrator new NAME, with letters, digits, - and _"


def run(arguments: Arguments) -> CommandResult:
    words = arguments.without("from", "devices")
    name = _name([*([arguments.value] if arguments.value else []), *words])
    origins = arguments.get("from")
    if origins is None:
        return CommandResult(stdout=make(Path.cwd() / name, name))
    found = Found({("run", "name"): name})
    for entry in origins.split(","):
        found.add(read(entry, arguments.number("devices", 1) or 1))
    return CommandResult(stdout=write(Path.cwd() / "conf" / f"{name}.yaml", with_defaults(found)))


def write(file: Path, found: Found) -> str:
    """A configuration of what was found. Returns what to do next. Raises UsageError where there is such a file."""
    values = {**_USUAL, **found.values}
    is_trainer = ("pipeline", "args", "training") in {path[:3] for path in values}
    missing = [".".join(path) for path in _NEEDED if is_trainer and path not in values]
    missing += [] if values["pipeline", "target"] else ["pipeline.target"]
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(as_yaml(values, found.said, found.notes))
    except OSError as error:
        raise UsageError(
            f"new: {file} cannot be made: {error.strerror}", _remedy(error, file), code="project.not-written"
        ) from None
    lacking = f"  it lacks {' and '.join(missing)}: add them, or name where they are in from=, too\n" if missing else ""
    return f"{file} has what was found; look at it, and try it:\n{lacking}  python -m orchestrator conf={file.stem} plan=true"


def _remedy(error: OSError, wanted: Path) -> str:
    """Another name helps only where the name is the trouble."""
    if os.path.lexists(wanted):
        return "choose another name"
    if isinstance(error, FileExistsError):
        return f"{wanted.parent} is no folder; move it away"
    return f"make {wanted.parent} a folder in which you may write, or type this in another folder"


def as_yaml(values: Mapping[KeyPath, Any], said: Mapping[KeyPath, str], notes: Sequence[str]) -> str:
    """Nested, each value on a line, with what is said of it behind it."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section = tree
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = _Leaf(value, said.get(path, ""))
    return "".join(f"# {note}\n" for note in notes) + "".join(_lines(tree, ""))


class _Leaf(NamedTuple):
    value: Any
    said: str


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, below in tree.items():
        if isinstance(below, _Leaf):
            text = yaml.safe_dump(below.value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            yield f"{indent}{key}: {text}" + (f"  # {below.said}" if below.said else "") + "\n"
        else:
            yield f"{indent}{key}:\n"
            yield from _lines(below, f"{indent}  ")


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
            f"new: {folder} cannot be made: {error.strerror}", _remedy(error, folder), code="project.not-made"
        ) from None
    try:
        committed = _fill(folder, name, is_within=is_within)
    except BaseException as error:
        shutil.rmtree(folder)
        if isinstance(error, OSError):
            raise UsageError(
                f"new: {folder} cannot be filled: {error.strerror}", "make room on its disk", code="project.not-filled"
            ) from None
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
