"""Code that a process has imported but the snapshot does not hold, which a rerun would miss or take from elsewhere.

Two halves, because a worker sees the modules and the driver has the snapshot. `gather`, in the worker after its pipeline is
built, hashes the modules' files that belong neither to Python nor to an installed distribution, wherever that lies, and looks
up the repositories they lie in. `judge`, in the driver, is pure and says what each one means. Installed distributions are
recorded by name and version with the environment; whether somebody has edited files of theirs is not seen here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import marshal
import os
import struct
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from orchestrator.common.distributions import SITES, installed_beside, library_folders
from orchestrator.common.frames import file_of
from orchestrator.errors import few
from orchestrator.provenance.code import git, objects
from orchestrator.provenance.code.worktree import WorkTree
from orchestrator.records import redaction
from orchestrator.records.input_audit import is_below

Kind = Literal["snapshot", "changed", "outdated", "left out", "repository", "shadowing", "elsewhere", "package"]
ORCHESTRATOR = ("orchestrator",)  # this package is part of the environment, by the hash of its source
_NAMES_SHOWN = 3
_32 = 2**32 - 1
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_NOTEBOOK = ".ipynb"
_CODE = (".py", _NOTEBOOK)


@dataclass(frozen=True)
class Repository:
    """The repository that an imported file lies in."""

    root: str  # its top folder
    commit: str | None  # checked out; None before the first
    changed: int  # how many of its files differ from the commit
    pushed: bool  # whether a remote branch has the commit
    url: str | None  # of the remote, without credentials; None where there is none
    same: bool  # whether it is the one that the snapshot was made from
    package: str | None  # the distribution installed from it; None if none is


@dataclass(frozen=True)
class Loaded:
    """A module from outside Python and its distributions."""

    name: str  # by which it was imported
    file: str  # its path
    inside: str | None  # its path relative to the process's project; None if it is not in there
    sha256: str  # of the file's bytes
    ids: dict[str, str]  # git's ids of the file's bytes, by algorithm
    repository: Repository | None  # that the file lies in; None where it lies in none
    tracked: bool  # whether its repository tracks it
    packaged: bool = False  # whether an installed distribution has it, which lies in the project
    outdated: bool = False  # whether Python takes it from a compilation of another text

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Finding:
    """The meaning of one module for a rerun. path: in the snapshot's tree, where that is known."""

    kind: Kind
    module: Loaded
    path: str | None


@dataclass(frozen=True)
class Judgement:
    """The judgement on all modules that a process has imported. findings: of every module; obstacles: with remedies;
    search_path: the folders of the snapshot's tree, apart from the project's own, that modules were imported from: on the
    PYTHONPATH they make a rerun import the snapshot instead of an editable install of the original."""

    findings: tuple[Finding, ...]
    obstacles: tuple[str, ...]
    search_path: tuple[str, ...]


def files_of(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """The file of each module in a process's `sys.modules` that has one."""
    found = {name: file_of(module) for name, module in list(modules.items())}
    return {name: file for name, file in found.items() if isinstance(file, str) and file.startswith("/")}


def gather(modules: Mapping[str, str], project: Path, origin: str | None = None) -> list[Loaded]:
    """The modules of a process (name -> file) that have to be judged. origin: the snapshot's, to know its repository again. A
    distribution is judged only if it lies in the project: the snapshot may hold it."""
    top = os.path.realpath(project)
    packages_inside = _packages_inside(project)
    repositories = _Repositories(origin)
    found = []
    for name, place in _own(modules, project):
        loaded = _loaded(name, place, top, repositories)
        found.append(dataclasses.replace(loaded, packaged=is_installed(place, packages_inside)))
    return found


def digests(modules: Mapping[str, str], project: Path) -> dict[str, str]:
    """The beginning of the SHA-256 of each module's file, of those that `gather` finds, but for this package. Processes that
    have imported the same code have the same for each module that both have imported."""
    judged = {name: file for name, file in modules.items() if name.split(".")[0] not in ORCHESTRATOR}
    return {name: hashlib.sha256(Path(place).read_bytes()).hexdigest()[:16] for name, place in _own(judged, project)}


def versions(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """The version that each package in a process's `sys.modules` tells, by name; those that tell none are left out. A package
    may be installed anew while a run trains."""
    found = {name: vars(module).get("__version__") for name, module in list(modules.items()) if "." not in name}
    return {name: version for name, version in found.items() if isinstance(version, str)}


def _own(modules: Mapping[str, str], project: Path) -> Iterator[tuple[str, str]]:
    """The modules whose files belong neither to Python nor to a distribution that is installed outside of the project, with
    the place of the file."""
    packages_inside = _packages_inside(project)
    beside = installed_beside(tuple(sys.path), str(project))
    standard = (*_standard_library(), *(each for each in beside if each not in packages_inside))
    folders = _Folders(standard)
    for name, file in sorted(modules.items()):
        if folders.is_installed(file):
            continue
        place = _existing(os.path.realpath(file))
        if (
            place is not None
            and not is_installed(place, standard)
            and not _is_generated(name, place, modules, standard)
        ):
            yield name, place


def _packages_inside(project: Path) -> tuple[str, ...]:
    """The folders of installed packages that lie in the project."""
    top = os.path.realpath(project)
    return tuple(each for each in installed_beside(tuple(sys.path), str(project)) if each.startswith(top + "/"))


class _Folders:
    """The folders of modules, of which each is looked at once: a process has imported thousands of modules."""

    def __init__(self, standard: Iterable[str]) -> None:
        self._standard = tuple(standard)
        self._library = library_folders()
        self._known: dict[str, tuple[bool, bool]] = {}

    def is_installed(self, file: str) -> bool:
        """Whether a file that is no link lies in an installed folder, or any in Python's own, where its distributor may have
        linked a file of /etc. False says nothing."""
        folder = os.path.dirname(file)  # noqa: PTH120
        if folder not in self._known:
            own = is_below(folder, self._library) and not SITES & set(folder.split("/"))
            self._known[folder] = own, is_installed(os.path.realpath(folder), self._standard)
        own, installed = self._known[folder]
        return own or (installed and not os.path.islink(file))  # noqa: PTH114


def _is_generated(name: str, file: str, modules: Mapping[str, str], standard: Iterable[str]) -> bool:
    """Code that an installed package has written for itself: a module of its name in a temporary file (torch_geometric), or
    what torch's compiler has made, in the folder that it names in a variable."""
    key = os.path.basename(file).partition(".")[0]  # noqa: PTH119
    kept = os.environ.get(_COMPILED)
    if kept and file.startswith(f"{os.path.realpath(kept)}/{key[1:3]}/{key}."):
        return True
    package = modules.get(name.partition(".")[0])
    temporary = os.path.realpath(tempfile.gettempdir()) + "/"
    return package is not None and file.startswith(temporary) and is_installed(os.path.realpath(package), standard)


def from_dict(values: Mapping[str, Any]) -> Loaded:
    repository = values["repository"]
    return Loaded(**{**values, "repository": None if repository is None else Repository(**repository)})


def is_installed(file: str, standard: Iterable[str]) -> bool:
    """Whether a file belongs to the standard library or to installed distributions, or is one of these places. Pure."""
    return bool(SITES & set(file.split("/"))) or is_below(file, standard)


def judge(loaded: Iterable[Loaded], work: WorkTree | None, apart: Collection[str] = ()) -> Judgement:
    """The meaning of a process's modules for a rerun of the snapshot. Pure. work: None where there is no snapshot, which is
    said elsewhere; apart: packages that are recorded in another way, so that where they lie is no obstacle."""
    if work is None:
        return Judgement(tuple(Finding("elsewhere", module, None) for module in loaded), (), ())
    findings = tuple(_finding(module, work) for module in loaded)
    roots = {root for finding in findings if (root := _import_root(finding)) not in (None, work.project)}
    return Judgement(
        findings,
        tuple(_obstacles(finding for finding in findings if finding.module.name.split(".")[0] not in apart)),
        tuple(sorted(root for root in roots if root is not None)),
    )


def unused(judged: Judgement, work: WorkTree | None) -> list[str]:
    """Notes on code that is new to git, and on notebooks that differ from the commit, where no worker has imported them: they
    change the identity of runs, and nothing else. Pure. Empty before the first commit, when everything is new."""
    if work is None or work.head is None:
        return []
    used = {finding.path for finding in judged.findings}
    new = [path for path in work.untracked if path.endswith(_CODE)]
    saved = [path for path in work.changed if path.endswith(_NOTEBOOK)]
    found = sorted({*new, *saved} - used)
    if not found:
        return []
    them, they_are = ("them", "They are") if found[1:] else ("it", "It is")
    return [
        f"{few(found, _NAMES_SHOWN)}: new or changed since the commit, and not imported by the pipeline. {they_are} recorded "
        f"with the code all the same, so runs before and after a change of {them} do not count as equal; to leave {them} out, "
        f"keep {them} elsewhere, or list {them} in .gitignore (after git rm --cached, where git knows {them})"
    ]


def _finding(module: Loaded, work: WorkTree) -> Finding:
    path = _path_in(module, work)
    if path is not None:
        entry = work.entries.get(os.fsencode(path))
        if entry is None:
            return Finding("package" if module.packaged else "left out", module, path)
        if entry.id != module.ids[work.algorithm]:
            return Finding("changed", module, path)
        return Finding("outdated" if module.outdated else "snapshot", module, path)
    repository = module.repository
    if repository is None:
        return Finding("elsewhere", module, None)
    if repository.same:
        return Finding("shadowing", module, os.path.relpath(module.file, repository.root))
    return Finding("repository", module, None)


def _path_in(module: Loaded, work: WorkTree) -> str | None:
    if module.inside is not None:
        return os.path.normpath(f"{work.project or '.'}/{module.inside}")
    root = os.path.realpath(work.root)
    return os.path.relpath(module.file, root) if module.file.startswith(root + "/") else None


def _import_root(finding: Finding) -> str | None:
    """The folder of the snapshot's tree that was on the search path for a module: its path without its name."""
    if finding.kind not in ("snapshot", "outdated", "shadowing") or finding.path is None:
        return None
    path = PurePosixPath(finding.path)
    parts = path.parts[:-1] if path.stem == "__init__" else (*path.parts[:-1], path.name.split(".")[0])
    name = tuple(finding.module.name.split("."))
    return "/".join(parts[: -len(name)]) if parts[-len(name) :] == name else None


def _obstacles(findings: Iterable[Finding]) -> list[str]:
    """One sentence for each cause, not for each module."""
    by_cause: dict[str, list[str]] = {}
    for finding in findings:
        remedy = _cause(finding)
        if remedy is not None:
            by_cause.setdefault(remedy, []).append(finding.path or finding.module.file)
    return [
        f"{few(paths, _NAMES_SHOWN)}{':' if paths[_NAMES_SHOWN:] else ''} {cause}" for cause, paths in by_cause.items()
    ]


def _cause(finding: Finding) -> str | None:
    """The fault of a module's place, and the remedy; None if there is none."""
    module, repository = finding.module, finding.module.repository
    if finding.kind == "changed":
        return "changed between the snapshot and its import; launch again"
    if finding.kind == "outdated":
        return (
            "is imported from __pycache__, which has it compiled from another text of the same time and size; remove that "
            "folder, and launch again"
        )
    if finding.kind == "left out":
        return "is imported, but not in the snapshot (ignored by git, or too large); take it out of .gitignore, or git add -f"
    if finding.kind == "shadowing":
        assert repository is not None
        return f"is imported from {repository.root} and not from the project's folder; put its folder on the PYTHONPATH"
    if finding.kind == "elsewhere":
        return "is imported from outside any repository; put it into the project"
    if finding.kind == "repository":
        assert repository is not None
        return _cause_in(repository, module)
    return None


def _cause_in(repository: Repository, module: Loaded) -> str | None:
    where = f"is imported from {repository.root}" + (f" (package {repository.package})" if repository.package else "")
    if repository.commit is None or not module.tracked:
        return f"{where}, where it is not committed; commit and push it"
    if repository.changed:
        return f"{where}, which differs from its commit {repository.commit[:12]}; commit and push it"
    if not repository.pushed:
        return f"{where}, whose commit {repository.commit[:12]} no remote has; push it"
    return None


def _standard_library() -> tuple[str, ...]:
    return tuple({os.path.realpath(folder) for folder in library_folders()})


def _existing(file: str) -> str | None:
    """The file itself, or the archive that it is in; None for a name that stands for no file."""
    place = next((place for place in (Path(file), *Path(file).parents) if place.exists()), None)
    return str(place) if place is not None and place.is_file() else None


def _loaded(name: str, file: str, project: str, repositories: _Repositories) -> Loaded:
    data = Path(file).read_bytes()
    inside = os.path.relpath(file, project) if file.startswith(project + "/") else None
    found, tracked = (None, False) if inside else repositories.of(file)
    ids = {algorithm: objects.blob(data, algorithm) for algorithm in ("sha1", "sha256")}
    outdated = inside is not None and _is_outdated(file, data)
    return Loaded(name, file, inside, hashlib.sha256(data).hexdigest(), ids, found, tracked, outdated=outdated)


def _is_outdated(file: str, text: bytes) -> bool:
    """Whether the compilation that Python keeps of a file passes for one of this text, by time and size, and is none. A tool
    that gives files the time of a commit, or an edit within a second, leaves such a one."""
    if not file.endswith(".py"):
        return False
    try:
        kept, status = Path(importlib.util.cache_from_source(file)).read_bytes(), os.stat(file)  # noqa: PTH116 - of text
        valid = importlib.util.MAGIC_NUMBER + struct.pack("<3I", 0, int(status.st_mtime) & _32, status.st_size & _32)
        return kept.startswith(valid) and marshal.loads(kept[len(valid) :]) != compile(
            text, file, "exec", dont_inherit=True
        )
    except (OSError, NotImplementedError, ValueError, EOFError, TypeError, SyntaxError):
        return False


class _Repositories:
    """Looks up each repository once."""

    def __init__(self, origin: str | None) -> None:
        self._origin = origin
        self._packages: dict[str, str] | None = None
        self._known: dict[Path, tuple[Repository, frozenset[str]]] = {}
        self._roots: dict[str, Path | None] = {}  # by folder

    def of(self, file: str) -> tuple[Repository | None, bool]:
        """The repository of a file, and whether it tracks it."""
        root = self._root(os.path.dirname(file))  # noqa: PTH120
        if root is None:
            return None, False
        if root not in self._known:
            try:
                self._known[root] = self._look(root), _tracked(root)
            except (git.GitError, git.GitMissing):
                return None, False
        repository, tracked = self._known[root]
        return repository, os.path.relpath(file, root) in tracked

    def _root(self, folder: str) -> Path | None:
        if folder not in self._roots:
            above = os.path.dirname(folder)  # noqa: PTH120
            is_root = os.path.lexists(f"{folder}/.git")
            self._roots[folder] = Path(folder) if is_root else None if above == folder else self._root(above)
        return self._roots[folder]

    def _look(self, root: Path) -> Repository:
        if self._packages is None:
            self._packages = _editable_packages()
        packages = [name for place, name in self._packages.items() if Path(place).is_relative_to(root)]
        commit = git.line(root, "rev-parse", "--verify", "-q", "HEAD")
        status = git.records(git.run(root, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames"))
        pushed = commit is not None and git.is_on_a_remote(root, commit)
        url = git.line(root, "config", "--get", "remote.origin.url")
        same = self._origin is not None and git.line(root, "cat-file", "-t", self._origin) == "commit"
        package = ", ".join(sorted(packages)) or None
        return Repository(str(root), commit, len(status), pushed, url and redaction.text(url), same, package)


def _tracked(root: Path) -> frozenset[str]:
    return frozenset(os.fsdecode(path) for path in git.records(git.run(root, "ls-files", "-z")))


def _editable_packages() -> dict[str, str]:
    """The places of editable installs -> the distribution's name."""
    found = {}
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        if text:
            described = json.loads(text)
            if described.get("dir_info", {}).get("editable"):
                found[os.path.realpath(unquote(urlsplit(described["url"]).path))] = str(distribution.metadata["Name"])
    return found
