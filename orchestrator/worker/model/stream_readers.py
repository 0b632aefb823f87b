"""The streams of a run's shards, read by whoever hosts them (`data.files.stream.Stream`).

    position     samples taken in the run; epoch and samples taken in it, and how many samples were taken behind that place
    generator    the state of the epoch's generator at that place, of a stream that has a state
    state        what its `state_dict()` gave there: its length, then JSON
    behind       a hash of the first samples behind it

These are the row of a shard, which is kept as the residual of a compression is (`shard_states.py`): in checkpoints, in
memory that outlives the worker, and handed over. So whoever hosts a shard next goes on behind the last committed step. A stream
without `state_dict` is opened again at its epoch, and its samples are taken up to there.

The state of a stream is that before its last micro-batch, whose samples are taken again from it. If they are others, as behind
a shuffle buffer whose content the state leaves out, the stream is opened again like one without a state.

Before each sample the generators of the process are seeded for it, so a sample is the same whether it is taken in its step or
passed over.

A live stream gives each sample once, so none is taken anew: its next host opens it, with its state where it has one. Its
samples are written to a log (`checkpoint.stream_log`) before they count, and those that the log holds behind a place are
taken from there.

If a mode keeps no rows (replicas that run free, a model in stages), samples are passed over from the first one on. So they are
where a run goes on from its checkpoint in a mode that keeps rows.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from orchestrator.checkpoint.state import from_text, to_text
from orchestrator.checkpoint.stream_log import Logged, StreamedSamples, StreamLog
from orchestrator.data.files.stream import Stream
from orchestrator.data.loaders import fingerprint
from orchestrator.errors import Inconsistent, PipelineRaised, RunFailed
from orchestrator.numerics import streams
from orchestrator.numerics.batches import copied
from orchestrator.numerics.byte_layout import of_bytes
from orchestrator.optim.transforms import State
from orchestrator.pipeline import naming

_POSITION, _GENERATOR, _STATE = "stream/position", "stream/generator", "stream/state"
_BEHIND = "stream/behind"
_LENGTH_BYTES = 8
_COMPARED = 4  # samples behind a state
_TRIED = 4  # micro-batches


class StreamReaders:
    """Those of one process. has_state: whether streams have a `state_dict`; live: whether what they give is given once; log: of
    that, in a generation; tell: hears once that a loaded state gave other samples, None while nobody listens."""

    def __init__(self, source: Stream, seed: int, shards: int) -> None:
        self._source = source
        self._seed = seed
        self._shards = shards
        self._readers: dict[int, _Reader] = {}
        self.live = source.live
        self.log: StreamLog | None = None
        self.tell: Callable[[str], None] | None = None
        self._has_told = False
        self.has_state = _Opened(source, seed, 0, shards, 0).has_state

    def first(self) -> State:
        """The row of a shard that has taken nothing."""
        row = {_POSITION: torch.zeros(4, dtype=torch.int64)}
        if self.has_state:
            row[_BEHIND] = torch.zeros(_Hash.BYTES, dtype=torch.uint8)
            row[_GENERATOR] = torch.zeros_like(torch.Generator().get_state())
            row[_STATE] = torch.zeros(_LENGTH_BYTES + self._source.state_bytes, dtype=torch.uint8)
        return row

    def placed(self, row: State) -> State:
        """A row from elsewhere, in this stream. The samples of a live one that another run took lie in one epoch, and have no
        state: the row is of the source itself where that run began with the state of a further one."""
        if not isinstance(self._source, Logged):
            return row
        taken = _samples_taken(row)
        return {
            **{name: tensor for name, tensor in row.items() if name not in (_GENERATOR, _STATE, _BEHIND)},
            _POSITION: torch.tensor([taken, 0, taken, 0]),
        }

    def settle(self, shard: int, row: State, step: int) -> None:
        """The shard is as far as this row says, before this step: what it took before is not asked for again."""
        reader = self._reader(shard)
        reader.settle(row)
        self._tell_of(reader)
        if self.live and reader.is_new:
            assert self.log is not None
            reader.catch_up(self.log.before(step, shard))

    def read(self, shard: int, indices: range, where: str) -> list[Any]:
        """These samples of the shard. where: for messages. Raises PipelineRaised."""
        reader = self._reader(shard)
        found = reader.read(indices, where)
        self._tell_of(reader)
        return found

    def row(self, shard: int) -> State:
        """Behind the samples that were read last."""
        return self._reader(shard).row()

    def verify(self, samples: int, most: int) -> None:
        """Raises Inconsistent where the stream of shard 0, opened with the state of another one, goes on with other samples.
        samples: before that state is taken; most: that the run takes."""
        if not self.has_state or self.live:
            return
        first, second = (_Reader(self._source, self._seed, 0, self._shards, self.first()) for _ in range(2))
        where = "trying the state_dict() of shard 0"
        first.read(range(samples), where)
        if samples == most:
            return
        first.read(range(samples, min(2 * samples, most)), where)
        second.settle(first.row())
        rest = range(min(2 * samples, most), min(_TRIED * samples, most))
        same = fingerprint(first.read(rest, where)) == fingerprint(second.read(rest, where))
        if not same or second.had_another_state:
            raise Inconsistent(
                f"after {samples} samples of shard 0 state_dict() was taken, and a stream that has loaded it goes on with "
                "others",
                "have load_state_dict() bring back all that the next samples depend on; or return something without "
                "state_dict(), such as iter(...) of it: then a new host takes the samples of the epoch anew",
                code="streams.not-restored",
            )

    def secure(self, step: int, shards: Iterable[int]) -> None:
        """Write to the log of live streams what these shards have taken for a step. Raises RunFailed."""
        if self.live:
            assert self.log is not None
            self.log.put(step, {shard: self._reader(shard).streamed() for shard in shards})

    def host(self, shards: Sequence[int]) -> None:
        """Close the streams of all others."""
        self._readers = {shard: reader for shard, reader in self._readers.items() if shard in shards}

    def _tell_of(self, reader: _Reader) -> None:
        if reader.had_another_state and self.tell is not None and not self._has_told:
            self._has_told = True
            self.tell(
                f"{reader.what}: state_dict() leaves out what the next samples depend on, such as a buffer that shuffles. Once "
                "it was loaded others came, so the samples of the epoch were taken anew up to there; so they are whenever "
                "another worker takes a shard over, and at a resume"
            )

    def _reader(self, shard: int) -> _Reader:
        if shard not in self._readers:
            self._readers[shard] = _Reader(self._source, self._seed, shard, self._shards, self.first())
        return self._readers[shard]


class _Opened:
    """A stream in one of its epochs. Raises PipelineRaised."""

    def __init__(
        self,
        source: Stream,  # has `stream()`
        seed: int,  # from which the generator of a shard and an epoch follows
        shard: int,  # whose samples these are
        shards: int,  # of the run
        epoch: int,  # counts from 0
    ) -> None:
        self.epoch = epoch
        self.taken = 0
        self.seed = seed
        self.shard = shard
        self.generator = torch.Generator().manual_seed(streams.seed_of(seed, "stream", epoch, shard))
        self.what = f"stream() of shard {shard}, epoch {epoch}"
        with naming(self.what), streams.seeded(seed, "opening a stream", epoch, shard):
            self._whole: Any = source.stream(shard, shards, epoch, self.generator)
        self._samples: Iterator[Any] | None = None
        self.has_state = hasattr(self._whole, "state_dict") and hasattr(self._whole, "load_state_dict")

    def load(self, state: Any, taken: int, generator: torch.Tensor) -> None:
        with naming(f"load_state_dict() of {self.what}"):
            self._whole.load_state_dict(state)
        self.generator.set_state(generator)
        self.taken = taken

    def state(self) -> Any:
        with naming(f"state_dict() of {self.what}"):
            return self._whole.state_dict()

    def pass_over(self, samples: int) -> None:
        """Take so many that were taken before. Raises Inconsistent where there are fewer."""
        for _ in range(samples):
            if self.next() is _END:
                raise Inconsistent(
                    f"{self.what}, ended after {self.taken} samples, and {samples} were taken of it before",
                    "a Stream gives the same samples each time it is asked for the same shard and epoch",
                    code="streams.other-end",
                )

    def next(self) -> Any:
        """The next sample; `_END` behind the last."""
        purpose = f"sample of a stream, epoch {self.epoch}"
        with naming(f"{self.what}, sample {self.taken},"), streams.seeded(self.seed, purpose, self.taken, self.shard):
            if self._samples is None:
                self._samples = iter(self._whole)
            found = next(self._samples, _END)
        self.taken += found is not _END
        return found


_END = object()


class _Hash:
    """Hashes the first samples behind a place; of those that are no values, only how many there are."""

    BYTES = 32

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._samples = 0

    def add(self, sample: Any) -> None:
        self._samples += 1
        if self._samples <= _COMPARED:
            self._digest.update(_printed(sample))

    def tensor(self) -> torch.Tensor:
        return of_bytes(self._digest.digest()).clone()


def _printed(sample: Any) -> bytes:
    with contextlib.suppress(Exception):  # of the pickles of classes that are the user's
        return fingerprint(sample)
    return b"no value"


class _Reader:
    """One shard's samples. Those read since the last `settle` are kept, since a step may be repeated."""

    def __init__(
        self,
        source: Stream,  # has `stream()`
        seed: int,  # from which the generator of a shard and an epoch follows
        shard: int,  # whose samples these are
        shards: int,  # of the run
        first: State,  # the state before the first sample
    ) -> None:
        self._source = source
        self._live = source.live
        self._open: Callable[[int], _Opened] = lambda epoch: _Opened(source, seed, shard, shards, epoch)
        self._shard = shard
        self._first = first
        self._settled: State | None = None
        self._begin = self._end = self._last = 0
        self._kept: list[Any] = []
        self._texts: list[str] = []  # of live ones
        self._marks: dict[int, State] = {}
        self._place_before = first  # where the last micro-batch ended
        self._behind = _Hash()
        self.is_new = True
        self.had_another_state = False  # whether the state that was loaded last gave other samples
        self._restart(first)

    def catch_up(self, samples: Mapping[int, StreamedSamples]) -> None:
        """Keep the samples of a live stream that were taken already behind this place, and go on behind them. samples: by its
        first."""
        self.is_new = False
        row = None
        while (each := samples.get(self._end)) is not None:
            self._texts += each.samples
            self._kept += map(from_text, each.samples)
            self._end += len(each.samples)
            self._marks[self._end] = row = self._fitted(from_text(each.row))
        if row is not None:
            self._place(row)

    def settle(self, row: State) -> None:
        taken = _samples_taken(row)
        self._settled = row
        if not self._begin <= taken <= self._end:
            self._restart(row)
        self._trim(taken)

    def read(self, indices: range, where: str) -> list[Any]:
        # A stream that is opened anew shows whether it gives the same samples again.
        if not self._live and (indices.start < self._begin or not indices.start):
            usable = self._settled is not None and _samples_taken(self._settled) <= indices.start
            self._restart(self._settled if usable and self._settled is not None else self._first)
        while self._end < indices.stop:
            passes = not self._live and self._end < indices.start
            sample = self._next(where)
            if self._keeps_place_before:
                self._behind.add(sample)
            self._keep(sample if passes else copied(sample), where)  # the stream may write the next one there
            if passes:
                self._trim(self._end)
        if self._end == indices.stop and self._end not in self._marks:
            self._marks[self._end] = self._now()
        self._last = indices.stop
        found = self._kept[indices.start - self._begin : indices.stop - self._begin]
        if self._settled is None:
            self._trim(indices.start)
        return [copied(each) for each in found]  # what makes a batch of them may change them

    @property
    def what(self) -> str:
        """The stream, for messages."""
        return self._stream.what

    def row(self) -> State:
        return self._marks[self._last]

    def streamed(self) -> StreamedSamples:
        """Since it was settled."""
        return StreamedSamples(self._begin, self._texts[: self._last - self._begin], to_text(dict(self.row()), "row"))

    def _keep(self, sample: Any, where: str) -> None:
        if self._live:
            try:
                self._texts.append(to_text(sample, "the sample"))
            except RunFailed as error:
                what = error.message.replace("a checkpoint", "the record of a live Stream")
                raise PipelineRaised(
                    f"{where}: {what}",
                    "give None, bool, int, float, str, list, tuple, dict and tensors",
                    code="streams.sample",
                ) from error
        self._kept.append(sample)
        self._end += 1

    def _restart(self, row: State) -> None:
        """With nothing kept, at the place of this row."""
        self._begin = self._end = self._last = _samples_taken(row)
        self._kept = []
        self._texts = []
        self._marks = {self._end: row}
        self.is_new = True
        self._place(row)
        if self._keeps_place_before and row[_POSITION][-1]:
            self._take_behind(row)
            row = self._here()
        self._place_before, self._behind = row, _Hash()

    def _place(self, row: State) -> None:
        _, epoch, within, _ = row[_POSITION].tolist()
        self._stream = self._open(epoch)
        if within and self._stream.has_state:
            self._stream.load(_unpacked(row[_STATE]), within, row[_GENERATOR])
            return
        if self._live:  # what it gave is not given again
            self._stream.taken = within
            return
        self._stream.pass_over(within)

    def _take_behind(self, row: State) -> None:
        """Take what was taken behind the place of the row."""
        _, epoch, within, behind = row[_POSITION].tolist()
        found, where = _Hash(), "taking samples again"
        for _ in range(behind):
            found.add(self._next(where))
        self.had_another_state = bool(within) and not torch.equal(found.tensor(), row[_BEHIND])
        if self.had_another_state:
            self._stream = self._open(epoch)
            self._stream.pass_over(within)
            for _ in range(behind):
                self._next(where)

    def _next(self, where: str) -> Any:
        found = self._stream.next()
        if found is _END:
            self._stream = self._open(self._stream.epoch + 1)
            found = self._stream.next()
        if found is _END:
            raise PipelineRaised(
                f"{where}: the stream of shard {self._shard} ended after {self._end} samples: its epoch "
                f"{self._stream.epoch} has none",
                "give a run.steps that its samples are enough for, or have stream() begin again in each epoch; the checkpoints "
                "of the run stay as they are",
                code="streams.epoch-empty",
            )
        return found

    @property
    def _keeps_place_before(self) -> bool:
        """Whether a row has the state before the last micro-batch: samples of a live stream are not taken again."""
        return self._stream.has_state and not self._live

    def _now(self) -> State:
        here = self._here()
        if not self._keeps_place_before:
            return here
        start, epoch, within, _ = self._place_before[_POSITION].tolist()
        position = torch.tensor([self._end, epoch, within, self._end - start])
        row = {**self._place_before, _POSITION: position, _BEHIND: self._behind.tensor()}
        self._place_before, self._behind = here, _Hash()
        return row

    def _here(self) -> State:
        stream = self._stream
        row = {_POSITION: torch.tensor([self._end, stream.epoch, stream.taken, 0])}
        if stream.has_state:
            row[_BEHIND] = _Hash().tensor()
            row[_GENERATOR] = stream.generator.get_state()
            row[_STATE] = _packed(stream.state(), self._source.state_bytes, stream.what)
        return self._fitted(row)

    def _fitted(self, row: State) -> State:
        stream = self._stream
        if row.keys() != self._first.keys():
            raise PipelineRaised(
                f"{stream.what}, has {'a' if stream.has_state else 'no'} state_dict(), unlike that of shard 0 in epoch 0",
                "return the same kind of object for each shard and epoch",
                code="streams.state-kind",
            )
        return row

    def _trim(self, taken: int) -> None:
        del self._kept[: taken - self._begin]
        del self._texts[: taken - self._begin]
        self._begin = taken
        self._marks = {at: row for at, row in self._marks.items() if at >= taken}


def _samples_taken(row: State) -> int:
    return int(row[_POSITION][0])


def _packed(state: Any, most: int, what: str) -> torch.Tensor:
    data = to_text(state, f"state_dict() of {what}").encode()
    if len(data) > most:
        raise PipelineRaised(
            f"state_dict() of {what}, takes {len(data)} bytes, and its class reserves {most} for each shard",
            f"set state_bytes = {1 << len(data).bit_length()} in the class of the Stream",
            code="streams.state-size",
        )
    found = torch.zeros(_LENGTH_BYTES + most, dtype=torch.uint8)
    whole = len(data).to_bytes(_LENGTH_BYTES, "little") + data
    found[: len(whole)] = of_bytes(whole)
    return found


def _unpacked(packed: torch.Tensor) -> Any:
    data = packed.numpy().tobytes()
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return from_text(data[_LENGTH_BYTES : _LENGTH_BYTES + length].decode())
