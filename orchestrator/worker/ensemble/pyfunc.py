"""How MLflow's pyfunc loads a logged ensemble: it imports this module and calls `_load_pyfunc` with the folder of the model.

    mlflow.pyfunc.load_model("models:/digits-ensemble/1").predict(images)

The class of the pipeline has to be importable, so the working directory is that of the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

from orchestrator.worker.ensemble.model import EnsembleModel
from orchestrator.worker.ensemble.saved import load


class Predictor:
    """The object that pyfunc calls."""

    def __init__(self, model: EnsembleModel) -> None:
        self._model = model

    def predict(self, model_input: Any, params: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """`prediction` (rows, ..., classes): probabilities, or values (rows, ...); `disagreement` (rows,). model_input: what a
        member takes, as an array of numbers, or a mapping of such by the names of its arguments; floating-point ones are taken
        as float32."""
        is_named = isinstance(model_input, Mapping)
        named = {name: _tensor(each) for name, each in model_input.items()} if is_named else {}
        with torch.no_grad():
            outputs = self._model.outputs(**named) if is_named else self._model.outputs(_tensor(model_input))
            whole = self._model.combined(outputs)
            prediction = whole if self._model.gives_values else whole.exp()
            return {
                "prediction": prediction.numpy(),
                "disagreement": self._model.disagreement_of(outputs).numpy(),
            }


def _tensor(value: Any) -> torch.Tensor:
    array = numpy.asarray(value)
    return torch.from_numpy(numpy.ascontiguousarray(array.astype(numpy.float32) if array.dtype.kind == "f" else array))


def _load_pyfunc(path: str) -> Predictor:
    # MLflow has already imported the code that was logged with this model, so asking for trust here would come too late.
    return Predictor(load(Path(path), trusted=True))
