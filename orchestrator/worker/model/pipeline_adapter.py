"""The calls into the user's pipeline that compute: its loss on a micro-batch, with the backward pass, and loss and metrics of
an evaluation. An exception of it becomes a PipelineRaised that names the step and the shard. Its message has the user's own
frames, and `details` the full traceback.

Three parts beside it call the user's code for one purpose each: `training_samples.py` asks how many samples there are,
`micro_batches.py` reads them, `optimizer_calls.py` changes the parameters.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils.data import Subset

from orchestrator.adapters.adapted import Adapted, Told
from orchestrator.common.frames import adopt, imported_modules, is_users_module, variables_of
from orchestrator.config.plan import Data, Plan, Run
from orchestrator.data import mixture
from orchestrator.data.fetching import fetch
from orchestrator.data.files import cache
from orchestrator.data.loaders import Key
from orchestrator.data.order import EvaluationBatches
from orchestrator.data.sites import Attendance
from orchestrator.errors import NonFinite, PipelineRaised
from orchestrator.numerics import streams
from orchestrator.numerics.batches import copied
from orchestrator.numerics.determinism import filled
from orchestrator.numerics.staging import Arriving, Direct, Staging
from orchestrator.pipeline import Pipeline, defines, naming, takes_step
from orchestrator.worker.model import construction, moving_buffers
from orchestrator.worker.model.calls import Call, Given
from orchestrator.worker.model.layer_modes import modes_of, put_back
from orchestrator.worker.model.micro_batches import MicroBatch, MicroBatches
from orchestrator.worker.model.optimizer_calls import OptimizerCalls
from orchestrator.worker.model.output_checks import (
    check_finite,
    is_late,
    kept,
    loss_and_weight,
    mean_and_weight,
    weight_of,
)
from orchestrator.worker.model.refused_operation import name_line
from orchestrator.worker.model.shard_graphs import Judged, ShardGraphs, Work
from orchestrator.worker.model.training_samples import TrainingSamples, length_of

_FEW = 64  # items of a collection

Unread = tuple[float | torch.Tensor, float | torch.Tensor]  # mean loss and weight; tensors if nobody has looked at them


class PipelineAdapter:
    """One pipeline in a run. samples: of its training set; batches: of these, read; optimizer_calls: into what changes the
    model's parameters; takes_step: whether its loss is told the step, or may ask for it. Built under the run's seed; raises
    PipelineRaised, ConfigurationError."""

    def __init__(
        self,
        kind: type[Pipeline],  # the class that `run.pipeline` names
        run: Run,  # what of the plan a pipeline is built from
        data: Data,  # what of the plan the batches follow from
        staging: Staging | None = None,  # brings tensors to the device that computes; None: they stay in host memory
        sites: Collection[str] = (),  # the sites whose bytes this node holds
    ) -> None:
        adopt(kind.__module__)
        self._seed = seed = run.seed
        self._mixed = run.compute.precision == "bfloat16"
        self._staging = staging or Direct()
        self._weighs = data.privacy is None
        self.graphs: ShardGraphs | None = None  # where micro-batches are recorded
        self.leaves_evaluation = False  # whether loss() has put a validation batch's layer into training mode
        self.least_weight = math.inf  # of the micro-batches that were looked at, beside 0
        attendance = Attendance(data, sites)
        self.pipeline = construction.make_pipeline(kind, run.pipeline.args, seed)
        with naming("reading the parameters of loss()"):
            self._tells_step = takes_step(self.pipeline)
        cache.use(*data.cache)
        with naming("datasets()"), streams.seeded(seed if data.seed is None else data.seed, "datasets"), filled():
            train, self._validation = self._datasets()
            train = mixture.whole(train)
        mixture.check(train, data.mixture)
        self.model = construction.first_model(self.pipeline, run)
        self.takes_step = self._tells_step or (isinstance(self.pipeline, Adapted) and self.pipeline.asks_step)
        self.buffer_rules = moving_buffers.declared(self.pipeline, self.model)
        self.samples = TrainingSamples(self.pipeline, train, seed, data, attendance)
        self.batches = MicroBatches(self.pipeline, self.samples, seed, self._staging, self.model)
        self.optimizer_calls = OptimizerCalls(self.pipeline, self.model, self.samples, seed)
        self.held_out = 0 if self._validation is None else length_of(self._validation, "validation")
        self.evaluation_batches = EvaluationBatches(self.held_out, max(1, data.batch_size.at(0) // data.shards))

    def begin(self, plan: Plan) -> list[str]:
        """Tell a pipeline of another framework what the run is; returns what a person is to know of the data, a sentence
        each. Raises PipelineRaised."""
        notes: list[str] = []
        if isinstance(self.pipeline, Told):
            with naming("what depends on the length of the run"):
                notes += self.pipeline.begin(construction.course_of(plan, self.samples))
        if plan.cadence.evaluation is not None and not self.evaluation_batches:
            notes.append("evaluation.every is set, and there is no validation set: nothing is evaluated")
        if _counts_epochs(self.samples.dataset):
            notes.append(
                "the training set has a set_epoch(), which nobody calls, since a sample may be read at any time: let a sample "
                "hold what each phase needs, and loss(self, model, batch, step) choose"
            )
        return notes

    def compute_on(self, staging: Staging) -> None:
        """From now on batches go there, where the model is."""
        self._staging = staging
        self.batches.compute_on(staging)

    def first_batch(self, most: int) -> Any:
        """A batch of the first samples, of the validation set where there is one. Raises PipelineRaised."""
        of, attendance = self._validation if self.held_out else self.samples.dataset, self.samples.attendance
        indices: Sequence[int] = range(min(most, len(of)))
        if not self.held_out and attendance.is_pinned:
            first = next((found for shard in attendance.own if (found := self.samples.indices(0, shard))), ())
            indices = first[:most]
        with naming("reading samples"):
            return fetch(of, indices, self.pipeline.collate)

    def user_objects(self) -> dict[str, Any]:
        """All objects of the user's, by names for messages, and the globals of the modules that define their classes."""
        held = {
            "pipeline": self.pipeline,
            "model": self.model,
            "train": self.samples.dataset,
            "validation": self._validation,
        }
        names = sorted({type(each).__module__ for each in held.values()})
        return held | variables_of({name: vars(sys.modules[name]) for name in names if is_users_module(name)})

    def user_modules(self, others: Collection[str] = ()) -> dict[str, dict[str, Any]]:
        """The globals of the modules that define the classes of the pipeline and of its model, of others, and of those of the
        user's that these import."""
        names = {type(self.pipeline).__module__, type(self.model).__module__, *others}
        return {name: vars(module) for name, module in imported_modules(names).items()}

    def why_not_recorded(self, *, asks_step: bool) -> str:
        """Why a micro-batch's passes depend on more than the batch; empty where they do not. asks_step: whether recordings know
        which steps they serve."""
        if self.takes_step and not asks_step:
            return "loss() takes the step"
        kept = next((name for name, each in self._attributes() if _has_rates(each)), None)
        return "" if kept is None else f"{kept} is of the optimizer, whose learning rates may change in each step"

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """The attributes of the pipeline and of the model's layers, which `loss` may read, by their names."""
        for name, value in vars(self.pipeline).items():
            yield f"pipeline.{name}", value
        for place, layer in self.model.named_modules():
            for name, value in vars(layer).items():
                yield f"model.{place}.{name}" if place else f"model.{name}", value

    def loss(self, step: int, shard: int) -> tuple[float, float] | None:
        """(mean loss, weight) of micro-batch (step, shard), whose gradients are in the model then; None when it is empty.

        The caller has called `model.train()`. Raises PipelineRaised, NonFinite.
        """
        computed = self._computed(step, shard, None)
        return None if computed is None else (float(computed[0]), float(computed[1]))

    def recorded_loss(self, step: int, shard: int) -> tuple[float, float] | None:
        """As `loss`, replayed where `graphs` are set and have one."""
        computed = self._computed(step, shard, self.graphs, looks=True)
        self.hand_over()
        return None if computed is None else (float(computed[0]), float(computed[1]))

    def seed_behind(self, step: int, shard: int) -> None:
        """For code that runs behind a replay of micro-batch (step, shard), which has left generators of the host as they
        were: a loss that draws from them is not recorded."""
        streams.seed_others(self.batches.at(step, shard).seed)

    @property
    def replayed_gradients(self) -> Sequence[torch.Tensor | None] | None:
        """The gradients of the last micro-batch if it was replayed; the same object for each that was."""
        return None if self.graphs is None else self.graphs.gradients

    def hand_over(self) -> None:
        """Have the gradients of a replay at the parameters."""
        if self.graphs is not None:
            self.graphs.hand_over()

    @property
    def replayed(self) -> bool:
        """Whether the last micro-batch was replayed from a recording."""
        return self.graphs is not None and self.graphs.replayed

    def unread_loss(self, step: int, shard: int, *, late: bool = False) -> Unread | None:
        """As `loss`. With `graphs` the loss is a tensor on the device, and may be infinite or NaN: a look at it would wait
        for the device. The gradients of a replay are in `replayed_gradients` then. late: a weight that the device has
        computed is left there as well, as float64, for `weighed`."""
        return self._computed(step, shard, self.graphs, late=late)

    def weighed(self, step: int, shard: int, weight: float) -> float:
        """The weight of micro-batch (step, shard) that was left on the device. Raises PipelineRaised where it is none."""
        return weight_of(weight, self.batches.at(step, shard).where)

    def _computed(
        self, step: int, shard: int, graphs: ShardGraphs | None, *, looks: bool = False, late: bool = False
    ) -> Unread | None:
        micro_batch = self.batches.at(step, shard)
        key, where = micro_batch.key, micro_batch.where
        if not micro_batch.rows:
            return None
        arriving = self.batches.fetch(micro_batch)
        try:
            with naming(f"loss() ({where})", lambda: self.samples.remedy_for_one_row(step, shard)):
                computed = self._gradients(arriving, micro_batch, graphs, late=late)
            self.batches.begin_following(key)
            if looks and computed is not None:
                check_finite(float(computed[0]), where)
            return computed
        except NonFinite as error:
            raise self.batches.with_samples(error, key, arriving.host) from None

    def loss_of_validation(self, batch: int) -> tuple[float, float] | None:
        """As `loss`, of a validation batch: by that workers prove that they compute alike who may not read the same training
        samples."""
        indices, where = self.evaluation_batches[batch], _evaluated(-1, batch)
        arriving = self._staging.begin(self._read_validation(indices, -1, batch, where))
        seed = streams.seed_of(self._seed, "compute", -1, batch)
        with naming(f"loss() ({where})"):
            computed = self._gradients(arriving, MicroBatch(Key(0, batch, tuple(indices)), where, seed), None)
        return None if computed is None else (float(computed[0]), float(computed[1]))

    def _gradients(
        self, arriving: Arriving, micro_batch: MicroBatch, graphs: ShardGraphs | None, *, late: bool = False
    ) -> Unread | None:
        step, rows, where, seed = micro_batch.key.step, micro_batch.rows, micro_batch.where, micro_batch.seed

        def loss_of(batch: Any, told: Any = step) -> Any:
            with self._autocast():
                return self._loss(batch, told, self.model)

        def eager(batch: Any) -> Judged | None:
            returned = loss_of(batch)
            self._check_no_gradient(where)
            if not self._weighs and isinstance(returned, Sequence):
                raise PipelineRaised(
                    f"loss() ({where}) returned a weight, and with privacy.clipping_norm all count the same",
                    "return the mean alone",
                    code="pipeline.loss-weight-clipped",
                )
            loss, weight = mean_and_weight(returned, rows, where)
            if weight == 0:
                return None
            self.least_weight = min(self.least_weight, weight)
            if graphs is None and not self._staging.answers_late:
                check_finite(loss.item(), where)
            try:
                loss.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                name_line(error, lambda: loss_of(batch))
                raise
            # Someone looks at it after later micro-batches, whose loss the user's code may write into the same memory.
            return loss.detach() if graphs is None else loss.detach().clone(), weight

        def unread(batch: Any, told: Any) -> Judged:
            loss, weight = loss_and_weight(loss_of(batch, told), rows, where)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach(), weight.detach() if isinstance(weight, torch.Tensor) else weight

        if graphs is None:
            with streams.seeded_with(seed):
                judged = eager(arriving.there())
            if judged is None:
                return None
            mean = judged[0].item()
            check_finite(mean, where)
            return mean, judged[1]
        seeded, for_replay = (partial(each, seed) for each in (streams.seeded_with, streams.seeded_for_torch))
        judged = graphs.compute(arriving, Work(eager, unread, seeded, for_replay, step))
        self.at(step)
        if judged is None:
            return None
        loss, given = judged
        if late and graphs.replayed and is_late(given, loss):
            return loss, given.detach().double().reshape(1)
        weight = weight_of(given, where)
        return None if weight == 0 else (loss, weight)

    def at(self, step: int) -> None:
        """Behind a replay, which runs no code, or a recording: whoever asks an adapter's pipeline for the step is told this
        one."""
        if isinstance(self.pipeline, Adapted):
            self.pipeline.at(step)

    def _check_no_gradient(self, where: str) -> None:
        """Behind `loss`: raises PipelineRaised if it has called backward() by itself, whose gradients the backward pass to come
        would be added to."""
        parameters = [parameter() for parameter in self._parameters]
        if [each for each in parameters if each is not None and each.grad is not None]:
            name = next(name for name, each in self.model.named_parameters() if each.grad is not None)
            raise PipelineRaised(
                f"loss() ({where}) gave the parameter {name!r} a gradient",
                "return the sum of all losses, and leave backward() out, which is called here; a gradient that the loss itself "
                "needs, as of a penalty, comes from torch.autograd.grad(..., create_graph=True)",
                code="pipeline.loss-backward",
            )

    @cached_property
    def _parameters(self) -> list[weakref.ref[torch.nn.Parameter]]:
        """Weakly: those of other stages are let go. To ask the model for them each time takes longer than many a layer."""
        return [weakref.ref(each) for each in self.model.parameters()]

    @contextmanager
    def call(self, step: int, shard: int, *, waits: bool = False) -> Iterator[Call]:
        """The loss of micro-batch (step, shard), which is not empty, to be called within the block, by parts of a model:
        there the generators are seeded for it. waits: whether others are read before its backward pass. Raises
        PipelineRaised for what is raised within the block."""
        micro_batch = self.batches.at(step, shard)
        fetched = self.batches.fetch(micro_batch)
        if waits and defines(type(self.pipeline), "collate"):  # which may fill the same memory for the next one
            fetched = self._staging.begin(copied(fetched.host))
        naming_samples = self.batches.naming_samples(micro_batch.key, fetched.host)
        with naming_samples, naming(f"loss() ({micro_batch.where})"), streams.seeded_with(micro_batch.seed):
            given = Given(fetched, lambda other: self._loss(other, step, self.model))
            make = lambda: given.function(given.batch)  # noqa: E731
            yield Call(make, self._autocast, micro_batch.rows, micro_batch.where, given)

    @contextmanager
    def going_on(self, step: int, shard: int) -> Iterator[None]:
        """For the backward pass of what `call` has begun, which sets the generators by itself."""
        with naming(f"loss() (step {step}, shard {shard})"), streams.held():
            yield

    def evaluate(self, step: int, batch: int) -> tuple[list[str], list[float]]:
        """Names and values of one validation batch: loss, its weight, rows, then the pipeline's metrics by name.

        The caller has called `model.eval()`. step: the one before it; -1: none yet.
        """
        return self.evaluate_batch(step, batch, self.evaluation_batches[batch], self.model)

    def evaluate_batch(
        self, step: int, batch: int, indices: Sequence[int], model: torch.nn.Module
    ) -> tuple[list[str], list[float]]:
        """As `evaluate`, of these validation samples and in the place of the model another one."""
        with self._evaluation(step, batch, indices, model) as (loss, metrics):
            return loss.evaluated(loss.make(), metrics.make())

    def evaluation(self, step: int, batch: int) -> AbstractContextManager[tuple[Call, Call]]:
        """Loss and metrics of a validation batch, to be called within the block, as `call` says; in which order, and that the
        second goes on with the generators of the first, is the caller's care."""
        return self._evaluation(step, batch, self.evaluation_batches[batch], self.model)

    @contextmanager
    def evaluation_going_on(self, step: int, batch: int) -> Iterator[None]:
        """For the second call of what `evaluation` has given, behind its block, for which the generators are set there."""
        with naming(f"evaluation ({_evaluated(step, batch)})"), streams.held(), torch.no_grad():
            yield

    @contextmanager
    def _evaluation(
        self, step: int, batch: int, indices: Sequence[int], model: torch.nn.Module
    ) -> Iterator[tuple[Call, Call]]:
        where, updates = _evaluated(step, batch), (step + 1) * self.samples.steps_per_round
        if isinstance(self.pipeline, Adapted):
            self.pipeline.validation_batch = batch
        items = self._read_validation(indices, step, batch, where)
        with naming(f"evaluation ({where})"), streams.seeded(self._seed, "evaluation", step, batch), torch.no_grad():
            items = self._staging.batch(items)
            yield (
                Call(lambda: self._evaluated_loss(items, updates, model), self._autocast, len(indices), where),
                Call(lambda: self.pipeline.metrics(model, items), self._autocast, len(indices), where),
            )

    def _evaluated_loss(self, batch: Any, updates: int, model: torch.nn.Module) -> Any:
        """As `_loss`, for a validation batch. The metrics behind it find the modes as they were, also where it has called
        train(), as that of an adversarial training does behind its attack."""
        modes = modes_of(model)
        returned = kept(self._loss(batch, updates, model))
        if any(module.training and not training for module, training in modes):
            self.leaves_evaluation = True
        put_back(modes)
        return returned

    def summarized(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics over the whole validation set, of what was put together over its batches."""
        if not isinstance(self.pipeline, Adapted):
            return metrics
        with naming("the metrics over all validation batches"):
            return self.pipeline.summarized(metrics)

    def _loss(self, batch: Any, updates: int, model: torch.nn.Module) -> Any:
        """updates: how many the model has had."""
        self.at(updates)
        return self.pipeline.loss(model, batch, **({"step": updates} if self._tells_step else {}))

    def _read_validation(self, indices: Sequence[int], step: int, batch: int, where: str) -> Any:
        with naming(f"reading samples ({where})"):
            seeded = streams.seeded(self._seed, "evaluation samples", step, batch)
            return fetch(self._validation, indices, self.pipeline.collate, seeded)

    def _autocast(self) -> AbstractContextManager[None]:
        """Under `precision: bfloat16` products are computed in it; parameters and gradients stay float32 (rule A9). Each use
        of a parameter casts it anew: uses that share a cast add up their gradients in bfloat16, which stages cannot do
        together."""
        if not self._mixed:
            return nullcontext()
        return torch.autocast(self._staging.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _datasets(self) -> tuple[Any, Any]:
        returned: Any = self.pipeline.datasets()
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:  # random_split gives a list
            number = f" of {len(returned)}" if isinstance(returned, (tuple, list)) else ""
            raise PipelineRaised(
                f"datasets() returned a {type(returned).__name__}{number}",
                "return (train, validation), or (train, None)",
                code="pipeline.datasets",
            )
        train, validation = returned
        return train, validation


def _has_rates(value: Any, *, alone: bool = False) -> bool:
    """Whether it is an optimizer, a group of one, or a small collection with some. alone: it is looked at without its items."""
    if isinstance(value, torch.optim.Optimizer) or (isinstance(value, dict) and {"params", "lr"} <= value.keys()):
        return True
    if alone or not isinstance(value, (dict, list, tuple)) or len(value) > _FEW:
        return False
    return any(_has_rates(each, alone=True) for each in (value.values() if isinstance(value, dict) else value))


def _evaluated(step: int, batch: int) -> str:
    return f"{'before the first step' if step < 0 else f'after step {step + 1}'}, validation batch {batch}"


def _counts_epochs(dataset: Any) -> bool:
    """Whether this data set, or the one of which it is a part, waits to be told the epoch, as by a loop of its own."""
    while not hasattr(type(dataset), "set_epoch") and isinstance(dataset, Subset):
        dataset = dataset.dataset
    return hasattr(type(dataset), "set_epoch")
