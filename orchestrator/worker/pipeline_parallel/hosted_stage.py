"""A worker's part of a run whose model is cut into stages.

While it prepares, a worker has the whole model in host memory. It cuts the model, and proves that the cut model computes the
same bits. From its first generation on it hosts one stage, and keeps the parameters, gradients and optimizer state of this
stage only. If the run computes on GPUs, only the stage goes to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from orchestrator.checkpoint.state import TrainingState
from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.pipeline_schedules import programs
from orchestrator.comm.transports.base import Transport
from orchestrator.config.plan import Plan, Run
from orchestrator.errors import Inconsistent
from orchestrator.numerics import allocator
from orchestrator.numerics.device.kernels import sums_on
from orchestrator.numerics.digests import model_digest
from orchestrator.numerics.layout import Layout
from orchestrator.optim import optimizers
from orchestrator.optim.clipping import Clipping, Norm
from orchestrator.optim.transforms import State
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.device import Device
from orchestrator.worker.footprint import sums_of
from orchestrator.worker.member.generation import Generation, ProcessServices
from orchestrator.worker.model import construction, snapshot
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.pipeline_parallel.border_memory import BorderMemory
from orchestrator.worker.pipeline_parallel.border_values import placed
from orchestrator.worker.pipeline_parallel.boundary import Stages
from orchestrator.worker.pipeline_parallel.cuts import Cuts
from orchestrator.worker.pipeline_parallel.links import Links, Wire
from orchestrator.worker.pipeline_parallel.replay import Stage
from orchestrator.worker.pipeline_parallel.stage_graphs import StageGraphs
from orchestrator.worker.pipeline_parallel.stage_module import PartLayout, StageModule
from orchestrator.worker.pipeline_parallel.stage_state import StageState
from orchestrator.worker.pipeline_parallel.trainer import StageParts, StageTrainer
from orchestrator.worker.pipeline_parallel.turns import turn
from orchestrator.worker.step.executor import StepOutcome
from orchestrator.worker.step.lockstep import Lockstep, StepContents
from orchestrator.worker.step.second_computation import SecondComputation
from orchestrator.worker.step.summation import DirectSum
from orchestrator.worker.step_report import Requests


@dataclass(frozen=True)
class WholeNames:
    """Names in the whole model. counters: for each value of all counters the buffer that it belongs to; rules: declared ones,
    by the name of a buffer."""

    layout: Layout
    counters: tuple[str, ...]
    rules: Mapping[str, str]

    @classmethod
    def of(cls, replica: Replica) -> WholeNames:
        return cls(replica.layout, tuple(replica.counter_names()), replica.rules)


class Waiting:
    """A worker that has proved itself and has no stage yet: its model has no values meanwhile. names: of the whole."""

    def __init__(self, workload: PipelineAdapter, names: WholeNames) -> None:
        self._workload = workload
        self._names = names
        self._digest = model_digest(workload.model)
        for tensor in _tensors(workload.model).values():
            tensor.data = tensor.data.new_empty(0)
        allocator.give_back()

    def over(self, run: Run) -> WholeNames:
        """The model has its first values again, made anew. Raises Inconsistent where they are others."""
        model = self._workload.model
        fresh = _tensors(construction.first_model(self._workload.pipeline, run))
        for name, tensor in _tensors(model).items():
            tensor.data = fresh[name].data
        if model_digest(model) != self._digest:
            raise Inconsistent(
                "model() gave other first values when it was called once more",
                "model() must depend on nothing but its arguments, its files and the seeded generators",
                code="stages.other-first-values",
            )
        return self._names


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


class HostedStage:
    """The part of a model that a worker keeps once it knows its stage. `take_on` comes with each generation."""

    def __init__(
        self,
        plan: Plan,  # of the run
        workload: PipelineAdapter,  # has the whole model
        whole: WholeNames,  # layout, counters and rules of the whole model
        cuts: Cuts,  # where the model is cut
        stage: int,  # its number
        services: ProcessServices,  # of the member's process
        device: Device,  # where it computes, and where its sums are made
    ) -> None:
        model, staging, kernels = workload.model, device.staging, device.kernels
        workload.compute_on(staging)
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._plan, self._cuts, self._index, self._pipeline = plan, cuts, stage, workload.pipeline
        self._whole = len(whole.layout.slots), len(whole.counters)
        self._tied = [name for name in cuts.tied if name in trained]
        self._stage = Stage(model, cuts, stage, staging)
        self._stage.host()
        owned, offsets = cuts.owned(stage), {slot.name: slot.offset for slot in whole.layout.slots}
        for name, tensor in self._stage.held.items():  # they lie in memory that all parameters share, which is to go
            is_owned = name in owned  # then its replica moves it
            tensor.data = tensor.data.clone() if is_owned else placed(tensor.data, offsets.get(name, 0), staging)
        layout = PartLayout.of(whole.layout, owned)
        replica = Replica(StageModule(model, owned), staging, layout.layout, rules=whole.rules)
        variant, norm = plan.update.optimizer, None if plan.update.clip is None else Norm()
        assert variant is not None, "the settings refuse an optimizer of the pipeline's own"
        optimizer = optimizers.build(variant.name, variant.options, replica.model)
        clipping = None if plan.update.clip is None or norm is None else Clipping(plan.update.clip, norm)
        updater = Updater(workload, replica, optimizer, plan.update, clipping)
        sums = sums_of(plan) if kernels is None else sums_on(kernels)
        self._memory = Memory(layout.layout, device.regions, sums=sums)
        before, onward = ((0, *cuts.crossing, 0)[number] for number in (stage, stage + 1))
        self._borders = None if kernels is None else BorderMemory(device.regions, onward, before)
        self._services = services
        self.model_state = StageState(replica, updater, cuts, stage, self._stage.held, trained, self._first_state)
        second = SecondComputation(workload, replica)
        places = tuple(place for place, name in enumerate(whole.counters) if name in owned)
        parts = StageParts(
            *(self._stage, cuts.stages, workload, replica, layout, places, self.model_state),
            *(staging, staging.host_transfer(layout.layout, self._memory.result), norm, plan.recompute, second),
            graphs=self._graphs(device, workload, replica),
        )
        summation = DirectSum(layout.layout, self._memory, None, kernels, layout.runs)
        self.trainer = StageTrainer(parts, updater, summation, services)
        self.boundary = Stages(workload, self._stage, self.model_state, second)

    def _graphs(self, device: Device, workload: PipelineAdapter, replica: Replica) -> StageGraphs | None:
        if device.recorder is None or device.kernels is None:
            return None
        why_not = workload.why_not_recorded(asks_step=False)
        if self._plan.recompute:
            why_not = "with run.recompute forward passes are computed twice"
        elif "training" in self._cuts.apart:
            why_not = "loss() does not call the model"
        tell = self._services.tell_slower
        return StageGraphs(device.recorder, self._stage, replica, device.staging, tell, why_not)

    def _first_state(self, values: dict[str, Any], transforms: State) -> TrainingState:
        """As `StageState.capture` gave it before the first step. The whole model is made for it."""
        with turn(self._plan, self._services):
            state = snapshot.capture(*self._made(), values, transforms)
            allocator.give_back()
        return state

    def _made(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The stage's part of the model with its first values, and its optimizer."""
        model = construction.first_model(self._pipeline, self._plan.run)
        part = StageModule(model, self._cuts.owned(self._index))
        variant = self._plan.update.optimizer
        assert variant is not None
        return part, optimizers.build(variant.name, variant.options, part)

    def suit(self, generation: Generation, rank: int) -> None:
        """As `Memory.suit`. A held sum of which the generation does not tell is dropped: nobody has applied its step."""
        if rank not in generation.begin.applies:
            self.model_state.sum = None
        group = generation.groups[self._index]
        self._memory.suit(group.schedule, group.place(rank))
        if self._borders is not None:
            self._borders.suit(generation.begin.shards[rank])

    def take_on(self, generation: Generation, rank: int, transport: Transport, deadline_s: float) -> Exchange:
        """Returns the exchange among all workers."""
        hosts, group = generation.hosts, generation.groups[self._index]
        tasks = programs(hosts, self._plan.pipelining.name, self._plan.pipelining.options)[rank]
        links = Links(
            hosts, rank, tasks, self._cuts, self._tied, Wire(transport, generation.number, deadline_s, self._borders)
        )
        among = Among(transport, group.ranks)
        own = Exchange(group.schedule, group.place(rank), generation.number, among, self._memory, deadline_s)
        exchange = generation.exchange(rank, transport, self._memory, deadline_s)
        self.trainer.take_on(links, own, self._whole)
        self.boundary.take_on(links, exchange, self._plan.data.shards)
        return exchange


class StagedLockstep:
    """An Executor: lockstep whose steps are committed by a second vote. A checkpoint that is due at one member, which was
    interrupted before it could take it, is asked for in the vote, for all take part in one."""

    def __init__(
        self, trainer: StageTrainer, exchange: Exchange, contents: StepContents, requests: Callable[[], Requests]
    ) -> None:
        self._trainer = trainer
        self._requests = requests
        self._save_due = False
        self._lockstep = Lockstep(trainer, exchange, contents, self._requests_with_save)

    def advance(self, state: RunState) -> StepOutcome:
        self._save_due = state.save_due
        outcome = self._lockstep.advance(state)
        return replace(outcome, second_vote=self._trainer.second_vote)

    def _requests_with_save(self) -> Requests:
        asked = self._requests()
        return replace(asked, save=asked.save or self._save_due)


class Among:
    """A transport in which the members of a group have ranks of their own. `ranks[i]` is member i of it."""

    def __init__(self, transport: Transport, ranks: tuple[int, ...]) -> None:
        self._transport = transport
        self._ranks = ranks
        self.flush = transport.flush
        self.close = transport.close
        self.abort = transport.abort
        self.poll = transport.poll

    @property
    def sent_bytes(self) -> int:
        return self._transport.sent_bytes

    def travels(self, peer: int) -> bool:
        return self._transport.travels(self._ranks[peer])

    def send(self, peer: int, tag: Any, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        self._transport.send(self._ranks[peer], tag, payload, note, done=done)

    def receive(self, peer: int, tag: Any, timeout_s: float) -> Any:
        return self._transport.receive(self._ranks[peer], tag, timeout_s)
