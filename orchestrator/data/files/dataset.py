"""`Files`: a data set of many files, as `datasets()` of a pipeline returns it.

    class Text(Pipeline):
        def datasets(self):
            return Files("data/corpus"), None           # or Files("s3://bucket/corpus")

The list of the files may be somebody else's. So it chooses no code: a reader that is no name of the table, and columns that are
pickles, are for the pipeline to name (`reader=`, `unsafe=`). A list that was read from elsewhere leads to no folder of here.

Samples are numbered through the files, in the order of the manifest. With `data.order: blocks` a micro-batch asks for samples
of few files.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from orchestrator.common.figures import megabytes
from orchestrator.common.registry import is_reference
from orchestrator.data.files import manifest, waiting
from orchestrator.data.files.cache import WANTED, WISHED, Cache, NoRoom, current, patience_s
from orchestrator.data.files.manifest import File, Manifest
from orchestrator.data.files.places import Place, is_elsewhere, is_store, place_of, split
from orchestrator.data.files.prefetch import FilePrefetcher
from orchestrator.data.files.readers import UNSAFE, Samples, build
from orchestrator.errors import ConfigurationError, DataDamaged

CHECKED: set[str] = set()  # files in place whose content a list that lies elsewhere tells: whoever has that, knows them
_MEMORY = 1 << 30
_CHUNK = 4 << 20
_OPEN = 256  # files; their descriptors and maps are few bytes
_LOOK_S = 0.03
_UNUSED_S = 2.0


class Handle(Protocol):
    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


@dataclass
class _Opened:
    """A file that is open for reading. used: when a sample of it was read last."""

    samples: Samples
    handle: Handle
    used: float


class _InPlace(NamedTuple):
    path: Path

    def close(self) -> None:
        pass


class Files:
    """A data set of many files, here or elsewhere. Raises DataDamaged, ConfigurationError.

    place: a folder, or an fsspec URL of one, with the `files.json` that `python -m orchestrator index=FOLDER` has written; or
        such a file that lies elsewhere.
    reader: the one that the list names. It is required if that is `package.module:name`.
    unsafe: whether samples are read by what can execute code of whoever made the data, as pickles do.
    memory: bytes of files that are decoded when they are opened.
    """

    def __init__(
        self, place: str | Path, *, reader: str | None = None, unsafe: bool = False, memory: int = _MEMORY
    ) -> None:
        import numpy  # not with the package, which every start of a command imports

        folder, name = split(place)
        self._manifest = _read_manifest(place_of(folder), name)
        _require_trust(self._manifest, place, reader, unsafe=unsafe)
        self._place = place_of(folder if self._manifest.place is None else self._manifest.place)
        self._reader = build(self._manifest.reader, {**self._manifest.options, **({UNSAFE: True} if unsafe else {})})
        self._memory = memory
        self._cache: Cache | None = None
        self._only: Collection[int] | None = None
        self._checked: dict[str, tuple[int, int]] = {}  # of files in place, by path: the one whose content was right
        self._begin()
        self.file_lengths: Sequence[int] = numpy.array([file.samples for file in self._manifest.files])  # type: ignore[assignment]
        self._ends = numpy.cumsum(self.file_lengths)

    def _begin(self) -> None:
        """With nothing open."""
        self._lock = threading.RLock()  # of what is open
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        weakref.finalize(self, _close, self._opened)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, such as a spawned one of a DataLoader: it opens files itself, through the cache of this one."""
        if self.is_elsewhere:
            self._cache = self._cache or current()
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._read(self._file_of(index), [index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """File by file: one that others have to make room for is opened once. A sample that is there twice is read twice, for
        what makes a batch of it may change it."""
        found: dict[int, Any] = {}
        by_file: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            by_file.setdefault(self._file_of(index), []).append(place)
        for number, places in by_file.items():
            found |= zip(places, self._read(number, [indices[place] for place in places]), strict=True)
        return [found[place] for place in range(len(indices))]

    def _read(self, number: int, indices: Sequence[int]) -> list[Any]:
        first = int(self._ends[number - 1]) if number else 0
        try:
            with self._lock:
                samples = self._open(number)
                return [samples[index - first] for index in indices]
        except ValueError as error:
            raise self._unfit(self._manifest.files[number], str(error)) from error

    @property
    def listing(self) -> str:
        """A digest of what the list says of the files and how they are read, wherever it and they lie: it determines the
        samples."""
        return self._manifest.digest

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def is_elsewhere(self) -> bool:
        """Whether files are fetched before they are read."""
        return self._place.folder is None

    def ahead(self, share: int) -> FilePrefetcher | None:
        """Fetches the files of samples that will be asked for, as many as `share` bytes of the cache hold; None where there is
        nothing to fetch. A wrapper of this data set, sample by sample, hands it on."""
        if self._place.folder is not None:
            return None
        self._cache = self._cache or current()
        return FilePrefetcher(
            self._place, self._manifest.files, self._file_of, min(share, self._cache.limit), self.keep_only
        )

    def only(self, numbers: Collection[int]) -> None:
        """From now on the other files are of sites elsewhere (`data.sites`), and to read one raises ConfigurationError. A
        wrapper of this data set, sample by sample, hands it on."""
        self._only = numbers

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Close the other files."""
        kept = set(numbers)
        with self._lock:
            self._close(number for number in self._opened if number not in kept)

    def spread(self, most: int, files: int) -> list[int]:
        """At most so many samples, evenly spaced in so many files: to look at few without fetching all."""
        return spread(self.file_lengths, most, files)

    def need_room(self, together: int) -> None:
        """Raises ConfigurationError where the cache does not hold the largest so many files, which are read together."""
        if self._place.folder is not None:
            return
        cache = self._cache = self._cache or current()
        largest = sorted((file.size for file in self._manifest.files), reverse=True)[:together]
        if sum(largest) > cache.limit:
            what = f"a block of {len(largest)} files" if len(largest) > 1 else "a file"
            raise ConfigurationError(
                [
                    f"data.cache_gb: {megabytes(cache.limit)} do not hold {what} of {self._place.describe('')}, which may have "
                    f"{megabytes(sum(largest))}"
                ],
                f"set data.cache_gb={-(-sum(largest) // 10**6) / 1000:g}, or lower data.order.files",
                code="data.cache-group",
            )

    def _file_of(self, index: int) -> int:
        return int(self._ends.searchsorted(index, "right"))

    def _open(self, number: int) -> Samples:
        found = self._opened.get(number)
        if found is None:
            self._refuse_other_sites(number)
            found = self._opened[number] = self._newly_opened(self._manifest.files[number])
            self._close_the_oldest()
        self._opened.move_to_end(number)
        found.used = time.monotonic()
        return found.samples

    def _refuse_other_sites(self, number: int) -> None:
        if self._only is not None and number not in self._only:
            raise ConfigurationError(
                [f"data.sites: {self._place.describe(self._manifest.files[number].path)} is read at its own site only"],
                "have labels() and __init__ of the pipeline ask the manifest, not the samples: train.manifest.files",
                code="data.other-site",
            )

    def _newly_opened(self, file: File) -> _Opened:
        handle = self._hold(file)
        try:
            samples = self._reader(handle.path, file.path)
            if len(samples) != file.samples:
                raise ValueError(f"has {len(samples)} samples; its manifest says {file.samples}")
        except BaseException:
            handle.close()
            raise
        return _Opened(samples, handle, time.monotonic())

    def _hold(self, file: File) -> Handle:
        if self._place.folder is not None:
            return self._in_place(file, self._place.folder / file.where)
        if self._cache is None:
            self._cache = current()
        _WATCH.begin(self)
        try:
            return self._cache.hold(file, self._place, wait=False)
        except NoRoom:
            self.close()
        return self._cache.hold(file, self._place)

    def _in_place(self, file: File, path: Path) -> Handle:
        if self._manifest.place is not None:
            CHECKED.add(os.path.abspath(path))  # noqa: PTH100 - as the system was asked for it, links and all
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # of a device or a pipe there may be no end
                raise self._unfit(file, "is no regular file")
            if status.st_size != file.size:
                raise self._unfit(file, f"has {status.st_size} bytes; its manifest says {file.size}")
            version = (status.st_ino, status.st_mtime_ns)
            if self._checked.get(file.path) != version:
                self._check(file, path)
                self._checked[file.path] = version
        except OSError as error:
            raise self._unfit(file, f"cannot be read: {error.strerror}") from error
        return _InPlace(path)

    def _check(self, file: File, path: Path) -> None:
        """Its content, once in a process. Raises DataDamaged, OSError."""
        digest, wait = hashlib.md5(usedforsecurity=False), waiting.Wait(f"the hash of {path}")
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                wait.live()
        if digest.hexdigest() != file.md5:
            raise self._unfit(file, f"has the MD5 {digest.hexdigest()}; its manifest says {file.md5}")

    def _close_the_oldest(self) -> None:
        while len(self._opened) > 1 and (
            len(self._opened) > _OPEN or sum(each.samples.held for each in self._opened.values()) > self._memory
        ):
            self._close([next(iter(self._opened))])

    def _close(self, numbers: Iterable[int]) -> None:
        _close({number: self._opened.pop(number) for number in list(numbers)})

    def close(self) -> None:
        """All files that are open."""
        with self._lock:
            self._close(self._opened)

    def give_way(self, cache: Cache, seen: dict[str, int]) -> None:
        """Close what others want room for, unless it is being read. seen: when they said so last."""
        if not self._opened or not self._lock.acquire(blocking=False):
            return
        try:
            for sign, unused_s in ((WANTED, 0.0), (WISHED, _UNUSED_S)):
                called = cache.sign(sign)
                if called != seen.get(sign, 0):
                    seen[sign] = called
                    old = time.monotonic() - unused_s
                    self._close([number for number, each in self._opened.items() if each.used <= old])
        finally:
            self._lock.release()

    @property
    def cache(self) -> Cache | None:
        return self._cache

    def _unfit(self, file: File, problem: str) -> DataDamaged:
        return DataDamaged(
            f"{self._place.describe(file.path)} {problem}",
            f"put back what was there, or write the manifest anew (python -m orchestrator index={self._place.describe('')})",
            code="data.file-unfit",
        )


def _require_trust(listed: Manifest, place: str | Path, reader: str | None, *, unsafe: bool) -> None:
    """Refuse what a list must not decide, since anybody may have written it. Raises ConfigurationError."""
    if reader is None and is_reference(listed.reader):
        raise ConfigurationError(
            [f"{place}: its list names code as the reader, {listed.reader!r}, which only the pipeline may do"],
            f"if it is a reader of yours: Files({str(place)!r}, reader={listed.reader!r}); otherwise index the files anew",
            code="data.reader-code",
        )
    if reader not in (None, listed.reader):
        raise ConfigurationError(
            [f"{place}: its list names the reader {listed.reader!r}, and the pipeline {reader!r}"],
            "have the pipeline name that of the list, or index the files anew with the other one",
            code="data.reader-differs",
        )
    if listed.options.get(UNSAFE) and not unsafe:
        raise ConfigurationError(
            [f"{place}: its list asks for what can execute code ({UNSAFE}), which only the pipeline may do"],
            f"if you trust who made the data: Files({str(place)!r}, {UNSAFE}=True)",
            code="data.reader-unsafe",
        )
    if is_elsewhere(place) and listed.place is not None and not is_store(listed.place):
        raise ConfigurationError(
            [f"{place}: the list comes from elsewhere, and says that its files are in {listed.place!r}"],
            "a list that is read by a URL names a store of http, s3, gs or az; copy it to this machine if you trust it",
            code="data.list-elsewhere",
        )


def _read_manifest(place: Place, name: str) -> Manifest:
    where = place.describe(name)
    try:
        data = _fetched(place, name)
    except FileNotFoundError as error:
        raise DataDamaged(
            f"{where} is missing, which lists the files and how many samples each has",
            f"write it: python -m orchestrator index={place.describe('') if name == manifest.NAME else f'PLACE to={where}'}",
            code="data.no-manifest",
        ) from error
    except OSError as error:
        raise DataDamaged(
            f"{where} cannot be read: {error}",
            "see to the place, its rights and the way to it",
            code="data.manifest-unreadable",
        ) from error
    return manifest.read(data, where)


def _fetched(place: Place, name: str) -> bytes:
    def read(attempt: waiting.Attempt | None = None) -> bytes:  # noqa: ARG001
        return b"".join(place.chunks(name))

    if place.folder is not None:
        return read()
    with waiting.undisturbed():
        return waiting.until(place.describe(name), read, patience_s())


def _close(opened: dict[int, _Opened]) -> None:
    for each in opened.values():
        each.samples.close()
        each.handle.close()


class _Watch:
    """A thread that lets files go which this process keeps open while it does something else, and others wait for their room:
    a worker that waits for another one would keep it waiting otherwise. A forked process, as of a DataLoader, has such a thread
    too, and is forked while this one has no lock of a data set."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._has_forked
        )
        self._watched: weakref.WeakKeyDictionary[Files, dict[str, int]] = weakref.WeakKeyDictionary()
        self._runs = False

    def begin(self, files: Files) -> None:
        with self._lock:
            if files not in self._watched:
                assert files.cache is not None
                self._watched[files] = {sign: files.cache.sign(sign) for sign in (WANTED, WISHED)}
            if not self._runs:
                self._runs = True
                self._start()

    def _start(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="giving way").start()

    def _has_forked(self) -> None:
        self._lock.release()
        if self._runs:
            self._start()

    def _watch(self) -> None:
        while self._watches():
            time.sleep(_LOOK_S)

    def _watches(self) -> bool:
        with self._lock:
            watched = list(self._watched.items())
            self._runs = bool(watched)
            for files, seen in watched:
                assert files.cache is not None
                files.give_way(files.cache, seen)
        return bool(watched)


_WATCH = _Watch()


def spread(lengths: Sequence[int], most: int, files: int) -> list[int]:
    """At most so many samples, evenly spaced in so many files, which are evenly spaced too. lengths: samples of each file."""
    import numpy

    ends = numpy.cumsum(lengths)
    full = numpy.flatnonzero(lengths)
    chosen = full[numpy.linspace(0, len(full) - 1, min(files, len(full))).astype(int)]
    share = max(1, most // max(1, len(chosen)))
    found: list[int] = []
    for number in chosen:
        first, count = int(ends[number]) - int(lengths[number]), int(lengths[number])
        found += (first + numpy.linspace(0, count - 1, min(share, count)).astype(int)).tolist()
    return found[:most]
