"""Whether a DVC remote has what a run reads, so that somebody else can repeat it. The one place that asks a remote at a launch.

Only a run whose store is shared asks, and it waits for no remote longer than PATIENCE_S.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.provenance.data import dvc_files
from orchestrator.provenance.data.dvc_files import Out
from orchestrator.provenance.data.versions import Input
from orchestrator.records import redaction

PATIENCE_S = 10.0


def unpushed(project: Path, inputs: Sequence[Input], patience_s: float = PATIENCE_S) -> list[str]:
    """A sentence for each input that no remote has, with the command that pushes it, and for each that cannot be asked."""
    kept = {item.path: [out for out in item.outs if out.cached and out.imported is None] for item in inputs}
    if not any(kept.values()):
        return []
    found: list[str] = []
    asking = threading.Thread(target=_ask, args=(project, kept, found), daemon=True)
    asking.start()
    asking.join(patience_s)
    if asking.is_alive():
        return [
            f"DVC's remote has not answered in {patience_s:g} s: whether it has the data is not known; dvc status --cloud"
        ]
    return found


def _ask(project: Path, kept: Mapping[str, Sequence[Out]], found: list[str]) -> None:
    try:
        storage = dvc_files.storage(project)
        for path, outs in kept.items():
            found += [sentence for out in outs if (sentence := _missing(project, path, out, storage)) is not None]
    except Exception as error:  # DVC and the libraries below it raise whatever they like
        said = redaction.text(f"{type(error).__name__}: {error}")
        found.append(f"DVC's remote cannot be asked whether it has the data: {said}")


def _missing(project: Path, path: str, out: Out, storage: dvc_files.Storage | None) -> str | None:
    if storage is None or out.md5 is None:
        return None
    remote = out.remote or storage.default
    if remote is None:
        return f"{path}: there is no DVC remote, so nobody else can have it; dvc remote add -d NAME URL, and dvc push"
    top = dvc_files.root(project)
    if top is not None and dvc_files.keeps_versions(dvc_files.configuration(top), remote):
        return f"{path}: DVC's remote {remote} keeps versions, and is not asked; dvc push {out.path}, and commit its new notes"
    wanted = [out.md5]
    if out.md5.endswith(".dir"):
        wanted += (dvc_files.manifest(storage.place(out.md5, out.hash)) or {}).values()
    lacking = dvc_files.lacking(project, remote, out.hash, wanted)
    if not lacking:
        return None
    return f"{path}: DVC's remote {remote} lacks {len(lacking)} of its {len(set(wanted))} objects; dvc push {out.path}"
