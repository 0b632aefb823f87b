"""One lockstep (BSP) step, the same for workers and servers: contribute, agree, sum, apply.

    attempt 0   every worker computes its shards on the present grid      contribute
                all agree on magnitudes, weights, losses, failures        vote
                the grid does not fit: refit it, attempt 1                (the first step always takes this way)
                the grid fits: sum exactly, apply                         exchange, apply

A step either happens for all members or for none: whatever goes wrong in a shard is part of the vote, so nobody waits for data
that will not come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, Self

import torch

from orchestrator.comm.collectives import MADE, VOTE, Exchange
from orchestrator.config.plan import Plan
from orchestrator.errors import Inconsistent, NonFinite, PipelineRaised
from orchestrator.numerics.grid import Grid
from orchestrator.records import trace
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.member import shared_queue
from orchestrator.worker.member.generation import Withdrawn
from orchestrator.worker.model.moving_buffers import DIFFERING
from orchestrator.worker.step.checking import NEVER, Checked, Checks, checks_of
from orchestrator.worker.step.executor import StepOutcome
from orchestrator.worker.step_report import UNKNOWN, Consensus, Requests, Shape, StepReport

ATTEMPTS = 2
COMPARED_EVERY = 10  # to compare parts of a sum reads and writes 24 bytes an element more, and takes a vote


class Member(Protocol):
    """A worker's or a server's part in a step: a worker computes and applies, a server only adds."""

    def computing(self, state: RunState) -> AbstractContextManager[None]:
        """Within this, micro-batches of the step after this state are computed."""

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:
        """Put this member's exact contribution into its region and say what the others must know. Never raises for a fault
        of the pipeline: the fault goes into the step report, and `fault` hands it out after the vote."""

    def fault(self, shard: int) -> Exception | None:
        """The fault of `shard`, if this member hosts it."""

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        """Take part in the sum; returns its fingerprint."""

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:
        """The line of the trace for a step that was added up."""

    def make(self, state: RunState, consensus: Consensus) -> None:
        """Make this member's part of a divided update; nothing of it counts yet. state: before this step."""

    def apply(self, state: RunState, consensus: Consensus) -> None:
        """Apply the summed gradient. state: before this step."""


@dataclass(frozen=True)
class StepContents:
    """The values that members vote on and add up in a step."""

    shape: Shape  # the lengths of a step report
    names: tuple[str, ...]  # of the layout's tensors, then of the counters
    exact: bool  # on the grid of the run state, which a compression does without: it rounds after the vote
    counters_agree: bool = True  # whether every shard has to leave the same counters, or else the largest are taken
    weighted: bool = True  # shards tell their weights and losses before the sum; not so where contributions are clipped
    divided: bool = False  # members wait until all have made their part of the update, before they apply any of it
    checks: Checks = NEVER  # when micro-batches are computed twice
    # whether what members read of each other's cards is compared with what was sent, in the first step of a generation and in
    # one of `COMPARED_EVERY`
    copies: bool = False

    @classmethod
    def of(cls, plan: Plan, run_manifest: Mapping[str, Any]) -> Self:
        tensors = [slot["name"] for slot in run_manifest["layout"]["slots"]]
        counters = run_manifest["counters"]
        shape = Shape(plan.data.shards, len(tensors), len(counters), shared_queue.is_used(plan, run_manifest))
        weighted = plan.data.privacy is None
        exact = plan.exchange.exact and plan.update.compression is None and weighted
        names = (*tensors, *counters)
        return cls(
            *(shape, names, exact),
            counters_agree=plan.update.local is None,
            weighted=weighted,
            divided=plan.update.sharded,
            checks=checks_of(plan),
            copies=plan.sums_stay_on_device and plan.cluster.members.stages == 1,
        )

    def shape_of(self, step: int, attempt: int) -> Shape:
        """The lengths of a step report in this vote. An answer does not depend on the grid, so only the first attempt has
        it."""
        return replace(self.shape, checked=True) if not attempt and self.checks.due(step) else self.shape


class Lockstep:
    """An Executor (executor.py) whose `advance` is one step. Its only state are counts. Once a step
    begins to be applied nothing interrupts it, so a step that raises has changed nothing (rule D1)."""

    def __init__(
        self,
        member: Member,  # computes and applies, or only adds
        exchange: Exchange,  # with the other members
        contents: StepContents,  # what is added up in a step
        requests: Callable[[], Requests] = Requests,  # what this member requests for the end of a step
        checked: Checked | None = None,  # the same member where micro-batches are computed twice; None of a server
    ) -> None:
        self._member = member
        self._checked = checked
        self._exchange = exchange
        self._contents = contents
        self._requests = requests
        self._sent_bytes = UNKNOWN  # in the step before
        self._copies = contents.copies and exchange.members > 1
        self._is_first = True  # in this generation

    def advance(self, state: RunState) -> StepOutcome:
        """Raises PipelineRaised, NonFinite, Inconsistent, Withdrawn, Distrusted, and what the transport raises."""
        with self._member.computing(state):
            attempt, consensus, grid, fingerprint = self._add_up(state)
        line = self._member.line(state.steps, consensus, fingerprint)
        if self._contents.divided:
            self._member.make(state, consensus)
            self._exchange.maximum(state.steps, attempt, MADE, torch.zeros(1, dtype=torch.int64))
        self._member.apply(state, consensus)
        if self._contents.exact:
            grid = grid.committed(consensus.magnitudes)
        return StepOutcome(state.steps + 1, (line,), grid, consensus.requests)

    def _add_up(self, state: RunState) -> tuple[int, Consensus, Grid, int]:
        """Compute and sum a step. Returns the number, the consensus and the grid of the last attempt, and the fingerprint of
        the sum."""
        step, sent_bytes = state.steps, self._exchange.sent_bytes
        attempt, consensus, grid = self._agree(step, state.grid)
        checks, due = self._contents.checks, self._contents.checks.due(step)
        compares = self._copies and (self._is_first or step % COMPARED_EVERY == 0)
        self._exchange.verify(due or compares)
        fingerprint = self._member.total(self._exchange, step, attempt, consensus)
        self._sent_bytes = self._exchange.sent_bytes - sent_bytes
        if due or compares:
            since = max(0, step - COMPARED_EVERY + 1) if self._copies else 0
            checks.look_back(self._exchange, step, attempt, fingerprint, self._checked if due else None, since)
        self._is_first = False
        return attempt, consensus, grid, fingerprint

    def _agree(self, step: int, grid: Grid) -> tuple[int, Consensus, Grid]:
        """Vote until the grid fits. Returns the number, the consensus and the grid of the last attempt."""
        earlier: Consensus | None = None
        for attempt in range(ATTEMPTS):
            consensus = self._vote(step, attempt, grid)
            if earlier is not None:
                self._check_repeated(step, earlier, consensus)
            misfits = grid.misfits(consensus.magnitudes) if self._contents.exact else []
            if not misfits:
                return attempt, consensus, grid
            grid = grid.refit(consensus.magnitudes)
            earlier = consensus
        raise AssertionError("a grid that was fitted to equal magnitudes fits")

    def _vote(self, step: int, attempt: int, grid: Grid) -> Consensus:
        contributed = self._member.contribute(step, attempt, grid)
        step_report = replace(contributed, requests=self._requests(), sent_bytes=self._sent_bytes)
        shape = self._contents.shape_of(step, attempt)
        vector = self._exchange.maximum(step, attempt, VOTE, step_report.encode(shape))
        consensus = Consensus.decode(vector, shape)
        if consensus.failing_shard is not None:
            # Its loss explains what its gradients are to other stages: who has the loss tells.
            shard, losses = consensus.failing_shard, consensus.losses
            explained = shard not in step_report.losses and not math.isfinite(losses.get(shard, 0.0))
            self._fail(step, attempt, shard, told_elsewhere=explained)
        if consensus.disputed:
            self._contents.checks.settle(self._exchange, step, attempt, consensus.disputed[0], self._checked)
        if self._contents.weighted and consensus.total_weight == 0:
            raise PipelineRaised(
                f"step {step}: the weights of all shards are zero",
                "a step needs something to learn from",
                code="pipeline.zero-weights",
            )
        for i in consensus.disagreeing_counters if self._contents.counters_agree else ():
            name = self._contents.names[self._contents.shape.tensors + i]
            raise PipelineRaised(
                f"step {step}: the shards left different values in the integer buffer {name!r}",
                DIFFERING,
                code="model.integer-buffer",
            )
        return consensus

    def _fail(self, step: int, attempt: int, shard: int, *, told_elsewhere: bool) -> NoReturn:
        fault = None if told_elsewhere else self._member.fault(shard)
        is_not_finite = isinstance(fault, NonFinite)
        self._contents.checks.doubt(self._exchange, step, attempt, shard, self._checked, not_finite=is_not_finite)
        raise fault or Withdrawn(f"shard {shard} failed")

    def _check_repeated(self, step: int, first: Consensus, second: Consensus) -> None:
        """Raises Inconsistent if the same micro-batch, computed again, gave other bits: then no sum can be exact."""
        computed = sorted(first.losses.keys() | second.losses.keys())
        shards = [s for s in computed if first.computed(s) != second.computed(s)]
        tensors = [self._contents.names[i] for i, m in enumerate(first.magnitudes) if m != second.magnitudes[i]]
        if shards or tensors:
            what = f"loss or weight of shard {shards[0]}" if shards else f"gradient of {tensors[0]}"
            raise Inconsistent(
                f"step {step}: the {what} came out differently when the same micro-batch was computed again",
                "a pipeline must keep no state between batches and draw randomness only from torch, numpy or random",
                code="pipeline.repeated-differently",
            )
