"""A server's part in a run.

A server hosts no shards and only adds (topology parameter_server, rule D5). It knows the run manifest that the workers agreed
on, and keeps the run state up to date from every vote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from orchestrator.comm.collectives import BUFFERS, VOTES, Exchange, Memory
from orchestrator.comm.topologies.routes import Routes
from orchestrator.comm.transports.base import Regions
from orchestrator.config.plan import Plan, Segments
from orchestrator.controller.events import Ended
from orchestrator.numerics import cuda, determinism
from orchestrator.numerics.device.kernels import sums_on
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.layout import Layout
from orchestrator.records import trace
from orchestrator.records.input_audit import InputAudit
from orchestrator.records.progress import Progress
from orchestrator.worker import device
from orchestrator.worker.asynchronous.held_slice import HeldSlice
from orchestrator.worker.asynchronous.replay import ReplayRelay
from orchestrator.worker.asynchronous.sync_barrier import Nothing, Terms, synchronize
from orchestrator.worker.asynchronous.traffic import DeltaMemory, Traffic
from orchestrator.worker.between_steps import evaluation, state_transfer
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.between_steps.segments import kept_state
from orchestrator.worker.between_steps.timing import Patience, Timing
from orchestrator.worker.footprint import sums_of
from orchestrator.worker.loop import Loop
from orchestrator.worker.member.cancellation import CancellableTransport, live
from orchestrator.worker.member.cuda_stamps import CudaStamps
from orchestrator.worker.member.generation import Connect, Generation, ProcessServices
from orchestrator.worker.model import construction, snapshot
from orchestrator.worker.step.carriers import Carriers
from orchestrator.worker.step.executor import Executor, StepOutcome
from orchestrator.worker.step.grid_carrier import GridCarrier
from orchestrator.worker.step.lockstep import Lockstep, StepContents
from orchestrator.worker.step_report import Consensus, StepReport

_WAIT_S: Final = 0.05


class Server:
    """A member that only adds. `prepare` and `run` are called from the compute thread, as a worker's are."""

    input_audit = InputAudit()  # it has no code of the user's

    def __init__(self, plan: Plan, regions: Regions, services: ProcessServices | None = None) -> None:
        self._plan = plan
        self.regions = regions  # in which members exchange; from `prepare` on those of the device, if sums stay there
        self._services = services or ProcessServices()
        self._sums = sums_of(plan)
        self._memory: Memory | None = None
        self._carriers: Carriers | None = None
        self._grid_carrier: GridCarrier | None = None
        self._deltas: DeltaMemory | None = None
        self._held: HeldSlice | None = None
        self._loop: Loop | None = None

    def prepare(self) -> dict[str, Any]:
        """Raises ConfigurationError where it has no GPU to add up on."""
        plan = self._plan
        if plan.sums_stay_on_device:
            cuda.start()
            self._services.on_card(cuda.uuid())
            self._services.heartbeat.times.use(CudaStamps())
        self._prepare_thread()
        tell = lambda line: self._services.emit({"event": "device", "role": "server", "why": line})  # noqa: E731
        there = device.summing(plan, tell)
        if there is not None:
            self.regions, self._sums = there.regions, sums_on(there.kernels)
        return {}

    def _prepare_thread(self) -> None:
        compute = self._plan.run.compute
        determinism.prepare_thread(compute.threads, arithmetic=compute.arithmetic)

    @property
    def progress(self) -> Progress | None:
        """None until it has been given the run state, in each generation anew."""
        return None if self._loop is None else self._loop.run_state.progress

    def run(self, generation: Generation, rank: int, connect: Connect) -> Ended:
        """Take part in one generation: every step and every evaluation.

        Nothing is kept from the generation before: if no worker of it is left, the run begins anew.
        """
        plan, heartbeat, run_manifest = self._plan, self._services.heartbeat, generation.begin.run_manifest
        deadline_s = plan.cluster.timeouts.deadline_s
        self._prepare_thread()
        memory = self._memory or self._allocate(run_manifest)
        carriers, deltas = self._carriers, self._deltas
        (carriers or self._grid_carrier or memory).suit(generation.schedule, rank)
        routes, number = Routes(generation.schedule, generation.begin.nodes), generation.number
        self._held = None
        if deltas is not None:
            deltas.suit(routes, rank)
            if routes.held and not plan.replay:
                part = rank - generation.workers
                self._held = HeldSlice(deltas.layout, run_manifest["trained"], part, routes.slices)
        loop = Loop(plan, run_manifest, Timing(plan, run_manifest["samples"], heartbeat), heartbeat)
        self._loop = None

        def executor(transport: CancellableTransport, exchange: Exchange) -> Executor:
            if deltas is None:
                member = _AddingMember(carriers, self._grid_carrier, joins=bool(run_manifest["joined"]))
                return Lockstep(member, exchange, StepContents.of(plan, run_manifest))
            terms = Terms.of(plan, generation.begin)
            if plan.replay:
                return ReplayRelay(exchange, terms, plan.replay)
            make = lambda sprint: Traffic(transport, routes, rank, number, sprint, deltas)  # noqa: E731
            return _Relay(exchange, make, terms, self._held, memory, deadline_s)

        def through(transport: CancellableTransport) -> Ended:
            for donor in generation.donors_of(rank):
                state, _ = state_transfer.take(transport, generation.number, donor, deadline_s)
                loop.run_state = loop.run_state.resumed(state.values)
            self._loop = loop
            transport.activity, transport.waits = "exchange", VOTES
            exchange = generation.exchange(rank, transport, memory, deadline_s)
            try:
                listener = _Listener(self._services)
                halted = loop.run(executor(transport, exchange), exchange, listener, generation)
            finally:
                self._services.tell_times(at_once=True)
            return Ended(halted, self.progress)

        return live(generation, heartbeat, connect, through, lambda: self.progress)

    def read_parameters(self, name: str | None, first: int, count: int | None) -> dict[str, Any]:
        """The part of a parameter that this server holds (`HeldSlice.read`); empty while it holds nothing. From any
        thread."""
        held = self._held
        return {} if held is None else held.read(name, first, count)

    def _allocate(self, run_manifest: Mapping[str, Any]) -> Memory:
        """All memory that outlives generations."""
        plan, layout = self._plan, Layout.from_dict(run_manifest["layout"])
        self._memory = Memory(layout, self.regions, sums=self._sums, contributes=False)
        if not plan.lockstep:
            self._deltas = DeltaMemory(layout, self.regions, sends=False)
        if plan.data.privacy is not None:
            masked = plan.exchange.masked
            self._grid_carrier = GridCarrier(layout.size, self.regions, masked=masked, staging=None)
        parameters = run_manifest["trained"]
        codec = construction.make_codec(plan, layout, parameters)
        if codec is not None:
            statistics = [slot.elements for slot in layout.slots[parameters:]]
            self._carriers = Carriers(codec, statistics, plan.data.shards, self.regions, staging=None)
        return self._memory

    def close(self) -> None:
        pass


class _Listener:
    """The hooks of a member that has nothing to contribute beside the step; implements `worker.loop.Hooks`."""

    def __init__(self, services: ProcessServices) -> None:
        self._services = services

    def running(self) -> None:
        pass

    def evaluate(self, step: int) -> evaluation.Results:  # noqa: ARG002
        return evaluation.Results()

    def publish(
        self,
        lines: Sequence[trace.Line],  # noqa: ARG002
        barrier: Mapping[str, Any] | None,  # noqa: ARG002
        metrics: Mapping[str, float] | None,  # noqa: ARG002
        *,
        digest: bool,  # noqa: ARG002
    ) -> None:
        self._services.tell_times()

    def save(self, run_state: RunState) -> None:
        pass

    def saved(self) -> None:
        pass

    def begin_segment(self, segments: Segments, first: int) -> Mapping[str, Any]:
        return snapshot.run_state_of(kept_state(segments, first, lambda _name: False))


class _AddingMember:
    """A server's side of `lockstep.Member`: an empty step report, no faults, its part in the sums, nothing to apply."""

    def __init__(
        self,
        carriers: Carriers | None,  # of a compression; None if there is none
        grid_carrier: GridCarrier | None,  # of clipped contributions; None if there are none
        *,
        joins: bool,  # whether the workers exchange buffers, which it hands on
    ) -> None:
        self._carriers = carriers
        self._grid_carrier = grid_carrier
        self._joins = joins

    def computing(self, state: RunState) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:  # noqa: ARG002
        return StepReport()

    def fault(self, shard: int) -> Exception | None:  # noqa: ARG002
        return None

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        """Returns the fingerprint of the sum; 0 for a compressed or clipped one, whose result a server does not have. A
        server reports no trace."""
        if self._grid_carrier is not None:
            self._grid_carrier.relay(exchange, step, attempt)
            return 0
        if self._joins:
            exchange.gather(step, attempt, BUFFERS, torch.empty(0, dtype=torch.uint8))
        if self._carriers is None:
            return exchange.total(step, attempt, consensus.total_weight)
        self._carriers.relay(exchange, step, consensus.total_weight)
        return 0

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:
        """The loss is empty for clipped contributions: a server does not know it."""
        return trace.line(step, "" if self._grid_carrier is not None else consensus.loss, fingerprint)

    def make(self, state: RunState, consensus: Consensus) -> None:
        pass

    def apply(self, state: RunState, consensus: Consensus) -> None:
        pass


class _Relay:
    """A server's `Executor` where replicas run free: it hands deltas on until the async phase ends, and adds at the sync
    barrier. If the topology lets it know of all updates, it also holds a slice of the parameters."""

    def __init__(
        self,
        exchange: Exchange,  # with the other members, at sync barriers
        make: Callable[[int], Traffic],  # the traffic of an async phase, by its number
        terms: Terms,  # of the run and the generation
        held: HeldSlice | None,  # the slice that this member holds; None: it holds none
        memory: Memory,  # in which the sum of a sync barrier is added up
        deadline_s: float,  # seconds to wait for the end of an async phase
    ) -> None:
        self._exchange = exchange
        self._make = make
        self._terms = terms
        self._held = held
        self._memory = memory
        self._deadline_s = deadline_s

    def advance(self, state: RunState) -> StepOutcome:
        """Raises Withdrawn, and what the transport raises."""
        assert state.free is not None
        traffic, shards = self._make(state.free.barriers), self._terms.shape.shards
        if self._held is not None:
            self._held.begin(state.free.clocks)
        while not traffic.rung:
            traffic.take(shards, self._held, _WAIT_S)
        traffic.end(shards, Patience(self._deadline_s), _WAIT_S, self._held)
        outcome = synchronize(self._exchange, Nothing(), state, self._terms)
        assert outcome.free is not None
        if self._held is not None:
            self._held.at_barrier(self._memory.result, outcome.free.clocks)
        return outcome
