"""How a worker's part of a run is put together, by the way in which its replicas are synchronised: one class for each.

Each has the state of the replica and of its shards, memory that suits a generation, and an executor for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Protocol

import torch

from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies.routes import Routes
from orchestrator.comm.transports.base import Transport
from orchestrator.common.figures import megabytes
from orchestrator.config.plan import Plan
from orchestrator.errors import ConfigurationError, RunFailed
from orchestrator.numerics import allocator
from orchestrator.numerics.device.kernels import Updating, integers_on, sums_on
from orchestrator.numerics.fixed_point import HOST
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.staging import Direct, Resident, Staging
from orchestrator.optim.compressions.codec import Codec
from orchestrator.optim.transforms import Chain, State
from orchestrator.worker import footprint
from orchestrator.worker.admission.proof import Anew
from orchestrator.worker.asynchronous import footprint as free_footprint
from orchestrator.worker.asynchronous.async_phase import AsyncPhases, Cadence
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.asynchronous.gossip import Gossip, Mixing, ShardModels
from orchestrator.worker.asynchronous.replay import Replays
from orchestrator.worker.asynchronous.shard_updates import ShardUpdates
from orchestrator.worker.asynchronous.sync_barrier import Terms
from orchestrator.worker.asynchronous.traffic import DeltaMemory, Traffic
from orchestrator.worker.between_steps.boundary import Boundary, Whole
from orchestrator.worker.between_steps.replica_state import ReplicaState
from orchestrator.worker.between_steps.timing import Timing
from orchestrator.worker.device import Device
from orchestrator.worker.footprint import sums_of
from orchestrator.worker.member import shared_queue
from orchestrator.worker.member.generation import Generation, ProcessServices
from orchestrator.worker.member.shared_queue import QueueConsumer
from orchestrator.worker.model import construction, refusals
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import ShardStates
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.pipeline_parallel import device_proof
from orchestrator.worker.pipeline_parallel.hosted_stage import HostedStage, StagedLockstep, Waiting, WholeNames
from orchestrator.worker.pipeline_parallel.planning import InStages, summary
from orchestrator.worker.pipeline_parallel.stage_state import StageState
from orchestrator.worker.pipeline_parallel.turns import once, turn
from orchestrator.worker.step.carriers import Carriers
from orchestrator.worker.step.checking import checks_of
from orchestrator.worker.step.clipped_trainer import ClippedSum, ClippedTrainer
from orchestrator.worker.step.contribution import Contributing
from orchestrator.worker.step.executor import Executor
from orchestrator.worker.step.grid_carrier import GridCarrier
from orchestrator.worker.step.local_steps import LocalSteps
from orchestrator.worker.step.local_trainer import LocalTrainer
from orchestrator.worker.step.lockstep import Lockstep, StepContents
from orchestrator.worker.step.second_computation import SecondComputation
from orchestrator.worker.step.second_update import SecondUpdate
from orchestrator.worker.step.shard_gradients import ShardGradients
from orchestrator.worker.step.step_graphs import StepGraphs
from orchestrator.worker.step.summation import CompressedSum, DirectSum, Summation, first_residuals

_DEATH_S: Final = 5.0  # until the death of another member is known

Prove = Callable[[Anew | None], str]  # the reference of the first micro-batch, with what computes it anew


@dataclass(frozen=True)
class WorkerContext:
    """The objects that a worker has built before its first generation."""

    plan: Plan  # of the run
    workload: PipelineAdapter  # micro-batches and evaluation batches
    replica: Replica  # its copy of the model
    updater: Updater  # applies summed gradients to it
    second: SecondComputation  # of a micro-batch, by the pipeline as it was
    before: Chain  # transforms of a shard's gradient before the sum
    services: ProcessServices  # of the member's process
    device: Device  # where it computes, and where its sums are made


@dataclass(frozen=True)
class GenerationContext:
    """The generation that an executor is made for, with this worker's place in it."""

    generation: Generation  # the present one
    rank: int  # of this worker in it
    transport: Transport  # of this generation
    timing: Timing  # when an evaluation or a checkpoint is due
    deadline_s: float  # seconds to wait for a peer

    @property
    def run_manifest(self) -> Mapping[str, Any]:
        """The facts about the run that are known once its pipeline is built."""
        return self.generation.begin.run_manifest

    @property
    def shards(self) -> tuple[int, ...]:
        return self.generation.begin.shards[self.rank]

    def exchange(self, memory: Memory) -> Exchange:
        return self.generation.exchange(self.rank, self.transport, memory, self.deadline_s)


def _require_memory_for_free_replicas(context: WorkerContext) -> None:
    """For replicas that run free: much of it lies in no region, and is given page by page, till none is left. Raises
    MemoryError."""
    plan, layout = context.plan, context.replica.layout
    size = free_footprint.worker_needs(layout, footprint.first_schedule(plan), plan, parameters=0).host
    footprint.require(size, f"about {megabytes(size)} for a model whose replicas run free")


def _require_memory_for_a_step(context: WorkerContext) -> None:
    """In lockstep, where contributions are added up as they come. Raises MemoryError."""
    plan = context.plan
    if plan.update.compression is None and plan.data.privacy is None and plan.run.compute.device == "cpu":
        footprint.require_for_a_step(context.replica.layout, plan)


class Strategy(Protocol):
    """One worker's way to execute a run."""

    @property
    def model_state(self) -> ReplicaState | StageState: ...

    @property
    def boundary(self) -> Boundary: ...

    @property
    def keeps_shard_state(self) -> bool:
        """Whether its shards have a state of their own."""

    @property
    def held_bytes(self) -> int:
        """The bytes of contributions that it holds on a device now, outside regions, until they are added up elsewhere."""

    def admit(self, prove: Prove) -> dict[str, Any]:
        """Before the first generation: show that this worker computes the bits of the others, and that what is particular to
        this way changes none. Returns the reference, and what more the run manifest has. prove: `admission.proof`."""

    def become_spare(self) -> None:
        """Until its first generation, whenever that comes, keep no parameters that will be another worker's."""

    def suit(self, generation: Generation, rank: int) -> None:
        """Allocate what a generation needs, before its peers connect."""

    def executor(self, context: GenerationContext) -> tuple[Executor, Exchange]:
        """For one generation, whose state is here."""


class _WholeModel:
    """The common part of strategies whose workers hold the whole model."""

    model_state: ReplicaState

    @property
    def keeps_shard_state(self) -> bool:
        return self.model_state.keeps_shard_state

    @property
    def held_bytes(self) -> int:
        return 0

    def admit(self, prove: Prove) -> dict[str, Any]:
        return {"reference": prove(None)}

    def become_spare(self) -> None:
        pass


class LockstepStrategy(_WholeModel):
    """All replicas are equal after each step. The sum is direct, or of what a compression makes of the gradients."""

    def __init__(self, context: WorkerContext) -> None:
        replica, updater, plan = context.replica, context.updater, context.plan
        self._plan = plan
        self._services = context.services
        self._updater = updater
        self._workload = context.workload
        codec = construction.make_codec(plan, replica.layout, len(replica.parameters))
        _require_memory_for_a_step(context)
        plain = codec is None and plan.data.privacy is None
        # Contributions that stay on a device are encoded there: what comes of them is copied to where the update reads it.
        encodes_there = not plain and isinstance(context.device.staging, Resident)
        sums = sums_of(plan) if context.device.kernels is None else sums_on(context.device.kernels)
        layout = Layout.of([]) if encodes_there else replica.layout
        self._memory = Memory(layout, context.device.regions, sums=sums, contributes=plain)
        result = context.device.staging.flat(replica.layout.size) if encodes_there else self._memory.result
        keep = lambda: {**first_residuals(codec, result, replica.layout), **context.workload.batches.shard_state()}  # noqa: E731
        gradients = _contributing(context, keep)
        refusals.refuse_kept(plan, keeps=gradients.keeps_state)
        self._states = gradients.states
        host_transfer = context.device.staging.host_transfer(replica.layout, result)
        encoding = context.device.staging if encodes_there else Direct()
        self._summation: Summation
        self._trainer: LocalTrainer
        if plan.data.privacy is not None:
            masked = plan.exchange.masked
            carrier = GridCarrier(replica.layout.size, context.device.regions, masked=masked, staging=encoding)
            self._summation = clipped = ClippedSum(plan.data.privacy, carrier, replica.layout, result)
            self._trainer = ClippedTrainer(gradients, replica, updater, clipped, host_transfer, context.services)
        else:
            self._summation = self._sum(context, codec, gradients, encoding, result)
            self._trainer = LocalTrainer(
                gradients, replica, updater, self._summation, host_transfer, context.services, checks_of(plan)
            )
            self._trainer.step_graphs = self._step_graphs(context, gradients)
            if plan.update.local is None:
                self._trainer.second_update = SecondUpdate(context.workload, replica, updater)
        keeps, summation = gradients.keeps_state, self._summation
        self.model_state = ReplicaState(
            replica, updater, gradients.states, keeps_shard_state=keeps, summation=summation
        )
        self.boundary = _whole(context)

    @property
    def held_bytes(self) -> int:
        return self._summation.held_bytes

    def _sum(
        self,
        context: WorkerContext,
        codec: Codec | None,
        gradients: Contributing,
        encoding: Staging,  # to the device on which contributions are encoded
        result: torch.Tensor,
    ) -> Summation:
        layout = context.replica.layout
        states = gradients.states if gradients.keeps_state else None
        if codec is None:
            return DirectSum(layout, self._memory, states, context.device.kernels)
        statistics = [statistic.numel() for statistic in context.replica.statistics]
        shards, there = context.plan.data.shards, context.device
        carriers = Carriers(codec, statistics, shards, there.regions, staging=encoding, kernels=there.encoding)
        copies = context.device.recorder is not None  # whose passes leave each gradient in the same memory
        return CompressedSum(codec, carriers, layout, result, states, copies=copies)

    def _step_graphs(self, context: WorkerContext, gradients: Contributing) -> StepGraphs | None:
        """The recordings of whole steps, where nothing happens between two micro-batches."""
        accumulator, recorder = self._summation.late, context.device.recorder
        between = not isinstance(gradients, ShardGradients) or gradients.keeps_state or context.before
        if accumulator is None or recorder is None or between or context.replica.joined:
            return None
        total = self._memory.contribution
        return StepGraphs(context.workload, context.replica, accumulator, total, recorder, context.services.tell_slower)

    def suit(self, generation: Generation, rank: int) -> None:
        self._summation.suit(generation.schedule, rank)
        if self.model_state.keeps_shard_state:
            make = lambda row: self._services.slots(self._plan.data.shards, row)  # noqa: E731
            self._states.outlive(make, alone=generation.workers == 1)

    def executor(self, context: GenerationContext) -> tuple[Executor, Exchange]:
        self._states.settle(context.shards)
        if isinstance(self._trainer, ClippedTrainer):
            self._trainer.unlock(context.generation.keys)
        schedule = context.generation.schedule
        self._divide(context)
        turns = self._consumer(context)
        generation, alone = context.generation, schedule.members == 1
        nodes = generation.begin.nodes[: generation.workers]
        self._trainer.take_on(generation.begin.shards, context.rank, alone=alone, consumer=turns, nodes=nodes)
        exchange = context.exchange(self._memory)
        contents = StepContents.of(self._plan, context.run_manifest)
        return Lockstep(self._trainer, exchange, contents, context.timing.requests, self._trainer), exchange

    def _divide(self, context: GenerationContext) -> None:
        """Let the workers of this host divide the update, where it is to be."""
        if self._updater.divided is None:
            return
        memories = context.generation.updates
        memory = memories[context.rank] if memories else None
        beside = [rank for rank, other in enumerate(memories) if memory is not None and other == memory]
        index = beside.index(context.rank) if beside else 0
        try:
            self._updater.divided.settle(memory, index, len(beside), context.generation.number)
        except RunFailed:
            # The worker that has that memory may have died just now: its connections tell so, or the driver.
            context.transport.poll((), _DEATH_S)
            raise

    def _consumer(self, context: GenerationContext) -> QueueConsumer | None:
        """How this worker claims shards in a generation; None where nobody does. If the shared queue cannot be opened, all
        workers of this host compute only their assigned shards."""
        generation, rank, plan = context.generation, context.rank, self._plan
        if not shared_queue.is_used(plan, context.run_manifest):
            return None
        place = generation.queues[rank] if generation.queues else None
        queue = None
        try:
            queue = None if place is None else shared_queue.opened(place, plan.data.shards)
        except OSError as error:
            self._services.emit({"event": "board_out_of_reach", "why": str(error)})
        beside = [
            other for other in range(generation.workers) if place is not None and generation.queues[other] == place
        ]
        found = QueueConsumer(queue, generation.number, rank, beside, kept=plan.data.loaders)
        self._workload.batches.taken_by_other = found.taken_by_other
        return found


def _contributing(context: WorkerContext, kept: Callable[[], State]) -> Contributing:
    """The contributions of the shards of a lockstep run. kept: what a shard keeps for a compression and of its samples before
    the first step."""
    local, beat = context.plan.update.local, context.services.heartbeat.beat
    if local is None:
        return ShardGradients(context.workload, context.replica, context.second, context.before, kept)
    shard_of = context.workload.samples.shard_of
    beat_of = lambda step, each: beat("compute", step, shard_of(step, each))  # noqa: E731
    await_copied = context.services.await_copied
    return LocalSteps(context.workload, context.replica, context.second, local, beat_of, await_copied, kept)


class _FreeReplicas(_WholeModel):
    """The common part of strategies whose replicas are equal only at a sync barrier, and whose shards keep optimizers of
    their own."""

    def __init__(self, context: WorkerContext) -> None:
        replica, plan = context.replica, context.plan
        self._plan = plan
        self._mode = plan.mode
        kernels = context.device.kernels
        if kernels is None:
            _require_memory_for_free_replicas(context)
        self._updating = HOST if kernels is None else Updating(kernels)
        sums = sums_of(plan) if kernels is None else integers_on(kernels)
        self._memory = Memory(replica.layout, context.device.regions, sums=sums)
        self._states = ShardStates(dict, alike=False)
        self.model_state = ReplicaState(replica, context.updater, self._states, keeps_shard_state=True)
        self.boundary = _whole(context)

    def suit(self, generation: Generation, rank: int) -> None:
        self._memory.suit(generation.schedule, rank)


class AsyncStrategy(_FreeReplicas):
    """Replicas run free between sync barriers."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        replica, plan = context.replica, context.plan
        self._deltas = DeltaMemory(replica.layout, context.device.regions)
        shards, threshold, updating = plan.data.shards, self._mode.threshold, self._updating
        updates = ShardUpdates(context.workload, replica, context.second, context.updater, shards, threshold, updating)
        self._free = FreeReplica(replica, updates, self._states, self._memory, context.services, updating)

    def suit(self, generation: Generation, rank: int) -> None:
        super().suit(generation, rank)
        self._routes = Routes(generation.schedule, generation.begin.nodes)
        self._deltas.suit(self._routes, rank)

    def executor(self, context: GenerationContext) -> tuple[Executor, Exchange]:
        generation, rank, deltas = context.generation, context.rank, self._deltas
        self._free.shards = context.shards
        exchange = context.exchange(self._memory)
        terms = Terms.of(self._plan, generation.begin)
        if self._plan.replay:
            requests = context.timing.requests
            return Replays(self._free, exchange, terms, self._plan.replay, requests), exchange
        routes, transport, number = self._routes, context.transport, generation.number
        make = lambda async_phase: Traffic(transport, routes, rank, number, async_phase, deltas)  # noqa: E731
        cadence = Cadence(context.timing, self._mode.rest_every, context.deadline_s)
        return AsyncPhases(self._free, self._mode, exchange, make, terms, cadence, rank), exchange


class GossipStrategy(_FreeReplicas):
    """Each shard has a model of its own."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        assert self._mode.graph is not None
        self._mixing = Mixing.of(self._mode.graph, context.plan.data.shards)
        updates = ShardUpdates(
            context.workload, context.replica, context.second, context.updater, 1, 0.0, self._updating
        )
        self._models = ShardModels(context.replica, updates, self._states, self._memory, context.services)

    def executor(self, context: GenerationContext) -> tuple[Executor, Exchange]:
        self._models.shards = context.shards
        exchange, requests = context.exchange(self._memory), context.timing.requests
        terms = Terms.of(self._plan, context.generation.begin)
        cadence = Cadence(context.timing, self._mode.rest_every, context.deadline_s)
        records = self._plan.replay
        return Gossip(self._models, self._mixing, exchange, terms, cadence.due, requests, records), exchange


class PipelineStrategy:
    """The model is cut into stages, of which this worker hosts one from its first generation on. Until then it has all, in host
    memory."""

    keeps_shard_state = False
    held_bytes = 0

    def __init__(self, context: WorkerContext) -> None:
        if context.plan.update.optimizer is None:
            raise ConfigurationError(
                [
                    "cluster.stages: an optimizer of the pipeline's own may look at all parameters; set optimizer, or stages=1"
                ],
                code="stages.own-optimizer",
            )
        self._plan, self._workload = context.plan, context.workload
        self._services = context.services
        self._device = context.device
        self._replica: Replica | None = context.replica
        self._waiting: Waiting | None = None
        self._hosted: HostedStage | None = None

    @property
    def model_state(self) -> StageState:
        return self._here.model_state

    @property
    def boundary(self) -> Boundary:
        return self._here.boundary

    def admit(self, prove: Prove) -> dict[str, Any]:
        """In host memory the cut model has to compute what the unsplit one computes. On processors that is also what this
        worker computes, so each proves it. For GPUs one worker of a host proves it, with all cores, and each shows what its
        own computes, stage by stage; the others do so meanwhile."""
        assert self._replica is not None
        in_stages = InStages(self._workload, self._replica, self._plan.cluster.members.stages)

        def proved() -> str:
            reference = prove(in_stages)
            self._services.emit({"event": "stages_proved", "seconds": [round(each, 4) for each in in_stages.seconds]})
            return reference

        if isinstance(self._device.staging, Direct):
            reference = proved()
            self._cuts = in_stages.cuts
        else:
            # Made by who waits for the proof, or else behind it.
            of_card = cache(partial(self._of_card, in_stages, self._replica))
            with once(self._services, meanwhile=of_card) as is_to_prove:
                if is_to_prove:
                    own = torch.get_num_threads()
                    torch.set_num_threads(len(os.sched_getaffinity(0)))  # the others wait for their cards
                    proved()
                    torch.set_num_threads(own)
            reference = of_card()
            self._cuts = in_stages.cuts
        return {"stages": summary(self._cuts, self._workload.model), "reference": reference}

    def _of_card(self, in_stages: InStages, replica: Replica) -> str:
        return device_proof.fingerprint(self._workload, replica, in_stages.cuts, self._device.staging)

    def become_spare(self) -> None:
        if self._replica is not None:
            names, self._replica = WholeNames.of(self._replica), None  # its memory goes with it
            self._waiting = Waiting(self._workload, names)

    def suit(self, generation: Generation, rank: int) -> None:
        if self._hosted is None:
            stage = generation.begin.stages[rank]
            if self._replica is not None:
                names, self._replica = WholeNames.of(self._replica), None
                self._hosted = self._cut_out(names, stage)
            else:
                assert self._waiting is not None
                with turn(self._plan, self._services):
                    names, self._waiting = self._waiting.over(self._plan.run), None
                    self._hosted = self._cut_out(names, stage)
        self._hosted.suit(generation, rank)

    def _cut_out(self, names: WholeNames, stage: int) -> HostedStage:
        """The stage of the whole model that is here, of which nothing else stays."""
        here = self._services, self._device
        found = HostedStage(self._plan, self._workload, names, self._cuts, stage, *here)
        allocator.give_back()
        return found

    def executor(self, context: GenerationContext) -> tuple[Executor, Exchange]:
        exchange = self._here.take_on(context.generation, context.rank, context.transport, context.deadline_s)
        contents = StepContents.of(self._plan, context.run_manifest)
        return StagedLockstep(self._here.trainer, exchange, contents, context.timing.requests), exchange

    @property
    def _here(self) -> HostedStage:
        assert self._hosted is not None, "its stage is known with the first generation"
        return self._hosted


STRATEGIES: Final[Mapping[str, Callable[[WorkerContext], Strategy]]] = {
    "lockstep": LockstepStrategy,
    "sprints": AsyncStrategy,
    "gossip": GossipStrategy,
}


def _whole(context: WorkerContext) -> Whole:
    return Whole(context.workload, context.replica, context.plan.data.shards, context.second.evaluate)


def strategy_of(context: WorkerContext) -> Strategy:
    if context.plan.cluster.members.stages > 1:
        return PipelineStrategy(context)
    return STRATEGIES[context.plan.mode.execution](context)
