"""The trained model as MLflow serves it: the loader that an `MLmodel` file names.

    model = mlflow.pyfunc.load_model("models:/NAME@newest")
    model.predict(inputs)          # numpy array, or what the pipeline's predict() takes -> numpy array
    model.get_raw_model()          # the torch.nn.Module, in evaluation mode

Here stands what has to be done before torch is imported, which is all that makes arithmetic what the run's was; the model is
in `served`. It does not import MLflow, which calls this and not the other way round.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.numerics import determinism
from orchestrator.worker.serving.names import ARCHITECTURE

if TYPE_CHECKING:
    from orchestrator.worker.serving.served import Served


def _load_pyfunc(path: str) -> Served:
    """Called by MLflow."""
    return load(Path(path))


def load(folder: Path) -> Served:
    """The model of a folder. Raises as `served.load`."""
    architecture = json.loads((folder / ARCHITECTURE).read_text(encoding="utf-8"))
    if architecture.get("arithmetic") == "portable" and "torch" not in sys.modules:  # else `served` says: too late
        os.environ.update(determinism.PORTABLE)
    determinism.prepare_environment()
    from orchestrator.worker.serving import served

    return served.load(folder)
