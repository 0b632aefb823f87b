"""The environment of conda that the interpreter belongs to: what `conda list --explicit` tells of it, with build strings.

conda keeps a file for each installed package in `conda-meta/`, which is read here; conda itself is not called. An environment
is made anew from a list of such packages by micromamba, or by mamba or conda, which read the same list
(docs.conda.io, "Creating an environment from an explicit specification"); `experiments/rerun/rebuild.py` calls it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.environment import packages
from orchestrator.records import redaction

_META = "conda-meta"
_TOOLS = ("micromamba", "mamba", "conda")
_ADDRESS = re.compile(r"(?:https?|file)://[^\s\x00-\x1f]+", re.ASCII)
_HASH = re.compile(r"[0-9a-f]*")
_WIDTH = 80
_TOKEN = re.compile(r"/t/[^/]+/")  # in the address of a private channel
_METADATA = re.compile(r"lib/python[\d.]+/site-packages/([^/-]+)[^/]*\.(?:dist|egg)-info/")


@dataclass(frozen=True)
class Package:
    """A package of a conda environment."""

    name: str  # of the package
    version: str  # of the package
    build: str  # conda's name of the build
    url: str  # of its file, without credentials
    md5: str | None = None  # of its file; None where conda has not kept it
    sha256: str | None = None  # of its file; None where conda has not kept it

    @property
    def digest(self) -> str:
        return self.sha256 or self.md5 or ""

    @property
    def line(self) -> str:
        """The line of an explicit list."""
        return f"{self.url}#{self.md5}" if self.md5 else self.url


def prefix() -> Path | None:
    """The folder of the environment, also below a virtual environment that was made with its interpreter; None outside of
    conda."""
    place = Path(sys.base_prefix)
    return place if (place / _META / "history").is_file() else None


def installed(place: Path) -> list[Package]:
    """The packages of an environment, by name."""
    found = (_package(told) for told in _told(place))
    return sorted((each for each in found if each is not None), key=lambda each: each.name)


def python_packages(place: Path) -> dict[str, str]:
    """Name of each Python package that conda brought -> the conda package, "numpy 2.3.1 py311h0_0"."""
    return {
        packages.normalized(match.group(1)): f"{told['name']} {told['version']} {told['build']}"
        for told in _told(place)
        for match in filter(None, map(_METADATA.match, told.get("files", [])))
    }


def explicit(packages: Iterable[Package]) -> str:
    """As `conda list --explicit --md5` prints it."""
    return "@EXPLICIT\n" + "".join(f"{each.line}\n" for each in packages)


def sha256_of(packages: Iterable[Package]) -> str:
    """A hash of all packages, wherever they were downloaded."""
    rows = sorted(f"{each.name} {each.version} {each.build} {each.digest}" for each in packages)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def from_record(told: Sequence[Mapping[str, Any]]) -> tuple[Package, ...]:
    """Keys that this version does not know are left out. Raises NotRerunnable for what is more than a line of the list."""
    known = {field.name for field in fields(Package)}
    for each in told:
        if not (_ADDRESS.fullmatch(str(each.get("url"))) and _HASH.fullmatch(str(each.get("md5") or ""))):
            raise NotRerunnable(
                f"the environment cannot be rebuilt: {str(each.get('url'))[:_WIDTH]!r} is no address of a package of conda",
                "ask who made the record; environment=check compares with the environment here",
                code="environment.conda-address",
            )
    return tuple(Package(**{key: value for key, value in each.items() if key in known}) for each in told)


def as_record(packages: Iterable[Package]) -> list[dict[str, Any]]:
    return [asdict(each) for each in packages]


def differing(recorded: Sequence[Package], packages: Sequence[Package]) -> list[str]:
    """The packages of which there are others than the recorded ones. Pure."""
    before, now = (
        {each.name: (each.version, each.build, each.digest) for each in side} for side in (recorded, packages)
    )
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def command(place: Path, listed: Path) -> list[str]:
    """The command that makes the environment `place` from an explicit list. Raises NotRerunnable where there is nothing for
    it."""
    tool = os.environ.get("MAMBA_EXE") or next(filter(None, map(shutil.which, _TOOLS)), None)
    if tool is None:
        raise NotRerunnable(
            "the environment cannot be rebuilt: it is one of conda, and there is no micromamba, mamba or conda on PATH",
            "install micromamba, which is one file; environment=check compares with the environment here",
            code="environment.no-conda",
        )
    return [tool, "create", "--yes", "--prefix", str(place), "--file", str(listed)]


def _told(place: Path) -> Iterable[dict[str, Any]]:
    for file in sorted((place / _META).glob("*.json")):
        try:
            record = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and {"name", "version", "build"} <= record.keys():
            yield record


def _package(told: Mapping[str, Any]) -> Package | None:
    url = str(told.get("url") or "")
    if PurePosixPath(url).suffix not in (".conda", ".bz2"):  # told by pip, or linked by hand
        return None
    plain = redaction.text(_TOKEN.sub("/", url))
    return Package(told["name"], told["version"], told["build"], plain, told.get("md5"), told.get("sha256"))
