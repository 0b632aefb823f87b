"""A trained model that answers: what `orchestrator.worker.serving` loads.

The module is built by the pipeline as the run built it, under its seed, and then given the weights. If `model()` cannot do
without what `datasets()` finds, the data have to lie in the working directory. It computes on the CPU, with one thread, so
that the number of cores changes no bit.

Rows are answered by tiles (`numerics.batch_invariance`), where the run has found that they may be: the bits of an answer are a
function of its row.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file

from orchestrator.adapters import table
from orchestrator.adapters.source import Source
from orchestrator.errors import PipelineRaised, UsageError
from orchestrator.numerics import batch_invariance, determinism
from orchestrator.numerics.determinism import left_as_it_was
from orchestrator.numerics.digests import distinct_state
from orchestrator.numerics.portable import operator_overrides
from orchestrator.pipeline import Pipeline, defines, naming, outside_of_runs
from orchestrator.worker.model import construction
from orchestrator.worker.serving.names import ARCHITECTURE, WEIGHTS

_FLOATS_OF_NUMPY = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Answers:
    """How a run's model may be asked, as its trial has found. rows: of a tile; None: all that is asked at once stays together;
    why: it is no whole tile."""

    rows: int | None = None
    why: str | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Answers:
        """Read from what stands in the folder of a model; older ones tell nothing."""
        return cls(told.get("rows"), told.get("why", "it was logged by a version that did not try it"))


class Served:
    """A pipeline with its trained model; has the methods that MLflow calls."""

    def __init__(self, pipeline: Pipeline, model: torch.nn.Module, answers: Answers | None = None) -> None:
        self._pipeline = pipeline
        self._model = model.eval()
        self._answers = answers or Answers()
        self._one_at_a_time = threading.Lock()  # a server asks from several threads, and threads are set for one

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:  # noqa: ARG002
        """The result of the pipeline's `predict`, tensors as numpy arrays. Raises UsageError for parts of several lengths."""
        inputs = _tensors(model_input)
        with self._one_at_a_time, _computing():
            return _plain(self._answered(inputs))

    def _answered(self, inputs: Any) -> Any:
        if self._answers.rows is None:
            if self._answers.why is not None:
                warnings.warn(f"rows that are asked together are answered together: {self._answers.why}", stacklevel=3)
            return self._call(inputs)
        try:
            return batch_invariance.batch_invariant(self._call, inputs, self._answers.rows)
        except batch_invariance.NotByRows as error:
            raise UsageError(
                f"predict answers row by row, and that does not go with this request: {error}",
                "give each part of the inputs a row per answer, and what all rows share as a single number or text",
                code="serving.rows",
            ) from None

    def _call(self, inputs: Any) -> Any:
        try:
            return self._pipeline.predict(self._model, inputs)
        finally:
            self._model.eval()  # one that drew with dropout, and then raised, would have the next answers drawn

    def get_raw_model(self) -> torch.nn.Module:
        return self._model

    @property
    def has_form(self) -> bool:
        """Whether the pipeline writes the model in a form of its own."""
        return defines(type(self._pipeline), "save")

    def save(self, to: Path) -> None:
        """In that form. Raises PipelineRaised."""
        with outside_of_runs(), naming("save()"):
            self._pipeline.save(self._model, to)


def load(folder: Path) -> Served:
    """The model of a folder. Raises ConfigurationError and PipelineRaised where the pipeline is not what it was."""
    architecture = json.loads((folder / ARCHITECTURE).read_text(encoding="utf-8"))
    state = load_file(folder / WEIGHTS)
    args, seed, answers = architecture["args"], architecture["seed"], Answers.of(architecture.get("answers", {}))
    _have_arithmetic(architecture.get("arithmetic", "native"))
    with left_as_it_was(), outside_of_runs():
        pipeline = construction.make_pipeline(table.find(Source.of(architecture)), args, seed)
        model = construction.with_data(pipeline, seed, lambda: _built(pipeline, seed, state))
        return Served(pipeline, model, answers)


def _built(pipeline: Pipeline, seed: int, state: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    model = construction.make_model(pipeline, seed)
    own = distinct_state(model)
    kinds, theirs = ({name: (t.dtype, t.shape) for name, t in each.items()} for each in (own, state))
    if kinds != theirs:
        different = sorted(name for name in {*kinds, *theirs} if kinds.get(name) != theirs.get(name))
        raise PipelineRaised(
            f"model() makes another model than the one that was trained: {', '.join(different[:3])} differ",
            "use the code that was logged with the model, and the data that model() reads",
            code="serving.other-model",
        )
    model.load_state_dict(dict(state), strict=False)  # tied tensors are there once
    return model


def _have_arithmetic(arithmetic: determinism.Arithmetic) -> None:
    """For the whole process, where it is portable. It cannot be had once torch is loaded otherwise, which is said: the weights
    are of use all the same."""
    if arithmetic == "native":
        return
    problem = determinism.portable_problem()
    if problem is None:
        operator_overrides.install()
    else:
        warnings.warn(f"answers have bits of this processor only: {problem[0]}; {problem[1]}", stacklevel=4)


@contextmanager
def _computing() -> Iterator[None]:
    """In this thread, as the trial of the run did, and without gradients."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_num_threads(1)
    determinism.set_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        determinism.set_deterministic_algorithms(deterministic, only_warns=only_warns)


def _tensors(value: Any) -> Any:
    """Arrays and tables as tensors, of the types that models compute with: float32, int64, bool."""
    if isinstance(value, Mapping):
        return {key: _tensors(each) for key, each in value.items()}
    if hasattr(value, "to_numpy"):  # a table of pandas
        value = value.to_numpy()
        if value.dtype.kind == "O" and value.shape[1:] == (1,):  # a column of lists
            value = value[:, 0]
    if isinstance(value, tuple):
        return batch_invariance.made_like(value, map(_tensors, value))
    if isinstance(value, list):
        value = _array(value)
    if isinstance(value, numpy.ndarray) and value.dtype.kind == "O":
        return _of_several_shapes(value)
    if not isinstance(value, numpy.ndarray):
        return value
    kind = {"f": numpy.float32, "i": numpy.int64, "u": numpy.int64, "b": numpy.bool_}.get(value.dtype.kind)
    return value if kind is None else torch.from_numpy(numpy.array(value, dtype=kind))


def _array(rows: list[Any]) -> Any:
    try:
        return numpy.asarray(rows)
    except ValueError:  # of several shapes
        found = numpy.empty(len(rows), dtype=object)
        found[:] = rows
        return found


def _of_several_shapes(rows: numpy.ndarray[Any, Any]) -> Any:
    """A list of one tensor per row, where rows are arrays or lists of numbers; other objects as they are."""
    found = [_tensors(each) if isinstance(each, (list, numpy.ndarray)) else each for each in rows]
    return found if found and all(isinstance(each, torch.Tensor) for each in found) else rows


def _plain(value: Any) -> Any:
    """Tensors as arrays; of float32, where numpy has no such type, as of bfloat16."""
    if isinstance(value, torch.Tensor):
        found = value.detach().cpu().resolve_conj().resolve_neg()
        has_none = found.is_floating_point() and found.dtype not in _FLOATS_OF_NUMPY
        return (found.float() if has_none else found).numpy()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return batch_invariance.made_like(value, map(_plain, value)) if isinstance(value, (list, tuple)) else value
