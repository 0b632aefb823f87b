"""The contribution of a shard to a step: the gradient of its micro-batch, after the transforms before the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.optim import optimizer_state
from orchestrator.optim.transforms import Chain, State
from orchestrator.pipeline import naming
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import ShardStates
from orchestrator.worker.model.stream_readers import StreamReaders
from orchestrator.worker.step.contribution import Contribution
from orchestrator.worker.step.second_computation import SecondComputation


class ShardGradients:
    """Implements `contribution.Contributing`. Raises PipelineRaised if `init` of the contribution does."""

    counters_agree = True

    def __init__(
        self,
        workload: PipelineAdapter,  # gives the micro-batches
        replica: Replica,  # on which they are computed
        second: SecondComputation,  # of them
        before: Chain,  # applied to a shard's gradients, with a state per shard
        # what a shard keeps beside it before the first step, for what becomes of the contribution
        more: Callable[[], State] = dict,
    ) -> None:
        self.workload = workload
        self._replica = replica
        self._before = before
        with naming("init() of the contribution"):
            self.keeps_state = bool(before.init(replica.parameters) or more())
        self.states = states_of(workload.batches.streams, lambda: {**before.init(replica.parameters), **more()})
        self._plan_batches: Callable[[], object] = lambda: None
        self._second = second

    def step_assignment(self, step: int, assigned: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:  # noqa: ARG002
        """Micro-batches of a step are equal in length."""
        return assigned

    def plan(self, step: int, shards: Sequence[int]) -> None:
        """Prepare for these micro-batches, which are computed next."""
        self._plan_batches = partial(self.workload.batches.plan, [step], shards)
        self.states.discard()
        self._plan_batches()

    def compute(self, step: int, shard: int, *, late: bool = False) -> Contribution | None:
        """The contribution of a shard. Raises PipelineRaised, NonFinite, Inconsistent."""
        settle(self.workload.batches.streams, self.states, step, shard)
        expected = self._second.expected(step, step, shard, self._plan_batches)
        self._replica.begin_shard()
        # A shard that turns out to weigh nothing may have moved neither a state nor a buffer that is not joined by its weight.
        late = late and not self._before and not self._replica.joined
        computed = self.workload.unread_loss(step, shard, late=late)
        self._replica.check_shard(buffers=not self.workload.replayed)
        if self.keeps_state:
            self.states.stage(shard, stream_row(self.workload.batches.streams, shard))
        if computed is None:
            self._second.compare(expected, step, None, tuple)
            return None
        # A recording writes the next gradients to the same place, so all is added up before.
        replayed = self.workload.replayed_gradients
        tensors = self._replica.contribution() if replayed is None else self._replica.replayed(replayed)
        count = len(self._replica.parameters)
        self._second.compare(expected, step, computed, lambda: tensors[:count])
        if self._before:
            self.workload.hand_over()
            if self.workload.replayed:
                self.workload.seed_behind(step, shard)
            with naming("update() of the contribution"):
                kept = self.states.of(shard) if self.keeps_state else {}
                gradients, state = self._before.update(tensors[:count], kept)
            if self.keeps_state:
                # A recording writes the next gradients to the same place.
                shared = [each for each in tensors if each is not None] if self.workload.replayed else []
                self.states.stage(shard, optimizer_state.apart(state, shared))
            tensors = [*gradients, *tensors[count:]]
        return Contribution(*computed, tensors)

    def is_looked_at(self, step: int) -> bool:
        return self._second.is_due(step)

    def named(self, step: int, shard: int) -> str:
        return self.workload.batches.named(step, shard)


def states_of(streams: StreamReaders | None, initial: Callable[[], State]) -> ShardStates:
    """The states of the shards. Samples that come in streams are secured before a state outlives the process. A place in a
    stream can be found from its first sample on: a checkpoint of a model in stages has none."""
    if streams is None:
        return ShardStates(initial)
    alone = initial().keys() == streams.first().keys()
    return ShardStates(initial, streams.secure, replaceable=alone and not streams.live, reading=streams.placed)


def settle(streams: StreamReaders | None, states: ShardStates, step: int, shard: int) -> None:
    """If samples come in streams, the shard goes on behind those of the last committed step."""
    if streams is not None:
        streams.settle(shard, states.of(shard), step)


def stream_row(streams: StreamReaders | None, shard: int) -> State:
    """The position of the shard's stream behind the micro-batch that was computed last, to be staged; empty without
    streams."""
    return {} if streams is None else streams.row(shard)
