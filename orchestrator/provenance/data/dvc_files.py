"""The knowledge of DVC: which paths it holds in which version, where its cache lies, which remotes there are.

`*.dvc`, `dvc.yaml` and `dvc.lock`, the configuration and `.dvcignore` are read by DVC's own code, templates and all; what that
refuses to read holds nothing. The walk to the files is ours: DVC's hides those that git ignores. Nothing of the user's is
written, locked or sent. DVC's import takes 0.3 s, so a launch comes here while Ray starts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.common import temporary
from orchestrator.common.tested_versions import DVC
from orchestrator.data.files.manifest import leads_out
from orchestrator.errors import ConfigurationError
from orchestrator.records import redaction

MD5, LEGACY = "md5", "md5-dos2unix"  # DVC 2 hashed text files with their line ends made those of Unix
_MOST_BYTES = 16 << 20  # of a file that somebody else wrote for DVC
_NAME = re.compile(r"[0-9a-f]{32}(\.dir)?")
_PRUNED = frozenset({".dvc", ".git", ".orchestrator", ".venv", "venv", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class Out:
    """A path that DVC holds."""

    path: str  # relative to the project
    md5: str | None  # of its bytes; None where it was never made
    hash: str  # the name of the algorithm
    file: str  # the DVC file that says so, relative to the project
    stage: str | None = None  # that makes it, by its address; None of a `.dvc` file
    remote: str | None = None  # one of its own; None where it has none
    cached: bool = True  # False where DVC keeps the hash alone (`cache: false`)
    # the repository, revision and path that `dvc import` took it from; None of what was not imported
    imported: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Storage:
    """The places where the bytes are kept. cache: the local cache's folder; remotes: name -> URL without credentials;
    default: the remote that is asked when none is named."""

    cache: Path
    remotes: Mapping[str, str]
    default: str | None

    def place(self, md5: str, kind: str = MD5) -> Path | None:
        """The file of an object in the cache; None of what is no MD5."""
        if not is_name(md5):
            return None
        top = self.cache if kind == LEGACY else self.cache / "files" / "md5"
        return top / md5[:2] / md5[2:]

    def holds(self, md5: str, kind: str = MD5) -> bool:
        """Whether the object is there and, of a folder, every file; the bytes are not looked at."""
        place = self.place(md5, kind)
        if place is None or not place.is_file():
            return False
        if not md5.endswith(".dir"):
            return True
        listed = manifest(place)
        return listed is not None and all(self._has(entry, kind) for entry in listed.values())

    def _has(self, md5: str, kind: str) -> bool:
        place = self.place(md5, kind)
        return place is not None and place.is_file()


def is_name(md5: str) -> bool:
    """Whether DVC may have an object of this name: what a record or a `.dvc` file calls an MD5 becomes a path."""
    return _NAME.fullmatch(md5) is not None


def root(folder: Path) -> Path | None:
    """The DVC project that holds `folder`."""
    place = Path(os.path.normpath(folder.absolute()))
    return next((parent for parent in (place, *place.parents) if (parent / ".dvc").is_dir()), None)


def storage(folder: Path) -> Storage | None:
    """The cache and the remotes of the DVC project that holds `folder`, as `dvc` there would use them."""
    top = root(folder)
    if top is None:
        return None
    settings = configuration(top)
    remotes = {name: redaction.text(str(remote.get("url", ""))) for name, remote in settings["remote"].items()}
    cache = settings["cache"].get("dir") or top / ".dvc" / "cache"
    return Storage(Path(str(cache)), remotes, settings["core"].get("remote"))


def configuration(top: Path) -> dict[str, Any]:
    """DVC's configuration of all its levels, paths in it absolute. Raises ConfigurationError when DVC cannot read it."""
    from dvc.config import Config

    with insides(), _readable(top):
        return dict(Config(dvc_dir=str(top / ".dvc"), validate=False))


def keeps_versions(settings: Mapping[str, Any], remote: str | None) -> bool:
    """Whether a remote keeps files by their names, in versions that DVC's files note, and not by their MD5. settings: DVC's."""
    chosen = settings["remote"].get(remote, {})
    return any(str(chosen.get(kind, "")).lower() == "true" for kind in ("version_aware", "worktree"))


def outs(project: Path) -> list[Out]:
    """Everything that the DVC project around `project` holds. Held folders are not looked into. Raises ConfigurationError."""
    base = root(project)
    if base is None:
        return []
    found: list[Out] = []
    held: set[str] = set()
    with opened(base) as repository:
        for folder, below, files in os.walk(base):
            here = Path(folder)
            if here != base and ".dvc" in below:  # a DVC project of its own
                below.clear()
                continue
            new = [out for name in sorted(files) for out in _outs_of(repository, here / name, project)]
            found += new
            held |= {out.path for out in new}
            below[:] = [
                name for name in below if name not in _PRUNED and os.path.relpath(here / name, project) not in held
            ]
    return found


def lacking(project: Path, remote: str, kind: str, md5s: Iterable[str]) -> list[str]:
    """Those of the objects that a remote does not have. Raises whatever DVC and the libraries below it raise."""
    top = root(project)
    assert top is not None
    wanted = sorted(set(md5s))
    with opened(top) as repository, quiet():
        there = set(repository.cloud.get_remote_odb(remote, hash_name=kind).oids_exist(list(filter(is_name, wanted))))
    return [md5 for md5 in wanted if md5 not in there]


def how_to_have(project: Path, path: str) -> str:
    """The command that brings a path that is not there, in words; empty where DVC does not know of it. Raises
    ConfigurationError."""
    place = Path(os.path.relpath(project / path, project))
    out = next((out for out in outs(project) if place.is_relative_to(out.path)), None)
    return "" if out is None else " or ".join(_commands(out, storage(project)))


def _commands(out: Out, kept: Storage | None) -> list[str]:
    made = [f"make it with: dvc repro {out.stage}"] if out.stage else []
    if out.md5 is None or not out.cached or kept is None:
        return made
    if kept.holds(out.md5, out.hash):
        return [f"take it from DVC's cache with: dvc checkout {out.path}", *made]
    if out.remote or kept.default or out.imported:
        return [f"fetch it with: dvc pull {out.path}", *made]
    return made or ["DVC knows it, and has neither its bytes nor a remote; ask who made it for a dvc push to a remote"]


def manifest(place: Path | None) -> dict[str, str] | None:
    """The files of a `.dir` object, relative path -> md5; None when it is not one, or leads out of its folder."""
    try:
        return None if place is None else listed(place.read_bytes())
    except OSError:
        return None


def listed(content: bytes) -> dict[str, str] | None:
    """The same of the object's bytes."""
    try:
        found = {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(content)}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return None if any(map(leads_out, found)) or not all(map(is_name, found.values())) else found


Ignore = Callable[[str, list[str], list[str]], tuple[list[str], list[str]]]


def ignore(project: Path, path: Path) -> Ignore | None:
    """The rules of `.dvcignore` that may leave out something of `path`, as a filter of (folder, folders, files). Raises
    ConfigurationError."""
    top = root(project)
    if top is None or not path.is_relative_to(top):
        return None
    above = [parent for parent in path.parents if parent.is_relative_to(top)]
    if not any(map(_has_rules, above)) and not any(_has_rules(Path(folder)) for folder, _, _ in os.walk(path)):
        return None
    with insides():
        from dvc.fs import LocalFileSystem
        from dvc.ignore import DvcIgnoreFilter

        rules: Ignore = DvcIgnoreFilter(LocalFileSystem(), str(top))
    return rules


@contextlib.contextmanager
def insides() -> Iterator[None]:
    """Inside the block is done what only DVC's own code can. Raises ConfigurationError where a DVC that was not tested does it
    otherwise."""
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        if DVC.is_here:
            raise
        raise ConfigurationError(
            [f"this version of DVC was not tested, and does otherwise: {type(error).__name__}: {error}"],
            f"install {DVC.wanted}",
            code="dvc.untested",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without DVC's progress bars and warnings, which go by the level of its logger."""
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _has_rules(folder: Path) -> bool:
    file = folder / ".dvcignore"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            [f"{file} is not in UTF-8, in which DVC reads it: {error}"], "save it as UTF-8", code="dvc.ignore-file"
        ) from error
    return any(line.strip() and not line.startswith("#") for line in lines)


@contextlib.contextmanager
def _readable(top: Path) -> Iterator[None]:
    from configobj import ConfigObjError  # as DVC lets it through
    from dvc.config import ConfigError

    try:
        yield
    except (ConfigError, ConfigObjError) as error:
        raise ConfigurationError(
            [f"DVC's configuration in {top / '.dvc'} cannot be read: {error}"], code="dvc.configuration"
        ) from error


@contextlib.contextmanager
def _with_room(scratch: Path) -> Iterator[None]:
    """DVC makes databases of its state there, also to read alone. Raises ConfigurationError where it cannot."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        raise ConfigurationError(
            [f"DVC, which reads the versions of data, cannot write below {scratch.parent.parent}: {error}"],
            "make room there, or name another place with TMPDIR",
            code="dvc.no-room",
        ) from error


@contextlib.contextmanager
def opened(
    top: Path, within: Path | None = None, settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> Iterator[Any]:
    """The project for DVC's own code, to be read: its locks and its state lie elsewhere, and git is left out. within: a folder
    out of which nothing is read, nor files that are larger than any that people write, as of a project of somebody else;
    settings: that go before those of the project."""
    with temporary.folder() as scratch, quiet(), insides():
        from dvc.repo import Repo

        reader = type("Reader", (Repo,), {"tmp_dir": str(scratch)})
        with _readable(top), _with_room(scratch):
            system = None if within is None else _bounded(within)
            own = {**settings.get("core", {}), "no_scm": True, "site_cache_dir": str(scratch)}
            repository = reader(str(top), fs=system, config={**settings, "core": own})
        with repository:
            yield repository


def _bounded(within: Path) -> Any:
    """A file system for DVC whose files are those of a folder: what `vars` or a link name elsewhere cannot be opened."""
    from dvc.fs import LocalFileSystem

    class Bounded(LocalFileSystem):  # type: ignore[misc]
        def open(self, path: str, mode: str = "r", **options: Any) -> Any:
            real = Path(os.path.realpath(path))
            if not real.is_relative_to(os.path.realpath(within)):
                raise OSError(f"{path} lies outside of the code")
            if real.is_file() and real.stat().st_size > _MOST_BYTES:
                raise OSError(f"{path} has more than {_MOST_BYTES >> 20} MiB")
            return super().open(path, mode, **options)

    return Bounded()


def _outs_of(repository: Any, file: Path, project: Path) -> Iterator[Out]:
    """The outs of a DVC file; a stage that DVC cannot resolve is left out, and its neighbours are not."""
    from dvc.dvcfile import is_valid_filename, load_file
    from dvc.exceptions import DvcException

    if not is_valid_filename(file.name):
        return
    with contextlib.suppress(DvcException, OSError):
        stages = load_file(repository, str(file)).stages
        for name in list(stages):
            with contextlib.suppress(DvcException, AttributeError):  # the latter of a hash that YAML reads as a number
                yield from [out_of(out, name, file, project) for out in stages[name].outs if out.protocol == "local"]


def out_of(out: Any, name: str | None, file: Path, project: Path) -> Out:
    """The version of an output, as DVC's files have it. name: of the stage, None in a `.dvc` file. The lock is what tells a
    stage's versions."""
    source = next((dep for dep in out.stage.deps if hasattr(dep, "def_repo")), None)
    imported = None
    if source is not None:
        repository = source.def_repo
        rev = repository.get("rev_lock") or repository.get("rev") or ""
        imported = {"url": redaction.text(str(repository["url"])), "rev": rev, "path": source.def_path}
    folder = os.path.relpath(file.parent, project)
    return Out(
        path=os.path.relpath(out.fs_path, project),
        md5=out.hash_info.value if out.hash_info else None,
        hash=out.hash_name,
        file=os.path.normpath(f"{folder}/{'dvc.lock' if name else file.name}"),
        stage=name if not name or folder == "." else f"{folder}/dvc.yaml:{name}",
        remote=out.remote,
        cached=out.use_cache,
        imported=imported,
    )
