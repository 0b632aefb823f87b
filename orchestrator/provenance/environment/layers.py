"""Virtual environments on disk: one that holds the packages of a lock and is kept, and a thin one above it for one repetition.

The kept one is complete if and only if its mark exists, which is written last and tells what is in it. The thin one holds what
comes from the restored code and from this package, and finds all else in the kept one, which is therefore never changed. Only
this module knows how pip is called, and only `experiments/rerun/rebuild.py` calls it, under `environment=rebuild`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.environment import packages
from orchestrator.provenance.environment.interpreters import Interpreter

_MARK = "complete.json"
_PIP = (22, 3)  # the first that installs into another interpreter, and tells what it has installed
_OURS = re.compile(
    r"PYTHON(DONTWRITEBYTECODE|PATH|HOME|PLATLIBDIR|EXECUTABLE|USERBASE)|VIRTUAL_ENV\w*|__PYVENV_LAUNCHER__"
)


@dataclass(frozen=True)
class Built:
    """The content of a kept environment's mark. packages: name -> version; builds as in packages.py; pylock: the lock's text;
    seconds: that it took."""

    packages: dict[str, str]
    builds: dict[str, dict[str, Any]]
    pylock: str
    seconds: float


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def create(environment: Path, interpreter: Interpreter) -> None:
    """An empty virtual environment, without pip. Raises NotRerunnable."""
    shutil.rmtree(environment, ignore_errors=True)
    command = [interpreter.path, "-I", "-m", "venv", "--without-pip", str(environment)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise NotRerunnable(
            f"{interpreter.path} makes no virtual environment: {said}",
            "Debian has its module venv in a package: python3-venv",
            code="environment.no-venv",
        )


def put_above(environment: Path, kept: Path) -> None:
    """Let the environment find, after its own packages, those of the kept one; `.pth` files there count, too."""
    line = f"import site; site.addsitedir({str(_site(kept))!r})\n"
    (_site(environment) / "orchestrator_kept.pth").write_text(line, encoding="utf-8")


def pip(environment: Path, *arguments: str) -> list[str]:
    """The command. Raises NotRerunnable where there is no pip."""
    if importlib.util.find_spec("pip") is None:
        raise NotRerunnable(
            "environment=rebuild installs with pip, which is not in this environment",
            "python -m ensurepip",
            code="environment.no-pip",
        )
    version = importlib.metadata.version("pip")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _PIP:
        raise NotRerunnable(
            f"environment=rebuild needs pip 22.3, and this is {version}",
            "python -m pip install --upgrade pip",
            code="environment.old-pip",
        )
    quiet = (
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=off",
        "--no-compile",
    )  # what is imported is compiled then
    return [sys.executable, "-m", "pip", "--python", python_of(environment), "install", "--no-deps", *quiet, *arguments]


def found_in(environment: Path) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """The packages of an environment, and their builds."""
    return packages.installed([str(_site(environment))])


def own_sha256(environment: Path) -> str:
    """A hash of this package's source, as it is installed there."""
    return packages.own_sha256(_site(environment) / "orchestrator")


def damaged(environment: Path) -> Iterator[str]:
    """The installed files that are not what the wheel said they would be."""
    site = _site(environment)
    for record in sorted(site.glob("*.dist-info/RECORD")):
        with record.open(encoding="utf-8", newline="") as file:
            for name, told, _ in csv.reader(file):
                kind, _, expected = told.partition("=")
                if kind == "sha256" and not _is(site / name, expected):
                    yield name


def mark(environment: Path, built: Built) -> None:
    """Complete from now on."""
    unfinished = environment / f"{_MARK}.unfinished"
    unfinished.write_text(json.dumps(asdict(built), indent=1) + "\n", encoding="utf-8")
    unfinished.rename(environment / _MARK)


def built_in(environment: Path) -> Built | None:
    """The environment that was built there; None if there is none, not all of it, or something was changed since."""
    try:
        built = Built(**json.loads((environment / _MARK).read_text(encoding="utf-8")))
        unchanged = found_in(environment) == (built.packages, built.builds) and os.access(
            python_of(environment), os.X_OK
        )
    except (OSError, ValueError, TypeError):
        return None
    return built if unchanged else None


def variables(environment: Mapping[str, str], folders: Sequence[Path]) -> dict[str, str]:
    """The variables of a process in such an environment: nothing that leads Python elsewhere, its programs first, and modules
    are compiled once. folders: of the environments, the one above first."""
    others = {name: value for name, value in environment.items() if not _OURS.fullmatch(name)}
    path = [*(str(folder / "bin") for folder in folders), *filter(None, [environment.get("PATH")])]
    return {**others, "VIRTUAL_ENV": str(folders[0]), "PATH": os.pathsep.join(path)}


def _site(environment: Path) -> Path:
    """Its folder of packages; its interpreter's version is in the path."""
    (site,) = {place.resolve() for place in (environment / "lib").glob("python*/site-packages")}
    return site


def _is(file: Path, expected: str) -> bool:
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").digest()
    except OSError:
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected
