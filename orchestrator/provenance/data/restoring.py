"""Bring the recorded version of the data into a work tree: from DVC's cache, its remote, or the folder that still has it.

The cache and the remotes are those of the folder where the command was typed (rule F5). Every object is hashed while it is
copied, since a cache object may hold other bytes than its name says and DVC then checks it out all the same, and what was
restored is hashed once more as a whole. Nothing of the user's is written: objects that the cache lacks come from the remote
into a cache of their own, which is thrown away; DVC's state, locks and index lie there too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from orchestrator.common import temporary
from orchestrator.data.files import manifest
from orchestrator.data.files.manifest import leads_out
from orchestrator.data.files.places import is_elsewhere
from orchestrator.errors import NotRerunnable, bulleted, few
from orchestrator.provenance.data import dvc_files, hashing
from orchestrator.provenance.data.dvc_files import MD5, Out, Storage
from orchestrator.provenance.data.versions import Input

_IN_CODE = "work tree"
_SHOWN = 3  # paths in a sentence
_SPECIAL = re.compile(rb"[\\*?\[ ]")  # to git in a pattern


@dataclass(frozen=True)
class Restored:
    """An input that was restored."""

    path: str
    # "work tree" (the snapshot brought it, or it lies at an absolute path), "cache", "remote", "import", "folder", or as
    # `restore` was told
    source: str
    notes: tuple[str, ...] = ()  # for a person, such as an object of the cache that was found damaged


def restore(
    target: Path,
    inputs: Sequence[Input],
    source: Path,
    *,
    top: Path | None = None,
    places: Mapping[str, tuple[str, Path]] | None = None,
    names: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Restored]:
    """Make every input in the work tree `target` what was recorded, byte for byte.

    target: the project's folder in a disposable work tree, changed; top: that work tree's first folder, when the project is
    not it; source: the project's folder where the command was typed, only read; places: path of an input -> a place that has
    its bytes, which is taken first, and how that is called; names: path of an input -> its files, if they are known: others,
    such as a cache that the pipeline has written there since, do not count. Raises NotRerunnable with all that failed.
    """
    kept = dvc_files.storage(source)
    with temporary.folder() as scratch:
        store = _Objects(source, target, kept, scratch)
        jobs = [_Job(item, target, source, top or target, names.get(item.path)) for item in inputs]
        for job in [job for job in jobs if not job.is_done()]:
            job.bring((places or {}).get(job.item.path), store)
    problems = [(job.item, problem) for job in jobs if (problem := job.problem) is not None]
    if problems:
        made = [item.path for item, _ in problems if item.stage is not None and item.as_recorded]
        again = f"; rerun=RUN_ID stages=true has DVC's stages make {few(made, _SHOWN)} again" if made else ""
        raise NotRerunnable(
            f"the data of this run cannot be restored:{bulleted([problem for _, problem in problems])}",
            f"type the command where DVC's cache or a remote has them, or bring those bytes back to their place{again}",
            code="dvc.not-restored",
        )
    for job in jobs:
        job.make_empty_folders()
    _hide(top or target, (target / (job.item.place or job.item.path) for job in jobs if job.is_brought))
    return [Restored(job.item.path, str(job.source), tuple(job.notes)) for job in jobs]


def lend_listed(project: Path, inputs: Iterable[Input], source: Path, top: Path) -> None:
    """Have lists of files in a restored work tree find what they list in a folder of the project `source`, by links: the list
    alone is recorded, and each file is checked against it when it is opened. top: that tree's first folder."""
    for item in inputs:
        path = project / item.path
        if item.lists is None or not path.is_file():
            continue
        found = manifest.read(path.read_bytes(), str(path))
        place = str(PurePosixPath(item.path).parent) if found.place is None else found.place
        if is_elsewhere(place) or manifest.leads_out(place):
            continue
        for name in {PurePosixPath(file.where).parts[0] for file in found.files}:
            lent, there = project / place / name, source / place / name
            if there.exists() and not os.path.lexists(lent):
                lent.parent.mkdir(parents=True, exist_ok=True)
                lent.symlink_to(there.absolute())
                _hide(top, [lent])


def lend_storage(project: Path, source: Path, top: Path) -> None:
    """Have DVC in a restored work tree use the cache and the remotes of the folder `source`, so that whoever records the data
    there finds them where they are kept (rule F5).

    project: the project's folder in that tree; top: its first folder, a repository of our own. DVC is told in its
    `config.local`, addresses without credentials. The code's identity stays: git is told to ignore that file. A tree without
    DVC, or with such a file of its own, stays as it is.
    """
    kept, own = dvc_files.storage(source), dvc_files.root(project)
    if kept is None or own is None or not own.is_relative_to(top) or (own / ".dvc" / "config.local").exists():
        return
    from configobj import ConfigObj  # DVC's own writer takes nothing but ASCII

    settings = ConfigObj(encoding="utf-8")
    settings["cache"] = {"dir": str(kept.cache)}
    settings.update({f'remote "{name}"': {"url": url} for name, url in kept.remotes.items()})
    if kept.default is not None:
        settings["core"] = {"remote": kept.default}
    _hide(top, [own / ".dvc" / "config.local"])
    with (own / ".dvc" / "config.local").open("wb") as file:
        settings.write(file)


def _hide(top: Path, places: Iterable[Path]) -> None:
    """Have git ignore what the recorded code has not: it need not be the code that named it to git (`.git/info/exclude`, the
    user's own settings, a sparse checkout). Files that git tracks stay in it."""
    if not (top / ".git").is_dir():  # a folder and no repository
        return
    file = top / ".git" / "info" / "exclude"
    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as stream:
        for path in sorted({os.path.relpath(place, top) for place in places}):
            if path == "." or leads_out(path):
                continue
            stream.write(b"/" + _SPECIAL.sub(rb"\\\g<0>", os.fsencode(path)).replace(b"\n", b"?") + b"\n")


@dataclass
class _Job:
    """One input on its way."""

    item: Input  # the input as it was recorded
    target: Path  # the project's folder in a disposable work tree, changed
    origin: Path  # the project's folder where the command was typed, only read
    top: Path  # the first folder of that work tree, outside of which nothing is written
    names: Collection[str] | None = None  # its files, where they are known
    source: str | None = None  # where it came from; None while it is not there
    notes: list[str] = field(default_factory=list)  # what a person should know
    reasons: list[str] = field(default_factory=list)  # why it is not there, as far as tried

    @property
    def problem(self) -> str | None:
        if self.source is not None:
            return None
        return f"{self.item.path} (md5 {self.item.md5}): {'; '.join(self.reasons)}"

    @property
    def is_brought(self) -> bool:
        return self.source not in (None, _IN_CODE)

    def is_done(self) -> bool:
        """Whether nothing has to be brought, or nothing may be."""
        leads_outside = self._leads_outside(self.item.path)
        if self.item.md5 == hashing.EMPTY and not leads_outside:  # git keeps no folder without files
            (self.target / self.item.path).mkdir(parents=True, exist_ok=True)
        if self._arrived(_IN_CODE):
            return True
        if leads_outside:
            self.reasons.append(f"it lies outside of the repository, where a rerun writes nothing, and {self._there()}")
            return True
        if self.item.in_code and not self.item.outs:
            self.reasons.append("the code's snapshot brings other bytes (git may convert line ends)")
        return False

    def make_empty_folders(self) -> None:
        """A pipeline may count the folders of its data."""
        for name in self.item.empty:
            path = os.path.normpath(Path(self.item.path, name))
            if not leads_out(name) and not self._leads_outside(path):
                (self.target / path).mkdir(parents=True, exist_ok=True)

    def _there(self) -> str:
        """The state of an input outside of the repository, in words."""
        place = self.target / self.item.path
        if place.exists():
            return "has other bytes now"
        is_below = Path(os.path.normpath(place)).is_relative_to(os.path.normpath(self.top))  # but for links
        if is_below or Path(self.item.path).is_absolute():
            return f"{os.path.realpath(place)} is not there"
        return (
            "its path leads elsewhere from there: in data.inputs and in the pipeline, name it by an absolute path, which a "
            "rerun reads in place"
        )

    def bring(self, crate: tuple[str, Path] | None, store: _Objects) -> None:
        """From the first of its sources that has the recorded bytes. crate: a place that should have them."""
        if crate is not None:
            self.from_place(*crate)
        if self.source is None:
            self.from_dvc(store)
        if self.source is None:
            self.from_folder()

    def from_dvc(self, store: _Objects) -> None:
        """Outs that DVC keeps, from the cache, or from a remote what the cache lacks."""
        wanted = [self._version_read(out) for out in self.item.outs if out.cached]
        if not wanted:
            self.reasons.append("DVC does not hold it")
            return
        try:
            sources = [self._bring(out, store) for out in wanted]
        except _Missing as missing:
            self.reasons.append(str(missing))
        else:
            if not self._arrived(max(sources, key=("cache", "remote", "import").index)):
                self.reasons.append("DVC has recorded another version than was read then")
        self.notes += [note for note in store.take_notes() if note not in self.notes]

    def from_place(self, name: str, place: Path) -> None:
        if not self._from_place(place, hashing.scan(place), name):
            self.reasons.append(f"the {name} {'have' if name.endswith('s') else 'has'} other bytes")

    def from_folder(self) -> None:
        """The bytes that lie where the command was typed, if they are still those; data that DVC never had come back so."""
        place = self.origin / self.item.path
        found = self._recorded(hashing.scan_input(self.origin, self.item.path)) if place.exists() else None
        if found is None or found.md5 != self.item.md5:
            self.reasons.append(f"{place} {'is not there' if found is None else 'has other bytes now'}")
        elif self._from_place(place, found, "folder"):
            self.notes.append(
                f"{self.item.path} was copied from {place}, which has the recorded bytes; neither DVC nor the code brought it"
            )
        else:
            self.reasons.append(f"{place} changed while it was copied")

    def _from_place(self, place: Path, found: hashing.Scan, source: str) -> bool:
        """Copy what was found at a place; whether these are the recorded bytes."""
        destination = self.target / self.item.path
        _remove(destination)
        for name in found.entries:
            _copy(place / name if name else place, destination / name if name else destination)
        return self._arrived(source)

    def _arrived(self, source: str) -> bool:
        place = self.target / self.item.path
        if place.exists() and self._recorded(hashing.scan_input(self.target, self.item.path)).md5 == self.item.md5:
            self.source = source
        return self.source is not None

    def _recorded(self, found: hashing.Scan) -> hashing.Scan:
        if self.names is None:
            return found
        return replace(found, entries={name: md5 for name, md5 in found.entries.items() if name in self.names})

    def _version_read(self, out: Out) -> Out:
        """The version that was read need not be the one that DVC had recorded; it may have been added to DVC later."""
        if self.item.as_recorded or self.item.place != out.path:
            return out
        return replace(out, md5=self.item.md5, hash=MD5)

    def _leads_outside(self, path: str) -> bool:
        """Whether writing there would leave the work tree, through `..` or through a link."""
        place = Path(os.path.normpath(self.target / path))
        return not Path(os.path.realpath(place.parent), place.name).is_relative_to(os.path.realpath(self.top))

    def _bring(self, out: Out, store: _Objects) -> str:
        """Put an out, or the part of it that is the input, into the work tree; returns where it came from."""
        place = self.item.place or self.item.path
        inside = Path(os.path.relpath(place, out.path))
        part = "" if inside.parts[:1] in ((), (os.pardir,)) else inside.as_posix()
        destination = self.target / out.path / part
        if self._leads_outside(out.path):
            raise _Missing(f"{out.path} lies outside of the repository, where a rerun writes nothing")
        try:
            return store.bring(out, part, destination)
        except _Missing:
            if out.imported is None:
                raise
            _import(out, part, destination, self.origin)
            return "import"


class _Missing(Exception):
    """The message says which object is nowhere, and what was tried."""


class _Objects:
    """DVC's objects: of the cache, and for what that lacks or has damaged, of a remote."""

    def __init__(
        self,
        project: Path,  # where the command was typed
        code: Path,  # the project in the restored tree
        storage: Storage | None,  # of `project`
        scratch: Path,  # a folder that is thrown away
    ) -> None:
        self._project = project
        self._code = code
        self._storage = storage
        self._fetched = Storage(scratch / "cache", {}, None)
        self._scratch = scratch
        self._notes: list[str] = []

    def take_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def bring(self, out: Out, part: str, destination: Path) -> str:
        """Write an out, or the file or folder `part` of it, to `destination`; returns "cache" or "remote"."""
        objects = self._objects(out, part)
        _remove(destination)
        places = {
            name: self._copy(out, md5, destination / name if name else destination) for name, md5 in objects.items()
        }
        missing = [name for name, place in places.items() if place is None]
        self._fetch(out, sorted({objects[name] for name in missing}))
        for name in missing:
            places[name] = self._copy(out, objects[name], destination / name if name else destination)
            if places[name] is None:
                raise _Missing(self._why(out, objects[name]))
        return "remote" if self._fetched in places.values() else "cache"

    def _objects(self, out: Out, part: str) -> dict[str, str]:
        """The files of an out, or of a part of it: relative path -> md5, of a single file "" -> md5."""
        if out.md5 is None:
            raise _Missing(f"DVC has no version of {out.path}")
        if not out.md5.endswith(".dir"):
            return {"": out.md5}
        place = self._find(out.md5, out.hash)
        if place is None:
            self._fetch(out, [out.md5])
            place = self._find(out.md5, out.hash)
        listed = dvc_files.manifest(place) if place else None
        if listed is None:
            raise _Missing(self._why(out, out.md5))
        objects = _part_of(listed, part)
        if not objects:
            raise _Missing(f"{out.path} has no {part}")
        return objects

    def _find(self, md5: str, kind: str) -> Path | None:
        """A place with an object of that name and those bytes. A damaged one is noted."""
        for storage in self._storages():
            place = storage.place(md5, kind)
            if place is not None and place.is_file():
                if hashing.scan(place, kind=kind).md5 == md5.removesuffix(".dir"):
                    return place
                self._note_damage(place)
        return None

    def _copy(self, out: Out, md5: str, destination: Path) -> Storage | None:
        """Copy an object, if there is one with the bytes that its name promises; returns where it was."""
        for storage in self._storages():
            place = storage.place(md5, out.hash)
            if place is not None and place.is_file():
                plain = _copy(place, destination)
                if md5 == (plain if out.hash == MD5 else hashing.scan(destination, kind=out.hash).md5):
                    return storage
                destination.unlink()
                self._note_damage(place)
        return None

    def _storages(self) -> list[Storage]:
        return [*([self._storage] if self._storage else []), self._fetched]

    def _note_damage(self, place: Path) -> None:
        note = f"the object {place} is damaged: its bytes are not those of its name; remove it"
        if note not in self._notes:
            self._notes.append(note)

    def _fetch(self, out: Out, md5s: list[str]) -> None:
        """Ask the remote for objects; what it does not have is simply not there afterwards."""
        md5s = list(filter(dvc_files.is_name, md5s))  # DVC writes others outside of its cache
        if not md5s or self._storage is None or not (out.remote or self._storage.default):
            return
        try:
            _pull(self._project, self._code, self._scratch, md5s, out)
        except Exception as error:  # DVC and the libraries below it raise whatever they like
            self._notes.append(f"the remote could not be read: {type(error).__name__}: {error}")

    def _why(self, out: Out, md5: str) -> str:
        if self._storage is None:
            return f"{self._project} is not in a DVC project, so there is no cache and no remote to ask"
        remote = out.remote or self._storage.default
        url = self._storage.remotes.get(remote or "")
        asked = f"nor has the remote {remote} ({url})" if url else "and there is no default remote"
        notes = "".join(f"; {note}" for note in self._notes)
        return f"DVC's cache ({self._storage.cache}) has no sound object {md5}, {asked}{notes}"


def _part_of(listed: Mapping[str, str], part: str) -> dict[str, str]:
    if not part:
        return dict(listed)
    return {"": listed[part]} if part in listed else hashing.below(listed, part)


def _pull(project: Path, code: Path, scratch: Path, md5s: Iterable[str], out: Out) -> None:
    """Into the cache in `scratch`, with the remotes of `project`, through a DVC project that is made there."""
    top = dvc_files.root(project)
    assert top is not None
    theirs = dvc_files.configuration(top)
    settings = {"cache": {"dir": str(scratch / "cache")}, "remote": theirs["remote"], "core": {}}
    if theirs["core"].get("remote"):
        settings["core"]["remote"] = theirs["core"]["remote"]
    if dvc_files.keeps_versions(theirs, out.remote or theirs["core"].get("remote")):
        _pull_versions((code, project), settings, out)
        return
    own = scratch / "project"
    (own / ".dvc").mkdir(parents=True, exist_ok=True)
    settings["core"] |= {"no_scm": True, "site_cache_dir": str(scratch / "site"), "analytics": False}
    with dvc_files.quiet(), dvc_files.insides():
        from dvc.repo import Repo
        from dvc_data.hashfile.hash_info import HashInfo

        with Repo(str(own), config=settings) as repository:
            repository.cloud.pull([HashInfo(out.hash, md5) for md5 in md5s], remote=out.remote)


def _pull_versions(projects: Iterable[Path], settings: Mapping[str, Mapping[str, Any]], out: Out) -> None:
    """The same from a remote that keeps files by their names, in versions: DVC's files say which ones, once they are pushed,
    which may be later than the code was recorded."""
    failed: Exception | None = None
    for project in projects:
        top, file = dvc_files.root(project), project / out.file
        if top is None or not file.is_file():
            continue
        place = f"{file.with_name('dvc.yaml')}:{out.stage.rpartition(':')[2]}" if out.stage else str(file)
        try:
            with dvc_files.opened(top, settings=settings) as repository:
                repository.fetch(targets=[place])
            failed = None
        except Exception as error:  # of a folder whose versions are not noted yet, and whatever the libraries raise
            failed = error
    if failed is not None:
        raise failed


def _import(out: Out, part: str, destination: Path, origin: Path) -> None:
    """Get from another repository what `dvc import` took from there: such data are in nobody's remote but that one's."""
    assert out.imported is not None
    from dvc.api import DVCFileSystem

    url, top = out.imported["url"], dvc_files.root(origin) or origin
    url = str(top / url) if (top / url).exists() else url
    _remove(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        with dvc_files.quiet():
            system = DVCFileSystem(url, rev=out.imported["rev"])
            system.get("/".join(filter(None, (out.imported["path"], part))), str(destination), recursive=True)
    except Exception as error:  # git, DVC and the libraries below them raise whatever they like
        raise _Missing(f"it cannot be imported again from {url}: {type(error).__name__}: {error}") from error


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> str:
    """Copy a file's bytes; returns their md5."""
    if not target.parent.is_dir():
        target.parent.mkdir(parents=True)
    total = hashlib.md5(usedforsecurity=False)
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(2**20):
            total.update(piece)
            writer.write(piece)
    return total.hexdigest()
