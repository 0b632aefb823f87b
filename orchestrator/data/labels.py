"""The pipeline's labels, by a name, and weights of its training samples, read once and checked.

Labels become whole numbers from 0 on in the order of their sorted values, so nothing depends on how they are written. Both
hooks are called under the run's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from orchestrator.data.sampling.population import Population, Real, Whole
from orchestrator.errors import ConfigurationError, PipelineRaised
from orchestrator.numerics import streams
from orchestrator.pipeline import Pipeline, naming

_LABELS = "return one whole number, text, true or false for each training sample, as a tensor, a list or an array"
_WEIGHTS = "return one number for each training sample, 0 or more, as a tensor, a list or an array"


class Labels:
    """The answers of the pipeline's hooks for the samples that are used."""

    def __init__(
        self,
        pipeline: Pipeline,  # whose hooks are called
        train: Any,  # the training data set
        samples: int,  # of the training data set
        seed: int,  # of the run
        subset: Whole | None = None,  # the samples that are used: what is told is of these, in this order; None for all
    ) -> None:
        self._pipeline = pipeline
        self._train = train
        self._samples = samples
        self._seed = seed
        self._subset = subset
        self._read: dict[str, tuple[Whole, list[str]]] = {}
        self._weights: Real | None = None

    def population(self, shards: int) -> Population:
        used = self._samples if self._subset is None else len(self._subset)
        return Population(
            used, shards, streams.seed_of(self._seed, "partition"), lambda by: self.of(by)[0], self.weights
        )

    def of(self, by: str) -> tuple[Whole, list[str]]:
        """A number for each sample, and what each number stands for. Raises ConfigurationError where the pipeline knows no
        labels of this name, PipelineRaised."""
        if by not in self._read:
            self._read[by] = self._labels(by)
        return self._read[by]

    def weights(self) -> Real:
        """float64 of shape (samples,). Raises ConfigurationError where the pipeline has none, PipelineRaised."""
        if self._weights is None:
            self._weights = self._checked_weights()
        return self._weights

    def _labels(self, by: str) -> tuple[Whole, list[str]]:
        hook = f"labels(train, {by!r})"
        with naming(hook), streams.seeded(self._seed, "labels"):
            returned = self._pipeline.labels(self._train, by)
            if returned is None:
                raise ConfigurationError(
                    [
                        f"data: a partition or sampling by {by!r} needs labels of the training samples; the pipeline has none"
                    ],
                    "write labels(self, train, by) in the pipeline; by default they are the `targets` of the training data set",
                    code="data.needs-labels",
                )
            found = _array(returned)
        if found is None or found.dtype.kind not in "biuUS" or found.shape != (self._samples,):
            raise PipelineRaised(
                f"{hook} returned {_said(returned, found)} for {self._samples} samples", _LABELS, code="pipeline.labels"
            )
        values, numbers = numpy.unique(found, return_inverse=True)
        return self._used(numbers.astype(numpy.int64)), [str(value) for value in values.tolist()]

    def _checked_weights(self) -> Real:
        hook = "weights(train)"
        with naming(hook), streams.seeded(self._seed, "weights"):
            returned = self._pipeline.weights(self._train)
            if returned is None:
                raise ConfigurationError(
                    ["data.sampling: weighted needs the weights of the training samples, but the pipeline has none"],
                    "write weights(self, train) in the pipeline",
                    code="data.needs-weights",
                )
            found = _array(returned)
        if found is None or found.dtype.kind not in "biuf" or found.shape != (self._samples,):
            raise PipelineRaised(
                f"{hook} returned {_said(returned, found)} for {self._samples} samples",
                _WEIGHTS,
                code="pipeline.weights",
            )
        weights: Real = found.astype(numpy.float64)
        used: Real = self._used(weights)
        return used

    def _used(self, values: Any) -> Any:
        return values if self._subset is None else values[self._subset]


def _array(returned: Any) -> Any:
    """As an array of numpy; None for what cannot be one."""
    if isinstance(returned, torch.Tensor):
        return returned.detach().cpu().numpy()
    if isinstance(returned, Sequence) and returned and isinstance(returned[0], torch.Tensor):
        return torch.stack(list(returned)).cpu().numpy()
    try:
        return numpy.asarray(returned)
    except ValueError:  # lists of several lengths
        return None


def _said(returned: Any, found: Any) -> str:
    kind = f"a {type(returned).__name__}"
    return kind if found is None else f"{kind} of shape {found.shape} and type {found.dtype}"
