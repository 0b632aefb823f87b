"""A member in a run: it prepares once, then takes part in any number of generations; in a Ray actor or in a thread.

A worker hosts shards, holds a replica and reports the trace; a server (server.py) hosts none and only adds.

Between generations a worker keeps the run state, the model and the optimizer. However a generation ends, they are in
the state of the last committed step, with or without the evaluation after it. A server keeps nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from orchestrator.adapters import table
from orchestrator.adapters.adapted import Told
from orchestrator.checkpoint.stream_log import StreamLog
from orchestrator.checkpoint.weights import Weights
from orchestrator.comm.transports.base import Regions
from orchestrator.common import injection
from orchestrator.config.plan import Plan
from orchestrator.controller.events import Ended
from orchestrator.data import input_auditing
from orchestrator.data.files import waiting
from orchestrator.data.loaders import Loaders, Recipe
from orchestrator.errors import ConfigurationError, RunFailed
from orchestrator.numerics import allocator, cuda, determinism, exact, inductor, staging
from orchestrator.numerics.digests import model_digest
from orchestrator.pipeline import defines, naming
from orchestrator.records import phases
from orchestrator.records.input_audit import InputAudit
from orchestrator.records.progress import Progress
from orchestrator.worker import device as worker_device
from orchestrator.worker import device_memory
from orchestrator.worker.admission import portability, proof, state_detection
from orchestrator.worker.between_steps import serving_trial
from orchestrator.worker.between_steps.callbacks import Callbacks
from orchestrator.worker.between_steps.late_digests import LateDigests
from orchestrator.worker.between_steps.timing import Timing
from orchestrator.worker.device_memory import HeldMemory
from orchestrator.worker.hooks import WorkerHooks, WorkerState
from orchestrator.worker.loop import Loop
from orchestrator.worker.member.cancellation import CancellableTransport, live
from orchestrator.worker.member.cuda_stamps import CudaStamps
from orchestrator.worker.member.generation import Connect, Generation, ProcessServices
from orchestrator.worker.model import construction, refusals, runs_of_its_own
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_graphs import ShardGraphs
from orchestrator.worker.model.updater import Updater
from orchestrator.worker.pipeline_parallel import turns
from orchestrator.worker.server import Server
from orchestrator.worker.step.second_computation import SecondComputation
from orchestrator.worker.strategies import GenerationContext, WorkerContext, strategy_of

__all__ = ["Ended", "Generation", "ProcessServices", "Server", "Worker"]


class Worker:
    """A member that hosts shards and holds a replica. `prepare` and `run` are called from the compute thread."""

    def __init__(self, plan: Plan, regions: Regions, services: ProcessServices | None = None) -> None:
        exact.load()
        self._plan = plan
        self.regions = regions  # in which members exchange; from `prepare` on those of the device, if sums stay there
        services = services or ProcessServices()
        self._digests = LateDigests(services.emit)
        self._services = replace(services, changes=self._digests.copied)
        self._state: WorkerState | None = None
        self._loaders: Loaders | None = None
        self._callbacks: Callbacks | None = None
        self._left: Generation | None = None  # the last one, unless it was left with all state written
        self.input_audit = InputAudit()  # by the user's code, in `prepare`
        self._held: Callable[[], HeldMemory | None] = lambda: None  # of its GPU, once there is a model
        self._flops_per_sample: float | None = None  # counted on a GPU alone
        self._beside, self._workers = 1, [0]  # workers on this machine, and in each generation

    def prepare(self) -> dict[str, Any]:
        """Build pipeline, model, optimizer and memory; returns the run manifest, on which all workers must agree, JSON-able.

        Raises PipelineRaised, ConfigurationError.
        """
        self._listen()
        self._loaders = self._start_loaders()
        try:
            turn = turns.turn(self._plan, self._services)
            with input_auditing.window(self._plan.declared) as window, self._memory_explained(), turn:
                run_manifest = self._build()
                if turns.is_to_let_go(self._plan, self._services):
                    self._strategy.become_spare()
            self.input_audit = window.audit | self._verified_loaders()
        except BaseException:
            self._close_loaders()
            raise
        return run_manifest

    def _build(self) -> dict[str, Any]:
        plan = self._plan
        self._prepare_process()
        device = worker_device.opened(plan, self.regions, self._services.tell_slower)
        self.regions = device.regions
        device_memory.limit(plan, self.regions)
        # A model in stages may be larger than a GPU: whole it is in host memory only.
        whole_on = staging.Direct() if self._is_staged else device.staging
        self._workload = self._adapted(whole_on)
        self._services.heartbeat.beat("prepare")
        with phases.of("optimizer and memory", "worker"):
            context = self._context(device, whole_on)
            self._strategy = strategy_of(context)
            keeps = self._strategy.keeps_shard_state
            refusals.refuse_absence(plan, keeps=keeps)
            refusals.refuse_kept_of_clients(drawn=self._workload.samples.draws_clients, keeps=keeps)
            self._services.heartbeat.beat("prepare")
        compute = self._prepare_thread()  # once more: scripts set threads, precision and cudnn.benchmark as they begin
        refusals.refuse_unwatched(plan, validates=bool(self._workload.evaluation_batches))
        listing = getattr(self._workload.samples.dataset, "listing", None)
        admitted = self._admitted(context.replica)
        steps = self._steps()
        self._workload.batches.verify_streams(steps)
        division, layout = self._workload.samples.division, context.replica.layout
        return {
            **({} if division is None else {"partition": division.digest}),
            **self._subset(),
            **({} if listing is None else {"files": listing}),
            "steps": steps,
            "samples": self._workload.samples.order.samples,
            "evaluation_batches": len(self._workload.evaluation_batches),
            "layout": layout.as_dict(),
            "trained": len(context.replica.parameters),
            "parameters": sum(parameter.numel() for parameter in self._workload.model.parameters()),
            "counters": context.replica.counter_names(),
            "joined": list(context.replica.joined),
            "shard_state": self._strategy.keeps_shard_state,
            "initial_parameters": injection.at("initial parameters", None, model_digest(self._workload.model)),
            "compute": compute,
            **self._portability(context.replica, context.updater),
            "machine": determinism.machine(plan.run.compute.device) | self._compiler(),
            **admitted,
        }

    @property
    def _is_staged(self) -> bool:
        return self._plan.cluster.members.stages > 1

    def _prepare_process(self) -> None:
        compute = self._plan.run.compute
        allocator.keep_freed_memory()
        if compute.device == "cuda":
            cuda.start()
            self._services.on_card(cuda.uuid())
            self._services.heartbeat.times.use(CudaStamps())
        self._prepare_thread()
        if compute.compiled:
            inductor.start(compute.device)

    def _adapted(self, whole_on: staging.Staging) -> PipelineAdapter:
        """The pipeline with its data and model. Raises ConfigurationError where these do not suit the plan."""
        plan = self._plan
        with phases.of("pipeline", "worker"):
            kind = table.find(plan.run.pipeline)
        if defines(kind, "on_evaluation"):
            self._callbacks = Callbacks(plan, self._services.emit, self._services.start)
        self._services.heartbeat.beat("prepare")
        with phases.of("data and model", "worker"):
            workload = PipelineAdapter(kind, plan.run, plan.data, whole_on, self._services.sites)
        notes = workload.begin(plan)
        if self._callbacks is not None and isinstance(workload.pipeline, Told):
            self._callbacks.begin(construction.course_of(plan, workload.samples))
        if self._services.is_first:  # one worker tells for all
            for note in notes:
                self._services.emit({"event": "device", "why": note})
        refusals.refuse_moving(workload.model, workload.buffer_rules, plan)
        refusals.refuse_compiled(workload.model, plan)
        if self._services.is_first and (found := serving_trial.unfit(plan, workload)) is not None:
            self._services.emit({"event": "unserved", **found})
        if workload.batches.streams is not None:
            refusals.refuse_epochs(plan)
            workload.batches.streams.tell = lambda why: self._services.emit({"event": "device", "why": why})
        if workload.batches.is_live:
            refusals.refuse_live(plan)
        return workload

    def _context(self, device: worker_device.Device, whole_on: staging.Staging) -> WorkerContext:
        """Replica, optimizer and updater, and recordings where a GPU computes the whole model."""
        plan, workload = self._plan, self._workload
        compiles, rules = plan.run.compute.compiled, workload.buffer_rules
        replica = Replica(workload.model, whole_on, watches_all=not self._is_staged, packs=not compiles, rules=rules)
        if compiles:
            inductor.compile_model(workload.model)
        if self._is_staged:  # it may be short of memory, and what the model took before is free now
            allocator.give_back()
        before = construction.make_contribution(plan.update.contribution)
        optimizer = construction.make_optimizer(workload.pipeline, workload.model, plan)
        if not self._is_staged:  # else the whole model goes with its replica
            self._held = lambda: device_memory.held_memory(replica, optimizer, self.regions)
            if isinstance(device.staging, staging.Resident):
                # The compiler would ask the step once, as it makes code, and not when that is called.
                tell, why_not = self._services.tell_slower, workload.why_not_recorded(asks_step=not compiles)
                look = partial(state_detection.look, workload.user_objects(), workload.model)
                workload.graphs = ShardGraphs(
                    *(device.recorder, replica, device.staging, tell, why_not), look if workload.takes_step else None
                )
        updater, second = Updater(workload, replica, optimizer, plan.update), SecondComputation(workload, replica)
        return WorkerContext(plan, workload, replica, updater, second, before, self._services, device)

    def _admitted(self, replica: Replica) -> dict[str, Any]:
        """Prove that this worker computes the bits of the others; returns what they compare (rule B4)."""
        compute = self._plan.run.compute
        if self._is_staged and compute.device == "cuda":
            # A proof in host memory holds for any number, and a generation sets it again.
            own = len(os.sched_getaffinity(0)) // self._plan.cluster.members.start
            torch.set_num_threads(max(compute.threads, own))
        self._services.heartbeat.beat("admission")
        with phases.of("admission", "worker"):
            admitted = self._strategy.admit(partial(self._prove, replica))
            replica.forget()  # gradients of the proof, which a spare would hold as long as it waits
            if compute.device == "cuda" and (self._flops_per_sample is not None or self._is_staged):
                self._services.emit({"event": "flops", "per_sample": self._flops_per_sample, **cuda.card()})
        if self._services.is_first:
            found = (
                runs_of_its_own.note(),
                proof.note_on_untrained(self._workload),
                proof.note_on_modes(self._workload),
                proof.note_on_weight(self._workload),
            )
            for note in filter(None, found):
                self._services.emit({"event": "device", "why": note})
        return admitted

    def _steps(self) -> int:
        """The length of the run. Raises ConfigurationError where it begins behind its end."""
        run = self._plan.run
        steps = run.length(self._workload.samples.order.steps_of)
        if steps <= run.first_step:
            raise ConfigurationError(
                [f"run.epochs: {steps} steps in all, and the run begins after {run.first_step} of them"],
                "give the number of epochs in all",
                code="begin.no-epochs-left",
            )
        return steps

    def become_spare(self) -> None:
        """Prepared, and without a place in the first generations: let go of the parameters, where it will host a stage of them,
        and of what the first micro-batch took. Between `prepare` and the first `run`, from the compute thread."""
        self._strategy.become_spare()
        device_memory.give_back(self._plan)

    @property
    def progress(self) -> Progress | None:
        """None until this member has taken part in a generation: its state is the initial one then."""
        return None if self._state is None else self._state.progress

    def run(self, generation: Generation, rank: int, connect: Connect) -> Ended:
        """Take part in one generation: connect, give or take state where the generation says so, then run steps until
        it ends.

        Raises this member's own errors: what a step raises (`step.lockstep`, `between_steps.evaluation`), what
        loading a checkpoint raises, MemoryError.
        """
        self._listen()
        self._prepare_thread()
        if self._plan.run.compute.compiled:
            inductor.prepare_thread()
        self._left = generation
        nodes = generation.begin.nodes[: generation.workers]
        self._beside = nodes.count(nodes[rank])
        self._workers.append(generation.workers)
        with self._memory_explained():
            self._strategy.suit(generation, rank)
            device_memory.limit(self._plan, self.regions)
        if self._state is None:
            self._state = self._first_state(generation.begin.run_manifest)
            model_state = self._strategy.model_state
            self._held = lambda: device_memory.held_memory(
                model_state.replica, model_state.optimizer, self.regions, self._strategy.held_bytes
            )

        def with_peers(transport: CancellableTransport) -> Ended:
            with self._memory_explained():
                return self._take_part(generation, rank, transport)

        ended = live(generation, self._services.heartbeat, connect, with_peers, lambda: self.progress)
        if ended.kind == "stop":
            self._left = None
        held, staged = self._state.model_state.rows
        return replace(ended, held=held, staged=staged, holds_sum=self._state.model_state.holds_sum)

    def save_alone(self) -> None:
        """Write the state of the run as a checkpoint of one part, between generations, when the driver is gone. Only a worker
        does so that has the whole state, complete, and has not written its part with all others as they stopped."""
        state, generation = self._state, self._left
        if state is None or generation is None or not generation.writers or self._is_staged:
            return
        run_state, progress = state.loop.run_state, state.progress
        if progress is None or not progress.evaluated or state.model_state.keeps_shard_state:
            return
        self._services.writer.wait()
        values = state.model_state.capture_with_rows(run_state.saved().as_dict())
        self._services.writer.begin(
            values, step=run_state.steps, generation=generation.number, part=0, parts=1, since=time.monotonic()
        )

    def close(self) -> None:
        """Stop the processes beside this one. Safe to call twice."""
        if self._callbacks is not None:
            self._callbacks.close()
        self._callbacks = None
        self._workload.batches.close()
        self._digests.close()
        self._close_loaders()

    def training_data(self) -> Any:
        """The training data set. Not to be read while a generation runs: that may draw random numbers."""
        return self._workload.samples.dataset

    def partition(self) -> dict[str, Any] | None:
        """How the training samples are divided among the shards, as plain data; None where they are not."""
        return self._workload.samples.partition()

    def layers(self) -> str:
        """The model in words, as torch has it."""
        with naming("the model's layers in words"):
            return str(self._workload.model)

    def answers(self) -> dict[str, Any]:
        """How the trained model may be asked when it is served, as a trial finds (`worker.between_steps.serving_trial`), as
        plain data. Between generations, from the compute thread."""
        return serving_trial.answers(self._plan, self._workload, self._flops_per_sample)

    def state(self) -> dict[str, torch.Tensor]:
        """The model's parameters and persistent buffers, or those of the stage that it hosts, tied tensors once, as tensors of
        their own in host memory."""
        return {name: each.to("cpu", copy=True).contiguous() for name, each in self._strategy.boundary.state().items()}

    def weights(self) -> Weights:
        """The same as a safetensors file, of which there is no copy. Between generations."""
        return Weights(self._strategy.boundary.state())

    def _subset(self) -> dict[str, str]:
        subset = self._workload.samples.subset
        return {} if subset is None else {"subset": hashlib.sha256(subset.astype("<i8").tobytes()).hexdigest()}

    def _prove(self, replica: Replica, anew: proof.Anew | None) -> str:
        """The reference. Operations are counted too where a GPU computes: eagerly, and with nothing kept of it."""
        compute = self._plan.run.compute
        if not self._services.is_first:
            self._workload.batches.read_otherwise()
        reference = proof.reference(self._workload, replica, anew=anew, compiles=compute.compiled)
        if self._services.is_first:
            proof.try_single_row(self._workload, replica, self._steps())
        if compute.device == "cuda":
            with inductor.left_out() if compute.compiled else nullcontext():
                self._flops_per_sample = proof.flops_per_sample(self._workload, replica)
        return reference

    def _compiler(self) -> dict[str, str]:
        return {"compiler": str(inductor.describe())} if self._plan.run.compute.compiled else {}

    def _portability(self, replica: Replica, updater: Updater) -> dict[str, Any]:
        """Under portable arithmetic the operators that are not on the page; raises ConfigurationError where one that is comes
        out otherwise on this processor."""
        if self._plan.run.compute.arithmetic == "native":
            return {}
        operators = proof.operators(self._workload, replica)
        operators |= portability.operators_of_step(updater.optimizer, self._workload.model)
        return {"unknown_operators": portability.judge(operators)}

    def _prepare_thread(self) -> dict[str, Any]:
        compute = self._plan.run.compute
        # In evaluation torch computes layers of transformers by kernels of their own, with other bits, but not in stages, whose
        # modules have hooks.
        torch.backends.mha.set_fastpath_enabled(False)
        return determinism.prepare_thread(
            compute.threads, compute.device, tf32=compute.tf32, arithmetic=compute.arithmetic
        )

    def _first_state(self, run_manifest: Mapping[str, Any]) -> WorkerState:
        """The state of a worker that has not taken part in a generation yet."""
        services, writer = self._services, self._services.writer
        timing = Timing(self._plan, run_manifest["samples"], services.heartbeat, lambda: writer.busy)
        self._strategy.model_state.start(run_manifest["steps"])
        loop = Loop(self._plan, run_manifest, timing, services.heartbeat)
        strategy = self._strategy
        state = WorkerState(
            *(self._plan, services, strategy.model_state, strategy.boundary, loop, timing, self._callbacks),
            self._digests,
        )
        if state.model_state.keeps_shard_state or self._is_staged:
            state.keep_initial()
        return state

    def _memory_explained(self) -> AbstractContextManager[None]:
        """Within the block a GPU that has no memory left is an OutOfDeviceMemory that says whose it is."""

        def doing() -> str:
            now = self._services.heartbeat.snapshot()
            if now["activity"] == "idle":
                return "a worker between two generations"
            step = "" if now["step"] is None else f" (step {now['step']})"
            return f"the {now['activity']} phase{step}"

        place = lambda: device_memory.place_of(  # noqa: E731
            self._plan, self._beside, lost=self._workers[-1] < max(self._workers)
        )
        return device_memory.explained(doing, place, lambda: self._held(), self._plan)

    def _memory(self) -> dict[str, float]:
        """The GPU memory in use, in bytes, by name."""
        held = self._held()
        return cuda.memory() | ({} if held is None else held.by_name())

    def _take_part(self, generation: Generation, rank: int, transport: CancellableTransport) -> Ended:
        """As `run`, once peers are connected."""
        state, begin = self._state, generation.begin
        shards, steps = begin.shards[rank], begin.run_manifest["steps"]
        assert state is not None
        hooks = WorkerHooks(state, self._workload, generation, rank)
        try:
            hooks.arrive(transport)
            state.timing.keeps_time = rank == 0
            state.model_state.shards = shards
            self._workload.samples.attendance.goes_on_without(begin.absent)
            self._workload.batches.host_streams(shards, lambda: _stream_log(generation, rank))
            if not state.loop.ended:
                self._prefetch_files(generation, rank, steps)
                self._use_loaders(shards, steps)
            context = GenerationContext(generation, rank, transport, state.timing, hooks.deadline_s)
            executor, exchange = self._strategy.executor(context)
            halted = state.loop.run(executor, exchange, hooks, generation)
        finally:
            self._workload.batches.drop_following()
            state.model_state.replica.give_up_shard()  # a step that was given up leaves the buffers as its last shard made them
            self._services.writer.copied(0)  # what was begun is written also where no further update asks for it
            self._services.tell_times(at_once=True)
            self._workload.batches.account.tell()
            self._digests.settle()  # others may take the state over, with what was told
        if halted != "regroup" and self._plan.run.compute.device == "cuda":
            self._services.emit({"event": "memory", **self._memory()})
        if halted == "stop" and self._callbacks is not None:
            self._callbacks.leave()
        if halted != "finished":
            return Ended(halted, self.progress, why="all members agreed")
        if self._callbacks is not None:
            last = state.loop.run_state.steps - 1
            beat = lambda: self._services.heartbeat.beat("evaluate", last)  # noqa: E731
            self._callbacks.finish(beat, self._plan.cluster.timeouts.step_s)
        self.close()
        return Ended("finished", self.progress, digest=state.boundary.digest())

    def _listen(self) -> None:
        """While this thread waits for files from elsewhere, the run hears of it, and nobody takes it for dead."""
        waiting.listen(
            lambda what: self._services.emit({"event": "waiting", "what": what}), self._services.heartbeat.live
        )

    def _prefetch_files(self, generation: Generation, rank: int, steps: int) -> None:
        nodes = generation.begin.nodes[: generation.workers]
        share = self._plan.data.cache_bytes // nodes.count(nodes[rank])
        self._workload.batches.account.emit = self._services.emit
        self._workload.batches.prefetch_files(generation.begin.shards[rank], steps, share)

    def _start_loaders(self) -> Loaders | None:
        """The processes that fetch batches ahead, where the plan wants them; they start beside the build, and outlive
        generations."""
        run, data = self._plan.run, self._plan.data
        if data.loaders == 0:
            return None
        compute = run.compute
        recipe = Recipe(
            *(run.pipeline, run.seed, compute.threads, compute.arithmetic, data.seed),
            cache=data.cache,
            inputs=self._plan.declared.inputs,
            variables=self._plan.declared.variables,
        )
        lost = lambda why: self._services.emit({"event": "loader_lost", "why": why})  # noqa: E731
        return Loaders(recipe, data.loaders, lost, self._services.start)

    def _verified_loaders(self) -> InputAudit:
        """The audit of what the loaders have read up to their proof. A worker is ready when they are: if it took part in a
        generation while they start, it would hold all others up."""
        if self._loaders is None:
            return InputAudit()
        self._services.heartbeat.beat("prepare")
        with phases.of("loaders", "worker"):
            self._workload.batches.verify(self._loaders)
        return self._loaders.input_audit

    def _close_loaders(self) -> None:
        if self._loaders is not None:
            self._loaders.close()
        self._loaders = None

    def _use_loaders(self, shards: tuple[int, ...], steps: int) -> None:
        if self._loaders is not None:
            self._loaders.forget()
            self._workload.batches.use_loaders(self._loaders, shards, steps)


def _stream_log(generation: Generation, rank: int) -> StreamLog:
    """Raises RunFailed where this worker cannot write it."""
    if rank not in generation.writers:
        raise RunFailed(
            "a live Stream is read on a machine that does not reach the run's folder, where its samples are recorded",
            "set checkpoint.uri to a place that all machines reach",
            code="streams.unreachable",
        )
    return StreamLog(generation.storage, generation.number)
