"""A file that is one sample, such as an image: a dictionary of its `bytes`, its `name` as the manifest has it, and `label`, the
name of its folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any


def whole(path: Path, name: str) -> _Whole:
    return _Whole(path, name)


class _Whole:
    held = 0

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number:
            raise IndexError(number)
        return {
            "bytes": self._path.read_bytes(),
            "name": self._name,
            "label": PurePosixPath(self._name).parent.name,
        }

    def close(self) -> None:
        pass
