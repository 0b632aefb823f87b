"""The Ray that a sweep, or what is resumed, is to join, asked before Ray is imported: only a private Ray gets a token of its
own, and Ray looks for one when it is imported. None: a private one, or what is wrong, of which the command itself tells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.settings import Settings, kept
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.errors import OrchestratorError
from orchestrator.experiments.search.sweeps import load_sweep
from orchestrator.provenance.tracking import Store

_KEY = "cluster.address"
_SWEEP = "sweep.yaml"  # in the folder of a sweep


def of_sweep(conf: str | dict[str, Any], overrides: Sequence[str], kind: Literal["sweep", "ensemble"]) -> str | None:
    """conf: as `load_sweep` takes it; overrides: as they were typed."""
    with suppress(OrchestratorError):
        known = [each for each in overrides if each.partition("=")[0] not in ("output", "trust")]
        return load_sweep(conf, known, kind=kind).settings.cluster.address
    return None


def of_record(name: str, overrides: Sequence[str], uri: str | None) -> str | None:
    """name: of a run, a sweep or an ensemble; of one that is not on this machine what MLflow knows."""
    given = [each for each in overrides if each.partition("=")[0] == _KEY]
    with suppress(OrchestratorError):
        folder = project_folder(Path.cwd())
        if (folder / name).is_dir() and (here := _held(RunFolder(folder, name), given)) is not None:
            return here.cluster.address  # also while its server is away
        past = Store.with_run(uri, folder, name).find(name)
        if (held := _held(RunFolder(folder, past.run_id), given)) is not None:
            return held.cluster.address
        told = given[-1].partition("=")[2] if given else past.settings.get(_KEY)
        return None if told in ("", "null", "None") else told
    return None


def _held(files: RunFolder, given: Sequence[str]) -> Settings | None:
    """None where the folder has none."""
    if (file := files.path / _SWEEP).exists():
        return load_sweep(str(file), given).settings
    return kept.as_held(files.settings, given) if files.settings.exists() else None
