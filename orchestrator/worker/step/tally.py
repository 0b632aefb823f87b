"""The report of a worker's shards on one attempt of a step, for the vote; the gradient itself is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap

import torch

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.worker.model.replica import Replica, Unread
from orchestrator.worker.step.trainer_checks import check_counters, looked_at
from orchestrator.worker.step_report import StepReport


class Tally:
    """The report of the hosted shards of one attempt, as they are added."""

    def __init__(self, replica: Replica, *, counters_agree: bool) -> None:
        self._replica = replica
        self._counters_agree = counters_agree
        self.magnitudes: Sequence[int] = ()
        self._present: list[Sequence[bool]] = []
        self._weights: dict[int, float] = {}
        self.weighs_late = False  # whether there is a weight that nobody has looked at
        self._losses: dict[int, float | torch.Tensor] = {}
        self._counters: list[int] | None = None
        self._unread: dict[int, Unread] = {}  # by shard, where a look at it would wait for a device
        self.left = replica.left()

    def take(self, shards: Sequence[int], recorded: Tally) -> None:
        """These shards are added, and left in the same memory what those of `recorded` did."""
        for own, others in (
            (self._weights, recorded._weights),
            (self._losses, recorded._losses),
            (self._unread, recorded._unread),
        ):
            own.update(zip(shards, others.values(), strict=True))  # type: ignore[arg-type]
        self.weighs_late = recorded.weighs_late

    def empty(self) -> Tally:
        """Another one, of no shard."""
        return Tally(self._replica, counters_agree=self._counters_agree)

    def same_bits(self, other: Tally) -> bool:
        """Whether as many shards, at which nobody has looked, have left the same in `other`. Waits for the device."""
        if [each.present for each in self._unread.values()] != [each.present for each in other._unread.values()]:
            return False
        return all(starmap(same_bits, zip(self._late(), other._late(), strict=True)))

    def _late(self) -> Iterator[torch.Tensor | None]:
        """The values at which nobody has looked."""
        yield from (loss.double() for loss in self._losses.values() if isinstance(loss, torch.Tensor))
        for each in self._unread.values():
            yield from (each.left, each.changed)

    @property
    def shards(self) -> list[int]:
        """The shards added so far, in order."""
        return list(self._weights)

    @property
    def total_weight(self) -> float:
        return math.fsum(self._weights.values())

    def looked_at(self) -> dict[int, float]:
        """The losses by shard; those on a device are read all at once."""
        losses = looked_at(self._losses)
        self._losses.update(losses)
        return losses

    def look_back(self) -> dict[int, PipelineRaised]:
        """Look at what was not looked at, of all shards together. Returns the errors of those that left other counters, in the
        order of the shards here."""
        unread, self._unread = self._unread, {}
        faults: dict[int, PipelineRaised] = {}
        for shard, (present, counters) in zip(unread, self._replica.read([*unread.values()]), strict=True):
            try:
                self._take(present, counters)
            except PipelineRaised as error:
                faults[shard] = error
        return faults

    def weigh(self, shard: int, weight: float) -> None:
        """It weighs so much, as turns out. One that weighs nothing counts for nothing."""
        self._weights[shard] = weight
        if not weight:
            for kept in (self._weights, self._losses, self._unread):
                kept.pop(shard, None)

    def add_loss(self, shard: int, loss: float | torch.Tensor) -> None:
        """Note the loss of a shard. loss: a tensor where a look at it would wait for a device."""
        self._losses[shard] = loss

    def add(self, shard: int, weight: float | torch.Tensor, contribution: Sequence[torch.Tensor | None]) -> None:
        """Raises PipelineRaised where it left other counters than those before, unless that is looked at later."""
        late = isinstance(weight, torch.Tensor)
        self._weights[shard] = math.nan if late else float(weight)
        self.weighs_late = self.weighs_late or late
        self.left.add(shard)
        if self._replica.staging.answers_late:
            self._unread[shard] = self._replica.unread(contribution)
        else:
            self._take(self._replica.present(contribution), self._replica.counter_values())

    def _take(self, present: Sequence[bool], counters: list[int]) -> None:
        self._present.append(present)
        if self._counters_agree:
            check_counters(self._replica, self._counters, counters)
        else:
            counters = list(map(max, counters, self._counters or counters))
        self._counters = counters

    def step_report(self, computed_by: Mapping[int, int]) -> StepReport:
        return StepReport(
            magnitudes=self.magnitudes,
            present=[True in shards for shards in zip(*self._present, strict=True)],
            weights=self._weights,
            losses=self.looked_at(),
            counters=self._counters,
            computed_by=computed_by,
        )
