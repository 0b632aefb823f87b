"""The list from which an environment is rebuilt, read from a record: exact versions, the source of each, and its hash. Pure.

A record knows name, version and a hash over the installed files of each package (packages.py), and the source of each that did
not come from an index (PEP 610). Which file of an index has that version is known once pip has asked it: then the file is
written down with its hash, as `pylock.toml` (PEP 751), and a record that has one is rebuilt from exactly these files.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from orchestrator.errors import NotRerunnable, bulleted
from orchestrator.provenance.environment import conda, packages
from orchestrator.records import redaction

OWN = "orchestrator"
PYLOCK = "pylock.toml"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_VCS = ("git", "hg", "svn", "bzr")
_COMMIT = re.compile(r"\w[\w.-]*", re.ASCII)
_PATH = re.compile(r"[^\x00-\x20\x7f#;]+(?: [^\x00-\x20\x7f#;]+)*")
_REPOSITORY = re.compile(r"(?:https?|ssh|git|svn|file)://[^\s\x00-\x1f;#]+", re.ASCII)
_WIDTH = 80
_SHOWN = 8


@dataclass(frozen=True)
class Pinned:
    """A package that pip installs. build: the hash over its installed files, None where the record has none; url: of a commit
    or of a file on a web server, None of what an index has; sha256: of the files that may be taken, as far as that is known."""

    name: str
    version: str
    build: str | None = None
    url: str | None = None
    sha256: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """A line for pip."""
        what = f"{self.name}=={self.version}" if self.url is None else f"{self.name} @ {self.url}"
        return " ".join([what, *(f"--hash=sha256:{each}" for each in self.sha256)])


@dataclass(frozen=True)
class Local:
    """A package that was installed from a folder of the repository. path: from the snapshot's top."""

    name: str
    version: str
    path: str
    editable: bool


@dataclass(frozen=True)
class Own:
    """This package as it was. sha256: over its source; path: in the snapshot, None where that does not hold it; indexed:
    whether it was installed as a released package."""

    version: str | None
    sha256: str | None
    path: str | None
    indexed: bool


@dataclass(frozen=True)
class Lock:
    """All that it takes to make an environment anew."""

    python: str  # `sys.version`
    implementation: str  # CPython, ...
    machine: str  # x86_64, ...
    pinned: tuple[Pinned, ...]  # packages that pip installs
    local: tuple[Local, ...]  # packages that were installed from folders of the repository
    own: Own  # this package as it was
    # the packages of its environment, with the interpreter among them; none where it is none of conda
    of_conda: tuple[conda.Package, ...] = ()

    def key(self, python: str) -> str:
        """Names an environment of the pinned packages, in an interpreter whose `sys.version` is given."""
        rows = [[each.name, each.version, each.build, each.url] for each in self.pinned]
        below = [conda.sha256_of(self.of_conda)] if self.of_conda else []
        text = json.dumps([python, self.implementation, self.machine, rows, *below])
        return hashlib.sha256(text.encode()).hexdigest()


def of(environments: Sequence[Mapping[str, Any]], pylock: str | None = None) -> Lock:
    """The lock of a record. environments: one per node; pylock: the text of the record's `pylock.toml`. Raises NotRerunnable
    for what cannot be rebuilt, with every package that is in the way."""
    node = _alike(environments)
    versions, builds, origins = (dict(node.get(part, {})) for part in ("packages", "builds", "origins"))
    bits = node.get("bits", {})
    hashes = {} if pylock is None else hashes_in(pylock)
    pinned: list[Pinned] = []
    local: list[Local] = []
    problems: list[str] = []
    for name, version in sorted(versions.items()):
        build, origin = builds.get(name, {}), origins.get(name, {})
        if not (_NAME.fullmatch(name) and _VERSION.fullmatch(str(version))):
            problems.append(f"{name!r} {version!r}: no index has a package of such a name or version")
        elif not _is_place(origin):
            problems.append(f"{name} {version}: {str(dict(origin))[:_WIDTH]!r} is no place that a package comes from")
        elif name == OWN or "conda" in origin:
            continue
        elif "path" in origin:
            local.append(Local(name, version, str(origin["path"]), bool(origin.get("editable"))))
        elif build.get("editable") or "directory" in origin:
            problems.append(
                f"{name} {version}: it was installed from {_folder(build, origin)}, which the record does not hold"
            )
        else:
            pinned.append(_pinned(name, version, build.get("sha256"), origin, hashes.get((name, version), ())))
    if problems:
        raise NotRerunnable(
            f"the environment cannot be rebuilt:{bulleted(problems, _SHOWN)}",
            "keep such packages in the repository of the run, or install them from a wheel or a commit; "
            "environment=check compares with the environment here",
            code="environment.not-rebuilt",
        )
    origin, build = origins.get(OWN, {}), builds.get(OWN, {})
    released = OWN in versions and not build.get("editable") and "directory" not in origin
    own = Own(versions.get(OWN), bits.get(OWN), origin.get("path"), released)
    python, implementation = str(bits.get("python", "")), str(bits.get("implementation", ""))
    of_conda = conda.from_record(node.get("conda", ()))
    return Lock(python, implementation, str(bits.get("machine", "")), tuple(pinned), tuple(local), own, of_conda)


def requirements(lock: Lock) -> list[str]:
    """The requirements for pip, a text for each call: files whose hashes are known apart from others, since pip wants all or
    none."""
    known = [each for each in lock.pinned if each.sha256]
    others = [each for each in lock.pinned if not each.sha256]
    return ["".join(f"{each.requirement}\n" for each in part) for part in (known, others) if part]


def pylock(reports: Iterable[Mapping[str, Any]], python: str) -> str:
    """`pylock.toml` of what pip says that it has installed. reports: of `pip install --report`; python: `3.11.7`."""
    found = sorted(_entry(each) for report in reports for each in report.get("install", []))
    head = f'lock-version = "1.0"\nrequires-python = {_toml(f"=={python}")}\ncreated-by = "{OWN}"\n'
    return head + "".join(
        f"\n[[packages]]\nname = {_toml(name)}\nversion = {_toml(version)}\n{rest}" for name, version, rest in found
    )


def hashes_in(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """(name, version) -> SHA-256 of its wheels, or of its archive. Raises NotRerunnable for what is no lock."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    try:
        for package in tomllib.loads(text).get("packages", []):
            files = [*package.get("wheels", []), *(package[key] for key in ("sdist", "archive") if key in package)]
            hashes = [str(file["hashes"]["sha256"]) for file in files]
            if not all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes):
                raise ValueError(f"a hash of {package['name']} is no SHA-256")
            found[str(package["name"]), str(package.get("version"))] = tuple(hashes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotRerunnable(
            f"{PYLOCK} of the record is no lock: {error}",
            "remove it, and pip's index is asked again",
            code="environment.lock",
        ) from None
    return found


def other_builds(lock: Lock, builds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The pinned packages whose installed files are others than the recorded ones. builds: of what was built."""
    return [
        each.name
        for each in lock.pinned
        if each.build is not None and builds.get(each.name, {}).get("sha256") != each.build
    ]


def placed(environment: Mapping[str, Any], top: str) -> dict[str, Any]:
    """An environment whose origins say, too, where a folder lies in the repository with this top."""
    origins = {}
    for name, origin in environment.get("origins", {}).items():
        folder = PurePosixPath(origin.get("directory", ""))
        inside = "directory" in origin and folder.is_relative_to(top)
        origins[name] = {**origin, "path": folder.relative_to(top).as_posix()} if inside else dict(origin)
    return {**environment, "origins": origins}


def _alike(environments: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    keys = {
        json.dumps(
            [each.get("packages"), *(each.get("bits", {}).get(key) for key in ("python", "conda_sha256"))],
            sort_keys=True,
        )
        for each in environments
    }
    if len(keys) > 1:
        raise NotRerunnable(
            f"the environment cannot be rebuilt: the run had {len(keys)} different ones, on {len(environments)} nodes",
            "environment=check compares with the environment here",
            code="environment.several",
        )
    return environments[0]


def _pinned(name: str, version: str, build: str | None, origin: Mapping[str, Any], hashes: tuple[str, ...]) -> Pinned:
    url = str(origin.get("url", ""))
    if "commit" in origin:
        below = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
        return Pinned(name, version, build, f"{origin.get('vcs', 'git')}+{url}@{origin['commit']}{below}")
    if origin.get("sha256"):
        hashes = (str(origin["sha256"]),)
    return Pinned(name, version, build, url if url.startswith(("https://", "http://")) else None, hashes)


def _is_place(origin: Mapping[str, Any]) -> bool:
    """Whether a line for pip, and a path in the code, can be made of it: a record of others may hold anything. Without
    a commit an address that is none of a web server is not used."""
    inside = [str(origin[key]) for key in ("path", "subdirectory") if origin.get(key)]
    if any(path.startswith(("/", "-")) or ".." in path.split("/") or not _PATH.fullmatch(path) for path in inside):
        return False
    if origin.get("sha256") and not re.fullmatch("[0-9a-f]{64}", str(origin["sha256"])):
        return False
    url = str(origin.get("url", ""))
    if "commit" in origin:
        vcs = str(origin.get("vcs") or "git")
        return vcs in _VCS and bool(_COMMIT.fullmatch(str(origin["commit"])) and _REPOSITORY.fullmatch(url))
    return not url.startswith(("http://", "https://")) or bool(_REPOSITORY.fullmatch(url))


def _folder(build: Mapping[str, Any], origin: Mapping[str, Any]) -> str:
    return str(origin.get("directory") or build.get("location"))


def _entry(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """(name, version, the further lines) of what pip has installed."""
    name = packages.normalized(item["metadata"]["name"])
    info, url = item["download_info"], redaction.text(item["download_info"]["url"])
    if "vcs_info" in info:
        vcs = info["vcs_info"]
        below = f", subdirectory = {_toml(info['subdirectory'])}" if info.get("subdirectory") else ""
        rest = f"vcs = {{ type = {_toml(vcs['vcs'])}, url = {_toml(url)}, commit-id = {_toml(vcs['commit_id'])}{below} }}\n"
        return name, item["metadata"]["version"], rest
    sha256 = info.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    file = unquote(PurePosixPath(urlsplit(url).path).name)
    if item.get("is_direct"):
        rest = f"archive = {{ url = {_toml(url)}, hashes = {{ sha256 = {_toml(sha256)} }} }}\n"
    else:
        files = f"{{ name = {_toml(file)}, url = {_toml(url)}, hashes = {{ sha256 = {_toml(sha256)} }} }}"
        rest = f"wheels = [{files}]\n" if file.endswith(".whl") else f"sdist = {files}\n"
    return name, item["metadata"]["version"], rest


def _toml(text: str) -> str:
    """A basic string; JSON's escapes are TOML's, which wants one more."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
