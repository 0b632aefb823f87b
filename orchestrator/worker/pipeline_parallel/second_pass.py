"""Forward and backward pass of a micro-batch are computed once more in a stage (`worker.step.second_computation`).

Each stage does so by itself, with the activations and gradients that have come over its borders. The values that it passes on
and the gradients of its parameters have to be the same. The micro-batch is the first one of a step that is not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from orchestrator.numerics.batches import copied
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel.border_values import Activations, BorderValue, Gradients
from orchestrator.worker.pipeline_parallel.flight import Flight
from orchestrator.worker.pipeline_parallel.replay import Stage
from orchestrator.worker.step.contribution import Contribution, digest_of
from orchestrator.worker.step.second_computation import SecondComputation, Tried


class PassedBack(NamedTuple):
    """The end of a backward pass. border_values, tied: as of `Gradients`. The gradients of the stage's own parameters are
    there."""

    border_values: Sequence[BorderValue | None]
    tied: dict[str, BorderValue]


class _Noted(NamedTuple):
    step: int
    shard: int
    flight: Flight  # to be computed anew
    forward: bytes  # a digest of what the forward pass gave


class SecondPass:
    """For one stage. back: the backward pass of a flight, which has its activations."""

    def __init__(
        self,
        second: SecondComputation,
        stage: Stage,
        replica: Replica,
        back: Callable[[Flight, Gradients | None], PassedBack],
    ) -> None:
        self._second, self._stage, self._replica, self._back = second, stage, replica, back
        self._noted: _Noted | None = None

    def begin(self, step: int) -> None:
        """Look for what has changed before any shard of this step is computed."""
        self._noted = None
        self._second.is_due(step)

    def wants(self, step: int) -> bool:
        """Whether the next forward pass is to be noted, with a batch that its loss does not change."""
        return self._noted is None and self._second.is_due(step)

    def note(self, step: int, shard: int, flight: Flight, batch: Any, leaves: Activations | None) -> None:
        """flight: of the forward pass that gave these leaves, of this batch as it was before."""
        own = copied(batch)  # loss() may change the one that it is given, and it is called more than once
        self._noted = _Noted(step, shard, flight.light(lambda: copied(own)), _forward_digest(flight, leaves))

    def tried(self, shard: int, behind: Gradients | None) -> Tried | None:
        """Before the backward pass of a shard: what both passes give once more, for `require`; None where it is not the one.
        Raises as the passes do, Inconsistent."""
        noted = self._noted
        if noted is None or noted.shard != shard:
            return None
        what = f"output of stage {self._stage.index} for shard {shard}, or a gradient of its own,"
        recorded = noted.flight.recording is not None
        return self._second.tried(noted.step, partial(self._computed, noted.flight, behind), what, recorded=recorded)

    def require(self, tried: Tried | None, back: PassedBack) -> None:
        """Behind the backward pass of the shard that was tried. Raises Inconsistent."""
        if tried is not None and self._noted is not None:
            self._second.require(tried, self._noted.step, self._noted.forward + self._backward_digest(back))

    def _computed(self, flight: Flight, behind: Gradients | None) -> bytes:
        anew, leaves = flight.anew(self._stage, self._replica)
        return _forward_digest(anew, leaves) + self._backward_digest(self._back(anew, behind))

    def _backward_digest(self, back: PassedBack) -> bytes:
        crossing = [*back.border_values, *(back.tied[name] for name in sorted(back.tied))]
        gradients = self._replica.gradients()
        return digest_of(Contribution(0.0, 0.0, [*(each and each.data for each in crossing), *gradients]))


def _forward_digest(flight: Flight, leaves: Activations | None) -> bytes:
    return digest_of_leaves(leaves, 0.0 if flight.loss is None else flight.loss.detach(), flight.weight)


def digest_of_leaves(leaves: Activations | None, loss: float | torch.Tensor = 0.0, weight: float = 0.0) -> bytes:
    """A digest of what a forward pass gives: activations, or loss and weight in the last stage."""
    crossing = [] if leaves is None else [each.data for each in leaves.border_values]
    flows = b"" if leaves is None else bytes(leaves.flows)  # none comes back to a stage that is frozen
    told = b"" if leaves is None else leaves.told.encode()
    return flows + told + digest_of(Contribution(loss, weight, crossing))
