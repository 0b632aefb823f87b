"""A sync barrier: replicas that ran free become equal by one vote, one exact sum and one gathering; the same for workers and
servers.

    vote       clocks, requests, faults, counters, the magnitudes of statistics         maximum
    sum        parameters at the last rest + what every worker has added since          integers, over the topology's schedule
    gather     the updates of the sprint, each worker its own                           the record of the sprint

A sync barrier happens for all members or for none: whatever goes wrong in an async phase is part of the vote or ends the
generation, and then every survivor goes back to the last sync barrier. So nothing has to be drained or rescued, and the record
of a run is the record of its sync barriers. Source: the design of asynchronous modes, section 3, without its kept deltas.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from orchestrator.comm.collectives import BARRIER, VOTE, Exchange
from orchestrator.config.plan import Plan
from orchestrator.controller.events import Begin
from orchestrator.errors import COPIED_OTHERWISE, Inconsistent
from orchestrator.numerics.exact import wrap
from orchestrator.records.clocks import AsyncPhase
from orchestrator.worker.asynchronous import reports
from orchestrator.worker.asynchronous.reports import BarrierConsensus, BarrierReport, CompletedUpdate
from orchestrator.worker.between_steps.run_state import Clocks, RunState
from orchestrator.worker.member.generation import Withdrawn
from orchestrator.worker.step.checking import compare_copies, compare_updates
from orchestrator.worker.step.executor import StepOutcome
from orchestrator.worker.step_report import Requests, Shape


class Replica(Protocol):
    """A worker's part in a sync barrier. A server has none: it has nothing to add, and nothing to take over."""

    def damaged(self) -> Mapping[int, int]:
        """The peers from whose cards updates have arrived otherwise than they were sent, by the origin of these."""

    def report(self) -> BarrierReport:
        """The vote of this member."""

    def fault(self, shard: int) -> Exception | None:
        """The fault of a shard, if this member hosts it."""

    def contribute(self, consensus: BarrierConsensus) -> int:
        """Complete what this member puts into the sum; returns the fingerprint of what it adds to the updates that it made."""

    def adopt(self, consensus: BarrierConsensus, printed: int) -> int | None:
        """Take the sum over; returns the fingerprint of the parameters. printed: that of all that was put into the sum."""

    def updates_made(self) -> Sequence[CompletedUpdate]:
        """The updates of the async phase that this member has made."""


class Nothing:
    """Implements `Replica` for a member without one."""

    def damaged(self) -> Mapping[int, int]:
        return {}

    def report(self) -> BarrierReport:
        return BarrierReport()

    def fault(self, shard: int) -> Exception | None:  # noqa: ARG002
        return None

    def contribute(self, consensus: BarrierConsensus) -> int:  # noqa: ARG002
        return 0

    def adopt(self, consensus: BarrierConsensus, printed: int) -> int | None:  # noqa: ARG002
        return None

    def updates_made(self) -> Sequence[CompletedUpdate]:
        return ()


@dataclass(frozen=True)
class Terms:
    """The facts about the run that a sync barrier has to know."""

    shape: Shape  # the lengths of a report
    steps: int  # of the run
    hosted: tuple[tuple[int, ...], ...]  # shards by worker, in this generation
    copies: bool = False  # whether what members read of each other's cards is compared with what was sent

    @classmethod
    def of(cls, plan: Plan, begin: Begin) -> Self:
        run_manifest = begin.run_manifest
        tensors, counters = len(run_manifest["layout"]["slots"]), len(run_manifest["counters"])
        shape = Shape(plan.data.shards, tensors, counters)
        return cls(shape, run_manifest["steps"], begin.shards, plan.updates_stay_on_device)


def synchronize(
    exchange: Exchange,
    member: Replica,
    state: RunState,
    terms: Terms,
    replayed: tuple[Mapping[str, Any], AsyncPhase] | None = None,
) -> StepOutcome:
    """End an async phase. replayed: the record of the rest that this one repeats, and its async phase. Raises what
    the transport raises, Withdrawn, Distrusted, and the fault of a shard."""
    free = state.free
    assert free is not None
    number, shape = free.barriers, terms.shape
    if terms.copies and exchange.members > 1 and replayed is None:
        compare_updates(exchange, number, state.steps, member.damaged())
    consensus = agree(exchange, number, member.report(), shape)
    if consensus.failing_shard is not None:
        raise member.fault(consensus.failing_shard) or Withdrawn(f"shard {consensus.failing_shard} failed")
    if replayed is not None and consensus.clocks != replayed[1].end:
        raise Inconsistent(
            "the clocks after a repeated sprint are others than recorded",
            "the record is damaged",
            code="replay.other-clocks",
        )
    added = member.contribute(consensus)
    add_up(exchange, number, terms, state.steps)
    gathered = exchange.gather(number, 0, BARRIER, reports.encode(member.updates_made(), added))
    steps = min(sum(consensus.clocks) // shape.shards, terms.steps)
    requests = _granted(consensus.requests, replayed, further=steps > state.steps)
    if not gathered:  # a server learns of no updates
        return StepOutcome(steps, (), state.grid, requests, Clocks(consensus.clocks, number + 1))
    streams, further = zip(*map(reports.decode, gathered), strict=True)
    if replayed is None:
        updates = tuple(tuple(done.update for done in stream) for stream in streams)
        async_phase = AsyncPhase(free.clocks, terms.hosted, updates)
        record: Mapping[str, Any] = _record(state, steps, async_phase, evaluate=requests.evaluate)
    else:
        record, async_phase = replayed
    ordered = free.carry + reports.in_order(async_phase, streams)
    lines, carry = reports.lines(ordered, state.steps, steps, last=steps == terms.steps, per_line=shape.shards)
    printed = wrap(sum(further) + sum(done.fingerprint for stream in streams for done in stream))
    fingerprint = member.adopt(consensus, printed)
    assert fingerprint is not None
    published = {**record, "parameters": f"{fingerprint % 2**64:016x}"}
    return StepOutcome(steps, lines, state.grid, requests, Clocks(consensus.clocks, number + 1, carry, (), published))


def _granted(requests: Requests, replayed: tuple[Mapping[str, Any], AsyncPhase] | None, *, further: bool) -> Requests:
    """The requests of members that are granted: at most one evaluation and one checkpoint in a step, since these are told
    apart by their steps. A replay evaluates where the run did. further: steps were completed since the last sync barrier."""
    evaluate = (requests.evaluate and further) if replayed is None else replayed[0]["evaluate"]
    return replace(requests, evaluate=evaluate, save=requests.save and further)


def agree(exchange: Exchange, number: int, report: BarrierReport, shape: Shape) -> BarrierConsensus:
    """The vote of a sync barrier."""
    return BarrierConsensus.decode(exchange.maximum(number, 0, VOTE, report.encode(shape)), shape)


def add_up(exchange: Exchange, number: int, terms: Terms, steps: int) -> None:
    """The sum of a sync barrier. steps: before it. Raises Distrusted if a part of it has arrived otherwise than it was sent."""
    compares = terms.copies and exchange.members > 1
    exchange.verify(compares)
    exchange.total(number, 0, 1.0)
    if compares:
        compare_copies(exchange, number, steps)


def require_sum(found: int, expected: int) -> None:
    """Compare the sum of a rest with what workers put into it. found: the fingerprint of the parameters in the sum of a
    rest; expected: of what was put into it, all fingerprints added up. Raises Inconsistent."""
    if found != wrap(expected):
        raise Inconsistent(
            "the sum of a rest is not that of what workers put into it", COPIED_OTHERWISE, code="replica.other-sum"
        )


def _record(state: RunState, steps: int, async_phase: AsyncPhase, *, evaluate: bool) -> dict[str, Any]:
    """The record of a sync barrier, but for the parameters after it. steps: after it; evaluate: whether a clock asked for
    that."""
    assert state.free is not None
    return {
        "rest": state.free.barriers,
        "steps": steps,
        "clocks": list(async_phase.end),
        "heirs": [list(pair) for pair in state.free.fallbacks],
        "updates": base64.b64encode(async_phase.encode()).decode("ascii"),
        "evaluate": evaluate,
    }
