"""A member's whole life in a run: prepare once, then run any number of generations; in a Ray actor or in a thread.

A worker hosts shards, holds a replica and reports the trace; a server (server.py) hosts none and only adds.

What a worker keeps between generations is its position's state: the run state, model and optimizer. Whatever ends a generation,
and wherever, leaves it in the state of its last committed step, with or without the evaluation after it. A server keeps
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from orchestrator.data.loaders import Loaders, Recipe
from orchestrator.engine.admission import proof
from orchestrator.engine.compute import construction
from orchestrator.engine.compute.local_trainer import LocalTrainer
from orchestrator.engine.compute.replica import Replica
from orchestrator.engine.compute.workload import Workload
from orchestrator.engine.exchange.collectives import Memory
from orchestrator.engine.exchange.footprint import sums_of
from orchestrator.engine.execution.loop import Loop
from orchestrator.engine.member.cancellation import CancellableTransport, live
from orchestrator.engine.member.generation import Connect, Ended, Generation, Position, ProcessServices
from orchestrator.engine.server import Server, exchange_of, lockstep_of
from orchestrator.engine.worker_hooks import WorkerHooks, WorkerState
from orchestrator.errors import ConfigurationError
from orchestrator.numerics import allocator, cuda, determinism, staging
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.pipeline import find
from orchestrator.settings import Settings
from orchestrator.transports.base import Regions
from orchestrator.updates import schedules
from orchestrator.updates.rates import rates_of

__all__ = ["Ended", "Generation", "ProcessServices", "Server", "Worker"]


class Worker:
    """Built in the compute thread's process; `prepare` and `run` are called from the compute thread."""

    def __init__(self, settings: Settings, regions: Regions, services: ProcessServices | None = None) -> None:
        self._settings = settings
        self._regions = regions
        self._services = services or ProcessServices()
        self._staging = staging.on(settings.run.device)
        self._kept: WorkerState | None = None
        self._loaders: Loaders | None = None
        self._keeps_time = False

    def prepare(self) -> dict[str, Any]:
        """Build pipeline, model, optimizer and memory; returns the facts that all workers must agree on, JSON-able.

        Raises PipelineRaised, ConfigurationError.
        """
        settings = self._settings
        allocator.keep_freed_memory()
        if settings.run.device == "cuda":
            cuda.start()
        self._prepare_thread()
        target = find(settings.pipeline.target, settings.pipeline.args)
        self._services.heartbeat.beat("prepare")
        self._workload = Workload(
            target,
            dict(settings.pipeline.args),
            seed=settings.run.seed,
            batch_size=settings.data.batch_size,
            shards=settings.data.shards,
            precision=settings.run.precision,
            staging=self._staging,
        )
        self._services.heartbeat.beat("prepare")
        self._replica = Replica(self._workload.model, self._staging)
        self._optimizer = construction.make_optimizer(self._workload.pipeline, self._workload.model, settings)
        self._rates = rates_of(self._optimizer)  # now: later they are those of a step
        self._memory = Memory(self._replica.layout, self._regions, sums=sums_of(settings))
        self._services.heartbeat.beat("prepare")
        compute = self._prepare_thread()  # once more: scripts set threads, precision and cudnn.benchmark as they begin
        if settings.watches_a_metric and not self._workload.evaluation_batches:
            raise ConfigurationError(
                ["early_stopping and schedule=plateau watch a metric, but datasets() returned no validation set"]
            )
        steps = settings.run.steps
        if steps is None:
            steps = (settings.run.epochs or 0) * self._workload.order.steps_per_epoch
        return {
            "steps": steps,
            "samples": self._workload.order.samples,
            "evaluation_batches": len(self._workload.evaluation_batches),
            "layout": self._replica.layout.as_dict(),
            "parameters": sum(parameter.numel() for parameter in self._workload.model.parameters()),
            "counters": self._replica.counter_names(),
            "initial_parameters": model_digest(self._workload.model),
            "compute": compute,
            "reference": proof.reference(self._workload, self._replica),
            "machine": determinism.machine(settings.run.device),
        }

    @property
    def position(self) -> Position | None:
        """None until this member has taken part in a generation: its state is the initial one then."""
        return None if self._kept is None else self._kept.position

    def run(self, generation: Generation, rank: int, connect: Connect, run_manifest: Mapping[str, Any]) -> Ended:
        """Live one generation: connect, give or take state where the generation says so, then run steps until it ends.

        Raises this member's own faults: what a step raises (engine.lockstep, engine.evaluation), what loading a checkpoint
        raises, MemoryError.
        """
        self._prepare_thread()
        if self._kept is None:
            self._begin(run_manifest)
        self._memory.suit(generation.schedule, rank)
        return live(
            generation,
            self._services.heartbeat,
            connect,
            lambda transport: self._walk(generation, rank, transport, run_manifest),
            lambda: self.position,
        )

    def close(self) -> None:
        """End what this worker has started. Safe to call twice."""
        if self._loaders is not None:
            self._loaders.close()
        self._loaders = None

    def training_data(self) -> Any:
        """The data set. Not to be read while a generation runs: that may draw random numbers."""
        return self._workload.training_data

    def state(self) -> dict[str, torch.Tensor]:
        """The model's parameters and persistent buffers, tied tensors once, as tensors of their own in host memory."""
        state = distinct_state(self._workload.model)
        return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in state.items()}

    def _prepare_thread(self) -> dict[str, Any]:
        run = self._settings.run
        return determinism.prepare_thread(run.threads, run.device, tf32=run.tf32)

    def _begin(self, run_manifest: Mapping[str, Any]) -> None:
        settings, heartbeat = self._settings, self._services.heartbeat
        loop = Loop(settings, run_manifest, heartbeat)
        self._kept = WorkerState(settings, self._services, self._workload, self._replica, self._optimizer, loop)
        self._local_trainer = LocalTrainer(
            self._workload,
            self._replica,
            self._optimizer,
            self._memory,
            self._staging.host_transfer(self._memory.layout, self._memory.result),
            exact=settings.reduction == "exact",
            clip_norm=settings.gradient.clip,
            rates=self._rates,
            rate=self._rate(run_manifest["steps"], loop),
            requests=lambda: loop.requests(keeps_time=self._keeps_time, busy=self._services.writer.busy),
            services=self._services,
        )

    def _rate(self, steps: int, loop: Loop) -> Callable[[int], float]:
        """The factor on the learning rates at a step: the pipeline's own, or the schedule's."""
        if self._workload.has_rate:
            return self._workload.rate
        schedule, epoch = self._settings.schedule, self._workload.order.steps_per_epoch
        factor = schedules.build(schedule.name, schedule.options)
        return lambda step: factor(schedules.Moment(step, steps, schedule.warmup, loop.run_state.reductions, epoch))

    def _walk(
        self, generation: Generation, rank: int, transport: CancellableTransport, run_manifest: Mapping[str, Any]
    ) -> Ended:
        kept, shards = self._kept, generation.shards[rank]
        assert kept is not None
        term = WorkerHooks(kept, generation, rank)
        try:
            term.arrive(transport)
            self._keeps_time = rank == 0
            self._local_trainer.take_on(shards, alone=generation.schedule.members == 1)
            if not kept.loop.ended:
                self._fetch_ahead(shards, run_manifest["steps"])
            exchange = exchange_of(self._settings, generation, rank, transport, self._memory)
            lockstep = lockstep_of(self._settings, run_manifest, self._local_trainer, exchange, kept.loop.run_state)
            halted = kept.loop.run(lockstep, exchange, term, saving=bool(generation.writers))
        finally:
            self._replica.give_up_shard()  # a step that was given up leaves the buffers as its last shard made them
            self._services.writer.copied(0)  # what was begun is written also where no further update asks for it
        if halted != "finished":
            return Ended(halted, self.position, why="all members agreed")
        self.close()
        return Ended("finished", self.position, digest=model_digest(self._workload.model))

    def _fetch_ahead(self, shards: tuple[int, ...], steps: int) -> None:
        """Loader processes, where the settings want them; they outlive generations."""
        settings = self._settings
        if settings.data.loaders == 0:
            return
        if self._loaders is None:
            recipe = Recipe(settings.pipeline.target, settings.pipeline.args, settings.run.seed, settings.run.threads)
            lost = lambda why: self._services.emit({"event": "loader_lost", "why": why})  # noqa: E731
            self._loaders = Loaders(recipe, settings.data.loaders, lost)
            self._workload.prove(self._loaders)
        self._loaders.forget()
        self._workload.fetch_ahead(self._loaders, shards, steps)
