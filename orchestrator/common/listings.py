"""Folders are listed by name where a run is computed.

The order that a file system gives follows from how the folder was filled, and from the file system. So it is another one on
each machine, and in each restored copy. A pipeline that takes its samples from `glob.glob` or `os.listdir` as they come would
have other bits there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Self


class _Listed:
    """The entries of a folder, as `os.scandir` gives them."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def by_name() -> None:
    """From now on this process lists folders so: `os.listdir`, `os.scandir`, and what calls them, as `glob` and `pathlib`.
    Asked again it changes nothing."""
    functions: Any = os
    if getattr(os.listdir, "__module__", None) == __name__:
        return
    functions.listdir, functions.scandir = _sorted(os.listdir), _scanned(os.scandir)
    functions.supports_fd |= {os.listdir, os.scandir}


def _sorted(listdir: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def listed(path: Any = None) -> list[Any]:
        return sorted(listdir(path))

    return listed


def _scanned(scandir: Callable[..., Any]) -> Callable[..., _Listed]:
    def scanned(path: Any = None) -> _Listed:
        with scandir(path) as entries:
            return _Listed(iter(sorted(entries, key=attrgetter("name"))))

    return scanned
