"""One step as a decision: which attempts are made, what becomes of the grid, what ends the step. One scripted member."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch

from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies import build_schedule
from orchestrator.errors import PipelineRaised
from orchestrator.numerics.exact import FAST_MEANS, MEANS
from orchestrator.numerics.grid import ABSENT, HEADROOM, Grid, magnitude_bits, needed_exponent
from orchestrator.numerics.layout import Layout
from orchestrator.records import trace
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.member.generation import Withdrawn
from orchestrator.worker.member.heartbeat import CalledOff
from orchestrator.worker.step.executor import StepOutcome
from orchestrator.worker.step.lockstep import Lockstep, StepContents
from orchestrator.worker.step_report import Consensus, Shape, StepReport
from tests.comm.transports.memory import Hub, LocalRegions
from tests.refusals import refused

SHARDS = 2
PLAIN = StepReport(
    magnitudes=[magnitude_bits(1.0), magnitude_bits(3.0)],
    present=[True, True],
    weights={0: 1.0, 1: 3.0},
    losses={0: 2.0, 1: 4.0},
    counters=[5],
)


class Scripted:
    """Says the next step report of the script, the last one for ever; remembers what it was asked."""

    def __init__(self, *script: StepReport) -> None:
        self._script = list(script)
        self.asked: list[tuple[int, int, Grid]] = []
        self.applied: list[tuple[int, Consensus]] = []
        self.own_fault: Exception | None = None

    def computing(self, state: RunState) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:
        self.asked.append((step, attempt, grid))
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]

    def fault(self, shard: int) -> Exception | None:  # noqa: ARG002
        return self.own_fault

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        return exchange.total(step, attempt, consensus.total_weight)

    def line(self, step: int, consensus: Consensus, fingerprint: int) -> trace.Line:
        return trace.line(step, consensus.loss, fingerprint)

    def make(self, state: RunState, consensus: Consensus) -> None:
        """Only a divided update is made before it is applied."""

    def apply(self, state: RunState, consensus: Consensus) -> None:
        self.applied.append((state.steps, consensus))


class Stepping:
    """A Lockstep with the grid from one step to the next."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self.grid = Grid.unset(2, SHARDS)

    def step(self, step: int) -> StepOutcome:
        outcome = self._lockstep.advance(RunState(self.grid, step))
        self.grid = outcome.grid
        return outcome


def _lockstep(member: Scripted, *, exact: bool = True) -> Stepping:
    layout = Layout.of([("w", torch.empty(3)), ("b", torch.empty(1))])
    regions = LocalRegions()
    memory = Memory(layout, regions, sums=MEANS if exact else FAST_MEANS)
    exchange = Exchange(build_schedule("ring", 1), 0, 0, Hub(1).transport(0, regions), memory, 1.0)
    return Stepping(Lockstep(member, exchange, StepContents(Shape(SHARDS, 2, 1), ("w", "b", "count"), exact)))


def _fresh(value: float) -> int:
    needed = needed_exponent(magnitude_bits(value), SHARDS)
    assert needed is not None
    return needed + HEADROOM


def test_the_first_step_is_measured_and_then_repeated() -> None:
    member = Scripted(PLAIN)
    lockstep = _lockstep(member)
    outcome = lockstep.step(0)
    fitted = Grid((_fresh(1.0), _fresh(3.0)), SHARDS)
    assert member.asked == [(0, 0, Grid.unset(2, SHARDS)), (0, 1, fitted)]
    assert float.fromhex(outcome.lines[0]["loss"]) == 3.5
    assert [step for step, _ in member.applied] == [0]
    assert lockstep.grid == fitted.committed(list(PLAIN.magnitudes))


def test_a_grid_that_fits_needs_one_attempt_and_follows_the_gradient() -> None:
    smaller = replace(PLAIN, magnitudes=[magnitude_bits(2.0**-9), ABSENT], present=[True, False])
    member = Scripted(PLAIN, PLAIN, smaller)
    lockstep = _lockstep(member)
    lockstep.step(0)
    lockstep.step(1)
    assert [(step, attempt) for step, attempt, _ in member.asked] == [(0, 0), (0, 1), (1, 0)]
    assert lockstep.grid == Grid((_fresh(1.0) - 1, _fresh(3.0)), SHARDS)
    assert member.applied[1][1].present == [True, False]


def test_only_what_does_not_fit_is_refitted() -> None:
    leap = replace(PLAIN, magnitudes=[magnitude_bits(2.0**40), magnitude_bits(1.5)])
    member = Scripted(PLAIN, PLAIN, leap)
    lockstep = _lockstep(member)
    lockstep.step(0)
    before = lockstep.grid
    lockstep.step(1)
    assert [(step, attempt) for step, attempt, _ in member.asked[2:]] == [(1, 0), (1, 1)]
    assert member.asked[3][2] == Grid((_fresh(2.0**40), before.exponents[1]), SHARDS)


def test_fast_sums_need_no_second_attempt() -> None:
    member = Scripted(PLAIN)
    lockstep = _lockstep(member, exact=False)
    lockstep.step(0)
    assert len(member.asked) == 1
    assert lockstep.grid == Grid.unset(2, SHARDS)


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (replace(PLAIN, losses={0: 2.0, 1: 4.5}), "shard 1"),
        (replace(PLAIN, weights={0: 1.5, 1: 3.0}), "shard 0"),
        (replace(PLAIN, losses={0: 2.0}, weights={0: 1.0}), "shard 1"),
        (replace(PLAIN, magnitudes=[magnitude_bits(1.0), magnitude_bits(2.5)]), "gradient of b"),
    ],
)
def test_what_comes_out_differently_when_repeated_is_named(second: StepReport, named: str) -> None:
    for script in ((PLAIN, second), (second, PLAIN)):
        member = Scripted(*script)
        with refused("pipeline.repeated-differently", named):
            _lockstep(member).step(0)
        assert member.applied == []


def test_nothing_to_learn_from_is_an_error() -> None:
    with refused("pipeline.zero-weights"):
        _lockstep(Scripted(StepReport())).step(3)


def test_a_failed_shard_ends_the_step_before_anything_moves() -> None:
    member = Scripted(StepReport(failing_shard=1))
    with pytest.raises(Withdrawn, match="shard 1"):
        _lockstep(member).step(0)
    member.own_fault = PipelineRaised("mine")
    with pytest.raises(PipelineRaised, match="mine"):
        _lockstep(member).step(0)
    assert member.applied == []


def test_a_step_that_is_given_up_leaves_the_grid_of_the_last_commit() -> None:
    class GivesUp(Scripted):
        def contribute(self, step: int, attempt: int, grid: Grid) -> StepReport:
            if (step, attempt) == (1, 1) and len(self.asked) == 3:
                self.asked.append((step, attempt, grid))
                raise CalledOff(0)
            return super().contribute(step, attempt, grid)

    leap = replace(PLAIN, magnitudes=[magnitude_bits(2.0**40), magnitude_bits(1.5)])
    member = GivesUp(PLAIN, PLAIN, leap)
    lockstep = _lockstep(member)
    lockstep.step(0)
    before = lockstep.grid
    with pytest.raises(CalledOff):
        lockstep.step(1)
    assert lockstep.grid == before
    lockstep.step(1)
    assert member.asked[2:4] == member.asked[4:6]  # the same way again
