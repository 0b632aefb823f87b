"""`index`: the manifest of a folder of files, or of what a `.dvc` file stands for, which `Files` of a pipeline reads."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.common.figures import megabytes
from orchestrator.common.registry import is_reference
from orchestrator.data.files import waiting
from orchestrator.data.files.index import Kept, index
from orchestrator.data.files.manifest import NAME, Manifest
from orchestrator.data.files.readers import UNSAFE
from orchestrator.errors import ConfigurationError, without_users
from orchestrator.provenance.data.listing import stored


@dataclass(frozen=True)
class Indexed:
    """The content of a manifest."""

    path: str  # of the manifest
    reader: str  # of the files, by its name or as "module:name"
    files: int  # number of them
    samples: int  # number of those of all files
    size: int  # of all files, in bytes
    named: str  # further arguments of `Files` in a pipeline, for what no list may name; "" for none

    def as_dict(self) -> dict[str, Any]:
        return {
            "index": self.path,
            "reader": self.reader,
            "files": self.files,
            "samples": self.samples,
            "bytes": self.size,
            "call": self.call,
        }

    @property
    def call(self) -> str:
        """As it stands in a pipeline."""
        place = self.path.removesuffix(f"/{NAME}")
        return f"Files({place!r}{self.named})"

    def as_text(self) -> str:
        what = f"{self.path}: {self.files} files for {self.reader}, {self.samples:,} samples, {megabytes(self.size)}"
        return f"{what}\na list names no code, so the pipeline does: {self.call}" if self.named else what


def run(arguments: Arguments) -> CommandResult:
    """Raises ConfigurationError, DataDamaged."""
    to, kept = arguments.get("to"), None
    if arguments.value.endswith(".dvc"):
        place, at = stored(Path(arguments.value))
        to, kept = to or f"{arguments.value.removesuffix('.dvc')}.json", Kept(place, at)
    waiting.listen(lambda text: print(text, file=sys.stderr))
    found = index(arguments.value, *_reader(arguments.get("reader")), _progress, to=to, kept=kept)
    samples = sum(file.samples for file in found.files)
    written = without_users(to or f"{arguments.value.rstrip('/')}/{NAME}")
    indexed = Indexed(written, found.reader, len(found.files), samples, found.size, _named(found))
    return reported(indexed, arguments)


def _named(found: Manifest) -> str:
    reader = f", reader={found.reader!r}" if is_reference(found.reader) else ""
    return f"{reader}, {UNSAFE}=True" if found.options.get(UNSAFE) else reader


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
            [f"reader={typed} is no mapping with a name"],
            "reader='{name: NAME, option: value}'",
            code="data.index-reader",
        ) from error


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {total} files", end="\n" if done == total else "", file=sys.stderr, flush=True)
