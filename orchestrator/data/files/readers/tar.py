"""A tar file in the layout of WebDataset: members that share a name up to its first dot are one sample, a dictionary of their
bytes by what follows it, and `__key__`.

Source: Aizman, Maltby and Breuel, "High performance I/O for large scale deep learning" (2019).
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any


def tar(path: Path, name: str) -> _Members:  # noqa: ARG001
    return _Members(path)


class _Members:
    held = 0

    def __init__(self, path: Path) -> None:
        self._samples: list[tuple[str, dict[str, tuple[int, int]]]] = []  # key; start and size by extension
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    if member.isfile():
                        self._note(member)
                _refuse_a_rest(path, archive.offset)
        except tarfile.TarError as error:
            raise ValueError(f"is no whole tar file without compression: {error}") from error
        self._stream = path.open("rb", buffering=0)

    def _note(self, member: tarfile.TarInfo) -> None:
        folder, slash, base = member.name.rpartition("/")
        stem, _, extension = base.partition(".")
        key = f"{folder}{slash}{stem}"
        if not stem or not extension:  # WebDataset leaves them out, too
            return
        if not self._samples or self._samples[-1][0] != key:
            self._samples.append((key, {}))
        parts = self._samples[-1][1]
        if member.issparse():  # its bytes do not lie one behind the other
            raise ValueError(f"has {member.name} as a sparse file, with holes; write it without --sparse")
        if extension in parts:
            raise ValueError(f"has {member.name} twice in one sample")
        parts[extension] = member.offset_data, member.size

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        key, parts = self._samples[number]
        found: dict[str, Any] = {"__key__": key}
        for extension, (start, size) in parts.items():
            found[extension] = self._read(start, size)
            if len(found[extension]) != size:
                raise ValueError(f"ends within {key}.{extension}")
        return found

    def _read(self, start: int, size: int) -> bytes:
        """By place: where the file stands is shared with forked processes, such as those of a DataLoader, which move it."""
        pieces: list[bytes] = []
        while size and (piece := os.pread(self._stream.fileno(), size, start)):  # at most 2 GB at once
            pieces.append(piece)
            start, size = start + len(piece), size - len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._stream.close()


def _refuse_a_rest(path: Path, read: int) -> None:
    """tarfile takes half a header, or a damaged one, for the end, which is zeros or that of the file. Raises ValueError."""
    with path.open("rb") as stream:
        stream.seek(read)
        if any(stream.read(tarfile.BLOCKSIZE)):
            raise ValueError(f"is no whole tar file: what follows its first {read} bytes is no header of a member")
