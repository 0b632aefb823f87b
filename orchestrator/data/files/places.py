"""The place of files: a folder of this machine, or whatever fsspec reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from orchestrator.data.files import waiting
from orchestrator.data.files.manifest import NAME
from orchestrator.errors import ConfigurationError, said_of, unusable, without_users

_CHUNK = 4 << 20
_VERSION = "?versionId="  # as s3fs has it
# Options of the libraries behind fsspec, by protocol: one try. The code that waits for a place asks again itself, and says so
# (waiting.py).
_ONE_TRY = {"s3": {"config_kwargs": {"retries": {"total_max_attempts": 1}, "connect_timeout": 10, "read_timeout": 30}}}
_ONE_TRY["s3a"] = _ONE_TRY["s3"]
# Protocols of fsspec behind which there is always another machine. Many others are folders of this one (`local`, `git`, `dvc`,
# `zip::`), or show its keys to whatever host an address names (`sftp`).
_STORES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "hf")
_GONE, _REFUSED = (404, 410), (401, 403, 407)


class Place(Protocol):
    """The place of files, a folder or a store. folder: None where files have to be fetched before they are read."""

    @property
    def folder(self) -> Path | None: ...

    def describe(self, path: str) -> str:
        """A file, for messages."""

    def names(self) -> list[str]:
        """The paths of all files, in the order of their names. Raises OSError."""

    def chunks(self, path: str) -> Iterator[bytes]:
        """A file's bytes. Raises OSError: FileNotFoundError and PermissionError where to try again is in vain."""

    def write(self, path: str, data: bytes) -> None:
        """Raises OSError."""


def place_of(named: str | Path) -> Place:
    """A path or file:// URL is a folder; another URL goes to fsspec. Raises ConfigurationError."""
    scheme, separator, rest = str(named).partition("://")
    if not separator or isinstance(named, Path):
        return _Folder(Path(named))
    return _Folder(Path(unquote(urlsplit(f"//{rest}").path))) if scheme == "file" else _Remote(named)


def is_elsewhere(named: str | Path) -> bool:
    """Whether it is a URL, and not that of a file of this machine."""
    return not isinstance(named, Path) and "://" in named and not named.startswith("file://")


def is_store(url: str) -> bool:
    """Whether it is for certain no folder of this machine."""
    return "::" not in url and url.partition("://")[0] in _STORES


def split(named: str | Path) -> tuple[str | Path, str]:
    """The folder of a manifest, and its name there."""
    if not str(named).endswith(".json"):
        return named, NAME
    if isinstance(named, Path) or "://" not in named:
        return Path(named).parent, Path(named).name
    folder, _, name = named.rpartition("/")
    return folder, name


class _Folder:
    def __init__(self, folder: Path) -> None:
        self.folder = self._folder = folder

    def describe(self, path: str) -> str:
        return str(self._folder / path)

    def names(self) -> list[str]:
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} is no folder")
        return sorted(path.relative_to(self._folder).as_posix() for path in files_below(self._folder))

    def chunks(self, path: str) -> Iterator[bytes]:
        with (self._folder / path).open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    def write(self, path: str, data: bytes) -> None:
        unfinished = self._folder / f".{path}-{os.getpid()}"
        try:
            unfinished.write_bytes(data)
            unfinished.replace(self._folder / path)
        finally:
            unfinished.unlink(missing_ok=True)


def files_below(top: Path) -> list[Path]:
    """The files of a folder and of those below it, links followed; none where there is no such folder. Raises OSError."""
    found = []
    for folder, below, files in os.walk(top, onerror=out_of_reach, followlinks=True):
        below[:] = [name for name in below if not turns_back(top, Path(folder, name))]
        found += [file for name in files if (file := Path(folder, name)).is_file()]
    return found


def out_of_reach(error: OSError) -> None:
    """A folder that cannot be listed would count as an empty one."""
    if not isinstance(error, FileNotFoundError):  # removed at this moment
        raise error


def turns_back(top: Path, folder: Path) -> bool:
    """Whether it is a link to a folder that it lies in, from `top` on: whoever follows links would find no end."""
    if not folder.is_symlink():
        return False
    target, above = os.path.realpath(folder), [parent for parent in folder.parents if parent.is_relative_to(top)]
    return any(Path(os.path.realpath(parent)).is_relative_to(target) for parent in above)


class _Remote:
    folder = None

    def __init__(self, url: str) -> None:
        self._given = url
        self._url = url.rstrip("/")
        self._open()

    def __reduce__(self) -> tuple[type[_Remote], tuple[str]]:
        return _Remote, (self._given,)

    def _open(self) -> None:
        with waiting.undisturbed():
            self._store, root = _opened(self._given)
        self._root = root.rstrip("/")
        self._process = os.getpid()

    @property
    def _files(self) -> Any:
        """The file system of fsspec, which is one process's: a forked one, as of a DataLoader, has none of its threads."""
        if self._process != os.getpid():
            self._open()
        return self._store

    def describe(self, path: str) -> str:
        return without_users(f"{self._url}/{path}")

    def names(self) -> list[str]:
        return sorted(name[len(self._root) + 1 :] for name in self._act("find", self._root))

    def chunks(self, path: str) -> Iterator[bytes]:
        files = self._of_versions() if _VERSION in path else self._files
        with self._called(files.open, f"{self._root}/{path}", "rb", cache_type="none") as stream:
            while chunk := self._called(stream.read, _CHUNK):
                yield chunk

    def write(self, path: str, data: bytes) -> None:
        self._act("pipe_file", f"{self._root}/{path}", data)

    def _of_versions(self) -> Any:
        """The same store, which gives versions of its objects."""
        store = self._files
        files = type(store)(**{**store.storage_options, "version_aware": True})
        files.retries = store.retries
        return files

    def _act(self, verb: str, *arguments: Any, **options: Any) -> Any:
        return self._called(getattr(self._files, verb), *arguments, **options)

    def _called(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Every library behind fsspec has errors of its own."""
        try:
            return function(*arguments, **options)
        except Exception as error:
            meant = _as_meant(error, self._given)
            if meant is error:
                raise
            raise meant from error


def _as_meant(error: Exception, url: str) -> OSError:
    """As a place raises it. fsspec calls a file of the web missing, whatever happened."""
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception) and url.startswith("http"):
        error = error.__cause__
    said, status = said_of(url, str(error)), getattr(error, "status", None)  # of the answer of a web server
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and said and said == str(error):
        return error
    kind: type[OSError] = OSError
    if isinstance(error, FileNotFoundError) or status in _GONE:
        kind = FileNotFoundError
    elif isinstance(error, PermissionError) or status in _REFUSED or "Credentials" in type(error).__name__:
        kind = PermissionError  # of botocore, which says so by the name; s3fs names the others
    return kind(f"{type(error).__name__}: {said}".rstrip(": "))


def _opened(url: str) -> Any:
    """The file system behind fsspec, and the path in it. Raises ConfigurationError."""
    import fsspec

    scheme = url.partition("://")[0]
    options = {} if fsspec.config.conf.get(scheme) else _ONE_TRY.get(scheme, {})
    try:
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        raise ConfigurationError(
            [f"{url} needs a package that is missing: {error}"], code="data.store-package"
        ) from error
    except Exception as error:
        raise unusable(url, error, f"{type(error).__name__}: {error}") from error
    if options:
        files.retries = 1
    return files, root
