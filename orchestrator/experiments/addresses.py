"""The Ray that a sweep, or what is resumed, is to join, asked before Ray is imported: only a private Ray gets a token of its
own, and Ray looks for one when it is imported. None: a private one, or what is wrong, of which the command itself tells."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.settings import kept
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
        past = Store.with_run(uri, folder, name).find(name)
        files = RunFolder(folder, past.run_id)
        if (file := files.path / _SWEEP).exists():
            return load_sweep(str(file), given).settings.cluster.address
        if files.settings.exists():
            return kept.as_held(files.settings, given).cluster.address
        told = given[-1].partition("=")[2] if given else past.settings.get(_KEY)
        return None if told in ("", "null", "None") else told
    return None
