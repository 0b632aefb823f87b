"""Trained models from their folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api.arguments import require

if TYPE_CHECKING:
    from orchestrator.worker.ensemble.model import EnsembleModel


def load_ensemble(folder: str | Path, *, combine: str | None = None) -> EnsembleModel:
    """A trained ensemble as one torch module, in evaluation mode, from its folder `.orchestrator/ENSEMBLE_ID/model`.

    Called as a member is, it returns what a member returns: logarithms of probabilities, whose softmax they are, or values; its
    `disagreement` says of each row how much members disagree. The pipeline's class has to be importable. combine: the
    combination that the folder names, required where that is `package.module:name`: it would be called, whoever wrote the
    folder. Raises OrchestratorError where there is no ensemble, or its files are damaged.
    """
    require("folder", folder, str, Path)
    require("combine", combine, str, optional=True)
    from orchestrator.worker.ensemble.saved import load

    return load(Path(folder), combine)
