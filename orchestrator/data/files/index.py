"""Writing the manifest of a folder of files: each is read once, for its samples, its bytes and their MD5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.common import temporary
from orchestrator.common.import_string import raised
from orchestrator.data.files import manifest, waiting
from orchestrator.data.files.cache import passed_on, patience_s
from orchestrator.data.files.manifest import File, Manifest
from orchestrator.data.files.places import Place, place_of, split
from orchestrator.data.files.readers import LISTS, READERS, SUFFIXES, build, by_name
from orchestrator.data.files.readers.listing import INDEX, Listed
from orchestrator.data.files.waiting import Attempt
from orchestrator.errors import ConfigurationError, DataDamaged, OrchestratorError

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Kept:
    """Files that something else keeps, such as DVC: where, and at which path below each is."""

    place: str
    at: Mapping[str, str]


def index(
    named: str,  # a folder, or an fsspec URL of one
    reader: str | None,  # of all its files; None to go by their names
    options: Mapping[str, Any],  # of the readers
    tell: Tell = lambda _done, _of: None,  # hears how many files are done
    *,
    to: str | None = None,  # where the manifest goes; None for beside the files
    kept: Kept | None = None,  # instead of what lies at `named`
) -> Manifest:
    """Write the list of the files of a training set. Raises ConfigurationError, DataDamaged."""
    place = place_of(named if kept is None else kept.place)
    at = {} if kept is None else kept.at
    if to is not None and not to.endswith(".json"):
        raise ConfigurationError([f"to={to}: a manifest ends in .json"], code="data.index-target")
    folder, target = split(named if to is None else to)
    try:
        _refuse_what_leads_out(named, at)
        names = [name for name in (sorted(at) or place.names()) if not _is_hidden(name)]
        chosen, of_its_kind = _chosen(named, reader, names)
        listed = _listed(place, chosen, names if chosen in LISTS else of_its_kind, options, at)
        read = build(chosen, listed.options)
        files = []
        for name, count in listed.files.items():
            files.append(_described(place, name, at.get(name, ""), read, count))
            tell(len(files), len(listed.files))
        options = READERS.resolve(chosen, listed.options)
        found = Manifest(
            chosen, tuple(files), options, None if to is None else str(named if kept is None else kept.place)
        )
        data = found.written()
        manifest.read(data, place_of(folder).describe(target))
        place_of(folder).write(target, data)
    except OSError as error:
        raise ConfigurationError([f"index={named}: {error}"], code="data.index-failed") from error
    return found


def _refuse_what_leads_out(named: str, at: Mapping[str, str]) -> None:
    """Before anything there is read: a file of DVC may be somebody else's. Raises ConfigurationError."""
    for below in (*at, *at.values()):
        if manifest.leads_out(below):
            raise ConfigurationError(
                [f"index={named}: it lists {below!r}, which is not below its place"], code="data.index-leads-out"
            )


def _listed(place: Place, reader: str, names: list[str], options: Mapping[str, Any], at: Mapping[str, str]) -> Listed:
    """Which files there are, how many samples each should have, and the reader's options."""
    problems = READERS.problems(reader, options)
    if problems:
        raise ConfigurationError(problems)
    if reader not in LISTS:
        return Listed(dict.fromkeys(names), options)
    return LISTS[reader](names, lambda name: b"".join(place.chunks(at.get(name, name))), options)


def _is_hidden(name: str) -> bool:
    return name == manifest.NAME or any(part.startswith((".", "_")) for part in name.split("/"))


def _chosen(named: str, reader: str | None, names: Sequence[str]) -> tuple[str, list[str]]:
    """The reader, and the files that it reads."""
    if reader is not None:
        suffixes = tuple(suffix for suffix, known in SUFFIXES.items() if known == reader)
        found = [name for name in names if not suffixes or name.lower().endswith(suffixes)]
        if not found:
            raise ConfigurationError(
                [f"index={named}: there is no file for reader={reader}"], code="data.index-no-file"
            )
        return reader, found
    known = {name: by_name(Path(name)) for name in names}
    readers = sorted({each for each in known.values() if each is not None})
    if len(readers) != 1:
        what = f"files for {' and '.join(readers)}" if readers else "no file whose name tells how to read it"
        raise ConfigurationError(
            [f"index={named}: there is {what}"],
            f"name one of: reader={', reader='.join(READERS)}",
            code="data.index-which-reader",
        )
    return readers[0], [name for name, each in known.items() if each is not None]


def _described(place: Place, name: str, at: str, read: Callable[..., Any], told: int | None) -> File:
    """at: where it is, "" for at its name; told: how many samples another list says it has. Its last sample is read: then it
    is whole. All are where that tells more, as of lines, which have a `check`."""
    with temporary.folder() as scratch:
        file = scratch / "copy" if place.folder is None else place.folder / (at or name)
        size, digest = _hashed(place, at or name, file)
        try:
            samples = read(file, name)
            count = len(samples)
            if told not in (None, count):
                raise ValueError(f"has {count} samples; {INDEX} says {told}")
            if hasattr(samples, "check"):
                samples.check()
            elif count:
                samples[count - 1]
            samples.close()
        except OrchestratorError:
            raise
        except Exception as error:  # of a reader of the user's, whatever it raises
            said = str(error) if isinstance(error, ValueError) else raised(error)
            raise DataDamaged(
                f"{place.describe(name)} {said}", "leave it out of the folder, or write it anew", code="data.index-file"
            ) from error
    return File(name, count, size, digest, at)


def _hashed(place: Place, where: str, file: Path) -> tuple[int, str]:
    """Bytes and MD5 of a file. file: it here, or a copy that is made; a store is asked again, as there may be many files.
    Raises DataDamaged, ConfigurationError, OSError."""
    if place.folder is not None:
        return passed_on(place.chunks(where), lambda _: None, Attempt())

    def once(attempt: Attempt) -> tuple[int, str]:
        with file.open("wb") as copy:

            def write(chunk: bytes) -> None:
                try:
                    copy.write(chunk)
                except OSError as error:
                    raise ConfigurationError(
                        [f"index: a copy for its reader cannot be written: {error}"],
                        "make room there, or name another place with TMPDIR",
                        code="data.index-copy",
                    ) from error

            return passed_on(place.chunks(where), write, attempt)

    return waiting.until(place.describe(where), once, patience_s())
