"""What is installed, and what tells two builds of one version apart; this package by the hash of its source.

Hashes come from the packages' RECORD files without the lines that depend on where and how they were installed, so two places
agree and two builds do not; a file changed in place after the installation is not seen.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]
_OF_THE_INSTALLATION = re.compile(rb"[^/]*\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_[^,]*)(,|$)")


def installed() -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """(name, (version, build)): the first of each name, as an import finds it. The working directory is code and is left out,
    and so is what `setup.py develop` leaves beside sources: a clean checkout has neither."""
    seen: set[str] = set()
    for folder in dict.fromkeys(sys.path):
        if not folder or Path(folder) == Path.cwd():
            continue
        for place in _metadata(Path(folder)):
            stem, _, kind = place.name.rpartition(".")
            name, _, version = stem.partition("-")
            name = re.sub(r"[-_.]+", "-", name).lower()
            if name not in seen:
                seen.add(name)
                yield name, (re.sub(r"-py\d.*", "", version) or "unknown", _build(place) if kind == "dist-info" else {})


def sha256_of(packages: dict[str, str], builds: dict[str, dict[str, Any]]) -> str:
    """Of all packages but this one, whose source is hashed where it is read from."""
    total = hashlib.sha256()
    for name, version in sorted(packages.items()):
        if name != "orchestrator":
            build = {key: value for key, value in builds.get(name, {}).items() if key != "location"}
            total.update(f"{name}=={version} {json.dumps(build, sort_keys=True)}\n".encode())
    return total.hexdigest()


def own_sha256() -> str:
    """Of this package's source."""
    total = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        total.update(
            f"{file.relative_to(PACKAGE).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
        )
    return total.hexdigest()


def _metadata(folder: Path) -> list[Path]:
    try:
        places = sorted(folder.iterdir())
    except OSError:
        return []
    installed = folder.name in ("site-packages", "dist-packages")
    return [place for place in places if place.suffix == ".dist-info" or (installed and place.suffix == ".egg-info")]


def _build(place: Path) -> dict[str, Any]:
    """What tells two builds of one version apart."""
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
    lines = sorted(line for line in record.splitlines() if _is_of_the_build(line))
    return {**build, "sha256": hashlib.sha256(b"\n".join(lines)).hexdigest()}


def _is_of_the_build(line: bytes) -> bool:
    """Scripts hold the path of their interpreter, and compiled files come and go."""
    if b".pyc," in line or line.startswith(b"../") or not line:
        return False
    return b".dist-info/" not in line or _OF_THE_INSTALLATION.match(line) is None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
