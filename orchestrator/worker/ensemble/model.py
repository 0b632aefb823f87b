"""An ensemble as one torch module: it stands where a member stands, so the pipeline's `loss` and `metrics` take it as it is.

Shapes, M members: what a member returns is (rows, ..., classes), with the classes in the dimension `classes`. The whole returns
the same shape: logarithms of its probabilities, whose softmax they are; or, with values, the combined values.

Source of the disagreement: Depeweg et al., "Decomposition of Uncertainty in Bayesian Deep Learning" (2018), section 3: the part
of the uncertainty that comes from the model and not from the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.batches import copied
from orchestrator.worker.ensemble.combinations import Combination

_TINY = 1e-300  # below it float64 has not all of its digits


@dataclass(frozen=True)
class Form:
    """The form of what members return. output: `ensemble.output`; classes: the dimension in which the classes of logits
    lie."""

    output: Literal["logits", "values"]
    classes: int


class EnsembleModel(nn.Module):
    """An ensemble as one module. members: trained alike; weights: (M,), of each."""

    weights: Tensor

    def __init__(
        self, members: Sequence[nn.Module], combination: Combination, form: Form, weights: Sequence[float]
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))
        self.combination = combination
        self._form = form

    def weigh(self, weights: Sequence[float]) -> None:
        """Give the members these weights."""
        self.weights.copy_(torch.tensor(weights, dtype=torch.float64))

    @property
    def gives_values(self) -> bool:
        return self._form.output == "values"

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.combined(self.outputs(*args, **kwargs))

    def outputs(self, *args: Any, **kwargs: Any) -> Tensor:
        """(M, rows, ..., classes) float64: the members' probabilities; or their values, (M, rows, ...).

        Raises PipelineRaised."""
        *others, last = self.members
        # Each the inputs as they came: a model may change them in place, and what calls it may go on with that.
        found = [member(*copied(args), **copied(kwargs)) for member in others]
        found.append(last(*args, **kwargs))
        for each in found:
            if not isinstance(each, Tensor) or not each.is_floating_point():
                raise PipelineRaised(
                    f"the model returns a {type(each).__name__}, and an ensemble combines tensors of numbers",
                    "have the model return one tensor, logits or values; see ensemble.output",
                    code="ensemble.not-a-tensor",
                )
        stacked = torch.stack(found).double()
        if self._form.output == "values":
            return stacked
        self._check_classes(found[0])
        classes = self._form.classes
        return stacked.movedim(classes if classes < 0 else classes + 1, -1).softmax(-1)

    def combined(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """The output of the whole for these outputs of the members, in float32, in the form that a member gives it. weights:
        others than its own."""
        whole = self.combination.combine(outputs, self.weights if weights is None else weights)
        if self._form.output == "values":
            return whole.float()
        return whole.clamp_min(_TINY).log().float().movedim(-1, self._form.classes)

    def disagreement(self, *args: Any, **kwargs: Any) -> Tensor:
        """(rows,) float64, see `disagreement_of`."""
        return self.disagreement_of(self.outputs(*args, **kwargs))

    def disagreement_of(self, outputs: Tensor) -> Tensor:
        """(rows,) float64, 0 where all members say the same: the entropy of their mean less the mean of their entropies, in
        nats (their Jensen-Shannon divergence, at most log M); of values their standard deviation. A row's mean over what
        further dimensions there are."""
        if self._form.output == "values":
            found = outputs.std(0, correction=0)
        else:
            found = (_entropy(outputs.mean(0)) - _entropy(outputs).mean(0)).clamp_min(0.0)
        by_row: Tensor = found.reshape(len(found), -1).mean(1)
        return by_row

    def _check_classes(self, output: Tensor) -> None:
        """Raises PipelineRaised."""
        classes = self._form.classes
        if -output.dim() <= classes < output.dim() and output.dim() > 1 and output.shape[classes] > 1:
            return
        raise PipelineRaised(
            f"the model returns a tensor of shape {tuple(output.shape)}, which has no classes in its dimension {classes}",
            "name the dimension by ensemble.classes, or set ensemble.output=values",
            code="ensemble.no-classes",
        )


def _entropy(probabilities: Tensor) -> Tensor:
    """In nats, over the last dimension."""
    found: Tensor = -torch.special.xlogy(probabilities, probabilities).sum(-1)
    return found
