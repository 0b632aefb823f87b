"""The version of what a pipeline reads: hashed on disk, and looked up in DVC's files and in the code's repository.

A remote is named and not asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.data.files import manifest
from orchestrator.errors import DataDamaged
from orchestrator.provenance.code.git import known_files
from orchestrator.provenance.data import dvc_files
from orchestrator.provenance.data.dvc_files import LEGACY, Out, Storage
from orchestrator.provenance.data.hashing import EMPTY, Scan, is_in, scan_input

_BEGINNING_BYTES = 256


@dataclass(frozen=True)
class Input:
    """An input of a run, as it was on disk, and what DVC knows of it."""

    path: str  # as declared
    md5: str  # of what is on disk
    size: int  # in bytes
    files: int  # how many it has
    recorded_md5: str | None = None  # what DVC's files say of it; None where they do not
    stage: str | None = None  # the DVC stage that makes it; None where none does, or several do
    place: str = ""  # where it lies, relative to the project, links followed where DVC knows it only so
    outs: tuple[Out, ...] = ()  # the paths of DVC that hold it, lie in it, or are it
    as_recorded: bool = False  # whether those are on disk what DVC has recorded
    in_code: bool = False  # whether a snapshot of the code keeps what of it DVC does not keep
    # whether the local cache has what DVC keeps (the bytes are not looked at); None where DVC keeps nothing
    in_cache: bool | None = None
    remotes: Mapping[str, str] | None = None  # name -> URL without credentials; None where there is no DVC
    loose: tuple[str, ...] = ()  # the files that neither DVC nor a snapshot of the code keeps
    ignored: int = 0  # how many files `.dvcignore` leaves out of the hash
    # of a manifest (`files.json`), how many files that lists, and how many bytes these have; None of another file
    lists: tuple[int, int] | None = None
    empty: tuple[str, ...] = ()  # the folders in it that hold nothing, relative to it: neither DVC nor git keeps them
    is_outside: bool = False  # whether it lies, or a link to it leads, where `dvc add` of this project takes nothing

    @property
    def keeper(self) -> str | None:
        """The keeper that can give these bytes back: "dvc", "code", "dvc and code", or None."""
        if self.loose or (self._kept and not self.as_recorded):
            return None
        return " and ".join([*(["dvc"] if self._kept else []), *(["code"] if self.in_code else [])]) or None

    @property
    def obstacle(self) -> str | None:
        """The obstacle to restoring these data for a rerun, with the remedy; None if there is none."""
        if self._kept and not self.as_recorded:
            remedy = f"dvc repro {self.stage}" if self.stage else f"dvc commit {self._kept[0].path}"
            return f"{self.path} is not what DVC has recorded; {remedy}"
        if self.keeper is None and self.md5 != EMPTY:
            parts = f" ({', '.join(self.loose[:3])})" if 0 < len(self.loose) < self.files else ""
            if self.is_outside:
                return f"{self.path} lies outside of the project, so it cannot be restored; dvc add a copy within the project"
            return f"{self.path}{parts} is not under DVC, so it cannot be restored; dvc add {self.path}"
        if self.in_cache is False and not self.remotes and not any(out.imported for out in self.outs):
            remedy = f"dvc commit {self._kept[0].path}"
            return f"{self.path} is not in DVC's cache, and there is no remote that could have it; {remedy}"
        if self.ignored:
            return f"{self.path} holds {self.ignored} files that .dvcignore leaves out: they are not recorded; add them"
        return None

    @property
    def _kept(self) -> list[Out]:
        return [out for out in self.outs if out.cached]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back."""
        names = {"loose": list(self.loose), "empty": list(self.empty)}
        return {**asdict(self), "outs": [out.as_dict() for out in self.outs], **names}


def from_dict(record: Mapping[str, Any]) -> Input:
    """Keys that this version does not know are left out."""
    known = {field.name for field in fields(Input)}
    values = {name: value for name, value in record.items() if name in known}
    outs = tuple(Out(**out) for out in record.get("outs", ()))
    lists = None if values.get("lists") is None else tuple(values["lists"])
    names = {name: tuple(record.get(name, ())) for name in ("loose", "empty")}
    return Input(**{**values, "outs": outs, "lists": lists, **names})


def look_up(project: Path, scans: Mapping[str, Scan]) -> list[Input]:
    """One Input per path, told what lies there. Raises ConfigurationError when DVC's configuration cannot be read."""
    if not scans:
        return []
    known, storage = dvc_files.outs(project), dvc_files.storage(project)
    return [_look_up(project, path, found, known, storage) for path, found in scans.items()]


def _look_up(project: Path, path: str, scan: Scan, known_outs: list[Out], storage: Storage | None) -> Input:
    place, outs = _holders(project, path, known_outs)
    cached_outs = [out for out in outs if out.cached]
    uncached = _beside(scan, place, cached_outs)
    loose = _not_in_code(project, [_join(place, name) for name in uncached])
    stages = {out.stage for out in outs}
    is_whole = _is_whole(outs, place)
    return Input(
        path=path,
        md5=scan.md5,
        size=scan.size,
        files=len(scan.entries),
        recorded_md5=_recorded(outs[0], place, storage) if is_whole else None,
        stage=stages.pop() if len(stages) == 1 else None,
        place=place,
        outs=tuple(outs),
        as_recorded=bool(outs) and all(_agrees(project, out, place, scan, storage) for out in cached_outs or outs),
        in_code=bool(uncached) and not loose,
        in_cache=all(_in_cache(out, storage) for out in cached_outs) if cached_outs else None,
        remotes=storage.remotes if storage else None,
        loose=tuple(sorted(loose)),
        ignored=scan.ignored,
        empty=scan.empty,
        lists=_lists(project / path) if scan.is_file else None,
        is_outside=_is_outside(project, path),
    )


def _is_outside(project: Path, path: str) -> bool:
    place = Path(os.path.normpath(project / path))
    top = os.path.realpath(dvc_files.root(project) or project)
    real = Path(os.path.realpath(place if place.is_dir() else place.parent))  # DVC copies a file that is a link
    return not real.is_relative_to(top)


def _lists(path: Path) -> tuple[int, int] | None:
    if path.suffix != ".json":
        return None
    try:
        with path.open("rb") as file:
            if not manifest.begins(file.read(_BEGINNING_BYTES)):
                return None
        found = manifest.read(path.read_bytes(), str(path))
    except (OSError, DataDamaged):
        return None
    return len(found.files), found.size


def _holders(project: Path, path: str, known: list[Out]) -> tuple[str, list[Out]]:
    """The place of the input, and the outs that are it, hold it or lie in it; links are followed when nothing else helps."""
    lexical = os.path.relpath(os.path.normpath(project / path), project)
    real = os.path.relpath(os.path.realpath(project / path), os.path.realpath(project))
    for place in dict.fromkeys((lexical, real)):
        outs = [out for out in known if is_in(place, out.path)][:1] or [out for out in known if is_in(out.path, place)]
        if outs:
            return place, outs
    return lexical, []


def _beside(scan: Scan, place: str, outs: Sequence[Out]) -> list[str]:
    """The files that lie in none of the outs, of which there may be as many as files."""
    if not outs:
        return list(scan.entries)
    if _is_whole(outs, place):
        return []
    inside = {os.path.relpath(out.path, place) for out in outs}
    return [name for name in scan.entries if inside.isdisjoint((name, *map(str, PurePosixPath(name).parents)))]


def _is_whole(outs: Sequence[Out], place: str) -> bool:
    """Whether one out is the input, or holds it."""
    return bool(outs) and is_in(place, outs[0].path)


def _join(place: str, name: str) -> str:
    return os.path.normpath(Path(place, name))


def _recorded(out: Out, place: str, storage: Storage | None) -> str | None:
    """The hash of `place`, an out or a part of one, by DVC; only the manifest in the cache knows of a part."""
    if place == out.path or out.md5 is None:
        return out.md5
    listed = dvc_files.manifest(storage.place(out.md5, out.hash)) if storage else None
    return None if listed is None else Scan(listed, 0, False).below(os.path.relpath(place, out.path))


def _agrees(project: Path, out: Out, place: str, found: Scan, storage: Storage | None) -> bool:
    """Whether the disk holds what DVC has recorded. If no manifest tells about a part, the whole out is hashed."""
    if out.hash == LEGACY:
        found = scan_input(project, place, LEGACY)
    if not _is_whole([out], place):
        return out.md5 is not None and found.below(os.path.relpath(out.path, place)) == out.md5
    recorded = _recorded(out, place, storage)
    if recorded is None:
        return out.md5 is not None and scan_input(project, out.path, out.hash).md5 == out.md5
    return recorded == found.md5


def _in_cache(out: Out, storage: Storage | None) -> bool:
    return storage is not None and out.md5 is not None and storage.holds(out.md5, out.hash)


def _not_in_code(project: Path, names: list[str]) -> list[str]:
    """Those that a snapshot of the code's repository would not hold. It holds a link without the file behind it."""
    top = next((place for place in (project, *project.parents) if (place / ".git").exists()), None)
    if not names or top is None:
        return names
    tracked, real = set(_in_code(top)), os.path.realpath(top)
    return [name for name in names if os.path.relpath(os.path.realpath(project / name), real) not in tracked]


def _in_code(top: Path) -> Iterator[str]:
    """The files below `top` that a snapshot holds, those of repositories inside included, relative to it."""
    for name in known_files(top) or ():
        if (top / name / ".git").exists() and not (top / name).is_symlink():
            yield from (os.path.join(name, inner) for inner in _in_code(top / name))  # noqa: PTH118 - of text
        else:
            yield name
