"""A shard of MosaicML's Streaming (MDS), also compressed, by the package's own decoders: a dictionary per sample.

The file says which columns it has; `index.json` beside it, which the package writes, is looked at for the list of shards only.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.data.files.readers.listing import Listed, Unsafe, by_folder, untrusted


def mds(path: Path, name: str, *, unsafe: Unsafe = False) -> _Shard:
    return _Shard(path, name, unsafe)


def listed(names: list[str], read: Any, options: Mapping[str, Any]) -> Listed:
    """The shards that `index.json` names, and their samples; without one, every file that is called like a shard."""
    found = by_folder(names, read, _shards, ".mds")
    return Listed(found, options)


def _shards(index: Mapping[str, Any]) -> dict[str, int | None]:
    kinds = {str(shard["format"]) for shard in index["shards"]}
    if kinds - {"mds"}:
        raise ValueError(f"lists shards of the format {min(kinds - {'mds'})}, not mds")
    return {
        str((shard["zip_data"] or shard["raw_data"])["basename"]): int(shard["samples"]) for shard in index["shards"]
    }


class _Shard:
    def __init__(self, path: Path, name: str, unsafe: bool) -> None:
        import numpy
        from streaming.base.format.mds.reader import MDSReader

        self._bytes, self.held = _content(path, PurePosixPath(name).suffix.lstrip("."))
        count = int.from_bytes(self._bytes[:4], "little")
        self._ends = numpy.frombuffer(self._bytes[4 : 8 + 4 * count], numpy.uint32).astype(numpy.int64)
        if len(self._bytes) < 8 or len(self._ends) != count + 1 or self._ends[-1] != len(self._bytes):
            raise ValueError(f"is no whole MDS shard: it has {len(self._bytes)} bytes")
        described = json.loads(self._bytes[8 + 4 * count : self._ends[0]])
        of_the_file = {"basename": path.name, "bytes": len(self._bytes), "hashes": {}}
        self._reader = MDSReader.from_json(
            str(path.parent), "", described | {"raw_data": of_the_file, "zip_data": None, "samples": count}
        )
        if not unsafe:
            _refuse_pickles(self._reader, name)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> Any:
        return self._reader.decode_sample(bytes(self._bytes[self._ends[number] : self._ends[number + 1]]))

    def close(self) -> None:
        self._bytes = b""


def _refuse_pickles(reader: Any, name: str) -> None:
    """Raises ConfigurationError."""
    from streaming.base.format.mds.encodings import is_mds_encoding_safe

    for column, encoding in zip(reader.column_names, reader.column_encodings, strict=True):
        if not is_mds_encoding_safe(encoding.partition(":")[0]):
            raise untrusted("mds", name, f"has the column {column!r} of {encoding!r}")


def _content(path: Path, compression: str) -> tuple[Any, int]:
    """A shard's bytes, and how many of them are in memory."""
    if not path.stat().st_size:
        return b"", 0
    if compression == "mds":
        with path.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), 0
    from streaming.base.compression import decompress

    try:
        content = decompress(compression, path.read_bytes())
    except Exception as error:  # each of the libraries below has its own
        raise ValueError(f"is not compressed by {compression}: {error}") from error
    return content, len(content)
