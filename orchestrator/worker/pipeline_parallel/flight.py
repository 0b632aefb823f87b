"""A shard between its forward and its backward pass through a stage: what is kept of it, or what it is computed anew from.

A stage is a pure function of its message, the batch and the states of the generators. So a forward pass that is computed once
more just before its backward pass leaves the same bits, and its activations are not kept in between (Chen et al., "Training
Deep Nets with Sublinear Memory Cost", 2016)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from orchestrator.comm.pipeline_schedules import Task
from orchestrator.worker.model.calls import Call
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel.border_values import Activations, Generators
from orchestrator.worker.pipeline_parallel.replay import Record, Stage
from orchestrator.worker.pipeline_parallel.stage_graphs import Recording


@dataclass(frozen=True)
class Flight:
    """A shard between its forward and its backward pass in one stage."""

    record: Record | None  # of the forward pass; None where it is computed anew, from `call` and what came
    call: Call  # the micro-batch and how it is computed
    came: Activations | None  # from the stage before; None in the first one
    generators: Generators  # as the forward pass left them
    seeded: Generators  # as the forward pass found the generators
    buffers: list[torch.Tensor]  # as the forward pass left them
    weight: float = 0.0  # of the loss, in the last stage
    loss: torch.Tensor | None = None  # of the last stage; None in the others
    versions: tuple[int, ...] = ()  # of the buffers, as the forward pass left them; none of a recording
    recording: Recording | None = None  # that has done its forward pass; None where it was computed

    def light(self, batch: Callable[[], Any]) -> Flight:
        """Without its activations. batch: gives that from which they are computed anew, as it was before the forward pass."""
        assert self.call.given is not None
        loss_of = self.call.given.function
        call = self.call._replace(function=lambda: loss_of(batch()), given=None)
        return replace(self, record=None, call=call, loss=None if self.loss is None else self.loss.detach())

    def whole(self, stage: Stage, replica: Replica) -> Flight:
        """With its activations, which are computed anew where they were not kept. Raises as a forward pass does."""
        return self if self.record is not None else self.anew(stage, replica)[0]

    def anew(self, stage: Stage, replica: Replica) -> tuple[Flight, Activations | None]:
        """Its forward pass once more, and what that gives to the next stage. Raises as a forward pass does."""
        replica.begin_shard()
        self.seeded.restore()
        record, leaves, value = stage.forward(self.call.make, "training", self.came)
        judged = None if self.loss is None else self.call.judged(value)
        loss = None if judged is None else judged[0]
        return replace(self, record=record, loss=loss, versions=replica.versions()), leaves


def begins_at_once(program: Sequence[Task]) -> frozenset[int]:
    """The shards whose backward pass follows their forward pass at once."""
    return frozenset(
        task.shard
        for task, following in itertools.pairwise(program)
        if (task.kind, following.kind) == ("forward", "backward") and task.shard == following.shard
    )


def most_under_way(program: Sequence[Task]) -> int:
    """How many shards are between their forward and their backward pass at most."""
    return max(itertools.accumulate((1 if task.kind == "forward" else -1 for task in program), initial=0))
