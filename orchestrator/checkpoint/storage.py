"""The place of checkpoints: one flat folder of files that appear whole or not at all. A local folder, or any fsspec URL.

Every verb raises OSError and nothing else when the place fails; a name that is not there is FileNotFoundError. It does not
know what the files mean, does not retry, and does not make a place atomic that is not: on SFTP and the like a torn file can
stand under its final name, and digests expose it.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from orchestrator.common import locks
from orchestrator.errors import ConfigurationError, said_of, unusable

Buffer = bytes | memoryview
_TEMPORARY = ".writing-"
_NAMELESS = re.compile(r"[^/:]+:/{2,}\Z|file:(?!//)")
# One call of write. From 1 MiB on ext4 asks for pages in large blocks, for which the kernel has to make room if memory is in
# use. Then 300 MB take up to 0.7 s of processor time, which training lacks, in place of 0.08 s.
_WRITE_BYTES = 256 << 10


class Storage(Protocol):
    """A member may use one from its own process or thread at any time."""

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        """The pieces one after the other as one file, in place of one that has the name."""

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes from start to stop, or to the end; fewer where the file is shorter."""

    def sizes(self) -> dict[str, int]:
        """Name -> bytes of every file."""

    def delete(self, name: str) -> None:
        """Also fine when there is none."""


def open_storage(place: str | Path) -> Storage:
    """A path or file:// URL is a local folder, made when missing; another URL goes to fsspec.

    Raises ConfigurationError for a place that cannot be one.
    """
    folder = _folder_of(place)
    if folder is None:
        return Remote(str(place))
    try:
        return LocalFolder(folder.expanduser())  # a shell leaves the ~ of checkpoint.uri=~/x as it is, and so does YAML
    except RuntimeError as error:
        raise unusable(f"checkpoint.uri: {folder}", error, "the user behind ~ has no home here") from error
    except OSError as error:
        raise unusable(f"checkpoint.uri: {folder}", error, _say(error, folder)) from error


def _folder_of(place: str | Path) -> Path | None:
    scheme, separator, rest = str(place).partition("://")
    if not separator or isinstance(place, Path):
        return Path(place)
    return Path(unquote(urlsplit(f"//{rest}").path)) if scheme == "file" else None


def try_out(place: str) -> None:
    """Write a small file there and remove it, as every checkpoint will. Raises ConfigurationError when that cannot be done: for
    want of the bucket, of a right or of a way to it, or of a name."""
    if _NAMELESS.match(place):
        raise ConfigurationError(
            [f"checkpoint.uri: {place} names no place"],
            "write a folder such as /data/checkpoints, or a URL such as file:///data/checkpoints or s3://bucket/checkpoints",
            code="checkpoint.no-place",
        )
    try:
        _write_and_remove(open_storage(place))
    except OSError as error:
        raise ConfigurationError(
            [f"checkpoint.uri: {place} cannot be written: {_say(error, place)}"],
            "see to its address, the rights and the way to it",
            code="checkpoint.place-unwritable",
        ) from error


def open_shared(place: str) -> Storage:
    """The place that a driver on another node, or of another user, has opened, and where this process is to write parts. Raises
    ConfigurationError where it cannot."""
    folder = _folder_of(place)
    try:
        if folder is not None and not folder.expanduser().is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder that the driver has made is not there")
        storage = open_storage(place)
        _write_and_remove(storage)
    except OSError as error:
        node, user = platform.node(), locks.user_name(os.geteuid())
        raise ConfigurationError(
            [f"checkpoints: {place} cannot be written by user {user} on {node}: {_say(error, place)}"],
            "see to the credentials, the rights and the way to it on that node"
            if folder is None
            else "let all nodes share that folder, and start Ray on them as the user who launches, or as users of the folder's "
            "group, with umask 002 at the launch",
            code="checkpoint.node-cannot-write",
        ) from error
    return storage


def _write_and_remove(storage: Storage) -> None:
    name = f"tried-out-{secrets.token_hex(8)}"
    storage.put(name, [b""])
    storage.delete(name)


def sync_folder(folder: Path) -> None:
    """Wait until the names in it are on the disk, where this user may ask for that and the file system can do it: shared
    folders of virtual machines and some network file systems cannot. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def bring(source: Storage, target: Storage, name: str) -> None:
    """A file that never changes from one place to another. Raises OSError."""
    if isinstance(source, LocalFolder) and isinstance(target, LocalFolder) and target.link(source, name):
        return
    target.put(name, [source.get(name)])


class LocalFolder:
    """Write under another name, fsync, rename, fsync of the folder. A writer holds a lock on its unfinished file, so the
    next opening can tell what was abandoned from what is being written, whoever writes it."""

    def __init__(self, folder: Path) -> None:
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in new:
            sync_folder(each.parent)
        self._folder = folder
        for path in folder.glob(f"{_TEMPORARY}*"):
            _remove_if_abandoned(path)

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        try:
            self._put(name, pieces)
        except OSError as error:  # by the folder alone: the other name is a random one, and a full disk has none
            raise OSError(error.errno, error.strerror, str(self._folder)) from error

    def _put(self, name: str, pieces: Sequence[Buffer]) -> None:
        descriptor, path = self._unfinished()
        try:
            for piece in pieces:
                _write(descriptor, memoryview(piece))
            os.fsync(descriptor)
            path.replace(self._folder / name)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        sync_folder(self._folder)

    def link(self, source: LocalFolder, name: str) -> bool:
        """Whether the other folder's file is here, too, as another name of it."""
        try:
            (self._folder / name).hardlink_to(source._folder / name)
        except OSError:  # another file system, or one without links
            return False
        sync_folder(self._folder)
        return True

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)

    def sizes(self) -> dict[str, int]:
        found = {}
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # finished or removed in between
                if not path.name.startswith(_TEMPORARY):
                    found[path.name] = path.stat().st_size
        return found

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        sync_folder(self._folder)

    def _unfinished(self) -> tuple[int, Path]:
        while True:
            path = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            if _is_ours(descriptor) and os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)  # somebody's opening took it for abandoned before it was locked
            path.unlink(missing_ok=True)


class Remote:
    """One upload under the final name, which object stores make visible only when it is complete."""

    def __init__(self, url: str) -> None:
        import fsspec  # 0.1 s that a local folder does not need

        try:
            self._files, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise ConfigurationError(
                [f"checkpoint.uri: {url} needs a package that is missing: {error}"], code="checkpoint.store-package"
            ) from error
        except Exception as error:
            raise unusable(f"checkpoint.uri: {url}", error, str(error)) from error

    def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        data = b"".join(pieces)
        try:
            self._act("pipe_file", self._path(name), data)
        except FileNotFoundError:
            if not self._root.startswith("/"):  # it begins with a bucket, which is not ours to make
                raise
            self._act("mkdir", self._root)  # a place with real folders
            self._act("pipe_file", self._path(name), data)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        if stop is not None and stop <= start:  # S3 has no range without a byte, and gives the whole file or an error
            return b""
        return bytes(self._act("cat_file", self._path(name), start=start or None, end=stop))

    def sizes(self) -> dict[str, int]:
        try:
            entries = self._act("ls", self._root, detail=True)
        except FileNotFoundError:  # nothing was written yet
            return {}
        return {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries if entry["type"] == "file"}

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._act("rm_file", self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _act(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Every library behind fsspec has errors of its own."""
        try:
            return getattr(self._files, verb)(*arguments, **options)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data[:_WRITE_BYTES]) :]


def _is_ours(descriptor: int) -> bool:
    """Whether nobody takes the file for abandoned: where there are no locks, nobody removes such files."""
    try:
        return locks.try_lock(descriptor)
    except OSError:
        return True


def _remove_if_abandoned(path: Path) -> None:
    """It stays where this process may not remove it: it may only read these checkpoints."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if locks.try_lock(descriptor):  # else its writer lives
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _say(error: OSError, place: str | Path) -> str:
    return said_of(str(place), error.strerror or str(error))
