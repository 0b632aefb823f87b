"""The record of an async phase: what each update had read, from which a rerun computes every update again with the same bits.

A worker applies the updates of another one in the order in which that one made them, and an update only after everything that
it has read (causal delivery). So what a worker knows is a number of updates for each other worker, and an update's record is
by how many these grew since the worker's update before it: a few bytes. The streams tell the place of an update in its
shard's clock.

    a frame   length and CRC-32 of the payload, 4 bytes each, little endian; the payload, by zlib:
    varints   workers; per worker its shards (how many, which); per worker its updates: how many, and then by column
              the places of their shards among its shards, sets of other workers read as bits, and the counts of these

To record the order of messages and not their contents is the idea of LeBlanc and Mellor-Crummey, "Debugging parallel programs
with Instant Replay" (1987).

It neither holds numbers of the updates themselves nor splits a file into frames.
"""

from __future__ import annotations

import operator
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from orchestrator.records.bounded_json import MOST_BYTES

Clocks = tuple[int, ...]  # per shard

_FRAME = struct.Struct("<II")


class Update(NamedTuple):
    """An update in an async phase. reads: (worker, how many more of its updates were applied here since this worker's previous
    update), workers ascending, its own not included, counts > 0."""

    shard: int
    reads: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class AsyncPhase:
    """The record of one async phase. start: clocks at the rest before. hosted: by worker, its shards. streams: by worker, its
    updates in order.

    Raises ValueError for what no async phase with causal delivery can be."""

    start: Clocks
    hosted: tuple[tuple[int, ...], ...]
    streams: tuple[tuple[Update, ...], ...]

    def __post_init__(self) -> None:
        problem = _misplaced(self) or _unread(self) or _not_causal(self)
        if problem is not None:
            raise ValueError(f"record of a sprint: {problem}")

    @property
    def end(self) -> Clocks:
        """The clocks after it."""
        made = Counter(update.shard for stream in self.streams for update in stream)
        return tuple(clock + made[shard] for shard, clock in enumerate(self.start))

    def encode(self) -> bytes:
        """Without `start`, which the reader knows."""
        payload = zlib.compress(_varints(_numbers(self)), level=9)
        return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload

    @classmethod
    def decode(cls, data: bytes, start: Clocks) -> AsyncPhase:
        """Raises ValueError that names what is damaged."""
        numbers = iter(_read_varints(_unframed(data)))
        (workers,) = _take(numbers, 1)
        hosted = tuple(_take(numbers, *_take(numbers, 1)) for _ in range(workers))
        streams = tuple(_read_stream(numbers, worker, hosted) for worker in range(workers))
        if left := len(list(numbers)):
            raise ValueError(f"record of a sprint: {left} numbers too many")
        return cls(start, hosted, streams)

    def wants(self) -> dict[tuple[int, int], Clocks]:
        """(shard, its clock) -> the clocks that this update has read; of its own shard its own clock."""
        found: dict[tuple[int, int], Clocks] = {}
        for stream in self.streams:
            clocks, applied = list(self.start), [0] * len(self.streams)
            for update in stream:
                for other, count in update.reads:
                    for read in self.streams[other][applied[other] : applied[other] + count]:
                        clocks[read.shard] += 1
                    applied[other] += count
                found[update.shard, clocks[update.shard]] = tuple(clocks)
                clocks[update.shard] += 1
        return found

    def order(self) -> list[tuple[int, int]]:
        """All updates, as (shard, its clock), each behind all updates that it has read. The order of arrival plays no part: an
        update that reads another one has also read all that the other has read, so the sum of its clocks is larger."""
        wants = self.wants()
        return sorted(wants, key=lambda update: (sum(wants[update]), update[0]))

    def staleness(self) -> list[tuple[int, int]]:
        """The updates in this order, each as its shard, and by how many updates that was ahead of the slowest one as its
        worker knew it."""
        wants = self.wants()
        return [(shard, clock - min(wants[shard, clock])) for shard, clock in self.order()]


def _misplaced(phase: AsyncPhase) -> str | None:
    shards, workers = len(phase.start), len(phase.streams)
    if len(phase.hosted) != workers or sorted(sum(phase.hosted, ())) != list(range(shards)):
        return f"{workers} workers host the shards {phase.hosted}; each of {shards} has to be there once"
    for worker, stream in enumerate(phase.streams):
        for number, update in enumerate(stream):
            if update.shard not in phase.hosted[worker]:
                return f"update {number} of worker {worker} is of shard {update.shard}, which it does not host"
    return None


def _unread(phase: AsyncPhase) -> str | None:
    for worker, stream in enumerate(phase.streams):
        total: Counter[int] = Counter()
        for number, update in enumerate(stream):
            others = [other for other, _ in update.reads]
            if others != sorted(set(others) & set(range(len(phase.streams))) - {worker}):
                return f"update {number} of worker {worker} reads updates of the workers {others}"
            if any(count < 1 for _, count in update.reads):
                return f"update {number} of worker {worker} reads {update.reads}; the counts have to be positive"
            total.update(dict(update.reads))
        for other, count in total.items():
            if count > len(phase.streams[other]):
                return (
                    f"worker {worker} reads {count} updates of worker {other}, which made {len(phase.streams[other])}"
                )
    return None


def _not_causal(phase: AsyncPhase) -> str | None:
    """Its last reading of a worker tells all that this one had read until then."""
    knowledge = [list(_knowledge(phase, worker)) for worker in range(len(phase.streams))]
    for worker, stream in enumerate(phase.streams):
        for number, (update, known) in enumerate(zip(stream, knowledge[worker], strict=True)):
            for other, _ in update.reads:
                behind = knowledge[other][known[other] - 1]
                if not all(map(operator.le, behind, known)):
                    return (
                        f"update {number} of worker {worker} has read update {known[other] - 1} of worker {other}, and not all "
                        "that this one had read"
                    )
    return None


def _knowledge(phase: AsyncPhase, worker: int) -> Iterator[tuple[int, ...]]:
    """Per update of a worker, how many updates of each it has read; of its own all before."""
    known = [0] * len(phase.streams)
    for update in phase.streams[worker]:
        for other, count in update.reads:
            known[other] += count
        yield tuple(known)
        known[worker] += 1


def _numbers(phase: AsyncPhase) -> Iterator[int]:
    yield len(phase.hosted)
    for shards in phase.hosted:
        yield len(shards)
        yield from shards
    for worker, stream in enumerate(phase.streams):
        yield len(stream)
        yield from (phase.hosted[worker].index(update.shard) for update in stream)
        yield from (sum(1 << other - (other > worker) for other, _ in update.reads) for update in stream)
        yield from (count for update in stream for _, count in update.reads)


def _read_stream(numbers: Iterator[int], worker: int, hosted: tuple[tuple[int, ...], ...]) -> tuple[Update, ...]:
    (length,) = _take(numbers, 1)
    places, sets = _take(numbers, length), _take(numbers, length)
    if any(place >= len(hosted[worker]) for place in places):
        raise ValueError(f"record of a sprint: worker {worker} has an update of a shard that it does not host")
    if any(each >> len(hosted) - 1 for each in sets):
        raise ValueError(f"record of a sprint: worker {worker} reads updates of workers that there are not")
    others = [other for other in range(len(hosted)) if other != worker]
    read = [[other for bit, other in enumerate(others) if each >> bit & 1] for each in sets]
    counts = iter(_take(numbers, sum(map(len, read))))
    return tuple(
        Update(hosted[worker][place], tuple((other, next(counts)) for other in each))
        for place, each in zip(places, read, strict=True)
    )


def _unframed(data: bytes) -> bytes:
    if len(data) < _FRAME.size:
        raise ValueError(f"record of a sprint: it ends within its head, after {len(data)} bytes")
    length, checksum = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if len(payload) != length:
        raise ValueError(f"record of a sprint: its head tells of {length} bytes, and there are {len(payload)}")
    if zlib.crc32(payload) != checksum:
        raise ValueError("record of a sprint: its checksum is not that of its bytes")
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(payload, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"record of a sprint: cannot be decompressed: {error}") from error
    if not unpacking.eof:  # somebody else may have made it, to take all memory
        raise ValueError(f"record of a sprint: it breaks off, or has more than {MOST_BYTES >> 20} MiB")
    return found


def _varints(numbers: Iterable[int]) -> bytes:
    """Seven bits a byte, the lowest first; all bytes of a number but the last have the high bit."""
    written = bytearray()
    for number in numbers:
        while number > 127:
            written.append(number & 127 | 128)
            number >>= 7
        written.append(number)
    return bytes(written)


def _read_varints(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("record of a sprint: it ends within a number")


def _take(numbers: Iterator[int], count: int) -> tuple[int, ...]:
    found = tuple(islice(numbers, count))
    if len(found) < count:
        raise ValueError(f"record of a sprint: it ends {count - len(found)} numbers too early")
    return found
