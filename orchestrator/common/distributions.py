"""Installed distributions that lie in a folder of any name, as `pip install --target` and environment modules put them.

The record names them with their versions and the hashes of their RECORD files (`provenance.environment.packages`), so their
files are neither code of the user's nor data. It does not look at `site-packages`, which is known by its name.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SITES = frozenset({"site-packages", "dist-packages"})


def library_folders() -> tuple[str, ...]:
    """The folders of Python's standard library, as Python names them."""
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


def is_of_python(file: str) -> bool:
    """Whether a file stands in the standard library or where packages are installed, whatever it is a link to."""
    return bool(SITES & set(file.split("/"))) or any(file.startswith(f"{folder}/") for folder in library_folders())


def is_installed(file: str) -> bool:
    """Whether a file is of an installed distribution, wherever that lies."""
    return "-packages" in file or _is_below(file, installed_beside(tuple(sys.path), str(Path.cwd())))


@cache
def _is_below(file: str, places: tuple[str, ...]) -> bool:
    whole = os.path.realpath(file)
    return any(whole == place or whole.startswith(f"{place}/") for place in places)


@cache
def installed_beside(search_path: tuple[str, ...], project: str) -> tuple[str, ...]:
    """The folders and files that distributions on this search path are made of, without links. project: what lies there
    directly is code, as a clean checkout has no distribution beside it."""
    own = os.path.realpath(project)
    folders = {os.path.realpath(folder) for folder in search_path if folder}
    return tuple(
        f"{folder}/{name}"
        for folder in sorted(folders - {own})
        if not SITES & set(folder.split("/"))
        for name in sorted({name for place in Path(folder).glob("*.dist-info") for name in _names(place)})
    )


def _names(place: Path) -> Iterator[str]:
    """The files that a distribution put beside its metadata, by RECORD."""
    try:
        lines = (place / "RECORD").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name = line.lstrip('"').partition(",")[0].partition("/")[0]
        if name not in ("", "..") and not name.endswith(".dist-info"):
            yield name
