"""The list of files that MosaicML's and litData's formats keep, `index.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from orchestrator.errors import ConfigurationError, DataDamaged

INDEX = "index.json"
Read = Callable[[str], bytes]
Unsafe = Annotated[bool, Field(description="Whether samples are read that can execute code then (pickles).")]
Counts = dict[str, int | None]  # file -> samples, None where the list does not tell


class Listed(NamedTuple):
    """The files that an `index.json` lists. files: in their order, with how many samples they should have; options: of the
    reader, all of them."""

    files: Counts
    options: Mapping[str, Any]


def by_folder(names: list[str], read: Read, told: Callable[[Mapping[str, Any]], Counts], suffix: str) -> Counts:
    """The counts that the lists in all folders tell; without one, the files whose names have the suffix. Raises DataDamaged,
    OSError."""
    indices = [name for name in names if PurePosixPath(name).name == INDEX]
    if not indices:
        return {name: None for name in names if suffix in PurePosixPath(name).suffixes}
    found: Counts = {}
    for index in indices:
        folder = PurePosixPath(index).parent
        found |= {str(folder / name): count for name, count in told_by(index, read, told).items()}
    missing = sorted(found.keys() - set(names))
    if missing:
        raise DataDamaged(
            f"{INDEX} lists {missing[0]}, which is missing",
            "put it back, or write the list anew",
            code="data.listed-missing",
        )
    return found


def untrusted(reader: str, name: str, what: str) -> ConfigurationError:
    """The refusal of a file that would be read by what can execute code of its maker. what: it does, such as "has pickles"."""
    return ConfigurationError(
        [f"{name} {what}, which can execute code when it is read"],
        f"if you trust who made the data: Files(PLACE, unsafe=True); to index them, reader='{{name: {reader}, unsafe: true}}'",
        code="data.can-execute",
    )


def told_by(index: str, read: Read, told: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Raises DataDamaged, OSError."""
    try:
        return told(json.loads(read(index)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = str(error) if type(error) is ValueError else f"cannot be understood: {type(error).__name__}: {error}"
        raise DataDamaged(
            f"{index} {problem}", "write it anew, with the package that wrote it", code="data.list-unfit"
        ) from error
