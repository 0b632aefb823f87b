"""The places of the files that a `.dvc` file stands for, without bringing them. They are in the versions of an object store
that `dvc import-url --version-aware` has noted, at the URL that it imports, or in a remote of DVC, by their MD5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.data.files.places import place_of
from orchestrator.errors import ConfigurationError
from orchestrator.provenance.data import dvc_files
from orchestrator.provenance.data.dvc_files import MD5


class Stored(NamedTuple):
    """The places of the files that a `.dvc` file stands for. place: a folder or URL; at: of each file the path below it, empty
    where all that lies there is meant."""

    place: str
    at: Mapping[str, str]


def stored(file: Path) -> Stored:
    """Raises ConfigurationError."""
    try:
        described = yaml.safe_load(file.read_text(encoding="utf-8"))
        out, source = described["outs"][0], (described.get("deps") or [{}])[0]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError) as error:
        raise ConfigurationError(
            [f"{file} is no file of DVC: {type(error).__name__}: {error}"], code="dvc.not-a-file"
        ) from error
    if "://" in str(source.get("path", "")):
        return _imported(source)
    md5 = str(out.get("md5", ""))
    if not (md5.endswith(".dir") and dvc_files.is_name(md5)) or out.get("hash", MD5) != MD5:
        raise ConfigurationError(
            [f"{file} tells of no folder that DVC has by its MD5"], "dvc add FOLDER; dvc push", code="dvc.no-folder"
        )
    return _pushed(file, out)


def _imported(source: Mapping[str, Any]) -> Stored:
    """The place of an import."""
    versions = source.get("files") or []
    lacking = next((each["relpath"] for each in versions if not each.get("version_id")), None)
    if lacking is not None:
        raise ConfigurationError(
            [f"{source['path']}: {lacking} has no version"], "turn versions of the bucket on", code="dvc.no-version"
        )
    return Stored(
        source["path"], {each["relpath"]: f"{each['relpath']}?versionId={each['version_id']}" for each in versions}
    )


def _pushed(file: Path, out: Mapping[str, Any]) -> Stored:
    """By the default remote, or the one that is named; without one by the cache."""
    kept = dvc_files.storage(file.absolute().parent)
    if kept is None:
        raise ConfigurationError([f"{file} lies in no project of DVC"], "dvc init", code="dvc.no-project")
    remote = out.get("remote") or kept.default
    if remote is not None and remote not in kept.remotes:
        raise ConfigurationError(
            [f"{file}: DVC knows no remote {remote}"], "dvc remote add NAME URL", code="dvc.no-remote"
        )
    place = str(kept.cache) if remote is None else kept.remotes[remote]
    listed = _listed(place, str(out["md5"])) or _listed(str(kept.cache), str(out["md5"]))
    if listed is None:
        raise ConfigurationError(
            [f"{file}: the list of its files, {out['md5']}, is neither in {place} nor in DVC's cache"],
            f"dvc push {file}",
            code="dvc.no-list",
        )
    return Stored(place, {name: _object(md5) for name, md5 in listed.items()})


def _listed(place: str, md5: str) -> dict[str, str] | None:
    try:
        content = b"".join(place_of(place).chunks(_object(md5)))
    except OSError:
        return None
    return dvc_files.listed(content)


def _object(md5: str) -> str:
    """As DVC 3 names it."""
    return f"files/md5/{md5[:2]}/{md5[2:]}"
