"""The installed packages, and what tells two builds of one version apart; this package by the hash of its source.

Hashes come from the packages' RECORD files without the lines that depend on where and how they were installed, so two places
agree and two builds do not; a file changed in place after the installation is not seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from orchestrator.records import redaction

PACKAGE = Path(__file__).resolve().parents[2]
# Scripts hold the path of their interpreter, compiled files come and go, and the rest says how it was installed.
_NO_BUILD = re.compile(rb"\.\./|.*\.pyc,|[^/]*\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_[^,]*)(,|$)")

_LEFT = ("~", "-")  # names that pip gives what it could not remove, as on NFS, and looks at no more


def installed(folders: Iterable[str] | None = None) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Name -> version, and name -> build, of each distribution. folders: searched instead of this process's own."""
    found = sorted(_distributions(sys.path if folders is None else folders))
    versions = {name: version for name, version, _ in found}
    return versions, {name: _build(place) if place.suffix == ".dist-info" else {} for name, _, place in found}


def origins() -> dict[str, dict[str, Any]]:
    """name -> where it came from, of what did not come from an index (PEP 610): `directory`, and `editable`; or `url` with
    `vcs` and `commit`, or with the `sha256` of the file. No passwords."""
    found = {name: _origin(_json(place / "direct_url.json")) for name, _, place in _distributions(sys.path)}
    return {name: origin for name, origin in sorted(found.items()) if origin}


def _distributions(folders: Iterable[str]) -> Iterator[tuple[str, str, Path]]:
    """(name, version, metadata): the first of each name, as an import finds it. The working directory is code and is left out,
    and so is what `setup.py develop` leaves beside sources: a clean checkout has neither."""
    seen: set[str] = set()
    for folder in dict.fromkeys(folders):
        if not folder or Path(folder) == Path.cwd():
            continue
        for place in _metadata(Path(folder)):
            name, _, version = place.name.rpartition(".")[0].partition("-")
            name = normalized(name)
            if name not in seen:
                seen.add(name)
                yield name, re.sub(r"-py\d.*", "", version) or "unknown", place


def normalized(name: str) -> str:
    """As the record names a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(packages: dict[str, str], builds: dict[str, dict[str, Any]]) -> str:
    """A hash of all packages but this one, whose source is hashed where it is read from."""
    total = hashlib.sha256()
    for name, version in sorted(packages.items()):
        if name != "orchestrator":
            build = {key: value for key, value in builds.get(name, {}).items() if key != "location"}
            total.update(f"{name}=={version} {json.dumps(build, sort_keys=True)}\n".encode())
    return total.hexdigest()


def own_sha256(package: Path = PACKAGE) -> str:
    """A hash of this package's source, or of that of another copy."""
    total, top = hashlib.sha256(), f"{package}/"
    files = [f"{folder}/{name}" for folder, _, names in os.walk(package) for name in names if name.endswith(".py")]
    for name in sorted((file.removeprefix(top) for file in files), key=lambda name: name.split("/")):
        with open(top + name, "rb") as file:
            total.update(f"{name} {hashlib.sha256(file.read()).hexdigest()}\n".encode())
    return total.hexdigest()


def _metadata(folder: Path) -> list[Path]:
    try:
        places = sorted(folder.iterdir())
    except OSError:
        return []
    installed = folder.name in ("site-packages", "dist-packages")
    kinds = (".dist-info", *([".egg-info"] if installed else []))
    return [place for place in places if place.suffix in kinds and not place.name.startswith(_LEFT)]


def _build(place: Path) -> dict[str, Any]:
    """The marks that tell two builds of one version apart."""
    build: dict[str, Any] = {}
    origin = _json(place / "direct_url.json")
    if origin.get("dir_info", {}).get("editable"):
        return {"editable": True, "location": str(origin.get("url", "")).removeprefix("file://")}
    if "vcs_info" in origin:
        build["commit"] = origin["vcs_info"].get("commit_id")
    try:
        record = (place / "RECORD").read_bytes()
    except OSError:
        return build
    lines = sorted(filter(_is_of_the_build, record.splitlines()))
    return {**build, "sha256": hashlib.sha256(b"\n".join(lines)).hexdigest()}


def _is_of_the_build(line: bytes) -> bool:
    return bool(line) and _NO_BUILD.match(line) is None


def _origin(told: dict[str, Any]) -> dict[str, Any]:
    """The origin in a `direct_url.json`."""
    url = redaction.text(str(told.get("url", "")))
    if "dir_info" in told:
        where = {"directory": os.path.realpath(unquote(url.removeprefix("file://")))}
        return {**where, **({"editable": True} if told["dir_info"].get("editable") else {})}
    below = {"subdirectory": told["subdirectory"]} if told.get("subdirectory") else {}
    if "vcs_info" in told:
        vcs = told["vcs_info"]
        return {"url": url, "vcs": vcs.get("vcs"), "commit": vcs.get("commit_id"), **below}
    info = told.get("archive_info", {})
    sha256 = info.get("hashes", {}).get("sha256") or str(info.get("hash", "")).removeprefix("sha256=")
    return {"url": url, **({"sha256": sha256} if sha256 else {}), **below} if url else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
