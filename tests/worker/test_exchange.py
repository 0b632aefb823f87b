"""The results of an exchange, over every topology, with members as threads: sums of integers beside means, and payloads of
any length.

Not here: means, which every run of the engine's other tests computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm import collectives
from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies import Schedule, build_schedule
from orchestrator.numerics.exact import FAST_MEANS, INTEGERS, MEANS, Sums, wrap
from orchestrator.numerics.layout import BLOCK, Layout
from tests.comm.topologies.cases import NAMES, variants
from tests.comm.transports.memory import Hub, LocalRegions
from tests.comm.transports.worlds import PATIENCE_S, WORLDS, Member, World, together
from tests.products import fewer, thinned

pytestmark = pytest.mark.threads

PHASE = 7
T = TypeVar("T")


def exchanged(schedule: Schedule, act: Callable[[Exchange, Member, int], T], world: World | None = None) -> list[T]:
    """The result of `act` for each member, called in a thread of its own with the member's exchange and rank."""
    used = world or WORLDS["memory"]()
    try:
        members = used.members(schedule.members)
        layout = Layout.of([("w", torch.empty(5))])

        def live(rank: int) -> T:
            member = members[rank]
            memory = Memory(layout, member.regions, sums=MEANS)
            if world is None:  # the regions of others are there before the members connect
                memory.suit(schedule, rank)
            memory.contribution.fill_(rank + 1.0 if rank < schedule.workers else 0.0)
            return act(Exchange(schedule, rank, 1, member.transport, memory, PATIENCE_S), member, rank)

        return together([partial(live, rank) for rank in range(schedule.members)])
    finally:
        used.close()


def fingerprint(values: numpy.ndarray) -> int:
    """By Python's own integers, which do not overflow."""
    return wrap(sum((number + 1) * int(v) for number, block in enumerate(values.reshape(-1, BLOCK)) for v in block))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", range(1, 6))
def test_sums_of_integers_wrap_around_as_numpys_do(name: str, workers: int) -> None:
    dice = numpy.random.default_rng(workers)
    limits = numpy.iinfo(numpy.int64)
    layout = Layout.of([("rest", torch.empty(2 * BLOCK + 5))])
    rows = dice.integers(limits.min, limits.max, (workers, layout.size), endpoint=True)
    rows[:, :3] = [limits.max, limits.min, -1]
    expected = rows.sum(axis=0)  # modulo 2**64
    wanted = torch.from_numpy(expected), fingerprint(expected)

    def add_up(exchange: Exchange, member: Member, rank: int) -> tuple[torch.Tensor, int, int]:
        memory = Memory(layout, member.regions, sums=INTEGERS)
        memory.suit(schedule, rank)
        if rank < workers:
            memory.contribution.copy_(torch.from_numpy(rows[rank]))
        mean = exchange.total(0, 0, float(workers))
        found = exchange.add_up(memory, 0, 0, PHASE)
        return memory.result.clone(), found, mean

    for schedule in variants(name, workers, (1, 3)):
        ends = exchanged(schedule, add_up)
        assert len({mean for _, _, mean in ends[:workers]}) == 1
        assert {found for _, found, _ in ends[:workers]} == {wanted[1]}
        for result, _, _ in ends[:workers]:
            assert result.dtype == torch.int64
            assert torch.equal(result, wanted[0])


@pytest.mark.parametrize("sums", [MEANS, FAST_MEANS, INTEGERS], ids=["float64", "float32", "int64"])
def test_one_parameter_says_what_is_added_up(sums: Sums) -> None:
    layout = Layout.of([("w", torch.empty(3))])

    def add_up(exchange: Exchange, member: Member, rank: int) -> torch.Tensor:
        memory = Memory(layout, member.regions, sums=sums)
        memory.suit(schedule, rank)
        assert (memory.contribution.dtype, memory.partial.dtype) == (sums.dtype, sums.dtype)
        memory.contribution[:2] = torch.tensor([1, 3 * rank])
        exchange.add_up(memory, 1, 0, PHASE, 1.0 if sums is INTEGERS else 2.0)
        return memory.result[:2].clone()

    (schedule,) = variants("ring", 2)
    expected = torch.tensor([2, 3]) if sums is INTEGERS else torch.tensor([1.0, 1.5])
    for result in exchanged(schedule, add_up):
        assert result.dtype == sums.result
        assert torch.equal(result, expected)


def test_a_sum_of_integers_is_not_divided() -> None:
    def add_up(exchange: Exchange, member: Member, _rank: int) -> int:
        memory = Memory(Layout.of([("w", torch.empty(3))]), member.regions, sums=INTEGERS)
        return exchange.add_up(memory, 0, 0, PHASE, 2.0)

    (schedule,) = variants("ring", 1)
    with pytest.raises(AssertionError, match=r"integers is asked for as it is, not divided by 2\.0"):
        exchanged(schedule, add_up)


def payload_of(rank: int, workers: int) -> torch.Tensor:
    """The first is empty and each is longer than the one before."""
    length = 0 if rank == 0 or rank >= workers else 1000 * rank + 1
    return torch.arange(length).add(rank).to(torch.uint8)


def gather_twice(schedule: Schedule, exchange: Exchange, _member: Member, rank: int) -> list[list[torch.Tensor]]:
    payload = payload_of(rank, schedule.workers)
    return [exchange.gather(step, 0, PHASE, payload) for step in (0, 1)]


def check_gathered(schedule: Schedule, ends: list[list[list[torch.Tensor]]]) -> None:
    workers = schedule.workers
    for end in ends[:workers]:
        for payloads in end:
            assert len(payloads) == workers
            assert all(torch.equal(came, payload_of(rank, workers)) for rank, came in enumerate(payloads))
    assert all(end == [[], []] for end in ends[workers:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", range(1, 6))
def test_payloads_of_any_length_come_to_every_worker(name: str, workers: int) -> None:
    for schedule in variants(name, workers, (1, 3)):
        check_gathered(schedule, exchanged(schedule, partial(gather_twice, schedule)))


CARRIED = list(itertools.product(WORLDS, NAMES))


@pytest.mark.parametrize("number", thinned(range(len(CARRIED)), 3), ids=lambda number: "-".join(CARRIED[number]))
def test_payloads_travel_over_every_transport(number: int) -> None:
    kind, name = CARRIED[number]
    schedule = next(variants(name, 3, (2,)))
    check_gathered(schedule, exchanged(schedule, partial(gather_twice, schedule), world=WORLDS[kind]()))


class PartlyTravelling:
    """A world in which payloads travel between some pairs and are shared between others."""

    shares = True

    def __init__(self, travels: Callable[[int, int], bool]) -> None:
        self._travels = travels

    def members(self, count: int) -> list[Member]:
        hub, regions = Hub(count, travels=self._travels), [LocalRegions() for _ in range(count)]
        return [Member(hub.transport(rank, regions[rank]), regions[rank]) for rank in range(count)]

    def close(self) -> None: ...


def mean_in_pieces(schedule: Schedule, blocks: int, world: World | None) -> list[tuple[torch.Tensor, int, int]]:
    """Result, fingerprint and sent bytes of each member; contributions like those of two shards of a worker."""
    layout = Layout.of([("w", torch.empty(blocks * BLOCK - 5))])

    def add_up(exchange: Exchange, member: Member, rank: int) -> tuple[torch.Tensor, int, int]:
        regions = member.regions if world is None or world.shares else LocalRegions()
        memory = Memory(layout, regions, sums=MEANS)
        memory.suit(schedule, rank)
        if rank < schedule.workers:
            dice = torch.Generator().manual_seed(rank)
            memory.contribution.copy_(torch.randn(layout.size, generator=dice).double().mul(2.0**30).round())
        prints = [exchange.add_up(memory, step, 0, PHASE, 3.0) for step in range(2)]
        assert prints[0] == prints[1]
        return memory.result.clone(), prints[0], exchange.sent_bytes

    return exchanged(schedule, add_up, world)


@pytest.mark.parametrize("name", NAMES)
@given(
    workers=st.integers(2, 6),
    blocks=st.integers(1, 23),
    piece=st.integers(1, 3),
    travelling=st.sets(st.tuples(st.integers(0, 4), st.integers(1, 8))),
)
@fewer(5, most=15)
def test_pieces_and_whole_chunks_give_the_same_bits(
    name: str, workers: int, blocks: int, piece: int, travelling: set[tuple[int, int]]
) -> None:
    """All pairs of members may send in pieces, and a chunk may have any number of them."""
    for schedule in variants(name, workers, (1, 3)):
        whole = mean_in_pieces(schedule, blocks, PartlyTravelling(lambda _low, _high: False))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collectives, "_PIECE", piece * BLOCK)
            found = mean_in_pieces(schedule, blocks, PartlyTravelling(lambda *pair: pair in travelling))
            all_pieces = mean_in_pieces(schedule, blocks, PartlyTravelling(lambda _low, _high: True))
        for ends in (found, all_pieces):
            for (result, fingerprint_, sent), (result_, whole_print, whole_sent) in zip(ends, whole, strict=True):
                assert torch.equal(result, result_)
                assert (fingerprint_, sent) == (whole_print, whole_sent)


def passes_of(schedule: Schedule, *, verifies: bool = False, travels: bool = False) -> list[list[str]]:
    """For each member what it does over memory to add up, in order: how many parts it reads at once."""
    layout = Layout.of([("w", torch.empty(24 * BLOCK))])
    results: list[torch.Tensor] = []

    def add_up(exchange: Exchange, member: Member, rank: int) -> list[str]:
        told: list[str] = []

        def finish(parts: Sequence[torch.Tensor], *rest: Any) -> int:
            told.append(f"finish {len(parts)}")
            return MEANS.finish(parts, *rest)

        def join(parts: Sequence[torch.Tensor], into: torch.Tensor) -> None:
            told.append(f"join {len(parts)}")
            MEANS.join(parts, into)

        memory = Memory(layout, member.regions, sums=replace(MEANS, finish=finish, join=join))
        memory.suit(schedule, rank)
        memory.contribution.fill_(rank + 1.0)
        exchange.verify(verifies)
        for step in range(2):
            exchange.add_up(memory, step, 0, PHASE, 1.0)
        assert exchange.damaged is None
        results.append(memory.result.clone())
        assert told[: len(told) // 2] * 2 == told
        return told[: len(told) // 2]

    found = exchanged(schedule, add_up, PartlyTravelling(lambda _low, _high: travels))
    total = sum(range(1, schedule.workers + 1))
    assert all(bool((result == total).all()) for result in results)
    return found


def test_what_is_added_to_a_chunk_is_read_in_one_pass() -> None:
    assert passes_of(build_schedule("peer_to_peer", 4)) == [["finish 4"]] * 4
    assert passes_of(build_schedule("tree", 7))[:3] == [["finish 3"] * 4, ["join 3"] * 4, ["join 3"] * 4]
    assert passes_of(build_schedule("parameter_server", 4))[4] == ["finish 4"]
    assert passes_of(build_schedule("ring", 3))[0] == ["join 2", "finish 2"]


@pytest.mark.parametrize("kind", ["verifies", "travels"])
def test_what_would_take_memory_until_then_is_added_when_it_comes(kind: str) -> None:
    assert passes_of(build_schedule("peer_to_peer", 4), **{kind: True}) == [["join 2", "join 2", "finish 2"]] * 4
    server = passes_of(build_schedule("parameter_server", 3), **{kind: True})[3]
    assert server == ["join 1", "join 2", "finish 2"]


@pytest.mark.parametrize("name", NAMES)
def test_pieces_travel_in_narrow_form_and_are_counted_as_they_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = next(variants(name, 3, (2,)))
    whole = mean_in_pieces(schedule, 40, None)
    monkeypatch.setattr(collectives, "_PIECE", 4 * BLOCK)
    narrow = mean_in_pieces(schedule, 40, WORLDS["tcp"]())
    for (result, fingerprint_, sent), (result_, whole_print, whole_sent) in zip(narrow, whole, strict=True):
        assert torch.equal(result, result_)
        assert fingerprint_ == whole_print
        assert sent <= whole_sent
    assert sum(sent for _, _, sent in narrow) < 0.85 * sum(sent for _, _, sent in whole)
