"""`Files`: a data set of many files, as `datasets()` of a pipeline returns it.

    class Text(Pipeline):
        def datasets(self):
            return Files("data/corpus"), None           # or Files("s3://bucket/corpus")

Samples are numbered through the files, in the order of the manifest. With `data.order: blocks` a micro-batch asks for samples
of few files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from orchestrator.errors import DataDamaged
from orchestrator.files import manifest
from orchestrator.files.cache import Cache, NoRoom, current
from orchestrator.files.manifest import File, Manifest
from orchestrator.files.places import place_of
from orchestrator.files.readers import Samples, build

_MEMORY = 1 << 30
_OPEN = 256  # files; their descriptors and maps are few bytes


class Handle(Protocol):
    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


class _Opened(NamedTuple):
    samples: Samples
    handle: Handle


class _InPlace(NamedTuple):
    path: Path

    def close(self) -> None:
        pass


class Files:
    """place: a folder, or an fsspec URL of one, with the `files.json` that `python -m orchestrator index=FOLDER` has written;
    memory: bytes of files that are decoded when they are opened. Raises DataDamaged, ConfigurationError."""

    def __init__(self, place: str | Path, *, memory: int = _MEMORY) -> None:
        import numpy  # not with the package, which every start of a command imports

        self._place = place_of(place)
        self._manifest = self._read_manifest()
        self._reader = build(self._manifest.reader, self._manifest.options)
        self._memory = memory
        self._cache: Cache | None = None
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self.file_lengths: Sequence[int] = numpy.array([file.samples for file in self._manifest.files])  # type: ignore[assignment]
        self._ends = numpy.cumsum(self.file_lengths)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(self._ends.searchsorted(index, "right"))
        within = index - (int(self._ends[number - 1]) if number else 0)
        try:
            return self._open(number)[within]
        except ValueError as error:
            raise self._unfit(self._manifest.files[number], str(error)) from error

    def _open(self, number: int) -> Samples:
        found = self._opened.get(number)
        if found is None:
            found = self._opened[number] = self._newly_opened(self._manifest.files[number])
            self._close_the_oldest()
        self._opened.move_to_end(number)
        return found.samples

    def _newly_opened(self, file: File) -> _Opened:
        handle = self._hold(file)
        try:
            samples = self._reader(handle.path, file.path)
            if len(samples) != file.samples:
                raise ValueError(f"has {len(samples)} samples; its manifest says {file.samples}")
        except BaseException:
            handle.close()
            raise
        return _Opened(samples, handle)

    def _hold(self, file: File) -> Handle:
        if self._place.folder is not None:
            return self._in_place(file, self._place.folder / file.path)
        cache = self._cache = self._cache or current()
        try:
            return cache.hold(file, self._place, wait=False)
        except NoRoom:
            self.close()
        return cache.hold(file, self._place)

    def _in_place(self, file: File, path: Path) -> Handle:
        try:
            size = path.stat().st_size
        except OSError as error:
            raise self._unfit(file, f"cannot be read: {error.strerror}") from error
        if size != file.size:
            raise self._unfit(file, f"has {size} bytes; its manifest says {file.size}")
        return _InPlace(path)

    def _close_the_oldest(self) -> None:
        while len(self._opened) > 1 and (
            len(self._opened) > _OPEN or sum(each.samples.held for each in self._opened.values()) > self._memory
        ):
            _close(self._opened.popitem(last=False)[1])

    def close(self) -> None:
        """All files that are open."""
        while self._opened:
            _close(self._opened.popitem()[1])

    def _read_manifest(self) -> Manifest:
        where, folder = self._place.describe(manifest.NAME), self._place.describe("")
        try:
            data = b"".join(self._place.chunks(manifest.NAME))
        except FileNotFoundError as error:
            raise DataDamaged(
                f"{where} is missing, which lists the files and how many samples each has",
                f"write it: python -m orchestrator index={folder}",
            ) from error
        except OSError as error:
            raise DataDamaged(
                f"{where} cannot be read: {error}", "see to the place, its rights and the way to it"
            ) from error
        return manifest.read(data, where)

    def _unfit(self, file: File, problem: str) -> DataDamaged:
        return DataDamaged(
            f"{self._place.describe(file.path)} {problem}",
            f"put back what was there, or write the manifest anew (python -m orchestrator index={self._place.describe('')})",
        )


def _close(opened: _Opened) -> None:
    opened.samples.close()
    opened.handle.close()
