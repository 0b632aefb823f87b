"""A member's part in a step of a model in stages: walk its program of tasks, then sum, agree once more, and apply.

    contribute   each task of the program: forward or backward of one shard through this member's stage, between border messages
    vote         as in every lockstep step; what a stage does not know (losses, other stages' tensors) stays empty
    total        the exact sum among the members that host this stage; then a second vote, in which every stage says that it
                 has its sum, with its part of the fingerprint and the norms of its gradients
    apply        the same gradient as unsplit, of the stage's own tensors

A micro-batch that fails, or counts nothing, is told on in both directions, so every program comes to its end, and the vote
tells whose error it is. Before each step and each evaluation a stage is sent what it uses and another one owns. So nothing
has to be sent between a step's sum and its end, and an interrupted step has changed nothing. One that is interrupted after
its sum keeps that: others may have applied theirs (`second_vote`)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy
import torch

from orchestrator.comm.collectives import Exchange
from orchestrator.errors import OrchestratorError, PipelineRaised
from orchestrator.numerics import foreach
from orchestrator.numerics.batches import copied
from orchestrator.numerics.grid import ABSENT, INFINITE, Grid
from orchestrator.numerics.staging import HostTransfer, Staging
from orchestrator.optim import optimizer_state
from orchestrator.optim.clipping import Norm
from orchestrator.records import trace
from orchestrator.worker.between_steps.run_state import RunState, SecondVote
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.all_stages import take_gradients
from orchestrator.worker.pipeline_parallel.border_values import Generators, Gradients, pack, unpack
from orchestrator.worker.pipeline_parallel.commit_vote import Ballot, HeldSum
from orchestrator.worker.pipeline_parallel.flight import Flight, begins_at_once, most_under_way
from orchestrator.worker.pipeline_parallel.links import Links
from orchestrator.worker.pipeline_parallel.replay import Record, Stage
from orchestrator.worker.pipeline_parallel.second_pass import PassedBack, SecondPass
from orchestrator.worker.pipeline_parallel.stage_graphs import Example, Recording, StageGraphs
from orchestrator.worker.pipeline_parallel.stage_module import PartLayout, spread
from orchestrator.worker.pipeline_parallel.stage_state import StageState
from orchestrator.worker.step.second_computation import SecondComputation
from orchestrator.worker.step.summation import DirectSum
from orchestrator.worker.step.tally import Tally
from orchestrator.worker.step.trainer_checks import SentBytes, joined, not_finite
from orchestrator.worker.step_report import EMPTY, Consensus, StepReport, to_slots


@dataclass(frozen=True)
class StageParts:
    """The objects that a member has built for its stage."""

    stage: Stage  # computes forward and backward passes
    stages: int  # how many the model is cut into
    workload: PipelineAdapter  # gives the micro-batches
    replica: Replica  # of this stage's part
    layout: PartLayout  # of this part within the layout of the whole
    counters: tuple[int, ...]  # where its counters stand among those of the whole model
    held: StageState  # tensors of this stage, and of other stages that this one uses
    staging: Staging  # to where the stage computes
    host_transfer: HostTransfer  # between there and the memory that is exchanged
    norm: Norm | None  # of the whole gradient, for clipping; None where nothing is clipped
    recompute: bool  # whether forward passes are computed anew before their backward passes
    second: SecondComputation  # of micro-batches
    graphs: StageGraphs | None = None  # recordings of its passes; None: all are computed eagerly


class StageTrainer:
    """Implements `worker.step.lockstep.Member`. `take_on` comes with each generation. second_vote: the last one."""

    def __init__(self, parts: StageParts, updater: Updater, summation: DirectSum, services: ProcessServices) -> None:
        self._parts = parts
        self._updater = updater
        self._summation = summation
        self._services = services
        self._ballot = Ballot(parts.stage.index, parts.stages, parts.norm, parts.staging.device)
        self.second_vote: SecondVote = ()
        self._sent = SentBytes(services)
        self._faults: dict[int, OrchestratorError] = {}
        self._second_pass = SecondPass(parts.second, parts.stage, parts.replica, self._pass_back)
        self._left = parts.replica.left()
        self._joined: list[torch.Tensor] = []

    def take_on(self, links: Links, group: Exchange, whole: tuple[int, int]) -> None:
        """Take on a generation. links: to the other members; group: those that host this stage; whole: how many tensors and
        counters the model has."""
        self._links = links
        self._group = group
        self._tensors, self._counters = whole
        self._at_once = begins_at_once(links.program)
        self._kept = self._at_once if self._parts.recompute else frozenset(links.shards)
        self._faults = {}

    def computing(self, state: RunState) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()  # no pipeline has the optimizer of a stage

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:
        links = self._links
        assert self._parts.held.sum is None, "a sum that was held is applied or dropped as a generation begins"
        if attempt == 0:
            links.refresh(self._parts.held)
        self._summation.clear()
        self._parts.workload.batches.plan([step], links.shards)
        options = optimizer_state.options(self._updater.optimizer)
        local = Grid(tuple(grid.exponents[place] for place in self._parts.layout.places), grid.shards)
        self._faults = {}
        self._second_pass.begin(step)
        tally, flights = Tally(self._parts.replica, counters_agree=True), dict[int, Flight]()
        graphs = self._parts.graphs
        if graphs is not None:
            graphs.begin_step(most_under_way(links.program))
        for task in links.program:
            self._services.heartbeat.beat("compute", step, task.shard)
            self._services.writer.copied(0)
            if self._parts.workload.batches.rows(step, task.shard):
                walk = self._forward if task.kind == "forward" else self._backward
                walk(task.shard, (step, attempt), tally, flights, local)
        links.finish()
        self._complete(step, tally)
        self._check(options)
        self._left = tally.left
        if self._faults:
            return StepReport(failing_shard=min(self._faults), losses=tally.looked_at())
        if graphs is not None:
            with self._parts.workload.going_on(step, links.shards[-1]):
                graphs.learn(step)
        return self._report(tally)

    def fault(self, shard: int) -> Exception | None:
        return self._faults.get(shard)

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        before = self._group.sent_bytes
        self._joined = joined(self._left, self._group, step, attempt, consensus)
        self._summation.total(self._group, step, attempt, consensus)
        exchange.sent_bytes += self._group.sent_bytes - before + self._links.taken_bytes()
        self._parts.host_transfer.back()  # its norms are taken where the unsplit model's are
        own = self._summation.part_of_fingerprint()
        self._parts.held.sum = HeldSum(step, partial(self._follow, consensus, own))
        self.second_vote = self._ballot.vote(exchange, step, attempt, own, partial(self._norms, consensus))
        return self._ballot.learn(step, own, self.second_vote)

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:
        return trace.line(step, consensus.loss, fingerprint)

    def make(self, state: RunState, consensus: Consensus) -> None:
        """The update of a stage is not divided (`config.settings.rules.sharded`)."""

    def apply(self, state: RunState, consensus: Consensus) -> None:
        """May raise CalledOff before it changes anything, and not after."""
        self._services.heartbeat.beat("update", state.steps)
        self._sent.tell(state.steps - 1, consensus.sent_bytes)
        self._services.await_copied()
        result = self._summation.result
        views = zip(self._parts.layout.places, self._parts.host_transfer.result, strict=True)
        agreed = [view if consensus.present[place] else None for place, view in views]
        counters = [consensus.counters[place] for place in self._parts.counters]
        self._updater.apply(state.steps, state.reductions, agreed, counters, self._joined, result)
        self._summation.commit()
        self._parts.held.sum = None

    def _follow(self, consensus: Consensus, own: int, state: RunState, agreed: SecondVote) -> None:
        """Apply the present sum without having heard the end of the second vote: this is what it agreed on."""
        self._ballot.learn(state.steps, own, agreed)
        self.apply(state, consensus)

    def _forward(
        self, shard: int, when: tuple[int, int], tally: Tally, flights: dict[int, Flight], _grid: Grid
    ) -> None:
        parts, links = self._parts, self._links
        tag = (*when, messages.ACTIVATIONS, shard)
        arrived = links.take_from_before(tag)
        flight, leaves, batch = None, None, None
        if arrived is None or arrived.note:
            try:
                waits = shard in self._kept and shard not in self._at_once  # one that is computed anew has a copy below
                wanted = self._second_pass.wants(when[0])
                with parts.workload.call(when[0], shard, waits=waits) as call:
                    if wanted or shard not in self._kept:  # loss() may change it
                        assert call.given is not None
                        batch = copied(call.given.batch)
                    parts.replica.begin_shard()
                    seeded = Generators.now()
                    came = None if arrived is None else messages.activations(arrived, seeded)
                    recording = None if parts.graphs is None else parts.graphs.take(call, came)
                    record: Record | None = None
                    if recording is None:
                        record, leaves, value = parts.stage.forward(call.make, "training", came)
                    else:
                        leaves, value = recording.forward(call, came)
                    buffers = parts.replica.buffers()
                    versions = parts.replica.versions() if recording is None else ()
                    flight = Flight(
                        record, call, came, Generators.now(), seeded, buffers, versions=versions, recording=recording
                    )
                    judge = call.judged if recording is None else call.judged_late
                    if leaves is None and (judged := judge(value)) is not None:
                        flight = replace(flight, loss=judged[0], weight=judged[2])
                        tally.add_loss(shard, judged[1])
                parts.replica.check_shard(buffers=recording is None)
            except OrchestratorError as error:
                self._faults[shard] = error
                flight = None
        if flight is not None and (leaves is not None or flight.loss is not None):
            if wanted:
                self._second_pass.note(when[0], shard, flight, batch, leaves)
            flights[shard] = flight if shard in self._kept else flight.light(lambda: batch)
        links.give_behind(tag, leaves if flight is not None else None, None if flight is None else flight.seeded)

    def _backward(
        self, shard: int, when: tuple[int, int], tally: Tally, flights: dict[int, Flight], grid: Grid
    ) -> None:
        parts, links = self._parts, self._links
        tag = (*when, messages.GRADIENTS, shard)
        arrived = links.take_from_behind(tag)
        flight = flights.pop(shard, None)
        back: Gradients | None = None
        if flight is not None and (arrived is None or arrived.note):
            try:
                with parts.workload.going_on(when[0], shard):
                    back = self._go_back(flight, arrived, tally, shard, grid)
            except OrchestratorError as error:
                self._faults[shard] = error
                back = None
        links.give_before(tag, back, None if flight is None else flight.seeded)

    def _go_back(
        self, flight: Flight, arrived: messages.Message | None, tally: Tally, shard: int, grid: Grid
    ) -> Gradients:
        parts, replica = self._parts, self._parts.replica
        behind = None if arrived is None else messages.gradients(arrived, flight.seeded)
        assert (arrived is None) == (behind is None)
        tried = self._second_pass.tried(shard, behind)
        recording = flight.recording
        if recording is None or not recording.fits(behind):
            flight, recording = flight.whole(parts.stage, replica), None
        back = self._pass_back(flight, behind, recording)
        self._second_pass.require(tried, back)
        weight = flight.weight if behind is None else behind.weight
        index = len(tally.shards) % self._summation.most_waiting
        contribution = parts.host_transfer.out(replica.contribution(), index)
        self._summation.add(shard, contribution, weight, grid)
        tally.add(shard, weight, contribution)
        if parts.graphs is not None:
            if flight.recording is not None:
                parts.graphs.give_back(flight.recording)
            else:
                found = None if flight.record is None else flight.record.found
                example = Example(flight.call, flight.came, behind, flight.seeded, flight.generators, found)
                parts.graphs.note(example)
        replica.check_shard(buffers=recording is None)
        return Gradients(back.border_values, Generators.now(), back.tied, weight)

    def _pass_back(self, flight: Flight, behind: Gradients | None, recording: Recording | None = None) -> PassedBack:
        """The backward pass of a flight, which has its activations, or of its recording."""
        parts = self._parts
        parameters = parts.stage.parameters
        for parameter in parameters.values():
            parameter.grad = None
        parts.replica.continue_shard(flight.buffers, flight.versions if recording is None else ())
        (flight.generators if behind is None else behind.generators).restore()
        tied = {} if behind is None else dict(behind.tied)
        own = {name: tied.pop(name) for name in list(tied) if name in parameters}
        if recording is not None:
            border_values = recording.backward(behind)
        else:
            assert flight.record is not None
            record = flight.record if flight.loss is None else flight.record._replace(roots=[flight.loss])
            arrived = {name: unpack(each, parts.staging) for name, each in own.items()}
            border_values = parts.stage.backward(record, behind, arrived)
        guests = take_gradients(parameters, frozenset(parts.held.guests))
        return PassedBack(border_values, tied | {name: pack(gradient) for name, gradient in guests.items()})

    def _complete(self, step: int, tally: Tally) -> None:
        magnitudes = self._summation.complete(tally.total_weight, alone=self._links.alone)
        for shard, loss in tally.looked_at().items():
            if not math.isfinite(loss):
                self._faults.setdefault(shard, self._parts.workload.batches.not_finite(step, shard, loss))
        for shard, error in tally.look_back().items():
            self._faults.setdefault(shard, error)
        shards = tally.shards
        for index, i in numpy.argwhere(magnitudes >= INFINITE):
            named = self._parts.workload.batches.named(step, shards[index])
            self._faults.setdefault(shards[index], not_finite(self._parts.replica, i, step, shards[index], named))
        tally.magnitudes = magnitudes.max(0, initial=ABSENT).tolist()

    def _check(self, options: list[dict[str, object]]) -> None:
        """Changes that the user's code made while the shards were computed are attributed to the last of them."""
        try:
            self._parts.replica.check_step()
            optimizer_state.check_unchanged(self._updater.optimizer, options)
        except PipelineRaised as error:
            self._faults.setdefault(self._links.shards[-1], error)

    def _report(self, tally: Tally) -> StepReport:
        """For the whole model: empty at the tensors and counters of other stages."""
        places, report = self._parts.layout.places, tally.step_report({})
        present = report.present or [False] * len(places)
        counters = report.counters
        if counters is not None:
            counters = spread(counters, self._parts.counters, self._counters, EMPTY)
        return replace(
            report,
            magnitudes=spread(report.magnitudes, places, self._tensors, ABSENT),
            present=spread(present, places, self._tensors, False),
            counters=counters,
        )

    def _norms(self, consensus: Consensus, dtype: torch.dtype) -> list[int]:
        """The norms of this stage's gradients at their places among all tensors; nothing where gradients are not clipped."""
        if self._parts.norm is None:
            return []
        layout, count = self._parts.layout, len(self._parts.replica.parameters)
        there = [i for i in range(count) if consensus.present[layout.places[i]]]
        views = self._parts.host_transfer.result
        norms = foreach.norms([views[i].to(dtype) for i in there])
        found = torch.stack(list(norms)).tolist() if there else ()  # a device is asked once
        return to_slots(self._tensors, {layout.places[i]: norm for i, norm in zip(there, found, strict=True)})
