"""The DVC version of what a pipeline reads: hashed on disk, and looked up in the project's `*.dvc` and `dvc.lock` files.

The hash is taken from the bytes that are there, because `dvc status` trusts size and time. A folder's is DVC's own: the md5 of
the sorted list of its files, with `.dir` behind it. Reading DVC's files directly takes 2 ms where its API takes 150.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Input:
    """path: relative to the project; md5: of what is on disk; size in bytes. recorded_md5: what DVC's files say, None where
    DVC does not know the path; stage: the stage that makes it, if one does."""

    path: str
    md5: str
    size: int
    files: int
    recorded_md5: str | None
    stage: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def capture(project: Path, paths: list[str]) -> list[Input]:
    """One Input per path. Raises FileNotFoundError for a path that is not there."""
    known = dict(_recorded(project))
    return [_capture(project, path, known) for path in paths]


def stage_of(project: Path, path: str) -> str | None:
    """The name of the DVC stage that makes `path`, for the remedy when it is missing."""
    pipeline = _yaml(project / "dvc.yaml").get("stages", {})
    for name, stage in pipeline.items():
        for out in stage.get("outs", []):
            out_path = next(iter(out)) if isinstance(out, dict) else out
            if _same(project, out_path, path):
                return str(name)
    return None


def md5_of(path: Path) -> tuple[str, int, int]:
    """(md5, size in bytes, number of files) of a file or a folder, as DVC computes them."""
    if path.is_file():
        return _md5_of_file(path), path.stat().st_size, 1
    files = sorted(file for file in path.rglob("*") if file.is_file())
    entries = [{"md5": _md5_of_file(file), "relpath": file.relative_to(path).as_posix()} for file in files]
    entries.sort(key=lambda entry: entry["relpath"])
    listing = json.dumps(entries, sort_keys=True).encode()
    size = sum(file.stat().st_size for file in files)
    return hashlib.md5(listing, usedforsecurity=False).hexdigest() + ".dir", size, len(files)


def _capture(project: Path, path: str, known: dict[Path, tuple[str, str | None]]) -> Input:
    place = project / path
    if not place.exists():
        raise FileNotFoundError(path)
    md5, size, files = md5_of(place)
    recorded, stage = known.get(place.resolve(), (None, None))
    return Input(path, md5, size, files, recorded, stage)


def _recorded(project: Path) -> Iterator[tuple[Path, tuple[str, str | None]]]:
    """What `dvc.lock` and the `*.dvc` files of the project say: path -> (md5, stage)."""
    for name, stage in _yaml(project / "dvc.lock").get("stages", {}).items():
        for out in stage.get("outs", []):
            yield (project / out["path"]).resolve(), (out["md5"], str(name))
    for file in project.rglob("*.dvc"):
        if file.is_file() and not {".dvc", ".git", ".orchestrator"} & set(file.relative_to(project).parts[:-1]):
            for out in _yaml(file).get("outs", []):
                if "md5" in out:
                    yield (file.parent / out["path"]).resolve(), (out["md5"], None)


def _same(project: Path, left: str, right: str) -> bool:
    return (project / left).resolve() == (project / right).resolve()


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty when there is no such file."""
    if not path.is_file():
        return {}
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content if isinstance(content, dict) else {}


def _md5_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
