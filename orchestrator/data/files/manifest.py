"""Which files a training set has, and what each holds: `files.json` beside them, written once.

    {"format": "files-1", "reader": "jsonl", "options": {}, "files": [["a.jsonl", 1000, 52311, "d41d8cd9..."], ...]}

Each file: its path below the manifest's folder, its samples, its bytes and the MD5 of these, as DVC has it. The order of the
files is that of the samples' indices.

A manifest is data, whoever wrote it: it chooses no code, and none of its names leads out of a folder (`dataset.py`).

A manifest that lies elsewhere says in `place` where the files are. If a file is not at its path there, its place stands
behind its MD5: in a version of an object store, or in a remote of DVC. The manifest alone is the identity of all files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from orchestrator.errors import DataDamaged

NAME = "files.json"
_FORMAT = "files-1"
_BEGINNING = re.compile(rb'\s*\{\s*"format"\s*:\s*"files-')
_MD5 = re.compile("[0-9a-f]{32}")


class File(NamedTuple):
    """One file of a training set. path: below the folder of the manifest; size: in bytes; at: where it is below the place, ""
    for at its path."""

    path: str
    samples: int
    size: int
    md5: str
    at: str = ""

    @property
    def where(self) -> str:
        return self.at or self.path


@dataclass(frozen=True)
class Manifest:
    """The list of the files of a training set. reader: of all files, by its name in the table; options: of it; place: of the
    files, None for beside the manifest."""

    reader: str
    files: tuple[File, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    place: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of what determines the samples: reader, options, and of each file its path, its samples and its content, in
        order. A sample, or a pipeline's label of it, may have the name of the file or of its folder."""
        content = [self.reader, dict(self.options), [[file.path, file.samples, file.md5] for file in self.files]]
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def written(self) -> bytes:
        described = {
            "format": _FORMAT,
            **asdict(self),
            "files": [list(file if file.at else file[:4]) for file in self.files],
        }
        if self.place is None:
            del described["place"]
        return json.dumps(described, separators=(",", ":")).encode()


def begins(data: bytes) -> bool:
    """Whether these bytes begin a manifest, as this program writes it. Other JSON may have gigabytes."""
    return _BEGINNING.match(data) is not None


def read(data: bytes, where: str) -> Manifest:
    """Read a manifest. where: for messages. Raises DataDamaged."""
    try:
        described = json.loads(data)
        if described["format"] != _FORMAT:
            raise ValueError(f"its format is {described['format']!r}, not {_FORMAT!r}")
        files = tuple(
            File(str(path), int(n), int(size), str(md5), *map(str, at))
            for path, n, size, md5, *at in described["files"]
        )
        place = described.get("place")
        manifest = Manifest(
            str(described["reader"]), files, dict(described["options"]), None if place is None else str(place)
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _unfit(where, f"is no list of files: {type(error).__name__}: {error}") from error
    problem = _problem(manifest.files)
    if problem is not None:
        raise _unfit(where, problem)
    return manifest


def is_md5(text: str) -> bool:
    """Whether a file may be named so: the hash of a list by somebody else becomes a path."""
    return _MD5.fullmatch(text) is not None


def leads_out(path: str) -> bool:
    """Whether it is not below the folder from which it is counted."""
    below = PurePosixPath(path)
    return below.is_absolute() or ".." in below.parts or "\0" in path


def _problem(files: Iterable[File]) -> str | None:
    listed = tuple(files)
    if not listed:
        return "lists no file"
    path, times = Counter(file.path for file in listed).most_common(1)[0]
    if times > 1:
        return f"lists {path} {times} times"
    for file in listed:
        for below in (file.path, file.where):
            if leads_out(below):
                return f"lists {below!r}, which is not below its folder"
        if not is_md5(file.md5):
            return f"says of {file.path} that its MD5 is {file.md5!r}, which has 32 hexadecimal digits"
        if file.samples < 0 or file.size < 0:
            return f"says of {file.path} that it has {file.samples} samples in {file.size} bytes"
    return None if any(file.samples for file in listed) else "lists files without samples"


def _unfit(where: str, problem: str) -> DataDamaged:
    return DataDamaged(
        f"{where} {problem}", "write it anew: python -m orchestrator index=FOLDER", code="data.manifest-unfit"
    )
