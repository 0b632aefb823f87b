"""A worker's part in a lockstep step: compute the hosted shards onto the grid, then apply the summed gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, islice

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.comm.collectives import Exchange
from orchestrator.common import injection
from orchestrator.errors import NonFinite, OrchestratorError, PipelineRaised
from orchestrator.numerics import exact
from orchestrator.numerics.grid import ABSENT, INFINITE, Grid
from orchestrator.numerics.staging import HostTransfer
from orchestrator.optim import optimizer_state
from orchestrator.optim.transforms import Gradients
from orchestrator.records import trace
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.member.shared_queue import QueueConsumer, paced
from orchestrator.worker.member.shared_queue import check as check_claims
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.step.checking import EMPTY_SHARD, FAILED, NEVER, Checks, answer_of
from orchestrator.worker.step.contribution import Contributing, Contribution
from orchestrator.worker.step.second_update import SecondUpdate
from orchestrator.worker.step.step_graphs import Read, StepGraphs
from orchestrator.worker.step.summation import Summation
from orchestrator.worker.step.tally import Tally
from orchestrator.worker.step.trainer_checks import SentBytes, joined, not_finite
from orchestrator.worker.step_report import EMPTY, Consensus, StepReport


class LocalTrainer:
    """Computes and applies the steps of one worker; implements `worker.step.lockstep.Member`. `take_on` sets the shards, in
    each generation anew. Shards that differ in size are assigned in each step. If workers claim shards, the assigned ones are
    only the first choice."""

    def __init__(
        self,
        gradients: Contributing,  # of the shards, as they contribute them
        replica: Replica,  # whose gradient is computed
        updater: Updater,  # applies the sum
        summation: Summation,  # adds up the contributions
        host_transfer: HostTransfer,  # between the device and the memory that is exchanged
        services: ProcessServices,  # of the member's process
        checks: Checks = NEVER,  # when micro-batches are computed twice
    ) -> None:
        self._checks = checks
        self.step_graphs: StepGraphs | None = None  # where steps are replayed as one
        self.second_update: SecondUpdate | None = None  # where updates are tried behind another micro-batch
        self._gradients = gradients
        self._replica = replica
        self._updater = updater
        self._summation = summation
        self._host_transfer = host_transfer
        self._services = services
        self._repeated = False
        self._sent = SentBytes(services)
        self._left = replica.left()
        self._joined: list[torch.Tensor] = []
        self.take_on(())

    def take_on(
        self,
        assigned: Sequence[Sequence[int]],
        rank: int = 0,
        *,
        alone: bool = False,
        consumer: QueueConsumer | None = None,
        nodes: Sequence[int] = (),
    ) -> None:
        """Host these shards from now on, starting with a new step. assigned: the shards of each worker; alone: there is no
        other member; consumer: where workers claim shards; nodes: where each worker is."""
        self._nodes = nodes
        self._due = False
        self._is_first = True  # in this generation: shard by shard, so that one that costs its worker is known
        self._answers: dict[int, list[int]] | None = None
        self._assigned = self._step_assignment = assigned
        self._rank = rank
        self._shards = tuple(assigned[rank]) if assigned else ()
        self._consumer = consumer
        self._alone = alone
        self._fault: tuple[int, OrchestratorError] | None = None
        # of a worker with one shard, to be rounded again
        self._single: tuple[Gradients, float, StepReport] | None = None

    def computing(self, state: RunState) -> AbstractContextManager[None]:
        return self._updater.shown(state.steps, state.reductions)

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:
        if attempt > 0 and self._single is not None and self._repeated:
            return self._contribute_again(grid)
        # The first repetition is computed in full by everybody, for that exposes a pipeline that keeps state (rule B4).
        self._repeated = self._repeated or attempt > 0
        self._single = None
        self._summation.clear()
        self._due = self._checks.due(step)
        self._answers = {} if self._due and not attempt else None
        if not attempt:
            self._step_assignment = self._gradients.step_assignment(step, self._assigned)
        self._gradients.plan(step, self._shards if attempt else self._step_assignment[self._rank])
        self._options = optimizer_state.options(self._updater.optimizer)
        tally = Tally(self._replica, counters_agree=self._gradients.counters_agree)
        self._left = tally.left
        fault, last = self._add_all(step, attempt, grid, tally)
        self._fault = self._complete_sum(step, tally) or fault  # what was added came before what failed
        if self._fault is None and self._answers is not None:
            self._check_another(step, self._answers)
        if self._shards and (self._fault is None or isinstance(self._fault[1], NonFinite)):
            self._fault = self._changed_outside() or self._fault
        if self._fault is not None:
            return StepReport(failing_shard=self._fault[0])
        # A check computes other micro-batches in the memory in which this gradient lay.
        if len(self._shards) == 1 and last is not None and tally.shards and not self._due:
            self._single = last, tally.total_weight, self._step_report(tally)
        return self._step_report(tally)

    def _add_all(
        self, step: int, attempt: int, grid: Grid, tally: Tally
    ) -> tuple[tuple[int, OrchestratorError] | None, Gradients | None]:
        """Compute the shards of this attempt and add them up. Returns the first that failed with its error, behind which none
        is computed, and what the last one has contributed, if it is to be had."""
        own = tuple(self._step_assignment[self._rank])
        by_code = attempt > 0 or self._answers is not None or self._gradients.is_looked_at(step)
        graphs = None if by_code else self.step_graphs
        read = None if graphs is None else graphs.read(step, own)
        turns, begun = self._turns(step, attempt), tuple[int, ...]()
        if graphs is not None and read is not None and graphs.knows(step, read) and not self._is_first:
            begun = tuple(islice(turns, len(own)))
            if begun == own:
                self._add_as_one(graphs, step, own, read, grid, tally)
                begun, read = (), None
        self._is_first = False
        last: Gradients | None = None
        for shard in chain(begun, turns):
            self._services.heartbeat.beat("compute", step, shard)
            self._services.writer.copied(0)  # if so, it is written from here on, and not from the update
            last = None  # gradients that are added up make room for the next ones
            try:
                last = self._add(step, shard, grid, tally)
            except OrchestratorError as error:
                return (shard, error), last
        if graphs is not None and read is not None and self._shards == own:

            def add(shard: int, others: Tally) -> None:
                self._add(step, shard, grid, others)

            graphs.learn(step, own, read, tally, add)
        return None, last

    def _add_as_one(
        self, graphs: StepGraphs, step: int, own: Sequence[int], read: Read, grid: Grid, tally: Tally
    ) -> None:
        self._services.heartbeat.beat("compute", step, together=len(own))
        self._services.writer.copied(0)
        graphs.again(step, own, read, grid, tally)
        if self._consumer is not None:
            self._replica.staging.mark()()  # or this thread would claim all shards of others before the device is done

    def fault(self, shard: int) -> Exception | None:
        return self._fault[1] if self._fault is not None and self._fault[0] == shard else None

    def answers(self, step: int, shard: int) -> tuple[int, int]:
        given = (self._answers or {}).get(shard)
        return given[0] if given else EMPTY, self._answer(step, shard)

    def intact(self, fingerprint: int) -> bool:
        return self._summation.intact() and exact.wrap(exact.fingerprint_of(self._summation.result, 0)) == fingerprint

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        """Raises Inconsistent if a shard was claimed by nobody, or twice."""
        if self._consumer is not None:
            count = sum(len(shards) for shards in self._assigned)
            check_claims(step, self._rank, self._shards, consensus.computed_by, count)
        self._joined = joined(self._left, exchange, step, attempt, consensus)
        return self._summation.total(exchange, step, attempt, consensus)

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:
        absent = self._gradients.workload.samples.attendance.absent(step)
        return trace.line(step, consensus.loss, fingerprint, absent=absent)

    def make(self, state: RunState, consensus: Consensus) -> None:
        """May raise CalledOff."""
        self._services.heartbeat.beat("update", state.steps)
        self._services.await_copied()
        self._updater.make(state.steps, state.reductions, self._agreed(consensus), self._summation.result)

    def apply(self, state: RunState, consensus: Consensus) -> None:
        """May raise CalledOff before it changes anything, and not after."""
        self._services.heartbeat.beat("update", state.steps)
        self._single = None
        self._sent.tell(state.steps - 1, consensus.sent_bytes)
        self._services.await_copied()
        self._host_transfer.back()
        agreed = self._agreed(consensus)
        result = self._summation.result

        def update() -> None:
            self._updater.apply(state.steps, state.reductions, agreed, consensus.counters, self._joined, result)

        if self.second_update is None:
            update()
        else:
            self.second_update.apply(state, self._shards, update)
        self._summation.commit()
        self._gradients.states.commit()
        if self._consumer is not None:
            others = sum(shard not in self._step_assignment[self._rank] for shard in self._shards)
            self._services.heartbeat.times.computed(len(self._shards), others)

    def _agreed(self, consensus: Consensus) -> list[torch.Tensor | None]:
        """The result, tensor by tensor; None for a tensor of which no shard had anything."""
        results = zip(consensus.present, self._host_transfer.result, strict=True)
        return [result if present else None for present, result in results]

    def _turns(self, step: int, attempt: int) -> Iterator[int]:
        """The shards to compute, each noted when it is its turn. A repetition computes those of the first attempt, so that
        each worker compares like with like (rule B4)."""
        if attempt:
            yield from self._shards
            return
        self._shards = ()
        for shard in (
            self._step_assignment[self._rank]
            if self._consumer is None
            else paced(self._consumer.turns(step, self._step_assignment), self._replica.staging.mark)
        ):
            self._shards = (*self._shards, shard)
            yield shard

    def _step_report(self, tally: Tally) -> StepReport:
        report = tally.step_report({} if self._consumer is None else dict.fromkeys(self._shards, self._rank))
        return report if self._answers is None else replace(report, checks=self._answers)

    def _check_another(self, step: int, answers: dict[int, list[int]]) -> None:
        """Compute a micro-batch of another worker once more; one of its own if there is no other."""
        for shard in self._checks.chosen(step, self._rank, self._step_assignment, self._nodes, self._shards):
            answer = self._answer(step, shard)
            answers.setdefault(shard, []).append(answer)
            if answer != EMPTY_SHARD:
                break

    def _answer(self, step: int, shard: int) -> int:
        """This worker's answer to a micro-batch that goes into no sum. If it fails the answer is FAILED; the worker that
        hosts the shard tells the error."""
        self._services.heartbeat.beat("compute", step, shard)
        self._gradients.plan(step, (shard,))
        try:
            return answer_of(self._contribution(step, shard), self._replica)
        except OrchestratorError:
            return FAILED
        finally:
            self._replica.forget()

    def _contribute_again(self, grid: Grid) -> StepReport:
        """A worker with one shard need not compute it again: only the grid has changed (rule A4)."""
        assert self._single is not None
        gradients, weight, step_report = self._single
        self._summation.clear()
        self._summation.add(self._shards[0], gradients, weight, grid)
        self._complete(weight)
        return step_report

    def _add(self, step: int, shard: int, grid: Grid, tally: Tally) -> Gradients | None:
        """Compute one shard and take its contribution in; returns that, or None of an empty one."""
        late = self._summation.late is not None and self._answers is None
        computed = self._compute(step, shard, len(tally.shards) % self._summation.most_waiting, late=late)
        if self._answers is not None:
            self._answers[shard] = [answer_of(computed, self._replica)]
        if computed is None:
            return None
        loss, weight, gradients = computed
        if isinstance(weight, torch.Tensor):
            assert self._summation.late is not None
            self._summation.late.add(gradients, weight, grid)
        else:
            self._summation.add(shard, gradients, weight, grid)
        tally.add_loss(shard, loss)
        tally.add(shard, weight, gradients)
        if len(tally.shards) % self._summation.most_waiting == 0:
            self._replica.forget()
        return gradients

    def _compute(self, step: int, shard: int, index: int, *, late: bool = False) -> Contribution | None:
        """The contribution of one shard, in host memory. index: its place among the contributions that wait to be added
        up, whose memory may not be overwritten; late: as of `Contributing.compute`."""
        computed = self._contribution(step, shard, late=late)
        return None if computed is None else computed._replace(tensors=self._host_transfer.out(computed.tensors, index))

    def _contribution(self, step: int, shard: int, *, late: bool = False) -> Contribution | None:
        found = self._gradients.compute(step, shard, late=late)
        computed: Contribution | None = injection.at("contribution", step, found)
        return computed

    def _changed_outside(self) -> tuple[int, OrchestratorError] | None:
        """An error if the user's code changed, while the shards were computed, what only the optimizer's step may change. It
        is attributed to the last shard."""
        try:
            self._replica.check_step()
            optimizer_state.check_unchanged(self._updater.optimizer, self._options)
        except PipelineRaised as error:
            return self._shards[-1], error
        return None

    def _complete_sum(self, step: int, tally: Tally) -> tuple[int, OrchestratorError] | None:
        """Complete the sum and hand the magnitudes to the tally; returns the first shard with one that is not finite."""
        shards, unweighed = self._weigh(step, tally)
        magnitudes = self._complete(tally.total_weight)
        fault = next(iter(tally.look_back().items()), None)
        for shard, loss in tally.looked_at().items():
            if fault is not None and shard == fault[0]:
                break
            if not math.isfinite(loss):
                return shard, self._gradients.workload.batches.not_finite(step, shard, loss)
        if fault is not None:
            return fault
        for index, i in zip(*(magnitudes >= INFINITE).nonzero(), strict=True):
            if (shard := shards[index]) in tally.shards:
                return shard, not_finite(self._replica, i, step, shard, self._gradients.named(step, shard))
        if unweighed is not None:
            return unweighed
        tally.magnitudes = magnitudes.max(0, initial=ABSENT).tolist()
        return None

    def _weigh(self, step: int, tally: Tally) -> tuple[list[int], tuple[int, OrchestratorError] | None]:
        """Read the weights that are still on the device, all together. Returns the shards that were added, and the first one
        with an invalid weight, with the error. The tally drops this one and those behind it."""
        if not tally.weighs_late:
            return tally.shards, None
        assert self._summation.late is not None
        found = dict(zip(tally.shards, self._summation.late.weights(), strict=True))
        fault: tuple[int, OrchestratorError] | None = None
        for shard, weight in found.items():
            try:
                tally.weigh(shard, self._gradients.workload.weighed(step, shard, weight) if fault is None else 0.0)
            except PipelineRaised as error:
                fault = shard, error
                tally.weigh(shard, 0.0)
        return [shard for shard, weight in found.items() if weight], fault

    def _complete(self, total_weight: float) -> NDArray[numpy.int64]:
        """Complete the sum of the hosted shards, and the whole sum if no other worker has any; returns what
        `Accumulator.complete` does."""
        magnitudes = self._summation.complete(total_weight, alone=self._alone)
        if self._due:
            self._summation.watch()
        return magnitudes
