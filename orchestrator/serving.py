"""The trained model as MLflow serves it: the loader that an `MLmodel` file names, and what it loads.

    model = mlflow.pyfunc.load_model("models:/NAME@newest")
    model.predict(inputs)          # numpy array, or what the pipeline's predict() takes -> numpy array
    model.get_raw_model()          # the torch.nn.Module, in evaluation mode

The module is built by the pipeline as the run built it, under its seed, and then given the weights. Where `model()` cannot do
without what `datasets()` finds, the data have to lie in the working directory. It computes on the CPU.

What it does not do: import MLflow, which calls this and not the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file

from orchestrator.engine.model import construction
from orchestrator.errors import PipelineRaised
from orchestrator.numerics.determinism import left_as_it_was
from orchestrator.numerics.digests import distinct_state
from orchestrator.numerics.streams import seeded
from orchestrator.pipeline import Pipeline, find, naming

ARCHITECTURE, WEIGHTS = "architecture.json", "model.safetensors"


class Served:
    """A pipeline with its trained model; has the methods that MLflow calls."""

    def __init__(self, pipeline: Pipeline, model: torch.nn.Module) -> None:
        self._pipeline = pipeline
        self._model = model.eval()

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:  # noqa: ARG002
        """What the pipeline's `predict` gives, tensors as numpy arrays."""
        with torch.no_grad():
            return _plain(self._pipeline.predict(self._model, _tensors(model_input)))

    def get_raw_model(self) -> torch.nn.Module:
        return self._model


def load(folder: Path) -> Served:
    """The model of a folder. Raises ConfigurationError and PipelineRaised where the pipeline is not what it was."""
    told = json.loads((folder / ARCHITECTURE).read_text(encoding="utf-8"))
    state = load_file(folder / WEIGHTS)
    args, seed = told["args"], told["seed"]
    with left_as_it_was():
        pipeline = construction.make_pipeline(find(told["target"], args), args, seed)
        try:
            return Served(pipeline, _built(pipeline, seed, state))
        except PipelineRaised as without_data:
            try:
                with naming("datasets()"), seeded(seed, "datasets"):
                    pipeline.datasets()
                return Served(pipeline, _built(pipeline, seed, state))
            except PipelineRaised:
                raise without_data from None


def _built(pipeline: Pipeline, seed: int, state: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    model = construction.make_model(pipeline, seed)
    own = distinct_state(model)
    kinds, theirs = ({name: (t.dtype, t.shape) for name, t in each.items()} for each in (own, state))
    if kinds != theirs:
        different = sorted(name for name in {*kinds, *theirs} if kinds.get(name) != theirs.get(name))
        raise PipelineRaised(
            f"model() makes another model than the one that was trained: {', '.join(different[:3])} differ",
            "use the code that was logged with the model, and the data that model() reads",
        )
    model.load_state_dict(dict(state), strict=False)  # tied tensors are there once
    return model


def _tensors(value: Any) -> Any:
    """Arrays and tables as tensors, of the types that models compute with: float32, int64, bool."""
    if isinstance(value, Mapping):
        return {key: _tensors(each) for key, each in value.items()}
    if hasattr(value, "to_numpy"):  # a table of pandas
        value = value.to_numpy()
    if isinstance(value, list):
        value = numpy.asarray(value)
    if not isinstance(value, numpy.ndarray):
        return value
    kind = {"f": numpy.float32, "i": numpy.int64, "u": numpy.int64, "b": numpy.bool_}.get(value.dtype.kind)
    return value if kind is None else torch.from_numpy(numpy.array(value, dtype=kind))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return type(value)(_plain(each) for each in value) if type(value) in (list, tuple) else value


def _load_pyfunc(path: str) -> Served:
    """Called by MLflow."""
    return load(Path(path))
