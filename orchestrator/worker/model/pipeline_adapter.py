"""The calls into the user's pipeline: batches from its datasets, losses and metrics from its functions, errors by name.

All calls of the user's code in a step are here, so that every exception of it becomes one PipelineRaised that names the step
and the shard. Its message has the user's own frames, and `details` the full traceback.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from orchestrator.adapters.adapted import Adapted
from orchestrator.checkpoint.stream_log import Logged, StreamLog
from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.common.values import Span, megabytes
from orchestrator.config.plan import Data, Plan, Run, Variant
from orchestrator.data import mixture
from orchestrator.data.clients import ClientSampler
from orchestrator.data.division import Division, divide
from orchestrator.data.drawn import Drawn, PassSampler, WeightedSampler
from orchestrator.data.fetching import fetch, fetch_together
from orchestrator.data.files import cache
from orchestrator.data.files.stream import Stream
from orchestrator.data.labels import Labels
from orchestrator.data.loaders import Key, Loaders, upcoming
from orchestrator.data.mixture import Mixture, Sources
from orchestrator.data.order import Epochs, EvaluationBatches
from orchestrator.data.poisson import PoissonSampler
from orchestrator.data.positions import Positions, positions
from orchestrator.data.sampling.orders import COMPUTED, ORDERS, Order
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.data.sampling.population import Whole
from orchestrator.data.sampling.subsets import chosen
from orchestrator.data.sites import Attendance
from orchestrator.errors import ConfigurationError, NonFinite, OrchestratorError, PipelineRaised
from orchestrator.numerics import streams
from orchestrator.numerics.staging import TOGETHER_BYTES, Arriving, Direct, Staging
from orchestrator.optim import optimizers
from orchestrator.optim.optimizers import kept_aside
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.transforms import State
from orchestrator.pipeline import Pipeline, has_rate, naming, takes_step
from orchestrator.worker.model import construction, moving_buffers
from orchestrator.worker.model.foresight import Account, Ahead, Foresight
from orchestrator.worker.model.refused_operation import name_line
from orchestrator.worker.model.returned import (
    check_finite,
    is_late,
    loss_and_weight,
    loss_not_finite,
    mean_and_weight,
    numbers_of,
    weight_of,
)
from orchestrator.worker.model.sample_names import listed, strange
from orchestrator.worker.model.shard_graphs import Judged, ShardGraphs, Work
from orchestrator.worker.model.stream_readers import StreamReaders

_ROWS_TO_SHARE = 3  # from so many rows a batch on, batches of equal lengths leave none a single row
_LITTLE_BYTES = 2**20  # for so little nobody asks how much memory there is
_HEAD = 2**14  # elements of the gradient that are compared, for changes that raise no version


class _MicroBatch(NamedTuple):
    """A micro-batch: its samples, how messages call it, and the seeds for reading it and for computing it."""

    key: Key
    where: str
    samples_seed: int
    seed: int


class Given:
    """A micro-batch, and what the user's loss gives of it, or of another one."""

    def __init__(self, arriving: Arriving, function: Callable[[Any], Any]) -> None:
        self.arriving, self.function = arriving, function

    @cached_property
    def batch(self) -> Any:
        """The micro-batch where the model computes, to which it is brought for the first that asks."""
        return self.arriving.there()


class Call(NamedTuple):
    """A call of the user's, on a batch that has been read. precision: of its products; given: of a training micro-batch."""

    function: Callable[[], Any]
    precision: Callable[[], AbstractContextManager[None]]
    rows: int
    where: str
    given: Given | None = None

    def make(self) -> Any:
        with self.precision():
            return self.function()

    def judged(self, returned: Any) -> tuple[torch.Tensor, float, float] | None:
        """Loss, its value and its weight, from what loss() returned; None where it weighs nothing. Raises PipelineRaised,
        NonFinite."""
        loss, weight = mean_and_weight(returned, self.rows, self.where)
        if weight == 0:
            return None
        mean = loss.item()
        check_finite(mean, self.where)
        return loss, mean, weight

    def judged_late(self, returned: Any) -> tuple[torch.Tensor, float | torch.Tensor, float] | None:
        """As `judged`, of a repetition. The loss is not looked at, and may be infinite or NaN, unless its weight is on the
        device, too, for which this waits."""
        if is_late(returned[1], returned[0]):
            return self.judged(returned)
        loss, weight = mean_and_weight(returned, self.rows, self.where)
        loss = loss.clone()  # the next repetition leaves another there
        return None if weight == 0 else (loss, loss, weight)

    def unjudged(self, returned: Any) -> tuple[torch.Tensor, Any]:
        """Loss and weight, without looking at any value. Raises PipelineRaised."""
        return loss_and_weight(returned, self.rows, self.where)

    def evaluated(self, loss: Any, metrics: Any) -> tuple[list[str], list[float]]:
        """As `PipelineAdapter.evaluate`, from what loss() and metrics() returned for this validation batch."""
        mean, weight = mean_and_weight(loss, self.rows, self.where)
        numbers = numbers_of(metrics, self.where)
        return list(numbers), [mean.item(), weight, float(self.rows), *numbers.values()]


Unread = tuple[float | torch.Tensor, float | torch.Tensor]  # mean loss and weight; tensors if nobody has looked at them


class PipelineAdapter:
    """Micro-batches and evaluation batches of one run. Built under the run's seed; raises PipelineRaised."""

    def __init__(
        self,
        kind: type[Pipeline],  # the class that `run.pipeline` names
        run: Run,  # what of the plan a pipeline is built from
        data: Data,  # what of the plan the batches follow from
        staging: Staging | None = None,  # brings tensors to the device that computes; None: they stay in host memory
        sites: Collection[str] = (),  # the sites whose bytes this node holds
    ) -> None:
        self._seed = seed = run.seed
        self._mixed = run.compute.precision == "bfloat16"
        self._staging = staging or Direct()
        self.graphs: ShardGraphs | None = None  # where micro-batches are recorded
        self._loaders: Loaders | None = None
        self._following: tuple[Key, Arriving] | None = None  # the micro-batch that is likely to be next, on its way
        # Whether another worker computes a shard that this one hosts in a step of the run.
        self.taken_by_other: Callable[[int, int], bool] = lambda _step, _shard: False
        self.attendance = Attendance(data, sites)
        self._planned: dict[tuple[int, int], _MicroBatch] = {}
        self._together: dict[Key, Arriving] = {}  # those of them that were read as one
        self._read_before: dict[Key, Arriving] = {}  # each is computed once
        self.pipeline = construction.make_pipeline(kind, run.pipeline.args, seed)
        with naming("reading the parameters of loss()"):
            self._takes_step = takes_step(self.pipeline)
        cache.use(*data.cache)
        self._store_timeout_s = data.store_timeout_s
        with naming("datasets()"), streams.seeded(seed if data.seed is None else data.seed, "datasets"):
            train, self._validation = self._datasets()
            self._train = mixture.whole(train)
        mixture.check(self._train, data.mixture)
        self.model = construction.first_model(self.pipeline, run)
        self.buffer_rules = moving_buffers.declared(self.pipeline, self.model)
        self.subset: Whole | None = None
        self.division: Division | None = None
        self.streams: StreamReaders | None = None
        self.order: Epochs | Drawn
        self._sampler: Order | PassSampler | WeightedSampler | ClientSampler | Mixture | Positions
        if isinstance(self._train, Stream):
            if self._train.live and data.stream_log is not None:
                self._train = Logged(data.stream_log)
            self.order = self._sampler = positions(data)
            self.streams = StreamReaders(self._train, seed, data.shards)
        else:
            self._number_samples(seed, data)
        self._foresight: Foresight | None = None
        self._ahead: Ahead | None = None
        self.account = Account(_files(self._train))
        self._steps_per_round = _steps_per_round(data, self._sampler)
        self._weighs = data.privacy is None
        self._in_rounds = data.local is not None
        self._has_least = data.partition is not None and "least" in PARTITIONS.options(data.partition.name)
        self.held_out = 0 if self._validation is None else _length(self._validation, "validation")
        self.evaluation_batches = EvaluationBatches(self.held_out, max(1, data.batch_size.at(0) // data.shards))

    def begin(self, plan: Plan) -> list[str]:
        """Tell a pipeline that an adapter has made what the run is; returns what a person is to know of its data, a sentence
        each. Raises PipelineRaised."""
        if not isinstance(self.pipeline, Adapted):
            return []
        with naming("what depends on the length of the run"):
            return self.pipeline.begin(construction.course_of(plan, self.order))

    def _number_samples(self, seed: int, data: Data) -> None:
        samples = _length(self._train, "training")
        if data.subset is not None:
            self.subset = chosen(data.subset.name, data.subset.options, samples)
        if self.attendance.is_pinned and hasattr(self._train, "only"):
            self._train.only(frozenset())  # until it is known whose they are
        self._labels = Labels(self.pipeline, self._train, samples, seed, self.subset)
        samples = samples if self.subset is None else len(self.subset)
        self.division = divide(self._labels, data)
        if self.attendance.is_pinned:
            self.attendance.confine(self._train, self.division, _files(self._train), self.subset)
        self.order, self._sampler = _order(seed, self._train, samples, data, self.division)
        self._refuse_small_cache()
        self._refuse_large_order(data.order.name, samples)

    def compute_on(self, staging: Staging) -> None:
        """From now on batches go there, where the model is."""
        self._staging = staging

    @property
    def may_wait_s(self) -> float:
        """For files from elsewhere."""
        return self._store_timeout_s if getattr(self._train, "is_elsewhere", False) else 0.0

    @property
    def training_data(self) -> Any:
        return self._train

    def samples(self, most: int) -> Any:
        """A batch of the first ones, of the validation set where there is one. Raises PipelineRaised."""
        of = self._validation if self.held_out else self._train
        indices: Sequence[int] = range(min(most, len(of)))
        if not self.held_out and self.attendance.is_pinned:
            first = next((found for shard in self.attendance.own if (found := self._drawn(0, shard))), ())
            indices = first[:most]
        with naming("reading samples"):
            return fetch(of, indices, self.pipeline.collate)

    def partition(self) -> dict[str, Any] | None:
        """How the samples are divided, for a picture; None where they are not."""
        return None if self.division is None else self.division.table(self._labels)

    @property
    def has_rate(self) -> bool:
        return has_rate(type(self.pipeline)) and not getattr(self.pipeline, "follows_settings", False)

    def rate(self, step: int) -> float:
        """The pipeline's own factor on the learning rates. Raises PipelineRaised."""
        before = self._numbers_kept()
        with naming(f"rate() (step {step})"), streams.seeded(self._seed, "rate", step):
            returned: Any = self.pipeline.rate(step)
            try:
                factor = float(returned)
            except (TypeError, ValueError, RuntimeError):
                factor = math.nan
            if not 0 <= factor < math.inf:
                raise PipelineRaised(
                    f"rate() (step {step}) returned {returned!r}",
                    "return the factor on the learning rates at this step, a number that is 0 or more",
                    code="pipeline.rate",
                )
        for name, number in self._numbers_kept().items():
            if before.get(name, number) != number:
                raise PipelineRaised(
                    f"rate() changed the attribute {name!r} of the pipeline (step {step}), which a worker that joins would "
                    "not have",
                    "a loss that changes along the run takes the number of the step: def loss(self, model, batch, step=0); a "
                    "number that nothing follows from may have a name that begins with _",
                    code="pipeline.rate-changes",
                )
        return factor

    def _numbers_kept(self) -> dict[str, float]:
        """The pipeline's own numbers of which something may follow."""
        kept = vars(self.pipeline).items()
        return {name: each for name, each in kept if isinstance(each, (int, float)) and not name.startswith("_")}

    def user_objects(self) -> dict[str, Any]:
        """All objects of the user's, by names for messages, and the globals of the modules that define their classes."""
        held = {"pipeline": self.pipeline, "model": self.model, "train": self._train, "validation": self._validation}
        names = sorted({type(each).__module__ for each in held.values()})
        modules = [(name, sys.modules.get(name)) for name in names]
        written = [(name, vars(module)) for name, module in modules if _is_written_here(module)]
        return held | {f"{name}.{key}": value for name, found in written for key, value in found.items()}

    def fetch_ahead(self, loaders: Loaders, shards: Sequence[int], steps: int) -> None:
        """Take training batches from `loaders` from now on, for a worker that hosts `shards` in a run of `steps`."""
        self.drop_following()
        self._loaders, self._hosted, self._steps = loaders, tuple(shards), steps * self._steps_per_round

    def host(self, shards: Sequence[int]) -> None:
        """These are computed from now on; what was fetched ahead for others is fetched in vain."""
        if self._loaders is not None:
            self._hosted = tuple(shards)

    def drop_following(self) -> None:
        """Let go of the micro-batch that is on its way to the device before its turn."""
        self._following = None

    def look_ahead(self, shards: Sequence[int], steps: int, share: int) -> None:
        """From now on have the files fetched of what a worker reads next that hosts `shards` in a run of `steps`, where the
        training set can; share: the bytes that they may take of the cache."""
        if isinstance(self._sampler, PoissonSampler) or not hasattr(self._train, "ahead"):
            return
        self._ahead = self._ahead or self._train.ahead(share)
        if self._ahead is not None:
            self._ahead.share = share
            rounds = range(0, steps * self._steps_per_round + 1, self._steps_per_round)
            self._foresight = Foresight(self._ahead, shards, rounds, self._drawn)

    def close(self) -> None:
        """Stop what fetches ahead. Safe to call twice."""
        self.drop_following()
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._foresight = None

    @property
    def is_live(self) -> bool:
        """Whether its samples are given once, so that none can be computed before the first step."""
        return self.streams is not None and self.streams.live

    def host_streams(self, shards: Sequence[int], log: Callable[[], StreamLog]) -> None:
        """Close the streams of all other shards, if samples come in streams. log: makes that of live ones."""
        if self.streams is not None:
            self.streams.host(shards)
        if self.is_live:
            assert self.streams is not None
            self.streams.log = log()

    def verify_streams(self, steps: int) -> None:
        """Raises Inconsistent where a stream does not go on where it was. steps: of the run."""
        if self.streams is not None:
            last = self._sampler.indices(steps * self._steps_per_round - 1, 0)
            self.streams.verify(self.rows(0, 0), last[-1] + 1)

    def shard_state(self) -> State:
        """The state of its samples that a shard keeps before the first step: empty if samples have numbers."""
        return {} if self.streams is None else self.streams.first()

    def verify(self, loaders: Loaders) -> None:
        """Raises Inconsistent where the loaders read other samples than this process does."""
        shards = self.attendance.own
        first = next((found for shard in shards if (found := self._micro_batch(0, shard)).key.indices), None)
        if first is not None:
            loaders.verify(first.key, self._read(first))

    def local_steps(self, step: int, shard: int) -> range:
        """The local steps of a shard in a step of the run, numbered through the run as micro-batches are then; of some the
        micro-batch may be empty."""
        if shard in self.attendance.absent(step):
            return range(0)
        local = (
            self._sampler.local_steps(step, shard)
            if isinstance(self._sampler, ClientSampler)
            else self._steps_per_round
        )
        return range(step * self._steps_per_round, step * self._steps_per_round + local)

    def unlock(self, keys: Keys) -> None:
        """From now on it is known which clients play."""
        if isinstance(self._sampler, PoissonSampler):
            self._sampler.unlock(keys)

    def sampled_clients(self, step: int, shard: int) -> tuple[int, ...]:
        """The numbers that a shard computes in a step of the run: its own, or those of the clients that it plays. Each is
        asked for in the place of a shard."""
        return self._sampler.sampled_clients(step, shard) if isinstance(self._sampler, PoissonSampler) else (shard,)

    def shard_of(self, step: int, client: int) -> int:
        """Which shard computes one of its `sampled_clients`."""
        return self._sampler.slot_of(step, client) if isinstance(self._sampler, PoissonSampler) else client

    def plan(self, steps: Iterable[int], shards: Sequence[int]) -> None:
        """Prepare the samples and seeds of these micro-batches together: between two backward passes the same code
        takes ten times as long, because it has been evicted from the processor's cache."""
        self._planned = {(step, shard): self._micro_batch(step, shard) for step in steps for shard in shards}
        self._together = self._read_together([each.key for each in self._planned.values() if each.key.indices])
        self._read_before = {}

    def read_all(self, step: int, shards: Sequence[int]) -> list[Arriving] | None:
        """The micro-batches of these shards, if all have been read before any is computed. None where reading goes on while the
        device computes, or one is empty."""
        wanted = [self._known(step, shard) for shard in shards]
        if not all(each.key.indices and self._has_read(each.key) for each in wanted):
            return None
        with suppress(OrchestratorError):  # a loader's, which raises the same when its turn comes
            for each in wanted:
                self._read_before[each.key] = self._fetch(each)
            return list(self._read_before.values())
        return None

    def _has_read(self, key: Key) -> bool:
        if key in self._together or (self._following is not None and self._following[0] == key):
            return True
        return self._loaders is not None and self._loaders.has_read(key)

    def compute_read(self, step: int, shards: Sequence[int], batches: Sequence[Arriving]) -> None:
        """The micro-batches of these shards are computed once more, as `read_all` gave them."""
        keys = (self._known(step, shard).key for shard in shards)
        self._read_before = dict(zip(keys, batches, strict=True))

    def seeds(self, step: int, shards: Sequence[int]) -> list[int]:
        """From which the passes of these micro-batches draw."""
        return [self._known(step, shard).seed for shard in shards]

    def _read_together(self, keys: Sequence[Key]) -> dict[Key, Arriving]:
        """Small micro-batches, read and brought to the device as one: each by itself takes as many calls. None where it is not
        this thread that reads them, or code of the user's runs."""
        elsewhere = self._loaders is not None or self.streams is not None or self.attendance.is_pinned
        if elsewhere or len(keys) < 2 or not self._staging.copies_ahead:
            return {}
        with suppress(IndexError):  # it is read again when its turn comes, and raises the same then
            indices = [index for key in keys for index in key.indices]
            tensors = fetch_together(self._train, indices, self.pipeline.collate, TOGETHER_BYTES)
            if tensors is not None:
                begun = self._staging.begin_together(tensors, [len(key.indices) for key in keys])
                return dict(zip(keys, begun, strict=True))
        return {}

    @property
    def why_not_recorded(self) -> str:
        """Why a micro-batch's passes depend on more than the batch; empty where they do not."""
        if self._takes_step:
            return "loss() takes the step"
        kept = next((name for name, each in self._attributes() if isinstance(each, torch.optim.Optimizer)), None)
        return "" if kept is None else f"{kept} is the optimizer, whose learning rates may change in each step"

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
        """As `loss`, done again from a recording where `graphs` are set and have one."""
        computed = self._computed(step, shard, self.graphs, looks=True)
        self.hand_over()
        return None if computed is None else (float(computed[0]), float(computed[1]))

    def seed_behind(self, step: int, shard: int) -> None:
        """For code that runs behind a repetition of micro-batch (step, shard), which has left generators of the host as they
        were: a loss that draws from them is not recorded."""
        streams.seed_others(self._known(step, shard).seed)

    @property
    def repeated(self) -> Sequence[torch.Tensor | None] | None:
        """The gradients of the last micro-batch if it was done again from a recording; the same object for each that was."""
        return None if self.graphs is None else self.graphs.gradients

    def hand_over(self) -> None:
        """Have the gradients of a repetition at the parameters."""
        if self.graphs is not None:
            self.graphs.hand_over()

    @property
    def replayed(self) -> bool:
        """Whether the last micro-batch was done again from a recording."""
        return self.graphs is not None and self.graphs.replayed

    def unread_loss(self, step: int, shard: int, *, late: bool = False) -> Unread | None:
        """As `loss`. With `graphs` the loss is a tensor on the device, and may be infinite or NaN: a look at it would wait
        for the device. The gradients of a repetition are in `repeated` then. late: a weight that the device has computed is
        left there as well, as float64, for `weighed`."""
        return self._computed(step, shard, self.graphs, late=late)

    def weighed(self, step: int, shard: int, weight: float) -> float:
        """The weight of micro-batch (step, shard) that was left on the device. Raises PipelineRaised where it is none."""
        return weight_of(weight, self._known(step, shard).where)

    def _computed(
        self, step: int, shard: int, graphs: ShardGraphs | None, *, looks: bool = False, late: bool = False
    ) -> Unread | None:
        micro_batch = self._known(step, shard)
        where, rows = micro_batch.where, len(micro_batch.key.indices)
        if not rows:
            return None
        arriving = self._fetch(micro_batch)
        hint = lambda: self._of_one_row(step, shard)  # noqa: E731
        with self._naming_samples(micro_batch.key, arriving.host):
            computed = self._gradients(arriving, step, rows, where, micro_batch.seed, hint, graphs, late)
            self._begin_following(micro_batch.key)
            if looks and computed is not None:
                check_finite(float(computed[0]), where)
            return computed

    def loss_of_validation(self, batch: int) -> tuple[float, float] | None:
        """As `loss`, of a validation batch: by that workers prove that they compute alike who may not read the same training
        samples."""
        indices, where = self.evaluation_batches[batch], _evaluated(-1, batch)
        items = self._read_validation(indices, -1, batch, where)
        seed = streams.seed_of(self._seed, "compute", -1, batch)
        computed = self._gradients(self._staging.begin(items), 0, len(indices), where, seed)
        return None if computed is None else (float(computed[0]), float(computed[1]))

    def _gradients(
        self,
        arriving: Arriving,
        step: int,
        rows: int,
        where: str,
        seed: int,
        hint: Callable[[], str | None] = lambda: None,
        graphs: ShardGraphs | None = None,
        late: bool = False,
    ) -> Unread | None:
        def loss_of(batch: Any) -> Any:
            with self._autocast():
                return self._loss(batch, step)

        def eager(batch: Any) -> Judged | None:
            returned = loss_of(batch)
            if not self._weighs and isinstance(returned, Sequence):
                raise PipelineRaised(
                    f"loss() ({where}) returned a weight, and with privacy.clipping_norm all count the same",
                    "return the mean alone",
                    code="pipeline.loss-weight-clipped",
                )
            loss, weight = mean_and_weight(returned, rows, where)
            if weight == 0:
                return None
            if graphs is None and not self._staging.answers_late:
                check_finite(loss.item(), where)
            try:
                loss.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                name_line(error, lambda: loss_of(batch))
                raise
            return loss.detach(), weight

        def whole(batch: Any) -> Judged:
            loss, weight = loss_and_weight(loss_of(batch), rows, where)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach(), weight.detach() if isinstance(weight, torch.Tensor) else weight

        with naming(f"loss() ({where})", hint):
            if graphs is None:
                with streams.seeded_with(seed):
                    judged = eager(arriving.there())
                if judged is None:
                    return None
                mean = judged[0].item()
                check_finite(mean, where)
                return mean, judged[1]
            seeded, repeated = (partial(each, seed) for each in (streams.seeded_with, streams.seeded_for_torch))
            judged = graphs.compute(arriving, Work(eager, whole, seeded, repeated, step))
            if judged is None:
                return None
            loss, given = judged
            if late and graphs.replayed and is_late(given, loss):
                return loss, given.detach().double().reshape(1)
            weight = weight_of(given, where)
        return None if weight == 0 else (judged[0], weight)

    @contextmanager
    def _naming_samples(self, key: Key, batch: Any) -> Iterator[None]:
        """A loss that is not finite is told with the samples that it came from."""
        try:
            yield
        except NonFinite as error:
            raise self._with_samples(error, key, batch) from None

    def _with_samples(self, error: NonFinite, key: Key, batch: Any) -> NonFinite:
        found = strange(batch, key.indices)
        named = self.named(key.step, key.shard)
        named_samples = f"; not finite itself: {listed(found)}" if found and named else ""
        return NonFinite(f"{error.message}{named}{named_samples}", error.remedy, code=error.code)

    def named(self, step: int, shard: int) -> str:
        """The samples of a micro-batch as its data set numbers them, to follow a message; nothing where they are the secret of
        a private run."""
        found = () if isinstance(self._sampler, PoissonSampler) else self._known(step, shard).key.indices
        what = "training samples" if self.streams is None else "samples of its stream"
        return f" ({what} {listed(found)})" if found else ""

    def rows(self, step: int, shard: int) -> int:
        """The number of rows of micro-batch (step, shard)."""
        return len(self._known(step, shard).key.indices)

    @contextmanager
    def call(self, step: int, shard: int) -> Iterator[Call]:
        """The loss of micro-batch (step, shard), which is not empty, to be called within the block, by parts of a model:
        there the generators are seeded for it. Raises PipelineRaised for what is raised within the block."""
        micro_batch = self._known(step, shard)
        fetched = self._fetch(micro_batch)
        naming_samples = self._naming_samples(micro_batch.key, fetched.host)
        with naming_samples, naming(f"loss() ({micro_batch.where})"), streams.seeded_with(micro_batch.seed):
            given = Given(fetched, lambda other: self._loss(other, step))
            rows, where = len(micro_batch.key.indices), micro_batch.where
            yield Call(lambda: given.function(given.batch), self._autocast, rows, where, given)

    @contextmanager
    def going_on(self, step: int, shard: int) -> Iterator[None]:
        """For the backward pass of what `call` has begun, which sets the generators by itself."""
        with naming(f"loss() (step {step}, shard {shard})"), streams.held():
            yield

    @contextmanager
    def evaluation(self, step: int, batch: int) -> Iterator[tuple[Call, Call]]:
        """Loss and metrics of a validation batch, to be called within the block, as `call` says; in which order, and that the
        second goes on with the generators of the first, is the caller's care."""
        indices, where = self.evaluation_batches[batch], _evaluated(step, batch)
        self._tell_batch(batch)
        items = self._read_validation(indices, step, batch, where)
        updates = (step + 1) * self._steps_per_round
        with naming(f"evaluation ({where})"), streams.seeded(self._seed, "evaluation", step, batch), torch.no_grad():
            items = self._staging.batch(items)
            yield (
                Call(lambda: self._loss(items, updates), self._autocast, len(indices), where),
                Call(lambda: self.pipeline.metrics(self.model, items), self._autocast, len(indices), where),
            )

    @contextmanager
    def evaluation_going_on(self, step: int, batch: int) -> Iterator[None]:
        """For the second call of what `evaluation` has given, behind its block, for which the generators are set there."""
        with naming(f"evaluation ({_evaluated(step, batch)})"), streams.held(), torch.no_grad():
            yield

    def _tell_batch(self, batch: int) -> None:
        if isinstance(self.pipeline, Adapted):
            self.pipeline.validation_batch = batch

    def summarized(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics over the whole validation set, of what was put together over its batches."""
        if not isinstance(self.pipeline, Adapted):
            return metrics
        with naming("the metrics over all validation batches"):
            return self.pipeline.summarized(metrics)

    def local_optimizer(self, variant: Variant, step: int, shard: int) -> torch.optim.Optimizer:
        """A new one over the model's parameters."""
        what = f"building the local optimizer (round {step}{self._whose(step, shard)})"
        with naming(what), streams.seeded(self._seed, "local optimizer", step, shard):
            return optimizers.build(variant.name, variant.options, self.model)

    def optimize_locally(self, step: int, shard: int, optimizer: torch.optim.Optimizer) -> None:
        """One step of a shard's own optimizer, which finds its gradients at the parameters."""
        where = f"the local optimizer ({self._where(step, shard)})"
        optimizers.begin_late(optimizer)
        with naming(where), streams.seeded(self._seed, "local optimizer step", step, shard):
            optimizer.step()
        if self.replayed:
            found = (parameter.grad for parameter in self.model.parameters())
            optimizers.keep_own(optimizer, *(gradient for gradient in found if gradient is not None))

    def optimize(
        self, step: int, optimizer: torch.optim.Optimizer, gradients: torch.Tensor, act: Callable[[], object]
    ) -> None:
        """One step of the optimizer, by `act`, which finds its gradients as views of `gradients`; peers may still be reading
        those."""
        version, head = gradients._version, gradients[:_HEAD].clone()
        optimizers.begin_late(optimizer)
        aside, options = kept_aside(optimizer, self.model), optimizers.options(optimizer)
        marks = optimizers.model_marks(optimizer, self.model)
        with naming(f"the optimizer (step {step})"), streams.seeded(self._seed, "optimizer step", step):
            act()
        optimizers.keep_own(optimizer, gradients)
        for name, after in kept_aside(optimizer, self.model).items():
            if after != aside.get(name):
                raise PipelineRaised(
                    f"the optimizer changed its attribute {name!r} (step {step}), which no checkpoint and no worker that joins "
                    "would have",
                    "keep it in the optimizer's state or param_groups, or in frozen parameters of the model",
                    code="optimizer.attribute",
                )
        for what, mark in optimizers.model_marks(optimizer, self.model).items():
            if mark != marks.get(what):
                raise PipelineRaised(
                    f"the optimizer {what} of the model (step {step}), which a worker that joins would not have",
                    "have it change parameters alone: what is to change along the run may be a frozen one "
                    "(requires_grad=False, in model()), and what is to be trained no more a group with lr=0 and weight_decay=0",
                    code="optimizer.changes-model",
                )
        now = optimizers.options(optimizer)
        strange = optimizers.differing(
            [dict.fromkeys(group) for group in options], [dict.fromkeys(group) for group in now]
        )
        if strange is not None:
            raise PipelineRaised(
                f"the optimizer added or removed {strange!r} in its param_groups (step {step})",
                "give it a value when the optimizer is built: a state has to fit the optimizer of a worker that joins",
                code="optimizer.groups",
            )
        if [group["lr"] for group in now] != [group["lr"] for group in options]:
            raise PipelineRaised(
                f"the optimizer, or a scheduler that follows it, changed its learning rate (step {step})",
                "let `schedule` do that, which sets the rates for each step, or keep a factor of your own in param_groups",
                code="optimizer.changes-rate",
            )
        if gradients._version != version or not torch.equal(gradients[:_HEAD], head):
            raise PipelineRaised(
                f"the optimizer changed gradients in place (step {step})",
                "give it copies in its step(): parameter.grad = parameter.grad.clone(); or turn foreach off, where it has that",
                code="optimizer.changes-gradients",
            )

    def evaluate(self, step: int, batch: int) -> tuple[list[str], list[float]]:
        """Names and values of one validation batch: loss, its weight, rows, then the pipeline's metrics by name.

        The caller has called `model.eval()`. step: the one before it; -1: none yet.
        """
        return self.evaluate_batch(step, batch, self.evaluation_batches[batch], self.model)

    def evaluate_batch(
        self, step: int, batch: int, indices: Sequence[int], model: torch.nn.Module
    ) -> tuple[list[str], list[float]]:
        """As `evaluate`, of these validation samples and in the place of the model another one."""
        where = _evaluated(step, batch)
        self._tell_batch(batch)
        items = self._read_validation(indices, step, batch, where)
        with naming(f"evaluation ({where})"), streams.seeded(self._seed, "evaluation", step, batch), torch.no_grad():
            items = self._staging.batch(items)
            with self._autocast():
                updates = (step + 1) * self._steps_per_round
                loss, weight = mean_and_weight(self._loss(items, updates, model), len(indices), where)
                metrics = numbers_of(self.pipeline.metrics(model, items), where)
            values = [loss.item(), weight, float(len(indices)), *metrics.values()]
        return list(metrics), values

    def _loss(self, batch: Any, updates: int, model: torch.nn.Module | None = None) -> Any:
        """updates: how many the model has had; model: another than its own."""
        more = {"step": updates} if self._takes_step else {}
        return self.pipeline.loss(self.model if model is None else model, batch, **more)

    def _known(self, step: int, shard: int) -> _MicroBatch:
        return self._planned.get((step, shard)) or self._micro_batch(step, shard)

    def _micro_batch(self, step: int, shard: int) -> _MicroBatch:
        return _MicroBatch(
            Key(step, shard, tuple(self._indices(step, shard))),
            self._where(step, shard),
            streams.seed_of(self._seed, "samples", step, shard),
            streams.seed_of(self._seed, "compute", step, shard),
        )

    def not_finite(self, step: int, shard: int, loss: float) -> NonFinite:
        """The error of micro-batch (step, shard) whose loss is no number, or infinite. Its batch is gone by now, so samples are
        read once more, unless they come in a stream."""
        micro_batch = self._known(step, shard)
        error = loss_not_finite(loss, micro_batch.where)
        batch = None
        if self.streams is None:
            with suppress(OrchestratorError):  # the loss is told, whatever becomes of reading
                batch = self._read(micro_batch)
        return self._with_samples(error, micro_batch.key, batch)

    def _where(self, step: int, shard: int) -> str:
        """A micro-batch for messages. step: of the run, or where a step of the run is a round the local one, as `local_steps`
        numbers them."""
        round_, nth = divmod(step, self._steps_per_round)
        return (
            f"{f'round {round_}, local step {nth}' if self._in_rounds else f'step {step}'}{self._whose(round_, shard)}"
        )

    def _whose(self, round_: int, shard: int) -> str:
        """Under noise it is told to nobody who plays."""
        if isinstance(self._sampler, PoissonSampler):
            return ""
        client = f", client {self._sampler.client(round_, shard)}" if isinstance(self._sampler, ClientSampler) else ""
        return f"{client}, shard {shard}"

    def _of_one_row(self, step: int, shard: int) -> str | None:
        """The remedy if batch normalisation found a single row in a client's micro-batch; None if it is not a client's."""
        if not isinstance(self._sampler, ClientSampler) or isinstance(self._sampler, PoissonSampler):
            return None
        samples = self._sampler.samples(step // self._steps_per_round, shard)
        instead = "or put GroupNorm or LayerNorm in its place"
        if samples == 1:
            given = "set data.partition.least=2" if self._has_least else "give each client two samples or more"
            return f"batch normalisation needs two rows, and this client owns one sample: {given}, {instead}"
        return (
            f"batch normalisation needs two rows, and of this client's {samples} samples a batch was left one: set "
            f"data.batch_size={_ROWS_TO_SHARE * self.order.shards}, so that a shard takes {_ROWS_TO_SHARE} at a time, {instead}"
        )

    def _indices(self, step: int, shard: int) -> Sequence[int]:
        """The numbers of the samples of micro-batch (step, shard), in the data set or in the order of its stream."""
        known = None if self._foresight is None else self._foresight.known(step, shard)
        return self._drawn(step, shard) if known is None else known

    def _drawn(self, step: int, shard: int) -> Sequence[int]:
        if shard in self.attendance.absent(step // self._steps_per_round):
            return ()
        found = self._sampler.indices(step, shard)
        if self.subset is None:
            return found
        used: list[int] = self.subset[found].tolist()
        return used

    def _fetch(self, micro_batch: _MicroBatch) -> Arriving:
        key = micro_batch.key
        if (read := self._read_before.pop(key, None)) is not None:
            return read
        self.attendance.check(key.shard)
        if self._loaders is None or key.shard not in self._hosted:
            if key in self._together:
                self.account.add(key.indices, 0)
                return self._together[key]
            # A shard of another worker is read here, also if there are loaders: they go on with the hosted shards.
            return self._staging.begin(self._counted(key, lambda: self._read(micro_batch)))
        following, self._following = self._following, None
        if following is not None and following[0] == key:
            return following[1]
        return self._staging.begin(self._loaded(self._loaders, key))

    def _begin_following(self, key: Key) -> None:
        """Begin to bring the micro-batch behind this one to the device, which computes meanwhile. Only if a loader has read it:
        nothing waits here, and what is read in this thread is read when its turn comes, whatever the device is."""
        loaders = self._loaders
        if loaders is None or not self._staging.copies_ahead or key.shard not in self._hosted:
            return
        following = next(self._wanted_behind(key), None)
        if following is None or not loaders.has_read(following):
            return
        with suppress(OrchestratorError):  # it is read again when its turn comes, and raises the same then
            self._following = following, self._staging.begin(self._loaded(loaders, following))

    def _loaded(self, loaders: Loaders, key: Key) -> Any:
        round_ = key.step // self._steps_per_round
        wanted = self._wanted_behind(key)
        return self._counted(key, lambda: loaders.batch(key, wanted, lambda each: self._is_over(each, round_)))

    def _counted(self, key: Key, read: Callable[[], Any]) -> Any:
        if self._foresight is not None and self._foresight.hosts(key.shard):
            self._foresight.reaches(key)
        batch = read()
        self.account.add(key.indices, 0 if self._ahead is None else self._ahead.fetched())
        return batch

    def _wanted_behind(self, key: Key) -> Iterator[Key]:
        """The micro-batches that this worker is to compute after one, as far as is known."""
        rounds = range(0, self._steps + 1, self._steps_per_round)
        following = upcoming(key.step, key.shard, self._hosted, rounds, self._indices)
        return (each for each in following if not self.taken_by_other(each.step // self._steps_per_round, each.shard))

    def _is_over(self, key: Key, now: int) -> bool:
        """Whether nobody asks for a micro-batch any more in step `now` of the run."""
        step = key.step // self._steps_per_round
        return step < now or self.taken_by_other(step, key.shard)

    def _read(self, micro_batch: _MicroBatch) -> Any:
        if self.streams is not None:
            return self._taken(self.streams, micro_batch)
        seeded = streams.seeded_with(micro_batch.samples_seed)
        with naming(f"reading samples ({micro_batch.where})"):
            return fetch(self._train, micro_batch.key.indices, self.pipeline.collate, seeded)

    def _read_validation(self, indices: Sequence[int], step: int, batch: int, where: str) -> Any:
        with naming(f"reading samples ({where})"):
            seeded = streams.seeded(self._seed, "evaluation samples", step, batch)
            return fetch(self._validation, indices, self.pipeline.collate, seeded)

    def _refuse_small_cache(self) -> None:
        """Raises ConfigurationError where the cache does not hold what a shard reads together."""
        need_room = getattr(self._train, "need_room", None)
        if need_room is not None:
            need_room(getattr(self._sampler, "together", 1))

    def _refuse_large_order(self, name: str, samples: int) -> None:
        """Raises ConfigurationError where there is not the memory for what the order of the samples holds."""
        held = getattr(self._sampler, "held_bytes", 0)
        if held > _LITTLE_BYTES and held > (available := available_bytes()):
            raise ConfigurationError(
                [
                    f"data.order: {name} holds {megabytes(held)} in each worker for the order of {samples:,} training samples, "
                    f"and {megabytes(available)} of memory are available"
                ],
                COMPUTED,
                code="data.order-memory",
            )

    def _taken(self, readers: StreamReaders, micro_batch: _MicroBatch) -> Any:
        """From the stream of its shard."""
        _, shard, indices = micro_batch.key
        items = readers.read(shard, range(indices[0], indices[-1] + 1), micro_batch.where)
        with naming(f"collate() ({micro_batch.where})"), streams.seeded_with(micro_batch.samples_seed):
            return self.pipeline.collate(items)

    def _autocast(self) -> AbstractContextManager[None]:
        """Under `precision: bfloat16` products are computed in it; parameters and gradients stay float32 (rule A9). Each use
        of a parameter casts it anew: uses that share a cast add up their gradients in bfloat16, which stages cannot do
        together."""
        if not self._mixed:
            return nullcontext()
        return torch.autocast(self._staging.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _datasets(self) -> tuple[Any, Any]:
        returned: Any = self.pipeline.datasets()
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise PipelineRaised(
                f"datasets() returned {type(returned).__name__}",
                "return (train, validation), or (train, None)",
                code="pipeline.datasets",
            )
        return returned


def _order(
    seed: int, train: Any, samples: int, data: Data, division: Division | None
) -> tuple[Epochs | Drawn, Order | PassSampler | WeightedSampler | ClientSampler | Mixture]:
    """The sampler may be a PoissonSampler, which is asked by client."""
    order = ORDERS.build(data.order.name, data.order.options)
    if isinstance(train, Sources):
        drawn = Drawn(len(train), data.batch_size, data.shards)
        return drawn, Mixture(seed, drawn, train, data.mixture, order, _files)
    if division is None:
        epochs = Epochs(seed, samples, data.batch_size, data.shards, _files(train))
        return epochs, order(epochs)
    drawn = Drawn(samples, data.batch_size, data.shards)
    if data.privacy is not None and data.privacy.noise:
        return drawn, PoissonSampler(seed, data, division.parts)
    if len(division.parts) > data.shards or (data.local is not None and data.local.epochs is not None):
        return drawn, ClientSampler(seed, drawn, division.parts, data.local or Span(steps=1))
    by_weight = any(part.weights is not None for part in division.parts)
    return drawn, (WeightedSampler if by_weight else PassSampler)(seed, drawn, division.parts)


def _steps_per_round(data: Data, sampler: object) -> int:
    """The most local steps that a shard has in a step of the run."""
    if isinstance(sampler, ClientSampler):
        return sampler.steps_per_round
    return 1 if data.local is None else data.local.in_steps(0)


def _is_written_here(module: Any) -> bool:
    """Whether the module is part of a project, and not an installed package."""
    file = getattr(module, "__file__", None)
    return file is not None and "site-packages" not in file


def _length(dataset: Any, which: str) -> int:
    with naming(f"len() of the {which} dataset"):
        if not _is_addressed(dataset):
            raise PipelineRaised(
                f"the {which} dataset is a {type(dataset).__name__}",
                "it needs __len__ and __getitem__ (a map-style dataset): exact order needs samples that can be addressed; what "
                "cannot be is read by an orchestrator.Stream, one for each shard",
                code="pipeline.dataset-type",
            )
        length = len(dataset)
    if length == 0 and which == "training":
        raise PipelineRaised(
            "the training dataset is empty", "look at what datasets() reads", code="pipeline.no-samples"
        )
    return length


def _is_addressed(dataset: Any) -> bool:
    """Whether samples are read by number, whatever the class inherits from: torch's IterableDataset only seems to have
    __getitem__, MosaicML's StreamingDataset has it."""
    read = getattr(type(dataset), "__getitem__", None)
    return hasattr(dataset, "__len__") and read not in (None, torch.utils.data.Dataset.__getitem__)


def _files(dataset: Any) -> Sequence[int] | None:
    """How many samples each file of a training set holds, where it says so (`file_lengths`)."""
    lengths = getattr(dataset, "file_lengths", None)
    if lengths is not None and sum(lengths) != len(dataset):
        raise PipelineRaised(
            f"file_lengths of the training dataset add up to {sum(lengths)}, and its length is {len(dataset)}",
            "let file_lengths say how many samples each file holds, in the order of the indices",
            code="pipeline.file-lengths",
        )
    return lengths


def _evaluated(step: int, batch: int) -> str:
    return f"{'before the first step' if step < 0 else f'after step {step + 1}'}, validation batch {batch}"
