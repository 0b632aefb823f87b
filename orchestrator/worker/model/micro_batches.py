"""Training micro-batches, read and brought to the device that computes: in this thread, from loader processes
(`data/loaders.py`), from the stream of a shard (`stream_readers.py`), or several as one.

All ways give the same bits, and differ in time alone: its samples follow from (step, shard) (`training_samples.py`), and the
generators are seeded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from orchestrator.checkpoint.stream_log import StreamLog
from orchestrator.data.fetching import fetch, fetch_together
from orchestrator.data.files.stream import Stream
from orchestrator.data.loaders import Key, Loaders, is_compared, require_same, upcoming
from orchestrator.errors import NonFinite, OrchestratorError
from orchestrator.numerics import streams
from orchestrator.numerics.staging import TOGETHER_BYTES, Arriving, Staging
from orchestrator.optim.transforms import State
from orchestrator.pipeline import Pipeline, naming
from orchestrator.worker.model.output_checks import first_nan, loss_not_finite
from orchestrator.worker.model.prefetch import FilePrefetcher, PrefetchWindow
from orchestrator.worker.model.read_account import ReadAccount
from orchestrator.worker.model.sample_names import listed, strange
from orchestrator.worker.model.stream_readers import StreamReaders
from orchestrator.worker.model.training_samples import TrainingSamples


class MicroBatch(NamedTuple):
    """A micro-batch: its samples, how messages call it, and the seed for computing it."""

    key: Key
    where: str
    seed: int

    @property
    def rows(self) -> int:
        return len(self.key.indices)


class MicroBatches:
    """Those of a run that this worker reads. account: of the bytes that were read; streams: of the shards, None where samples
    have numbers; taken_by_other: whether another worker computes a shard that this one hosts in a step of the run."""

    def __init__(
        self,
        pipeline: Pipeline,  # that makes batches of samples
        samples: TrainingSamples,  # of all workers
        seed: int,  # of the run
        staging: Staging,  # brings batches to the device that computes
        model: torch.nn.Module,  # that computes them, for messages
    ) -> None:
        self._pipeline = pipeline
        self._model = model
        self._samples = samples
        self._seed = seed
        self._staging = staging
        dataset = samples.dataset
        self.streams = StreamReaders(dataset, seed, samples.order.shards) if isinstance(dataset, Stream) else None
        self.account = ReadAccount(samples.file_lengths)
        self.taken_by_other: Callable[[int, int], bool] = lambda _step, _shard: False
        self._loaders: Loaders | None = None
        self._hosted: tuple[int, ...] = ()  # with loaders: those of the micro-batches that they read
        self._rounds = range(0)
        self._following: tuple[Key, Arriving] | None = None  # the micro-batch that is likely to be next, on its way
        self._prefetch_window: PrefetchWindow | None = None
        self._prefetcher: FilePrefetcher | None = None
        self._planned: dict[tuple[int, int], MicroBatch] = {}
        self._together: dict[Key, Arriving] = {}  # those of them that were read as one
        self._read_before: dict[Key, Arriving] = {}  # each is computed once

    def at(self, step: int, shard: int) -> MicroBatch:
        """Micro-batch (step, shard), before it is read."""
        return self._planned.get((step, shard)) or self._micro_batch(step, shard)

    def rows(self, step: int, shard: int) -> int:
        """The number of rows of micro-batch (step, shard)."""
        return self.at(step, shard).rows

    def seeds(self, step: int, shards: Sequence[int]) -> list[int]:
        """From which the passes of these micro-batches draw."""
        return [self.at(step, shard).seed for shard in shards]

    def plan(self, steps: Iterable[int], shards: Sequence[int]) -> None:
        """Prepare the samples and seeds of these micro-batches together: between two backward passes the same code
        takes ten times as long, because it has been evicted from the processor's cache."""
        self._planned = {(step, shard): self._micro_batch(step, shard) for step in steps for shard in shards}
        self._together = self._read_together([each.key for each in self._planned.values() if each.rows])
        self._read_before = {}

    def fetch(self, micro_batch: MicroBatch) -> Arriving:
        """Read it, unless that has happened, and begin to bring it to the device. Raises PipelineRaised."""
        key = micro_batch.key
        if (read := self._read_before.pop(key, None)) is not None:
            return read
        self._samples.attendance.check(key.shard)
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

    def begin_following(self, key: Key) -> None:
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

    def drop_following(self) -> None:
        """Let go of the micro-batch that is on its way to the device before its turn."""
        self._following = None

    def _micro_batch(self, step: int, shard: int) -> MicroBatch:
        return MicroBatch(
            Key(step, shard, tuple(self._indices(step, shard))),
            self._samples.where(step, shard),
            streams.seed_of(self._seed, "compute", step, shard),
        )

    def _indices(self, step: int, shard: int) -> Sequence[int]:
        known = None if self._prefetch_window is None else self._prefetch_window.known(step, shard)
        return self._samples.indices(step, shard) if known is None else known

    def _read(self, micro_batch: MicroBatch, purpose: str = "samples") -> Any:
        step, shard, indices = micro_batch.key
        seeded = streams.seeded(self._seed, purpose, step, shard)
        if self.streams is None:
            with naming(f"reading samples ({micro_batch.where})"):
                return fetch(self._samples.dataset, indices, self._pipeline.collate, seeded)
        items = self._taken(micro_batch)
        with naming(f"collate() ({micro_batch.where})"), seeded:
            return self._pipeline.collate(items)

    def _taken(self, micro_batch: MicroBatch) -> list[Any]:
        """Its samples, from the stream of its shard."""
        assert self.streams is not None
        indices = micro_batch.key.indices
        return self.streams.read(micro_batch.key.shard, range(indices[0], indices[-1] + 1), micro_batch.where)

    def take_of_stream(self, step: int, shard: int) -> None:
        """If samples come in streams, have those of a micro-batch, so that none is taken when it is read. Raises
        PipelineRaised."""
        if self.streams is not None:
            self._taken(self.at(step, shard))

    def _counted(self, key: Key, read: Callable[[], Any]) -> Any:
        if self._prefetch_window is not None and self._prefetch_window.hosts(key.shard):
            self._prefetch_window.reaches(key)
        batch = read()
        self.account.add(key.indices, 0 if self._prefetcher is None else self._prefetcher.fetched())
        return batch

    def read_all(self, step: int, shards: Sequence[int]) -> list[Arriving] | None:
        """The micro-batches of these shards, if all have been read before any is computed. None where reading goes on while the
        device computes, or one is empty."""
        wanted = [self.at(step, shard) for shard in shards]
        if not all(each.rows and self._has_read(each.key) for each in wanted):
            return None
        with suppress(OrchestratorError):  # a loader's, which raises the same when its turn comes
            for each in wanted:
                self._read_before[each.key] = self.fetch(each)
            return list(self._read_before.values())
        return None

    def compute_read(self, step: int, shards: Sequence[int], batches: Sequence[Arriving]) -> None:
        """The micro-batches of these shards are computed once more, as `read_all` gave them."""
        keys = (self.at(step, shard).key for shard in shards)
        self._read_before = dict(zip(keys, batches, strict=True))

    def _has_read(self, key: Key) -> bool:
        if key in self._together or (self._following is not None and self._following[0] == key):
            return True
        return self._loaders is not None and self._loaders.has_read(key)

    def _read_together(self, keys: Sequence[Key]) -> dict[Key, Arriving]:
        """Small micro-batches, read and brought to the device as one: each by itself takes as many calls. None where it is not
        this thread that reads them, or code of the user's runs."""
        elsewhere = self._loaders is not None or self.streams is not None or self._samples.attendance.is_pinned
        if elsewhere or len(keys) < 2 or not self._staging.copies_ahead:
            return {}
        with suppress(IndexError):  # it is read again when its turn comes, and raises the same then
            indices = [index for key in keys for index in key.indices]
            tensors = fetch_together(self._samples.dataset, indices, self._pipeline.collate, TOGETHER_BYTES)
            if tensors is not None:
                begun = self._staging.begin_together(tensors, [len(key.indices) for key in keys])
                return dict(zip(keys, begun, strict=True))
        return {}

    def compute_on(self, staging: Staging) -> None:
        """From now on batches go there, where the model is."""
        self._staging = staging

    def use_loaders(self, loaders: Loaders, shards: Sequence[int], steps: int) -> None:
        """Take training batches from `loaders` from now on, for a worker that hosts `shards` in a run of `steps`."""
        self.drop_following()
        self._loaders, self._hosted, self._rounds = loaders, tuple(shards), self._samples.rounds(steps)

    def host(self, shards: Sequence[int]) -> None:
        """These are computed from now on; what was fetched ahead for others is fetched in vain."""
        if self._loaders is not None:
            self._hosted = tuple(shards)

    def verify(self, loaders: Loaders) -> None:
        """Raises Inconsistent where the loaders read other samples than this process does."""
        shards = self._samples.attendance.own
        first = next((found for shard in shards if (found := self._micro_batch(0, shard)).rows), None)
        if first is not None:
            loaders.verify(first.key, self._read(first))

    def read_otherwise(self) -> None:
        """Read the first micro-batch with other random numbers, for nobody. A data set that keeps what it draws has other
        samples from then on than a worker that has not done so, as it would have after a loss; admission compares the two."""
        own = self._samples.attendance.own[:1]
        if self.streams is None and own and (first := self._micro_batch(0, own[0])).rows:
            with suppress(OrchestratorError):  # it is read again when its turn comes, and raises the same then
                self._read(first, "other samples")

    def prefetch_files(self, shards: Sequence[int], steps: int, share: int) -> None:
        """From now on have the files fetched of what a worker reads next that hosts `shards` in a run of `steps`, where the
        training set can; share: the bytes that they may take of the cache."""
        dataset = self._samples.dataset
        if self._samples.is_secret or not hasattr(dataset, "ahead"):
            return
        self._prefetcher = self._prefetcher or dataset.ahead(share)
        if self._prefetcher is not None:
            self._prefetcher.share = share
            self._prefetch_window = PrefetchWindow(
                self._prefetcher, shards, self._samples.rounds(steps), self._samples.indices
            )

    def close(self) -> None:
        """Stop what fetches ahead. Safe to call twice."""
        self.drop_following()
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._prefetcher = self._prefetch_window = None

    def _loaded(self, loaders: Loaders, key: Key) -> Any:
        round_ = key.step // self._samples.steps_per_round
        wanted = self._wanted_behind(key)
        batch = self._counted(key, lambda: loaders.batch(key, wanted, lambda each: self._is_over(each, round_)))
        if is_compared(key, self._hosted[0]):
            micro_batch = self.at(key.step, key.shard)
            require_same(micro_batch.where, batch, self._read(micro_batch))
        return batch

    def _wanted_behind(self, key: Key) -> Iterator[Key]:
        """The micro-batches that this worker is to compute after one, as far as is known."""
        following = upcoming(key.step, key.shard, self._hosted, self._rounds, self._indices)
        per_round = self._samples.steps_per_round
        return (each for each in following if not self.taken_by_other(each.step // per_round, each.shard))

    def _is_over(self, key: Key, now: int) -> bool:
        """Whether nobody asks for a micro-batch any more in step `now` of the run."""
        step = key.step // self._samples.steps_per_round
        return step < now or self.taken_by_other(step, key.shard)

    @property
    def is_live(self) -> bool:
        """Whether samples are given once, so that none can be computed before the first step."""
        return self.streams is not None and self.streams.live

    def host_streams(self, shards: Sequence[int], log: Callable[[], StreamLog]) -> None:
        """Close the streams of all other shards, if samples come in streams. log: makes that of live ones."""
        if self.streams is not None:
            self.streams.host(shards)
            if self.streams.live:
                self.streams.log = log()

    def verify_streams(self, steps: int) -> None:
        """Raises Inconsistent where a stream does not go on where it was. steps: of the run."""
        if self.streams is not None:
            self.streams.verify(self.rows(0, 0), self._samples.end_of_stream(steps))

    def shard_state(self) -> State:
        """The state of its samples that a shard keeps before the first step: empty if samples have numbers."""
        return {} if self.streams is None else self.streams.first()

    def named(self, step: int, shard: int) -> str:
        """The samples of a micro-batch as its data set numbers them, to follow a message; nothing where they are the secret of
        a private run."""
        found = () if self._samples.is_secret else self.at(step, shard).key.indices
        what = "training samples" if self.streams is None else "samples of its stream"
        return f" ({what} {listed(found)})" if found else ""

    def not_finite(self, step: int, shard: int, loss: float) -> NonFinite:
        """The error of micro-batch (step, shard) whose loss is no number, or infinite. Its batch is gone by now, so samples are
        read once more, unless they come in a stream."""
        micro_batch = self.at(step, shard)
        error = loss_not_finite(loss, micro_batch.where)
        batch = None
        if self.streams is None:
            with suppress(OrchestratorError):  # the loss is told, whatever becomes of reading
                batch = self._read(micro_batch)
        return self.with_samples(error, micro_batch.key, batch)

    @contextmanager
    def naming_samples(self, key: Key, batch: Any) -> Iterator[None]:
        """A loss that is not finite is told with the samples that it came from."""
        try:
            yield
        except NonFinite as error:
            raise self.with_samples(error, key, batch) from None

    def with_samples(self, error: NonFinite, key: Key, batch: Any) -> NonFinite:
        found = strange(batch, key.indices)
        named = self.named(key.step, key.shard)
        named_samples = f"; not finite itself: {listed(found)}" if found and named else ""
        unwritten = first_nan(self._model)
        if unwritten is None:
            return NonFinite(f"{error.message}{named}{named_samples}", error.remedy, code=error.code)
        return NonFinite(
            f"{error.message}{named}; the parameter {unwritten!r} of the model holds NaN",
            "set it in model(): torch.empty(...) and torch.Tensor(SIZE) give memory that nobody has written, "
            f"which is NaN here; or {error.remedy}",
            code=error.code,
        )
