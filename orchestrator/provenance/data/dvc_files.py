"""What DVC's own files say: which paths it holds in which version, where its cache lies, which remotes there are.

`*.dvc`, `dvc.yaml` and `dvc.lock` are read directly, 2 ms where DVC's index takes 150; configuration and `.dvcignore` are read
by DVC's own code. Nothing is written, locked or sent. Stages whose `wdir` is a template are not understood: their outputs
count as unknown to DVC.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import ConfigurationError

MD5, LEGACY = "md5", "md5-dos2unix"  # DVC 2 hashed text files with their line ends made those of Unix
_PRUNED = frozenset({".dvc", ".git", ".orchestrator", ".venv", "venv", "node_modules", "__pycache__"})
_URL = re.compile(r"\w+://")
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


@dataclass(frozen=True)
class Out:
    """A path that DVC holds. path: relative to the project; file: the DVC file that says so, likewise; md5: None where it was
    never made; cached: False where DVC keeps the hash alone (`cache: false`); remote: one of its own; imported: the
    repository, revision and path that `dvc import` took it from."""

    path: str
    md5: str | None
    hash: str
    file: str
    stage: str | None = None
    remote: str | None = None
    cached: bool = True
    imported: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Storage:
    """Where the bytes are kept. cache: the local cache's folder; remotes: name -> URL without credentials; default: the
    remote that is asked when none is named."""

    cache: Path
    remotes: Mapping[str, str]
    default: str | None

    def place(self, md5: str, kind: str = MD5) -> Path:
        """The file of an object in the cache."""
        top = self.cache if kind == LEGACY else self.cache / "files" / "md5"
        return top / md5[:2] / md5[2:]

    def holds(self, md5: str, kind: str = MD5) -> bool:
        """Whether the object is there and, of a folder, every file; the bytes are not looked at."""
        place = self.place(md5, kind)
        if not place.is_file():
            return False
        if not md5.endswith(".dir"):
            return True
        listed = manifest(place)
        return listed is not None and all(self.place(entry, kind).is_file() for entry in listed.values())


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
    remotes = {name: _CREDENTIALS.sub("", str(remote.get("url", ""))) for name, remote in settings["remote"].items()}
    cache = settings["cache"].get("dir") or top / ".dvc" / "cache"
    return Storage(Path(str(cache)), remotes, settings["core"].get("remote"))


def configuration(top: Path) -> dict[str, Any]:
    """DVC's configuration of all its levels, paths in it absolute. Raises ConfigurationError when DVC cannot read it."""
    from configobj import ConfigObjError  # as DVC lets it through
    from dvc.config import Config, ConfigError

    try:
        return dict(Config(dvc_dir=str(top / ".dvc"), validate=False))
    except (ConfigError, ConfigObjError) as error:
        raise ConfigurationError([f"DVC's configuration in {top / '.dvc'} cannot be read: {error}"]) from error


def outs(project: Path) -> list[Out]:
    """Everything that DVC holds in the project, or in the DVC project around it. Held folders are not looked into."""
    base = root(project) or project
    found: list[Out] = []
    for folder, below, files in os.walk(base):
        here = Path(folder)
        if here != base and ".dvc" in below:  # a DVC project of its own
            below.clear()
            continue
        new = [*_of_stages(here, files), *(out for name in sorted(files) for out in _of_dvc_file(here / name))]
        found += [_relative(out, project) for out in new]
        held = {out.path for out in new}
        below[:] = [name for name in below if name not in _PRUNED and str(here / name) not in held]
    return found


def stage_of(project: Path, path: str) -> str | None:
    """The name of the DVC stage that makes `path`, also one that has never run."""
    for name, stage in (read(project / "dvc.yaml").get("stages") or {}).items():
        for out in stage.get("outs") or []:
            out_path = next(iter(out)) if isinstance(out, dict) else out
            if (project / out_path).resolve() == (project / path).resolve():
                return str(name)
    return None


def manifest(place: Path) -> dict[str, str] | None:
    """The files of a `.dir` object, relative path -> md5; None when it is not one, or leads out of its folder."""
    try:
        listed = {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(place.read_bytes())}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return None if any(name.startswith("/") or ".." in name.split("/") for name in listed) else listed


Ignore = Callable[[str, list[str], list[str]], tuple[list[str], list[str]]]


def ignore(project: Path, path: Path) -> Ignore | None:
    """The rules of `.dvcignore` that may leave out something of `path`, as a filter of (folder, folders, files)."""
    top = root(project)
    if top is None or not path.is_relative_to(top):
        return None
    above = [parent for parent in path.parents if parent.is_relative_to(top)]
    if not any(map(_has_rules, above)) and not any(map(_has_rules, _folders(path))):
        return None
    from dvc.fs import LocalFileSystem
    from dvc.ignore import DvcIgnoreFilter

    rules: Ignore = DvcIgnoreFilter(LocalFileSystem(), str(top))
    return rules


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty when there is no such file, or no mapping in it."""
    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _folders(path: Path) -> Iterator[Path]:
    return (Path(folder) for folder, _, _ in os.walk(path))


def _has_rules(folder: Path) -> bool:
    try:
        lines = (folder / ".dvcignore").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.strip() and not line.startswith("#") for line in lines)


def _of_stages(folder: Path, files: Iterable[str]) -> Iterator[Out]:
    """What `dvc.lock` says, with the flags that only `dvc.yaml` has. Paths of both are relative to the stage's `wdir`."""
    if "dvc.lock" not in files:
        return
    lock = read(folder / "dvc.lock")
    definitions = read(folder / "dvc.yaml").get("stages") or {}
    for name, stage in (lock.get("stages", lock) or {}).items():
        if isinstance(stage, dict):
            definition = definitions.get(name.split("@")[0]) or {}
            definition = definition.get("do", definition)
            flags = _flags(definition.get("outs") or [])
            where = folder / str(definition.get("wdir", "."))
            for out in stage.get("outs") or []:
                told = {**flags.get(str(out.get("path")), {}), **out}
                yield from _out(where, told, folder / "dvc.lock", str(name))


def _flags(declared: list[Any]) -> dict[str, dict[str, Any]]:
    return {path: flags or {} for out in declared if isinstance(out, dict) for path, flags in out.items()}


def _of_dvc_file(file: Path) -> Iterator[Out]:
    if not file.name.endswith(".dvc") or not file.is_file():
        return
    content = read(file)
    source = next((dep for dep in content.get("deps") or [] if "repo" in dep), None)
    imported = None
    if source is not None:
        repository = source["repo"]
        rev = repository.get("rev_lock") or repository.get("rev") or ""
        imported = {"url": str(repository["url"]), "rev": str(rev), "path": str(source["path"])}
    for out in content.get("outs") or []:
        yield from _out(file.parent / str(content.get("wdir", ".")), out, file, None, imported)


def _out(
    where: Path, told: Mapping[str, Any], file: Path, stage: str | None, imported: Mapping[str, str] | None = None
) -> Iterator[Out]:
    path = str(told.get("path", ""))
    if not path or _URL.match(path):
        return
    md5, kind = told.get("md5"), str(told.get("hash", LEGACY))
    place = os.path.normpath(where / path)
    remote = told.get("remote")
    cached = told.get("cache", True) is not False
    yield Out(place, md5, kind, str(file), stage, str(remote) if remote else None, cached, imported)


def _relative(out: Out, project: Path) -> Out:
    """The same with paths relative to the project, and a stage of another folder named as `dvc` names it."""
    file, path = os.path.relpath(out.file, project), os.path.relpath(out.path, project)
    folder, stage = Path(file).parent.as_posix(), out.stage
    if stage is not None and folder != ".":
        stage = f"{folder}/dvc.yaml:{stage}"
    return Out(path, out.md5, out.hash, file, stage, out.remote, out.cached, out.imported)
