"""`index`: the manifest of a folder of files, or of what a `.dvc` file stands for, which `Files` of a pipeline reads."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.commands.answer import Answer, reported
from orchestrator.commands.arguments import Arguments
from orchestrator.errors import ConfigurationError
from orchestrator.files.index import Kept, index
from orchestrator.files.manifest import NAME
from orchestrator.provenance.data.listing import stored
from orchestrator.values import megabytes


@dataclass(frozen=True)
class Indexed:
    """What a manifest says. path: of it; size: of all files, in bytes."""

    path: str
    reader: str
    files: int
    samples: int
    size: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "index": self.path,
            "reader": self.reader,
            "files": self.files,
            "samples": self.samples,
            "bytes": self.size,
        }

    def as_text(self) -> str:
        return f"{self.path}: {self.files} files for {self.reader}, {self.samples:,} samples, {megabytes(self.size)}"


def run(given: Arguments) -> Answer:
    """Raises ConfigurationError, DataDamaged."""
    to, kept = given.get("to"), None
    if given.value.endswith(".dvc"):
        place, at = stored(Path(given.value))
        to, kept = to or f"{given.value.removesuffix('.dvc')}.json", Kept(place, at)
    found = index(given.value, *_reader(given.get("reader")), _progress, to=to, kept=kept)
    samples = sum(file.samples for file in found.files)
    written = to or f"{given.value.rstrip('/')}/{NAME}"
    return reported(Indexed(written, found.reader, len(found.files), samples, found.size), given)


def _reader(typed: str | None) -> tuple[str | None, dict[str, Any]]:
    """Its name and options, of NAME or '{name: NAME, option: value}'. Raises ConfigurationError."""
    if typed is None or not typed.startswith("{"):
        return typed, {}
    import yaml

    try:
        options = dict(yaml.safe_load(typed))
        return str(options.pop("name")), options
    except (yaml.YAMLError, TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(
            [f"reader={typed} is no mapping with a name"], "reader='{name: NAME, option: value}'"
        ) from error


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {total} files", end="\n" if done == total else "", file=sys.stderr, flush=True)
