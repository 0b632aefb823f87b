"""The contribution of a shard to a step: the gradient of its micro-batch, after the transforms before the sum.

`Contributing` is the interface of this and of other contributions (`local_steps.py`): each returns a loss, a weight and
tensors of the layout, or None if a shard has nothing to contribute, and keeps its state in `ShardStates`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch

from orchestrator.adapters.adapted import Adapted
from orchestrator.errors import Inconsistent
from orchestrator.numerics.digests import update_in_place
from orchestrator.optim import optimizers
from orchestrator.optim.transforms import Chain, State
from orchestrator.pipeline import naming
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter, Unread
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import ShardStates
from orchestrator.worker.model.stream_readers import StreamReaders
from orchestrator.worker.step.plain_values import PlainValues


class Contribution(NamedTuple):
    """The contribution of one shard. loss, weight: the mean over the micro-batch, and what it counts; tensors on the device if
    nobody has looked at them yet; tensors: in the order of the layout, None for a parameter without gradient."""

    loss: float | torch.Tensor
    weight: float | torch.Tensor
    tensors: Sequence[torch.Tensor | None]


class Contributing(Protocol):
    """Computes the contributions of the hosted shards to a step. workload: gives the micro-batches; keeps_state: whether
    shards have any; counters_agree: whether every shard has to leave the same counters, or else the largest are taken."""

    workload: PipelineAdapter
    keeps_state: bool
    counters_agree: bool
    states: ShardStates

    def step_assignment(self, step: int, assigned: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """The shards of each worker in a step: those that it hosts, or an assignment that all workers make alike."""

    def plan(self, step: int, shards: Sequence[int]) -> None:
        """Prepare for these shards, which are computed next."""

    def compute(self, step: int, shard: int, *, late: bool = False) -> Contribution | None:
        """The contribution of a shard. late: the weight may be a tensor on the device, which nobody has
        read. A contribution of weight 0 counts as none."""

    def named(self, step: int, shard: int) -> str:
        """The names of its samples for a message, as of `MicroBatches.named`; empty if there are too many."""


class ShardGradients:
    """Implements `Contributing`. before: applied to a shard's gradients, with a state per shard; more: what a shard keeps
    beside it before the first step, for what becomes of the contribution.

    Raises PipelineRaised if `init` of the contribution does."""

    counters_agree = True

    def __init__(
        self, workload: PipelineAdapter, replica: Replica, before: Chain, more: Callable[[], State] = dict
    ) -> None:
        self.workload = workload
        self._replica = replica
        self._before = before
        with naming("init() of the contribution"):
            self.keeps_state = bool(before.init(replica.parameters) or more())
        self.states = states_of(workload.batches.streams, lambda: {**before.init(replica.parameters), **more()})
        self._planned: tuple[int, Sequence[int]] = 0, ()
        self._tried = 0  # the last step of which a micro-batch was computed twice
        self._looked = -1  # the last step before which values of the code were looked at
        self._values: PlainValues | None = None  # of the code, as they were before this worker's first step
        self._changed: set[str] = set()  # the places of those that have changed since then

    def step_assignment(self, step: int, assigned: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:  # noqa: ARG002
        """Micro-batches of a step are equal in length."""
        return assigned

    def plan(self, step: int, shards: Sequence[int]) -> None:
        """Prepare for these micro-batches, which are computed next."""
        self._planned = step, shards
        self.states.discard()
        self.workload.batches.plan([step], shards)

    def compute(self, step: int, shard: int, *, late: bool = False) -> Contribution | None:
        """The contribution of a shard. Raises PipelineRaised, NonFinite, Inconsistent."""
        first = self._tried_before(step, shard) if self._is_tried(step, shard) else None
        self._replica.begin_shard()
        settle(self.workload.batches.streams, self.states, step, shard)
        # A shard that turns out to weigh nothing may have moved neither a state nor a buffer that is not joined by its weight.
        late = late and not self._before and not self._replica.joined
        computed = self.workload.unread_loss(step, shard, late=late)
        self._replica.check_shard(buffers=not self.workload.replayed)
        if self.keeps_state:
            self.states.stage(shard, stream_row(self.workload.batches.streams, shard))
        if computed is None:
            return None
        # A recording writes the next gradients to the same place, so all is added up before.
        replayed = self.workload.replayed_gradients
        tensors = self._replica.contribution() if replayed is None else self._replica.replayed(replayed)
        if first is not None and self._digest(computed, tensors) != first:
            raise self._repeated_differently(step, shard)
        if self._before:
            self.workload.hand_over()
            count = len(self._replica.parameters)
            if self.workload.replayed:
                self.workload.seed_behind(step, shard)
            with naming("update() of the contribution"):
                kept = self.states.of(shard) if self.keeps_state else {}
                gradients, state = self._before.update(tensors[:count], kept)
            if self.keeps_state:
                # A recording writes the next gradients to the same place.
                shared = [each for each in tensors if each is not None] if self.workload.replayed else []
                self.states.stage(shard, optimizers.apart(state, shared))
            tensors = [*gradients, *tensors[count:]]
        return Contribution(*computed, tensors)

    def named(self, step: int, shard: int) -> str:
        return self.workload.batches.named(step, shard)

    def _is_tried(self, step: int, shard: int) -> bool:
        """Whether this micro-batch is computed twice, since admission has seen step 0 alone. It is if more values of the
        code have changed, as by an optimizer. If any have, or if loss is told the step, it also is in each step up to 8, then
        in four of each doubling."""
        workload = self.workload
        if isinstance(workload.pipeline, Adapted) or workload.batches.streams is not None:
            return False
        zeros = max(0, step.bit_length() - 3)
        is_due = self._has_changed(step)
        is_due |= step >> zeros << zeros == step and (workload.takes_step or bool(self._changed))
        if not is_due or step <= self._tried or not workload.batches.rows(step, shard):
            return False
        self._tried = step
        return True

    def _has_changed(self, step: int) -> bool:
        """Whether more values of the code have changed than when this was asked last."""
        if step <= self._looked:
            return False
        self._looked = step
        if self._values is None:
            model = self.workload.model
            objects = [("pipeline", self.workload.pipeline), *model.named_modules(prefix="model")]
            self._values = PlainValues(objects, model.named_parameters(prefix="model"))
        known, self._changed = self._changed, self._changed.union(self._values.changed())
        return self._changed != known

    def _tried_before(self, step: int, shard: int) -> bytes | None:
        """The digest of a micro-batch that goes into no sum, with the values of the code that a worker would have which joins
        now. It is read anew afterwards, since a loss may change its batch."""
        self._replica.begin_shard()
        with contextlib.nullcontext() if self._values is None else self._values.restored():
            computed = self.workload.loss(step, shard)
        found = None if computed is None else self._digest(computed, self._replica.gradients())
        self.plan(*self._planned)
        return found

    def _repeated_differently(self, step: int, shard: int) -> Inconsistent:
        if self._changed:
            return Inconsistent(
                f"step {step}: shard {shard} has another loss or gradient without the new value of {min(self._changed)}, "
                "which a worker that joins would not have",
                "set it in each call of loss(), as a function of step; or have a frozen parameter that the optimizer moves, "
                "or a buffer with a rule in buffers()",
                code="pipeline.changed-once",
            )
        what = f"loss or a gradient of shard {shard}"
        return Inconsistent(
            f"step {step}: the {what} came out differently when the same micro-batch was computed again",
            "keep nothing from batch to batch, whatever the step: what is to move along the run is a buffer of the model "
            "with a rule in buffers()",
            code="pipeline.repeated-differently",
        )

    def _digest(self, computed: Unread, tensors: Sequence[torch.Tensor | None]) -> bytes:
        """A digest of loss, weight and gradients, with which these tensors begin."""
        return digest_of(Contribution(*computed, tensors[: len(self._replica.parameters)]))


def digest_of(
    computed: Contribution, counters: Sequence[int] = (), buffers: Iterable[tuple[str, torch.Tensor]] = ()
) -> bytes:
    """A digest of a contribution, bit by bit, and of what its shard left in counters and buffers."""
    numbers = f"{float(computed.loss).hex()} {float(computed.weight).hex()} {[*counters]}"
    digest = hashlib.sha256(numbers.encode())
    tensors = ((str(index), tensor) for index, tensor in enumerate(computed.tensors) if tensor is not None)
    update_in_place(digest, (*buffers, *tensors))
    return digest.digest()


def states_of(streams: StreamReaders | None, initial: Callable[[], State]) -> ShardStates:
    """The states of the shards. Samples that come in streams are secured before a state outlives the process."""
    return ShardStates(initial) if streams is None else ShardStates(initial, streams.secure)


def settle(streams: StreamReaders | None, states: ShardStates, step: int, shard: int) -> None:
    """If samples come in streams, the shard goes on behind those of the last committed step."""
    if streams is not None:
        streams.settle(shard, states.of(shard), step)


def stream_row(streams: StreamReaders | None, shard: int) -> State:
    """The position of the shard's stream behind the micro-batch that was computed last, to be staged; empty without
    streams."""
    return {} if streams is None else streams.row(shard)
