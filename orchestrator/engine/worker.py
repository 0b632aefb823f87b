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

from orchestrator.data.loaders import Loaders, Recipe
from orchestrator.engine import evaluation, proof
from orchestrator.engine.adder import Adder
from orchestrator.engine.ballots import Shape
from orchestrator.engine.exchange import Exchange, Memory
from orchestrator.engine.learner import Learner
from orchestrator.engine.lockstep import Lockstep, Member, Withdrawn
from orchestrator.engine.loop import Clock, Done, Loop
from orchestrator.engine.replica import Replica
from orchestrator.engine.work import Work
from orchestrator.errors import ConfigurationError, OrchestratorError
from orchestrator.numerics import determinism
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.streams import seeded
from orchestrator.pipeline import defines, find, naming
from orchestrator.records import trace
from orchestrator.settings import Settings
from orchestrator.topologies.schedule import Schedule
from orchestrator.transports.base import Regions, Transport
from orchestrator.updates import optimizers, schedules

Emit = Callable[[dict[str, Any]], None]
Connect = Callable[[], Transport]  # called once the memory that peers will read is allocated


@dataclass(frozen=True)
class Generation:
    """One membership: its number, its schedule, and the shards that each worker hosts, by rank."""

    number: int
    schedule: Schedule
    shards: tuple[tuple[int, ...], ...]


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
            precision=settings.run.precision,
        )
        self._work.model.train()
        self._replica = Replica(self._work.model)
        self._optimizer = self._build_optimizer()
        self._memory = Memory(self._replica.layout, self._regions, dtype=_sum_dtype(settings))
        if settings.watches_a_metric and not self._work.evaluation_batches:
            raise ConfigurationError(
                ["early_stopping and schedule=plateau watch a metric, but datasets() returned no validation set"]
            )
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
            "reference": proof.reference(self._work, self._replica),
            "machine": determinism.machine(),
        }

    def run(self, generation: Generation, rank: int, connect: Connect, facts: Mapping[str, Any], emit: Emit) -> str:
        """Connect, then run all steps, emitting `{"trace": line}` and events; returns the digest.

        Raises what a step raises (engine.lockstep, engine.evaluation, the transport).
        """
        settings, shards = self._settings, generation.shards[rank]
        determinism.prepare_thread(settings.run.threads)
        clock = Clock(settings, facts["steps"])
        loop = Loop(settings, facts, clock)
        exchange = _exchange(settings, generation, rank, connect(), self._memory)
        learner = Learner(
            self._work,
            self._replica,
            self._optimizer,
            self._memory,
            shards=shards,
            exact=settings.reduction == "exact",
            clip_norm=settings.gradient.clip,
            rate=lambda step: schedules.factor(settings.schedule, step, facts["steps"], loop.reductions),
            evaluation_due=clock.asks if rank == 0 else lambda: False,
        )

        def evaluate(step: int) -> evaluation.Results:
            return evaluation.compute(self._work, self._replica, shards, settings.data.shards, step)

        first_step_at = 0.0
        with self._fetching_ahead(shards, facts["steps"]), _leaving(exchange):
            for done in loop.run(_lockstep(settings, learner, exchange, facts), exchange, evaluate):
                first_step_at = first_step_at or time.monotonic()
                emit({"trace": self._trace_line(done)})
                if rank == 0 and done.metrics is not None:
                    emit({"event": "evaluated", "step": done.outcome.step, "metrics": done.metrics})
        if rank == 0:
            emit({"event": "trained", "steps": done.outcome.step + 1, "seconds": time.monotonic() - first_step_at})
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

    @contextmanager
    def _fetching_ahead(self, shards: tuple[int, ...], steps: int) -> Iterator[None]:
        """Loader processes, where the settings want them, for as long as the block runs."""
        settings = self._settings
        if settings.data.loaders == 0:
            yield
            return
        recipe = Recipe(settings.pipeline.target, settings.pipeline.args, settings.run.seed, settings.run.threads)
        loaders = Loaders(recipe, settings.data.loaders)
        self._work.fetch_ahead(loaders, shards, steps)
        try:
            yield
        finally:
            loaders.close()

    def _trace_line(self, done: Done) -> trace.Line:
        outcome, every = done.outcome, self._settings.trace.digest_every
        due = done.last or (every > 0 and (outcome.step + 1) % every == 0)
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
        loop = Loop(settings, facts, Clock(settings, facts["steps"]))
        with _leaving(exchange):
            for _ in loop.run(_lockstep(settings, Adder(), exchange, facts), exchange, lambda _: evaluation.Results()):
                pass


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
