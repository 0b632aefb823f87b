"""The table of readers: the samples of one file.

A reader is a function `name(path: Path, name: str, *, option, ...)` of a file of this machine, and of what the manifest calls
it, that returns its samples as `Samples`. It raises ValueError, with what is wrong, for a file that it cannot read.

Options come from a list that anybody may have written. Only `unsafe` comes from the pipeline: without it a reader executes
nothing of a file.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.common.registry import Table
from orchestrator.data.files.readers import images as _images
from orchestrator.data.files.readers import litdata as _litdata
from orchestrator.data.files.readers import mds as _mds
from orchestrator.data.files.readers.arrow import arrow
from orchestrator.data.files.readers.jsonl import jsonl
from orchestrator.data.files.readers.listing import Listed, Read
from orchestrator.data.files.readers.parquet import parquet
from orchestrator.data.files.readers.tar import tar
from orchestrator.data.files.readers.whole import whole
from orchestrator.errors import ConfigurationError

UNSAFE = "unsafe"  # the option by which a reader may execute what a file holds


class Samples(Protocol):
    """The samples of one open file. held: bytes of memory that it takes while it is open; 0 where it only maps its file."""

    held: int

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...

    def close(self) -> None: ...


READERS: Table[Callable[..., Samples]] = Table(
    "reader",
    {
        "jsonl": jsonl,
        "parquet": parquet,
        "arrow": arrow,
        "tar": tar,
        "mds": _mds.mds,
        "litdata": _litdata.litdata,
        "images": _images.images,
        "whole": whole,
    },
    given=2,
)
SUFFIXES = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
    **{f".mds{compression}": "mds" for compression in ("", ".br", ".bz2", ".gz", ".snappy", ".zstd")},
    ".bin": "litdata",
    **dict.fromkeys(_images.SUFFIXES, "images"),
}
# The facts that a format tells of its files as a whole, and the options that follow from them.
LISTS: Mapping[str, Callable[[list[str], Read, Mapping[str, Any]], Listed]] = {
    "mds": _mds.listed,
    "litdata": _litdata.listed,
    "images": _images.listed,
}
# Packages that are no part of this one's environment: what is imported, and what is installed.
_PACKAGES = {
    "mds": ("streaming.base.format.mds.reader", "mosaicml-streaming"),
    "litdata": ("litdata", "litdata"),
    "images": ("PIL.Image", "pillow"),
}


def by_name(path: Path) -> str | None:
    """The reader of files that are called so."""
    return next((reader for suffix, reader in SUFFIXES.items() if path.name.lower().endswith(suffix)), None)


def build(name: str, options: Mapping[str, Any]) -> Callable[..., Samples]:
    """A reader with its options, whose package can be imported. Raises ConfigurationError."""
    module, package = _PACKAGES.get(name, ("orchestrator", "orchestrator"))
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a package raises that does not fit the others
        raise ConfigurationError(
            [f"reader={name} needs the package {package}, which cannot be imported ({type(error).__name__}: {error})"],
            f"pip install {package}, on every node",
            code="data.reader-package",
        ) from error
    return READERS.build(name, options)
