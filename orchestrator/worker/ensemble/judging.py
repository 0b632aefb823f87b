"""How good an ensemble is, beside its members: over the same validation samples, through the pipeline's own loss and metrics.

If weights are chosen, half of the validation samples (drawn from the seed) are for that, and everything is judged by the
other half: the samples that a choice was made on say too much good of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.data.sampling.subsets import stream
from orchestrator.errors import ConfigurationError
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.ensemble.model import EnsembleModel
from orchestrator.worker.ensemble.request import Combined
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter

Batches = Sequence[Sequence[int]]


@dataclass
class Judge:
    """Judges an ensemble and its members on validation samples. rows: of a batch; step: after which it is judged; seed: of the
    draw of what weights are chosen on."""

    workload: PipelineAdapter
    rows: int
    step: int
    seed: int

    def judge(self, model: EnsembleModel, digest: str, *, chooses: bool) -> Combined:
        """Judge a model whose weights have been chosen. Raises ConfigurationError, PipelineRaised."""
        chosen_on, judged_by = self.halves(chooses=chooses)
        batches = self.batches(judged_by)
        watched = _Watched(model).eval()
        metrics = self.metrics(watched, batches)
        of_members = [self.metrics(member, batches) for member in model.members]
        names = list(metrics)
        disagreement = _by_sample(watched, [len(batch) for batch in batches])
        halves: list[dict[str, float]] = [{}, {}]
        if disagreement is not None and len(judged_by) > 1:
            ranked = sorted(range(len(judged_by)), key=lambda place: (disagreement[place], place))
            middle = len(ranked) // 2
            for number, places in enumerate((ranked[:middle], ranked[middle:])):
                samples = sorted(judged_by[place] for place in places)
                halves[number] = self.metrics(model, self.batches(samples))
        return Combined(
            digest=digest,
            weights=model.weights.tolist(),
            samples=len(judged_by),
            chosen_on=len(chosen_on),
            metrics=metrics,
            mean_of_members={name: _mean([each[name] for each in of_members]) for name in names},
            of_members=of_members,
            disagreement=None if disagreement is None else _mean(disagreement),
            agreed=halves[0],
            disagreed=halves[1],
        )

    def choose(self, model: EnsembleModel) -> list[float]:
        """The weights, by the loss on what is for that. The members compute once; only their outputs are weighed anew."""
        chosen_on, _ = self.halves(chooses=True)
        batches = self.batches(chosen_on)
        watched = _Watched(model).eval()
        self.metrics(watched, batches)

        def loss(weights: Sequence[float]) -> float:
            again = _Again(model, watched.seen, torch.tensor(weights, dtype=torch.float64)).eval()
            return self.metrics(again, batches)["validation/loss"]

        return model.combination.weigh(loss)

    def halves(self, *, chooses: bool) -> tuple[list[int], list[int]]:
        """The validation samples that weights are chosen on, and those that all is judged by. Raises ConfigurationError."""
        samples = self.workload.held_out
        least = 2 if chooses else 1
        if samples < least:
            raise ConfigurationError(
                [f"ensemble: its members are judged by validation samples, of which datasets() gives {samples}"],
                "return a validation set from datasets()",
                code="ensemble.no-validation",
            )
        if not chooses:
            return [], list(range(samples))
        order = stream(self.seed, "weights of members").permutation(samples).tolist()
        return sorted(order[: samples // 2]), sorted(order[samples // 2 :])

    def batches(self, samples: Sequence[int]) -> Batches:
        return [samples[start : start + self.rows] for start in range(0, len(samples), self.rows)]

    def metrics(self, model: nn.Module, batches: Batches) -> dict[str, float]:
        """Loss and metrics over the batches. Raises PipelineRaised."""
        results = evaluation.Results()
        for number in range(len(batches)):
            results.add(number, *self.workload.evaluate_batch(self.step, number, batches[number], model))
        rows = [results.rows[number] for number in range(len(batches))]
        return self.workload.summarized(evaluation.means_of(results.names or [], rows))


class _Watched(nn.Module):
    """The ensemble; seen: what its members gave, call by call."""

    def __init__(self, model: EnsembleModel) -> None:
        super().__init__()
        self._model = model
        self.seen: list[Tensor] = []

    def of(self, outputs: Tensor) -> list[float]:
        """How much members disagree in each row."""
        found: list[float] = self._model.disagreement_of(outputs).tolist()
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs = self._model.outputs(*args, **kwargs)
        self.seen.append(outputs)
        return self._model.combined(outputs)


class _Again(nn.Module):
    """The ensemble with other weights, for the same calls in the same order."""

    def __init__(self, model: EnsembleModel, seen: Sequence[Tensor], weights: Tensor) -> None:
        super().__init__()
        self._model = model
        self._seen = iter(seen)
        self._weights = weights

    def forward(self, *_args: Any, **_kwargs: Any) -> Tensor:
        return self._model.combined(next(self._seen), self._weights)


def _by_sample(watched: _Watched, rows: Sequence[int]) -> list[float] | None:
    """How much members disagree on each sample, from the first call for each batch; None where a call has other rows than its
    batch. rows: of each batch."""
    calls = len(watched.seen) // len(rows)
    firsts = watched.seen[::calls] if calls and len(watched.seen) == calls * len(rows) else []
    if [each.shape[1] for each in firsts] != list(rows):
        return None
    return [value for each in firsts for value in watched.of(each)]


def _mean(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return sum(value for value in values if not math.isfinite(value))  # of both signs, or with NaN: NaN
    return math.fsum(values) / len(values)
