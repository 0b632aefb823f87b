"""Which interpreter of this machine is the recorded one.

Those on PATH, the one that `uv python find` knows, and the one that runs us are asked for their version. One of the same build
is best; with one of the same version a run is repeated, too, and the verdict names the difference.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import NotRerunnable

_ASK = "import json, platform, sys; print(json.dumps([sys._base_executable, sys.version, platform.python_implementation()]))"
_PATIENCE_S = 30.0
_SHOWN = 8


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter of this machine. path: of the interpreter itself, outside of any virtual environment; version:
    `sys.version`."""

    path: str
    version: str
    implementation: str

    @property
    def release(self) -> str:
        """3.11.7"""
        return release_of(self.version)


def release_of(version: str) -> str:
    return version.split(maxsplit=1)[0].rstrip("+") if version.strip() else ""


def choose(version: str, implementation: str, interpreters: Sequence[Interpreter]) -> Interpreter:
    """The first of the recorded build, else the first of the recorded version. Pure. Raises NotRerunnable."""
    wanted = release_of(version)
    fitting = [each for each in interpreters if each.release == wanted and each.implementation == implementation]
    if fitting:
        return next((each for each in fitting if each.version == version), fitting[0])
    others = list(dict.fromkeys(f"{each.path} ({each.implementation} {each.release})" for each in interpreters))
    seen = f"there are {', '.join(others[:_SHOWN])}" if others else "there is none at all"
    raise NotRerunnable(
        f"the environment cannot be rebuilt: it had {implementation} {wanted}, and on PATH {seen}",
        f"install it (uv python install {wanted}, or pyenv install {wanted}) and put it on PATH",
        code="environment.interpreter",
    )


def here(version: str) -> list[Interpreter]:
    """The interpreters of this machine, each once. version: the recorded `sys.version`, which says how they are called."""
    wanted = release_of(version)
    major_minor = ".".join(wanted.split(".")[:2])
    names = [f"python{major_minor}", "python3", "python"]
    folders = os.environ.get("PATH", "").split(os.pathsep)
    paths = [getattr(sys, "_base_executable", sys.executable)]
    paths += [found for name in names for folder in folders if folder and (found := shutil.which(name, path=folder))]
    paths += _of_uv(wanted)
    return list(_asked(paths))


def at(path: str) -> list[Interpreter]:
    """The one at a path, if it is one."""
    return list(_asked([path]))


def _asked(paths: Iterable[str]) -> Iterable[Interpreter]:
    seen: set[str] = set()
    for path in dict.fromkeys(paths):
        answer = _output([path, "-I", "-S", "-c", _ASK])
        try:
            base, version, implementation = json.loads(answer or "")
        except ValueError:
            continue
        real = str(Path(base).resolve())
        if real not in seen:
            seen.add(real)
            yield Interpreter(base, version, implementation)


def _of_uv(wanted: str) -> list[str]:
    uv = shutil.which("uv")
    found = None if uv is None else _output([uv, "python", "find", "--no-project", "--no-python-downloads", wanted])
    return [found.strip()] if found and found.strip() else []


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
