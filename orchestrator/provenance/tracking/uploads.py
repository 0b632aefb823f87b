"""Whether a server has the files that it was sent.

A gateway in front of it may answer in its place: with a page to log in, for example, which counts as success. So the server is
asked what it has. The size of each file is compared, not its bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_OF_SERVER = ("mlflow-artifacts:", "http:", "https:")


class Sizes(NamedTuple):
    """In bytes, of a file that may grow while it is sent."""

    least: int
    most: int


class NotThere(ConnectionError):
    """The server does not have what it was sent. paths: there."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = sorted(paths)
        super().__init__(f"the server has not got {self.paths[0]}, though it was sent: see to what is in front of it")


def by_server(place: str) -> bool:
    """Whether artifacts at this address are sent to an MLflow server."""
    return place.startswith(_OF_SERVER)


def check(sent: Mapping[str, Sizes], listed: Callable[[str], Iterable[Any]]) -> None:
    """listed: what the server has in a folder, as MLflow lists it. Raises NotThere, and what MLflow raises."""
    folders: defaultdict[str, dict[str, Sizes]] = defaultdict(dict)
    for path, sizes in sent.items():
        folders[path.rpartition("/")[0]][path] = sizes
    lacking: list[str] = []
    for folder, files in folders.items():
        there = {each.path: each.file_size for each in listed(folder) if not each.is_dir}
        lacking += [path for path, sizes in files.items() if path not in there or not _fits(there[path], sizes)]
    if lacking:
        raise NotThere(lacking)


def below(folder: Path) -> dict[str, Sizes]:
    """The files of a folder that does not change, by their paths in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): Sizes(*[path.stat().st_size] * 2) for path in files}


def _fits(size: int | None, sizes: Sizes) -> bool:
    """Some stores do not tell the size."""
    return size is None or sizes.least <= size <= sizes.most
