"""A member's whole life in a run: prepare, then run steps until the last one; in a Ray actor or in a thread.

Worker    hosts shards, holds a replica, reports the trace
Server    hosts none and only adds (topology parameter_server)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.engine import evaluation
from orchestrator.engine.adder import Adder
from orchestrator.engine.ballots import Shape
from orchestrator.engine.exchange import Exchange, Memory
from orchestrator.engine.learner import Learner
from orchestrator.engine.lockstep import Lockstep, Member, Outcome, Withdrawn
from orchestrator.engine.replica import Replica
from orchestrator.engine.work import Work, naming
from orchestrator.errors import ConfigurationError, OrchestratorError
from orchestrator.numerics import determinism
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.streams import seeded
from orchestrator.pipeline import defines, find
from orchestrator.records import trace
from orchestrator.settings import Settings
from orchestrator.topologies.schedule import Schedule
from orchestrator.transports.base import Regions, Transport
from orchestrator.updates import optimizers

Emit = Callable[[dict[str, Any]], None]
Connect = Callable[[], Transport]  # called once the memory that peers will read is allocated


@dataclass(frozen=True)
class Generation:
    """One membership: its number, its schedule, and the shards that each worker hosts, by rank."""

    number: int
    schedule: Schedule
    shards: tuple[tuple[int, ...], ...]


class Clock:
    """When evaluations are due. By steps it is a function of the step; by seconds worker 0's watch is put to the vote."""

    def __init__(self, settings: Settings, steps: int) -> None:
        every = settings.evaluation.every
        self._steps = every.steps if every is not None else None
        self._seconds = every.seconds if every is not None else None
        self._last_step = steps - 1
        self._since = time.monotonic()

    def asks(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._since >= self._seconds

    def due(self, outcome: Outcome) -> bool:
        by_steps = self._steps is not None and (outcome.step + 1) % self._steps == 0
        due = by_steps or outcome.evaluate or outcome.step == self._last_step
        if due:
            self._since = time.monotonic()
        return due


class Worker:
    """Built in the compute thread's process; `prepare` and `run` are called from the compute thread."""

    def __init__(self, settings: Settings, regions: Regions) -> None:
        self._settings = settings
        self._regions = regions

    def prepare(self) -> dict[str, Any]:
        """Build pipeline, model, optimizer and memory; returns the facts that all workers must agree on, JSON-able.

        Raises PipelineRaised, ConfigurationError.
        """
        settings = self._settings
        compute = determinism.prepare_thread(settings.run.threads)
        target = find(settings.pipeline.target, settings.pipeline.args)
        self._work = Work(
            target,
            dict(settings.pipeline.args),
            seed=settings.run.seed,
            batch_size=settings.data.batch_size,
            shards=settings.data.shards,
        )
        self._work.model.train()
        self._replica = Replica(self._work.model)
        self._optimizer = self._build_optimizer()
        self._memory = Memory(self._replica.layout, self._regions, dtype=_sum_dtype(settings))
        steps = settings.run.steps
        if steps is None:
            steps = (settings.run.epochs or 0) * self._work.order.steps_per_epoch
        return {
            "steps": steps,
            "samples": self._work.order.samples,
            "evaluation_batches": len(self._work.evaluation_batches),
            "layout": self._replica.layout.as_dict(),
            "counters": self._replica.counter_names(),
            "initial_parameters": model_digest(self._work.model),
            "compute": compute,
        }

    def run(self, generation: Generation, rank: int, connect: Connect, facts: Mapping[str, Any], emit: Emit) -> str:
        """Connect, then run all steps, emitting `{"trace": line}` and events; returns the digest.

        Raises what a step raises (engine.lockstep, engine.evaluation, the transport).
        """
        settings = self._settings
        determinism.prepare_thread(settings.run.threads)
        clock = Clock(settings, facts["steps"])
        exchange = _exchange(settings, generation, rank, connect(), self._memory)
        learner = Learner(
            self._work,
            self._replica,
            self._optimizer,
            self._memory,
            shards=generation.shards[rank],
            exact=settings.reduction == "exact",
            clip_norm=settings.gradient.clip,
            evaluation_due=clock.asks if rank == 0 else lambda: False,
        )
        lockstep = _lockstep(settings, learner, exchange, facts)
        first_step_at = 0.0
        with _leaving(exchange):
            for step in range(facts["steps"]):
                outcome = lockstep.step(step)
                first_step_at = first_step_at or time.monotonic()
                emit({"trace": self._trace_line(outcome, last=step == facts["steps"] - 1)})
                if facts["evaluation_batches"] and clock.due(outcome):
                    shards = generation.shards[rank]
                    results = evaluation.compute(self._work, self._replica, shards, settings.data.shards, step)
                    metrics = evaluation.combine(exchange, step, facts["evaluation_batches"], results)
                    if rank == 0:
                        emit({"event": "evaluated", "step": step, "metrics": metrics})
        if rank == 0:
            emit({"event": "trained", "steps": facts["steps"], "seconds": time.monotonic() - first_step_at})
        return model_digest(self._work.model)

    def state(self) -> dict[str, torch.Tensor]:
        """The model's parameters and persistent buffers, tied tensors once, as tensors of their own."""
        return {name: tensor.clone().contiguous() for name, tensor in distinct_state(self._work.model).items()}

    def _build_optimizer(self) -> torch.optim.Optimizer:
        if not defines(type(self._work.pipeline), "optimizer"):
            section = self._settings.optimizer
            if section.name is None:
                raise ConfigurationError(["optimizer: required, because the pipeline has no optimizer()"])
            return optimizers.build(section.name, section.options, self._work.model)
        with naming("optimizer()"), seeded(self._settings.run.seed, "optimizer"):
            optimizer = self._work.pipeline.optimizer(self._work.model)
        optimizers.check(optimizer, self._work.model)
        assert optimizer is not None
        return optimizer

    def _trace_line(self, outcome: Outcome, *, last: bool) -> trace.Line:
        every = self._settings.trace.digest_every
        due = last or (every > 0 and (outcome.step + 1) % every == 0)
        return trace.line(outcome.step, outcome.loss, outcome.gradient, model_digest(self._work.model) if due else None)


class Server:
    """Knows of the run only the facts that the workers agreed on."""

    def __init__(self, settings: Settings, regions: Regions) -> None:
        self._settings = settings
        self._regions = regions

    def prepare(self) -> dict[str, Any]:
        determinism.prepare_thread(self._settings.run.threads)
        return {}

    def run(self, generation: Generation, rank: int, connect: Connect, facts: Mapping[str, Any], emit: Emit) -> None:  # noqa: ARG002
        """Connect, then take part in every step and every evaluation."""
        settings = self._settings
        determinism.prepare_thread(settings.run.threads)
        layout = Layout.from_dict(facts["layout"])
        memory = Memory(layout, self._regions, dtype=_sum_dtype(settings))
        exchange = _exchange(settings, generation, rank, connect(), memory)
        clock = Clock(settings, facts["steps"])
        lockstep = _lockstep(settings, Adder(), exchange, facts)
        with _leaving(exchange):
            for step in range(facts["steps"]):
                outcome = lockstep.step(step)
                if facts["evaluation_batches"] and clock.due(outcome):
                    evaluation.combine(exchange, step, facts["evaluation_batches"], evaluation.Results())


@contextmanager
def _leaving(exchange: Exchange) -> Iterator[None]:
    """Say farewell at the end, also when this member stops for a fault: its messages are out by then, and a member that
    still waits for a third one's has to learn of the fault instead of losing a peer. Only whom a transport failed, or an
    error of ours, goes without a word."""
    try:
        yield
    except (OrchestratorError, Withdrawn):
        exchange.close()
        raise
    exchange.close()


def _sum_dtype(settings: Settings) -> torch.dtype:
    return torch.float64 if settings.reduction == "exact" else torch.float32


def _exchange(settings: Settings, generation: Generation, rank: int, transport: Transport, memory: Memory) -> Exchange:
    timeout_s = settings.cluster.step_timeout_s
    return Exchange(generation.schedule, rank, generation.number, transport, memory, timeout_s)


def _lockstep(settings: Settings, member: Member, exchange: Exchange, facts: Mapping[str, Any]) -> Lockstep:
    tensors = [slot["name"] for slot in facts["layout"]["slots"]]
    shape = Shape(settings.data.shards, len(tensors), len(facts["counters"]))
    return Lockstep(member, exchange, shape, [*tensors, *facts["counters"]], exact=settings.reduction == "exact")
