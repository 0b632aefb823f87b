"""The second vote of a step, which commits it where the model is cut into stages (docs/architecture.md).

A worker applies the sum of its stage only when every worker of every stage has told that it has its own. The vote also
carries what no stage has of the others: the parts of the gradient's fingerprint, and norms for clipping. A worker that missed
the end of the vote gets what was agreed on from one that heard it (`RunState.second_vote`), and applies the sum that it
holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from orchestrator.comm.collectives import Exchange
from orchestrator.errors import COPIED_OTHERWISE, Inconsistent
from orchestrator.numerics import exact
from orchestrator.optim.clipping import Norm
from orchestrator.worker.between_steps.run_state import RunState, SecondVote
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.step_report import EMPTY, from_slots

_HIGH = 2**32
_WORDS = 4  # that tell a fingerprint


@dataclass(frozen=True)
class HeldSum:
    """The sum of a stage's gradient that its worker has not applied. step: whose; apply: given the state before that step and
    what the second vote agreed on."""

    step: int
    apply: Callable[[RunState, SecondVote], None]


class Ballot:
    """The part of a worker of `stage` in second votes. norm: of the whole gradient, where it is clipped; device: where
    gradients are, and norms of tensors are put together."""

    def __init__(self, stage: int, stages: int, norm: Norm | None, device: torch.device) -> None:
        self._stage = stage
        self._stages = stages
        self._norm = norm
        self._device = device

    def vote(
        self, exchange: Exchange, step: int, attempt: int, own: int, norms: Callable[[torch.dtype], Sequence[int]]
    ) -> SecondVote:
        """Take part in the second vote. own: the stage's part of the fingerprint; norms: of its gradients, as slots among
        those of all tensors. Raises what the transport raises."""
        vector = torch.tensor(
            [*_fingerprint_slots(self._stages, self._stage, own), *norms(torch.float32)], dtype=torch.int64
        )
        first = tuple(exchange.maximum(step, attempt, messages.DONE, vector).tolist())
        if self._norm is None:
            return (first,)
        self._norm.of_tensors(self._values(first[_WORDS * self._stages :], torch.float32))
        if self._norm.is_finite:
            return (first,)
        wide = torch.tensor(norms(torch.float64), dtype=torch.int64)  # squares overflow: once more, as unsplit
        return first, tuple(exchange.maximum(step, attempt, messages.NORMS, wide).tolist())

    def learn(self, step: int, own: int, agreed: SecondVote) -> int:
        """Returns the fingerprint of the whole gradient; from now on the norm is that of this step. Raises Inconsistent where
        workers of a stage have different sums."""
        first, *wide = agreed
        prints = []
        for stage in range(self._stages):
            high, not_high, low, not_low = first[_WORDS * stage : _WORDS * (stage + 1)]
            prints.append(exact.wrap(high * _HIGH + low))
            if (high, low) != (~not_high, ~not_low) or (stage == self._stage and prints[-1] != exact.wrap(own)):
                raise Inconsistent(
                    f"step {step}: the members that host stage {stage} have different sums of its gradients",
                    COPIED_OTHERWISE,
                    code="stages.other-sums",
                )
        if self._norm is not None:
            told, kind = (wide[0], torch.float64) if wide else (first[_WORDS * self._stages :], torch.float32)
            self._norm.of_tensors(self._values(told, kind))
        return exact.wrap(sum(prints))

    def _values(self, slots: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
        values = [value for _, value in sorted(from_slots(slots).items())]
        return list(torch.tensor(values, dtype=dtype).to(self._device).unbind())


def _fingerprint_slots(stages: int, stage: int, fingerprint: int) -> list[int]:
    """For each stage the halves of its fingerprint, each with its complement, by which differing ones show."""
    vector = [EMPTY] * (_WORDS * stages)
    high, low = fingerprint >> 32, fingerprint & (_HIGH - 1)
    vector[_WORDS * stage : _WORDS * (stage + 1)] = [high, ~high, low, ~low]
    return vector
