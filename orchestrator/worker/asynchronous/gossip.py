"""Gossip: each shard has a model of its own, takes a step with its own optimizer and mixes its model with its neighbours'.

    x_s <- x_s + sum over neighbours j of rint(w (x_j - x_s)) + u_s          all from the models before the step

The graph is over shards, so nothing depends on the number of workers or on timing. Weights are symmetric and rounding is odd,
so two neighbours change by opposite integers and mixing keeps the sum of all models to the last bit. At a sync barrier the mean
of all models is what is evaluated and saved; each shard goes on with its own.

A model travels to the workers that host a neighbour of its shard, over the links of the topology; losses, fingerprints and
faults, which are short, to all.

Source: Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (NIPS 2017), algorithm 1 (D-PSGD).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import torch

from orchestrator.comm.collectives import ASYNC_PHASE, BARRIER, Exchange, Memory
from orchestrator.comm.synchronization import graphs
from orchestrator.comm.topologies.schedule import Send
from orchestrator.errors import NonFinite, OrchestratorError
from orchestrator.numerics import exact
from orchestrator.numerics.fixed_point import LIMIT, FixedPoint, at_once, divided, exponent_for, largest
from orchestrator.optim.transforms import State
from orchestrator.worker.asynchronous import reports, shard_rows
from orchestrator.worker.asynchronous.reports import BarrierConsensus, BarrierReport
from orchestrator.worker.asynchronous.rollback import Rollback
from orchestrator.worker.asynchronous.shard_updates import Reading, ShardUpdates, require_range
from orchestrator.worker.asynchronous.statistics import Statistics
from orchestrator.worker.asynchronous.sync_barrier import Terms, add_up, agree, require_sum
from orchestrator.worker.between_steps.run_state import Clocks, RunState
from orchestrator.worker.member.generation import ProcessServices, Withdrawn
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import ShardStates
from orchestrator.worker.step.executor import StepOutcome
from orchestrator.worker.step_report import Requests, from_slots, to_slots

_MODEL: Final = "model"
_EXPONENTS: Final = "exponents"
_BUFFER: Final = "buffer/"


Made = tuple[float | None, torch.Tensor]  # loss and update of a shard
Failed = tuple[int, OrchestratorError]


@dataclass(frozen=True)
class Mixing:
    """Which shards mix their models, and how. gap: the spectral gap of the matrix."""

    weights: tuple[Mapping[int, float], ...]
    gap: float

    @classmethod
    def of(cls, graph: str, shards: int) -> Mixing:
        rows = [graphs.GRAPHS[graph](shards, shard) for shard in range(shards)]
        weights = tuple({other: float(weight) for other, weight in row.items()} for row in rows)
        return cls(weights, graphs.spectral_gap(graphs.matrix(graph, shards)))

    def mixed(self, shard: int, models: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The change that mixing makes to the shard's model; models: of the shard and its neighbours, int64."""
        own = models[shard]
        change, count = torch.zeros_like(own), at_once(own)
        for other, weight in sorted(self.weights[shard].items()):
            parts = (torch.split(each, count) for each in (change, models[other], own))
            for to, theirs, mine in zip(*parts, strict=True):
                to += (theirs - mine).double().mul_(weight).round_().long()  # rounds to even, so oddly
        return change

    def needed(self, hosted: Sequence[Sequence[int]]) -> dict[int, set[int]]:
        """By shard, the workers that host it or a neighbour. hosted: shards by worker."""
        return {
            shard: {worker for worker, own in enumerate(hosted) if any(shard in (s, *self.weights[s]) for s in own)}
            for shard in range(len(self.weights))
        }


@dataclass(frozen=True)
class Mean:
    """The mean of all models. model: int64; fingerprint: of their sum; distances: of the hosted models from it, squared, by
    shard."""

    model: torch.Tensor
    fingerprint: int
    distances: Mapping[int, float]


class ShardModels:
    """The models of the hosted shards, with their optimizers and statistics."""

    def __init__(
        self,
        replica: Replica,  # in which each model is computed in its turn
        updates: ShardUpdates,  # computes those of the hosted shards
        states: ShardStates,  # what the hosted shards keep
        memory: Memory,  # in which the models of a sync barrier are added up
        services: ProcessServices,  # of the member's process
    ) -> None:
        self.shards: tuple[int, ...] = ()  # those that are hosted
        self.models: dict[int, torch.Tensor] = {}
        self._replica = replica
        self._updates = updates
        self._states = states
        self._memory = memory
        self._services = services
        self._statistics = Statistics(replica)
        self._last_barrier = Rollback(replica)

    def begin(self, fallback_rows: Mapping[int, State] = MappingProxyType({})) -> None:
        """From the last sync barrier on. fallback_rows: what these hosted shards go on with, in place of what they keep. Raises
        CalledOff."""
        self._services.await_copied()
        self._states.discard()
        replica = self._replica
        self._last_barrier.keep()
        start = self._last_barrier.parameters
        rows = {**self.rows(), **fallback_rows}
        known = next((row[_EXPONENTS].tolist() for row in rows.values() if row), None)
        first = replica.layout.slots[: len(replica.parameters)]
        self._exponents: list[int] = known or [exponent_for(each) for each in largest(first, start)]
        self._fixed = FixedPoint.of(replica.layout, self._exponents)
        initial = replica.staging.integers(replica.layout.size)
        self._fixed.integers(start, initial)
        there = replica.staging.from_peer
        self.models = {s: (there(row[_MODEL]) if row else initial).clone() for s, row in rows.items()}
        buffers = {s: self._buffers_in(row) if row else replica.buffers() for s, row in rows.items()}
        self._updates.begin(self._fixed, rows, buffers)

    def rows(self) -> dict[int, State]:
        """The state that each hosted shard keeps."""
        return {shard: self._states.of(shard) for shard in self.shards}

    def step(self, shard: int, reading: Reading) -> tuple[float | None, torch.Tensor]:
        """Loss and update of a hosted shard, from its own model; the update has memory of its own."""
        self._services.heartbeat.beat("compute", reading.clock, shard)
        loss, update = self._updates.compute(shard, self.models[shard], reading)
        return loss, update.clone()

    def out_of_range(self, shards: int) -> Failed | None:
        """A hosted shard whose model has left its range: the sum of this many models has to stay in that of int64."""
        for shard, model in self.models.items():
            try:
                require_range(self._replica, model, 2 * LIMIT // max(2, shards))
            except NonFinite as error:
                return shard, error
        return None

    def from_peer(self, model: torch.Tensor) -> torch.Tensor:
        """A model that came from another worker, where the hosted ones are."""
        return self._replica.staging.from_peer(model)

    def report(self, requests: Requests, clocks: Mapping[int, int]) -> BarrierReport:
        buffers = self._updates.buffers()
        return BarrierReport(
            None, requests, clocks, self._statistics.magnitudes(buffers), self._statistics.counters(buffers)
        )

    def contribute(self, consensus: BarrierConsensus) -> None:
        """Put the sum of the hosted models into this worker's contribution, and stage what the shards keep."""
        contribution = self._memory.contribution.zero_()
        for shard, model in self.models.items():
            contribution += model
            self._states.stage(shard, self._row(shard))
        self._states.finalize()
        self._statistics.contribute(self._updates.buffers(), consensus.magnitudes, contribution)

    def averaged(self, consensus: BarrierConsensus) -> Mean:
        """The mean of all models, from their sum; nothing is changed by it."""
        total = self._memory.result.clone()
        total[self._statistics.start :] = 0
        mean = torch.round(divided(total.double(), len(consensus.clocks))).long()
        distances = {shard: self._distance(model, mean) for shard, model in self.models.items()}
        return Mean(mean, exact.fingerprint_of_integers(total), distances)

    def adopt(self, consensus: BarrierConsensus, mean: Mean) -> None:
        """The replica becomes the mean of all models. After the last message of the rest: who is interrupted before, is
        where it was."""
        summed, shards = self._memory.result, len(consensus.clocks)
        self._updates.show(mean.model)
        self._replica.adopt(self._statistics.means(consensus.magnitudes, summed, shards), consensus.counters)
        self._replica.begin_step()
        self._states.commit()

    def give_up(self) -> None:
        """Back to the last sync barrier."""
        self._last_barrier.bring_back()

    def _row(self, shard: int) -> State:
        kept = dict(self._updates.optimizers.row(shard))
        kept[_MODEL] = self.models[shard]  # a step makes a new one
        kept[_EXPONENTS] = torch.tensor(self._exponents, dtype=torch.int64)
        kept.update({f"{_BUFFER}{i}": b for i, b in enumerate(self._updates.buffers_of(shard))})
        return kept

    def _buffers_in(self, row: State) -> list[torch.Tensor]:
        count = sum(name.startswith(_BUFFER) for name in row)
        there = self._replica.staging.from_peer
        return [there(row[f"{_BUFFER}{i}"]).clone() for i in range(count)]

    def _distance(self, model: torch.Tensor, mean: torch.Tensor) -> float:
        apart = self._replica.staging.flat(model.numel())
        self._fixed.values(model - mean, apart)
        return float(apart.double().square_().sum())


class Gossip:
    """An Executor whose `advance` is some steps of all shards, and a sync barrier."""

    def __init__(
        self,
        models: ShardModels,  # those of the hosted shards
        mixing: Mixing,  # who mixes with whom, and with what weights
        exchange: Exchange,  # with the other members
        terms: Terms,  # of the run and the generation
        due: Callable[[int], int],  # the step of the next sync barrier, by the present one
        requests: Callable[[], Requests],  # what this member requests at a sync barrier
        records: Sequence[Mapping[str, Any]] = (),  # of the rests of a run that is repeated; empty of another one
    ) -> None:
        self._models = models
        self._mixing = mixing
        self._exchange = exchange
        self._terms = terms
        self._due = due
        self._requests = requests
        self._records = records
        self._ways = exchange.ways(terms.hosted, mixing.needed(terms.hosted))
        self._sent = {action.chunk for action in self._ways if isinstance(action, Send)}

    def advance(self, state: RunState) -> StepOutcome:
        """Raises PipelineRaised, NonFinite, Withdrawn, Distrusted, and what the transport raises."""
        models, free = self._models, state.free
        assert free is not None
        repeated = self._records[free.barriers] if self._records else None
        fallbacks = [] if repeated is None else repeated["heirs"]
        models.begin(shard_rows.fallback_rows(self._exchange, free.barriers, fallbacks, models.rows()))
        try:
            end = min(self._due(state.steps) if repeated is None else repeated["steps"], self._terms.steps)
            entries = self._steps(range(state.steps, end), state.reductions)
            return self._at_barrier(state, end, entries, repeated)
        except BaseException:
            models.give_up()
            raise

    def _steps(self, steps: range, reductions: int) -> list[tuple[str | None, int]]:
        """Some steps of all shards; returns loss and fingerprint of each model after each of them."""
        losses: list[dict[int, float]] = []
        prints: list[dict[int, int]] = []
        fingerprints: dict[int, int] = {}
        shards = range(self._terms.shape.shards)
        for step in steps:
            updates, failed = self._made(step, reductions)
            losses_of_step, before = self._exchange_losses(
                step, 0, {s: loss for s, (loss, _) in updates.items() if loss is not None}, fingerprints, failed
            )
            losses.append(losses_of_step)
            prints.append(before)
            fingerprints = self._mix(step, {shard: update for shard, (_, update) in updates.items()})
        failed = self._models.out_of_range(len(shards))
        prints.append(self._exchange_losses(steps.stop, 1, {}, fingerprints, failed)[1])
        return [
            (losses_of_step[shard].hex() if shard in losses_of_step else None, printed[shard])
            for losses_of_step, printed in zip(losses, prints[1:], strict=True)
            for shard in shards
        ]

    def _made(self, step: int, reductions: int) -> tuple[dict[int, Made], Failed | None]:
        """Loss and update of each hosted shard, up to the first that fails."""
        made: dict[int, Made] = {}
        for shard in self._models.shards:
            try:
                made[shard] = self._models.step(shard, Reading(step, step, self._terms.steps, reductions))
            except OrchestratorError as error:
                return made, (shard, error)
        return made, None

    def _mix(self, step: int, updates: Mapping[int, torch.Tensor]) -> dict[int, int]:
        """The hosted models after the step; returns their fingerprints."""
        models = self._models.models
        own = {shard: models[shard].cpu().view(torch.uint8) for shard in updates if shard in self._sent}
        came = self._exchange.spread(step, 2, ASYNC_PHASE, own, self._ways)
        before = {
            shard: self._models.from_peer(payload.view(torch.int64))
            for shard, payload in came.items()
            if shard not in own
        }
        before.update((shard, models[shard]) for shard in updates)
        for shard, update in updates.items():
            models[shard] = before[shard] + self._mixing.mixed(shard, before) + update
        return {shard: exact.fingerprint_of_integers(models[shard]) for shard in updates}

    def _exchange_losses(
        self,
        step: int,
        attempt: int,
        losses: Mapping[int, float],
        prints: Mapping[int, int],
        failed: Failed | None = None,
    ) -> tuple[dict[int, float], dict[int, int]]:
        """All shards' losses, and what is told with them: all fingerprints after the step before. Raises what has failed."""
        heads = [-1 if failed is None else failed[0], *to_slots(self._terms.shape.shards, losses)]
        payload = torch.tensor(
            [*heads, *(number for pair in sorted(prints.items()) for number in pair)], dtype=torch.int64
        )
        told: dict[int, float] = {}
        printed: dict[int, int] = {}
        for each in self._exchange.gather(step, attempt, ASYNC_PHASE, payload.view(torch.uint8)):
            shard, *numbers = each.clone().view(torch.int64).tolist()
            if shard >= 0:
                raise failed[1] if failed is not None else Withdrawn(f"shard {shard} failed")
            told.update(from_slots(numbers[: len(heads) - 1]))
            pairs = numbers[len(heads) - 1 :]
            printed.update(zip(pairs[::2], pairs[1::2], strict=True))
        return told, printed

    def _at_barrier(
        self,
        state: RunState,
        end: int,
        entries: Sequence[tuple[str | None, int]],
        repeated: Mapping[str, Any] | None,
    ) -> StepOutcome:
        free, shape = state.free, self._terms.shape
        assert free is not None
        report = self._models.report(self._requests(), dict.fromkeys(self._models.shards, end))
        consensus = agree(self._exchange, free.barriers, report, shape)
        self._models.contribute(consensus)
        add_up(self._exchange, free.barriers, self._terms, state.steps)
        mean = self._models.averaged(consensus)
        after_last = entries[-shape.shards :]
        if after_last:
            require_sum(mean.fingerprint, sum(printed for _, printed in after_last))
        slots = torch.tensor(to_slots(shape.shards, mean.distances), dtype=torch.int64)
        apart = from_slots(self._exchange.maximum(free.barriers, 1, BARRIER, slots).tolist())
        self._models.adopt(consensus, mean)
        lines, _ = reports.lines(tuple(entries), state.steps, end, last=False, per_line=shape.shards)
        record: dict[str, Any] = {
            "rest": free.barriers,
            "steps": end,
            "clocks": list(consensus.clocks),
            "heirs": [list(pair) for pair in free.fallbacks] if repeated is None else repeated["heirs"],
            "updates": "",
            "evaluate": consensus.requests.evaluate if repeated is None else repeated["evaluate"],
            "parameters": f"{mean.fingerprint % 2**64:016x}",
            "consensus_distance": math.sqrt(math.fsum(apart.values()) / shape.shards).hex(),
            "spectral_gap": self._mixing.gap.hex(),
        }
        after = Clocks(consensus.clocks, free.barriers + 1, (), (), record)
        requests = replace(consensus.requests, evaluate=record["evaluate"])
        return StepOutcome(end, lines, state.grid, requests, after)
