"""The record of a sprint: it comes back from its bytes, its order is causal, it is small, and damage is noticed."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.synchronization import View, build_mode
from orchestrator.records import clocks
from orchestrator.records.clocks import AsyncPhase, Update

Choose = Callable[[int], int]  # a number from 0 to below this one


class Workers:
    """Workers that make updates and deliver them in causal order."""

    def __init__(self, start: tuple[int, ...], hosted: tuple[tuple[int, ...], ...]) -> None:
        self.start, self.hosted = start, hosted
        self.streams: list[list[Update]] = [[] for _ in hosted]
        self.applied = [[0] * len(hosted) for _ in hosted]
        self._read = [[0] * len(hosted) for _ in hosted]
        self._needs: list[list[list[int]]] = [[] for _ in hosted]

    def update(self, worker: int, shard: int) -> None:
        applied, read = self.applied[worker], self._read[worker]
        new = [(other, applied[other] - read[other]) for other in range(len(applied)) if other != worker]
        self.streams[worker].append(Update(shard, tuple((other, count) for other, count in new if count)))
        self._needs[worker].append(list(applied))
        self._read[worker] = list(applied)
        applied[worker] += 1

    def deliver(self, source: int, target: int) -> bool:
        """The next update of `source`, if there is one whose causes are there."""
        number = self.applied[target][source]
        if source == target or number >= len(self.streams[source]):
            return False
        if any(a > b for a, b in zip(self._needs[source][number], self.applied[target], strict=True)):
            return False
        self.applied[target][source] += 1
        return True

    def clocks(self, worker: int) -> list[int]:
        """As this worker has applied them."""
        known = zip(self.streams, self.applied[worker], strict=True)
        read = [update.shard for stream, count in known for update in stream[:count]]
        return [clock + read.count(shard) for shard, clock in enumerate(self.start)]

    def sprint(self) -> AsyncPhase:
        return AsyncPhase(self.start, self.hosted, tuple(tuple(stream) for stream in self.streams))


def disturbed(choose: Choose) -> AsyncPhase:
    """Any order of updates and deliveries."""
    count = 1 + choose(5)
    shards = count + choose(5)
    hosts = [*range(count), *(choose(count) for _ in range(shards - count))]
    hosted = tuple(tuple(shard for shard in range(shards) if hosts[shard] == worker) for worker in range(count))
    workers = Workers(tuple(choose(300) for _ in range(shards)), hosted)
    for _ in range(choose(40)):
        worker = choose(count)
        if choose(3):
            for _ in range(choose(6)):
                workers.deliver(choose(count), worker)
        else:
            workers.update(worker, hosted[worker][choose(len(hosted[worker]))])
    return workers.sprint()


@st.composite
def sprints(draw: st.DrawFn) -> AsyncPhase:
    return disturbed(lambda below: draw(st.integers(0, below - 1)))


def timed(workers: int, per_worker: int, rounds: int, spread: float, latency: float) -> AsyncPhase:
    """Micro-batches that take 1 on average, and deliveries that take `latency`; polled between micro-batches."""
    generator = random.Random(3)
    hosted = tuple(tuple(range(w * per_worker, (w + 1) * per_worker)) for w in range(workers))
    world = Workers((0,) * (workers * per_worker), hosted)
    ready, ends = [0.0] * workers, [[0.0] for _ in range(workers)]
    for _ in range(rounds * per_worker * workers):
        worker = min(range(workers), key=ready.__getitem__)
        waiting = True
        while waiting:
            waiting = False
            for other in range(workers):
                number = world.applied[worker][other]
                sent = len(world.streams[other]) > number and ends[other][number + 1] + latency <= ready[worker]
                waiting |= sent and world.deliver(other, worker)
        world.update(worker, hosted[worker][len(world.streams[worker]) % per_worker])
        ready[worker] += 1 + generator.uniform(-spread, spread)
        ends[worker].append(ready[worker])
    return world.sprint()


@given(sprints())
def test_it_comes_back_from_its_bytes(sprint: AsyncPhase) -> None:
    assert AsyncPhase.decode(sprint.encode(), sprint.start) == sprint


@given(sprints())
def test_the_order_extends_causality(sprint: AsyncPhase) -> None:
    wants, order = sprint.wants(), sprint.order()
    assert set(order) == {(s, c) for s, first in enumerate(sprint.start) for c in range(first, sprint.end[s])}
    assert len(order) == sum(map(len, sprint.streams))
    clocks = list(sprint.start)
    for shard, clock in order:
        assert all(read <= there for read, there in zip(wants[shard, clock], clocks, strict=True))
        assert wants[shard, clock][shard] == clock == clocks[shard]
        clocks[shard] += 1
    assert tuple(clocks) == sprint.end


@given(sprints())
def test_what_is_read_is_closed_under_causes(sprint: AsyncPhase) -> None:
    wants = sprint.wants()
    for read in wants.values():
        for shard, clock in enumerate(read):
            if clock > sprint.start[shard]:
                causes = wants[shard, clock - 1]
                assert all(cause <= known for cause, known in zip(causes, read, strict=True))


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_who_keeps_to_a_bound_is_no_staler(staleness: int, generator: random.Random) -> None:
    waits = build_mode("ssp", {"staleness": staleness}).waits
    workers = Workers((0, 0, 0, 0), ((0, 3), (1,), (2,)))
    for _ in range(60):
        worker = generator.randrange(3)
        workers.deliver(generator.randrange(3), worker)
        shard = generator.choice(workers.hosted[worker])
        if waits(View(workers.clocks(worker), shard)) is None:
            workers.update(worker, shard)
    assert max((ahead for _, ahead in workers.sprint().staleness()), default=0) <= staleness


def test_an_example_by_hand() -> None:
    """Worker 0 has shards 0 and 2. Its second update has read both of worker 1."""
    first, second = (Update(0, ()), Update(2, ((1, 2),)), Update(0, ())), (Update(1, ()), Update(1, ((0, 1),)))
    sprint = AsyncPhase((5, 7, 5), ((0, 2), (1,)), (first, second))
    assert sprint.end == (7, 9, 6)
    assert sprint.wants() == {
        (0, 5): (5, 7, 5),
        (2, 5): (6, 9, 5),
        (0, 6): (6, 9, 6),
        (1, 7): (5, 7, 5),
        (1, 8): (6, 8, 5),
    }
    assert sprint.order() == [(0, 5), (1, 7), (1, 8), (2, 5), (0, 6)]
    assert sprint.staleness() == [(0, 0), (1, 2), (1, 3), (2, 0), (0, 0)]
    assert AsyncPhase((0,), ((0,),), ((),)).staleness() == []


@pytest.mark.parametrize(("spread", "latency"), [(0.05, 0.1), (0.5, 0.1), (0.9, 2.5)])
def test_it_is_small(spread: float, latency: float) -> None:
    sprint = timed(4, 2, 20, spread, latency)
    updates = sum(map(len, sprint.streams))
    assert any(update.reads for stream in sprint.streams for update in stream)
    data = sprint.encode()
    assert len(zlib.decompress(data[8:])) <= 6 * updates
    assert len(data) < 3 * updates


@given(sprints(), st.data())
def test_damage_is_noticed(sprint: AsyncPhase, data: st.DataObject) -> None:
    whole = sprint.encode()
    where = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[where] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), whole[:where], whole + b"\0"):
        with pytest.raises(ValueError, match=r"^record of a sprint: "):
            AsyncPhase.decode(damaged, sprint.start)


def framed(*numbers: int, tail: bytes = b"") -> bytes:
    payload = zlib.compress(bytes(numbers) + tail)
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"abc", "it ends within its head, after 3 bytes"),
        (b"abcdefgh", "its head tells of"),
        (struct.pack("<II", 2, 0) + b"ab", "its checksum is not that of its bytes"),
        (struct.pack("<II", 2, zlib.crc32(b"ab")) + b"ab", "cannot be decompressed"),
        (framed(1, tail=b"\x80"), "it ends within a number"),
        (framed(2, 1, 0), "it ends 1 numbers too early"),
        (framed(2, 1, 0, 1, 1, 0, 0, 9), "1 numbers too many"),
        (framed(2, 1, 0, 1, 0, 0, 0), r"2 workers host the shards \(\(0,\), \(0,\)\); each of 2 has to be there once"),
        (framed(2, 1, 0, 1, 1, 1, 1, 0, 0), "worker 0 has an update of a shard that it does not host"),
        (framed(2, 1, 0, 1, 1, 1, 0, 4, 1, 0), "worker 0 reads updates of workers that there are not"),
        (framed(2, 1, 0, 1, 1, 1, 0, 2, 1, 0), "worker 0 reads updates of workers that there are not"),
        (framed(2, 1, 0, 1, 1, 1, 0, 1, 1, 0), "worker 0 reads 1 updates of worker 1, which made 0"),
        (framed(2, 1, 0, 1, 1, 1, 0, 1, 0, 0), "the counts have to be positive"),
    ],
)
def test_what_is_damaged_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^record of a sprint: .*{problem}"):
        AsyncPhase.decode(data, (0, 0))


@pytest.mark.parametrize(
    ("streams", "problem"),
    [
        (((Update(1, ()),), ()), "update 0 of worker 0 is of shard 1, which it does not host"),
        (((Update(0, ((0, 1),)),), ()), r"update 0 of worker 0 reads updates of the workers \[0\]"),
        (
            ((Update(0, ((1, 1),)),), (Update(1, ((0, 1),)),)),
            "update 0 of worker 0 has read update 0 of worker 1, and not all",
        ),
    ],
)
def test_what_no_sprint_can_be_is_refused(streams: tuple[tuple[Update, ...], ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AsyncPhase((0, 0), ((0,), (1,)), streams)


def test_what_would_take_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kB of a record that somebody has sent may be gigabytes."""
    monkeypatch.setattr(clocks, "MOST_BYTES", 1 << 20)
    payload = zlib.compress(bytes(2 << 20))
    with pytest.raises(ValueError, match="has more than 1 MiB"):
        AsyncPhase.decode(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload, (0,))
