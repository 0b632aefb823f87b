"""The undeclared inputs of the user's code: files, hosts, environment variables; as values, and what they mean for a rerun.
Pure: `data/input_auditing.py` sees the reads.

A file is kept as its hash, a variable as its value. A variable that looks like a credential is kept as a digest that is slow
to guess (scrypt, RFC 7914), so that a rerun can tell whether it was given the same one.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import NotRerunnable, bulleted, few
from orchestrator.records import redaction

Value = str | Mapping[str, str] | None  # None: it was not set; {"masked", "scrypt"}: a credential
_SHOWN = 3
_WIDTH = 40  # of a value in a sentence


@dataclass(frozen=True)
class File:
    """A file, or a folder that was listed."""

    path: str  # absolute
    inside: str | None = None  # its path relative to the project; None elsewhere
    # where a link on the way leads to, relative to the project or absolute; None without a link
    also: str | None = None
    folder: bool = False  # whether it is one
    size: int | None = None  # in bytes; None of a folder
    sha256: str | None = None  # of its bytes; None of a folder, and where there was too much to hash

    @property
    def name(self) -> str:
        """By which it is known again in another checkout."""
        return self.inside or self.path

    def differs(self, other: File) -> bool:
        """Whether its content is another one, as far as that is known."""
        hashed = None not in (self.sha256, other.sha256)
        return self.size != other.size or (hashed and self.sha256 != other.sha256)


@dataclass(frozen=True)
class InputAudit:
    """The inputs that one process has read, or several together."""

    files: Mapping[str, File] = field(default_factory=dict)  # by name
    hosts: tuple[str, ...] = ()  # that were connected to
    # by name, the values of environment variables; several where processes differ
    variables: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    more: int = 0  # number of files beyond the limit, which are not listed
    changed: tuple[str, ...] = ()  # names of files that were read with another content, too; `files` has the newer one

    def __bool__(self) -> bool:
        return bool(self.files or self.hosts or self.variables or self.more)

    def __or__(self, other: InputAudit) -> InputAudit:
        names = sorted({*self.variables, *other.variables})
        variables = {name: _distinct([*self.variables.get(name, ()), *other.variables.get(name, ())]) for name in names}
        files = dict(sorted({**self.files, **other.files}.items()))
        hosts = tuple(sorted({*self.hosts, *other.hosts}))
        both = self.files.keys() & other.files.keys()
        changed = {name for name in both if self.files[name].differs(other.files[name])}
        also = tuple(sorted({*self.changed, *other.changed, *changed}))
        return InputAudit(files, hosts, variables, max(self.more, other.more), also)

    def as_dict(self) -> dict[str, Any]:
        return {
            "files": {name: vars(file) for name, file in self.files.items()},
            "hosts": list(self.hosts),
            "variables": {name: [_plain(value) for value in values] for name, values in self.variables.items()},
            "more": self.more,
            "changed": list(self.changed),
        }

    def identity(self) -> dict[str, Any]:
        """The part that determines the result: hashes and values, without places."""
        return {
            "files": {name: file.sha256 for name, file in self.files.items() if not file.folder},
            "variables": {name: " or ".join(map(_known, values)) for name, values in self.variables.items()},
            **({"changed": list(self.changed)} if self.changed else {}),
        }


def from_dict(values: Mapping[str, Any]) -> InputAudit:
    return InputAudit(
        {name: File(**file) for name, file in values.get("files", {}).items()},
        tuple(values.get("hosts", ())),
        {name: tuple(found) for name, found in values.get("variables", {}).items()},
        values.get("more", 0),
        tuple(values.get("changed", ())),
    )


def recorded(name: str, value: str | None) -> Value:
    """The value of a variable as a record may hold it."""
    hidden = redaction.setting(name, value)
    if value is None or hidden == value:
        return value
    digest = hashlib.scrypt(os.fsencode(value), salt=name.encode(), n=2**14, r=8, p=1, dklen=32)
    return {"masked": str(hidden), "scrypt": digest.hex()}


def elsewhere(audit: InputAudit, is_code: Callable[[File], bool]) -> InputAudit:
    """Without files of the code."""
    files = {name: file for name, file in audit.files.items() if not is_code(file)}
    changed = tuple(name for name in audit.changed if name in files)
    return InputAudit(files, audit.hosts, audit.variables, audit.more, changed)


def undeclared(audit: InputAudit, variables: Collection[str]) -> InputAudit:
    """The inputs that the settings do not name. variables: those that they do; of files none is here that they name."""
    left = {name: values for name, values in audit.variables.items() if name not in variables}
    return replace(audit, variables=left)


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these, or in one of them."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def holds(folder: str, paths: Iterable[str]) -> bool:
    """Whether any of these is in that folder."""
    return any(is_below(path, [folder]) for path in paths)


def in_project(file: File) -> bool:
    """If a project's code is in no snapshot, any file in it may be code."""
    return file.inside is not None


def code_of(entries: Iterable[bytes], root: str, project: str) -> Callable[[File], bool]:
    """Tells of a file whether the snapshot holds it, and of a folder whether it holds some of its files. entries: of the
    snapshot; root: of the repository; project: relative to it."""
    files = {os.fsdecode(entry) for entry in entries}
    folders = {part for file in files for part in _above(file)}

    def is_code(file: File) -> bool:
        name = file.also or file.name
        if not posixpath.isabs(name):
            path = posixpath.normpath(posixpath.join(project or ".", name))
        elif is_below(name, [root]):
            path = posixpath.relpath(name, root)
        else:
            return False
        return path in files or path in folders or path == "."

    return is_code


def obstacles(audit: InputAudit) -> list[str]:
    """The obstacles to repeating a run that read these, undeclared; a sentence each with the remedy."""
    found = []
    if audit.files:
        names = _folded(list(audit.files.values()))
        more = f" and {audit.more} further files" if audit.more else ""
        found.append(
            f"{few(names, _SHOWN)}{more}: read by the pipeline, and neither code nor one of data.inputs; name "
            f"{'them' if names[1:] or more else 'it'} in data.inputs"
        )
    if audit.hosts:
        found.append(
            f"{few(list(audit.hosts), _SHOWN)}: the pipeline connected there, and what came from there is in no record; fetch "
            "it before, into a file of data.inputs"
        )
    hidden = [name for name, values in audit.variables.items() if any(isinstance(each, Mapping) for each in values)]
    if hidden:
        found.append(
            f"{few(hidden, _SHOWN)}: read from the environment by the pipeline, and masked in the record, so that a rerun has "
            "to be given the same value; name it in environment.variables"
        )
    return [*found, *_unequal(audit)]


def notes(audit: InputAudit) -> list[str]:
    """The inputs that a rerun has again, although nobody declared them."""
    shown = [f"{name}={_shown([value])}" for name, value in settable(audit).items()]
    if not shown:
        return []
    return [
        f"{few(shown, _SHOWN)}: read from the environment by the pipeline, and set again by a rerun; strict=true wants "
        f"{'them' if shown[1:] else 'it'} in environment.variables, or in pipeline.args"
    ]


def refusal(audit: InputAudit) -> NotRerunnable | None:
    """Why a strict run may not go on with what nobody declared."""
    found = [*obstacles(audit), *notes(audit)]
    if not found:
        return None
    listed = bulleted(found)
    return NotRerunnable(
        f"strict: this run reads what is not declared:{listed}",
        "mend these, or leave strict out",
        code="rerun.strict-reads",
    )


def _unequal(audit: InputAudit) -> list[str]:
    names = [name for name, values in audit.variables.items() if values[1:]]
    found = (
        [f"{few(names, _SHOWN)}: not the same at all workers, or at a resume; set it on every node"] if names else []
    )
    if audit.changed:
        found.append(
            f"{few(list(audit.changed), _SHOWN)}: changed since the run began, or not the same on every node; steps are "
            "computed from what is there now"
        )
    return found


def settable(audit: InputAudit) -> dict[str, str | None]:
    """The variables that a rerun sets, None for one that it removes: those that have one value which is in the record."""
    single = {name: values[0] for name, values in audit.variables.items() if not values[1:]}
    return {name: value for name, value in single.items() if value is None or isinstance(value, str)}


def differing(audit: InputAudit, present: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The variables of the environment in which a rerun is typed. There is a sentence for each that is set as it was, and for
    each that cannot be, since its value is in no record and is another one here."""
    given = settable(audit)
    set_again = [
        f"{name} is set to {_shown([value])} as recorded; here it is {_shown([recorded(name, present.get(name))])}"
        for name, value in given.items()
        if present.get(name) != value
    ]
    other = []
    for name, values in audit.variables.items():
        here = recorded(name, present.get(name))
        if name not in given and here not in values:
            how = "is not set here" if here is None else "has another value here"
            other.append(f"{name} {how}, and its recorded one was masked; set it as it was")
    return set_again, other


def variables_apart(audit: InputAudit, present: Mapping[str, str], declared: Collection[str]) -> list[str]:
    """A sentence for each variable that has another value where a run goes on than where it began. declared: those that are set
    again."""
    set_again, other = differing(audit, present)
    apart = [name for name, value in settable(audit).items() if present.get(name) != value]
    told = [
        sentence
        if name in declared
        else f"{name} was {_shown(audit.variables[name])} when the run began, and the pipeline "
        f"read it; here it is {_shown([recorded(name, present.get(name))])}"
        for name, sentence in zip(apart, set_again, strict=True)
    ]
    return [*told, *other]


def sentences(audit: InputAudit) -> dict[str, str]:
    """For a table: what was read, by name."""
    rows = {name: _of_file(file) for name, file in audit.files.items()}
    rows |= dict.fromkeys(audit.hosts, "a host that it connected to")
    return rows | {name: f"a variable, {_shown(values)}" for name, values in audit.variables.items()}


def _of_file(file: File) -> str:
    if file.folder:
        return "a folder that it listed"
    return f"a file of {file.size} bytes" + (f", sha256 {file.sha256[:12]}" if file.sha256 else ", too large to hash")


def _folded(files: list[File]) -> list[str]:
    """Files by their folders, where these were listed."""
    folders = [file.name for file in files if file.folder]
    return [file.name for file in files if not is_below(posixpath.dirname(file.name), folders)]


def _above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    found: list[Value] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(sorted(found, key=repr))


def _plain(value: Value) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _shown(values: Iterable[Value]) -> str:
    return " or ".join(
        "(not set)" if each is None else _cut(each["masked"] if isinstance(each, Mapping) else each) for each in values
    )


def _known(value: Value) -> str:
    """In a word, equal for equal values only."""
    if isinstance(value, Mapping):
        return f"masked, scrypt {value['scrypt']}"
    return "(not set)" if value is None else repr(value)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
