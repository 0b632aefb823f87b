"""Shards that are claimed are computed once each, whoever is slow, stands still or dies, and no bit changes by it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from orchestrator.controller.shard_assignment import assign_shards
from orchestrator.errors import Inconsistent
from orchestrator.worker import strategies
from orchestrator.worker.member import lasting_memory, shared_queue
from orchestrator.worker.member.shared_queue import (
    Assignment,
    MemoryHandle,
    QueueConsumer,
    QueueMemory,
    SharedQueue,
    check,
    opened,
    paced,
    stamp_of,
)
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.elastic import Elastic, Fault, elastic_settings
from tests.worker.pipelines import Batch
from tests.worker.runs import ONE, PATIENCE_S, Layout, members_end, train, windows_of
from tests.worker.toys import ERROR_FEEDBACK

pytestmark = pytest.mark.threads

SHARDS = 6


@pytest.fixture
def memory() -> Iterator[int]:
    fd = lasting_memory.created()
    yield fd
    os.close(fd)


# ---- the board


def test_of_all_who_claim_a_shard_in_a_step_one_gets_it(memory: int) -> None:
    one, other = SharedQueue(memory, SHARDS), SharedQueue(memory, SHARDS)
    first, second = Assignment(((0, 1), (2, 3)), 0), Assignment(((0, 1), (2, 3)), 1)
    first.stamp.value = second.stamp.value = stamp = stamp_of(0, 0)
    assert [one.claim(first), other.claim(second)] == [0, 2]
    assert [other.claim(second), other.claim(second), one.claim(first)] == [3, 1, -1]
    assert [one.is_free(shard, stamp) for shard in range(SHARDS)] == [False] * 4 + [True] * 2
    first.stamp.value = stamp_of(0, 1)
    assert one.claim(first) == 0


def test_a_generation_that_broke_off_is_older_than_all_that_follows(memory: int) -> None:
    board, deal = SharedQueue(memory, SHARDS), Assignment(((0,),), 0)
    stamps = [stamp_of(3, 900), stamp_of(4, 7), stamp_of(3, 901)]  # the last of one who is late in it
    found = []
    for deal.stamp.value in stamps:
        found.append((board.is_free(0, stamp_of(4, 7)), board.claim(deal)))
    assert found == [(True, 0), (True, 0), (False, -1)]
    assert not board.is_free(0, stamp_of(4, 7))


def last_of_most(free: Sequence[Sequence[int]], kept: int) -> int | None:
    """The shard that an idle worker claims; None if there is none to be had. free: of each other worker of its host the
    shards that nobody has claimed, in order. kept: so many are left to each, which its loaders have read ahead: whoever took
    one would read it again."""
    most = max(free, key=len, default=())
    return most[-1] if len(most) > kept else None


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.integers(0, 3),
    st.lists(st.integers(0, 4), min_size=25, max_size=25),
    st.randoms(use_true_random=False),
)
def test_what_is_claimed_is_what_the_rule_says(sizes: list[int], kept: int, order: list[int], dice: Random) -> None:
    memory, numbers = lasting_memory.created(), iter(dice.sample(range(20), sum(sizes)))
    dealt = [[next(numbers) for _ in range(size)] for size in sizes]
    board, left = SharedQueue(memory, 20), [list(shards) for shards in dealt]
    for number in order:
        own = number % len(sizes)
        beside = [shards for other, shards in enumerate(left) if other != own]
        expected = left[own][0] if left[own] else last_of_most(beside, kept)
        deal = Assignment(dealt, own, kept)
        deal.stamp.value = stamp_of(1, 1)
        assert board.claim(deal) == (-1 if expected is None else expected)
        left = [[shard for shard in shards if shard != expected] for shards in left]
    os.close(memory)


class BrokenOff(Exception):
    """A member left the generation."""


class Turns:
    """Threads that go on one at a time, in an order that is drawn: each waits for its turn before everything it does, and at a
    vote for all others."""

    def __init__(self, workers: int, order: Sequence[int]) -> None:
        self._order = iter(order)
        self._workers = workers
        self._running = set(range(workers))
        self._waiting: set[int] = set()
        self._turn: int | None = None
        self._votes = 0
        self._voted: set[int] = set()
        self._is_broken = False
        self._changed = threading.Condition()

    def wait(self, worker: int) -> None:
        with self._changed:
            self._waiting.add(worker)
            self._choose()
            assert self._changed.wait_for(lambda: self._turn == worker, PATIENCE_S)
            self._waiting.remove(worker)
            self._turn = None

    def vote(self, worker: int) -> None:
        with self._changed:
            votes = self._votes
            self._voted.add(worker)
            self._running.remove(worker)
            if len(self._voted) == self._workers:
                self._votes, self._running, self._voted = votes + 1, self._voted, set()
                self._changed.notify_all()
            self._choose()
            assert self._changed.wait_for(lambda: self._votes > votes or self._is_broken, PATIENCE_S)
            if self._votes == votes:
                raise BrokenOff

    def end(self, worker: int, *, early: bool) -> None:
        with self._changed:
            self._running.discard(worker)
            self._is_broken = self._is_broken or early
            self._changed.notify_all()
            self._choose()

    def _choose(self) -> None:
        if self._turn is None and self._waiting and self._waiting == self._running:
            waiting = sorted(self._waiting)
            self._turn = waiting[next(self._order, 0) % len(waiting)]
            self._changed.notify_all()


class InTurn(SharedQueue):
    def __init__(self, fd: int, turn: Callable[[], None]) -> None:
        super().__init__(fd, SHARDS)
        self._turn = turn

    def claim(self, deal: Assignment) -> int:
        self._turn()
        return super().claim(deal)


def _lives(rank: int, claims_: QueueConsumer, turns: Turns, leaves: tuple[int, int]) -> list[list[int]]:
    """The shards that a worker computes in each of three steps; leaves: (worker, after so many shards of the second)."""
    found: list[list[int]] = [[], [], []]
    try:
        for step in range(3):
            turns.vote(rank)
            for shard in claims_.turns(step, assign_shards(SHARDS, len(claims_.ranks))):
                found[step].append(shard)
                turns.wait(rank)  # it computes
                assert not claims_.taken_by_other(step, shard)
                if leaves == (rank, len(found[1])):
                    raise BrokenOff
    except BrokenOff:
        turns.end(rank, early=True)
    else:
        turns.end(rank, early=False)
    return found


@given(
    st.integers(1, 4),
    st.integers(0, 2),
    st.lists(st.integers(0, 3), max_size=300),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=2),
)
def test_each_shard_is_claimed_once_in_each_step_whatever_the_order(
    workers: int, kept: int, order: list[int], broken: list[tuple[int, int]]
) -> None:
    """Generations of three steps, some of which a worker leaves early, after so many shards of a step: then all go on
    with the next, as after a loss."""
    memory = lasting_memory.created()
    for number, leaves in enumerate([*broken, (-1, 0)]):
        turns = Turns(workers, order)

        def live(rank: int, number: int = number, turns: Turns = turns, leaves: tuple[int, int] = leaves) -> Any:
            board = InTurn(memory, lambda: turns.wait(rank))
            return _lives(rank, QueueConsumer(board, number, rank, range(workers), kept), turns, leaves)

        found = _together(live, workers)
        for step in range(3):
            computed = sorted(shard for each in found for shard in each[step])
            assert len(computed) == len(set(computed))
            if leaves[0] < 0:
                assert computed == list(range(SHARDS))
    os.close(memory)


def _together(live: Callable[[int], Any], workers: int) -> list[Any]:
    with ThreadPoolExecutor(workers) as pool:
        return [future.result() for future in [pool.submit(live, rank) for rank in range(workers)]]


def test_nobody_claims_before_all_of_the_host_are_there(memory: int) -> None:
    """A worker without the queue computes what is dealt to it, and so does every other worker of its host."""
    dealt = ((0, 1, 2), (3, 4, 5))
    first, second = (QueueConsumer(SharedQueue(memory, SHARDS), 5, rank, (0, 1)) for rank in range(2))
    assert [[*each.turns(8, dealt)] for each in (first, second)] == [[0, 1, 2], [3, 4, 5]]
    assert [[*each.turns(9, dealt)] for each in (first, second)] == [[0, 1, 2, 5, 4, 3], []]
    alone, without = QueueConsumer(SharedQueue(memory, SHARDS), 6, 0, (0, 1)), QueueConsumer(None, 6, 1, (0, 1))
    for step in (9, 10, 11):
        assert [[*each.turns(step, dealt)] for each in (alone, without)] == [[0, 1, 2], [3, 4, 5]]


def test_it_is_known_what_others_have_taken(memory: int) -> None:
    first, second = (QueueConsumer(SharedQueue(memory, SHARDS), 0, rank, (0, 1)) for rank in range(2))
    dealt = ((0, 1, 2), (3, 4, 5))
    for each in (first, second):
        list(each.turns(0, dealt))
    theirs = second.turns(1, dealt)
    own = first.turns(1, dealt)
    assert [next(own), *theirs] == [0, 3, 4, 5, 2, 1]
    assert [first.taken_by_other(1, shard) for shard in range(3)] == [False, True, True]
    assert not first.taken_by_other(2, 1)


def test_a_board_that_is_gone_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r"another file|No such"):
        opened(MemoryHandle(0, os.getpid(), 0), SHARDS)


def _claim_all(place: MemoryHandle, own: int, steps: int, out: Any) -> None:
    board, deal = opened(place, 64), Assignment([range(20), range(20, 40), range(40, 64)], own)
    got = []
    for step in range(steps):
        deal.stamp.value = stamp_of(0, step)
        while (shard := board.claim(deal)) >= 0:
            got.append((step, shard))
    out.put(got)


@pytest.mark.slow
def test_processes_that_race_get_each_shard_once() -> None:
    """Unlike threads of Python, they are within the instruction at the same moment."""
    context, steps = multiprocessing.get_context("fork"), 3000  # which takes less time than the race
    ground, out = QueueMemory(), context.Queue()
    place = MemoryHandle(0, *ground.handle)
    processes = [context.Process(target=_claim_all, args=(place, own, steps, out)) for own in range(3)]
    for process in processes:
        process.start()
    got = [claim for _ in processes for claim in out.get(timeout=PATIENCE_S)]
    for process in processes:
        process.join()
    assert len(got) == len(set(got))
    assert {shard for step, shard in got if step == steps - 1} == set(range(64))


@pytest.mark.parametrize(
    ("shards", "claimants", "named"), [((0, 1), {0: 0, 1: 1, 2: 1}, "shard 1"), ((0, 1), {0: 0, 1: 0}, "shard 2")]
)
def test_a_shard_that_is_missing_or_computed_twice_is_a_fault(
    shards: tuple[int, ...], claimants: dict[int, int], named: str
) -> None:
    check(4, 0, (0, 1), {0: 0, 1: 0, 2: 1}, 3)
    with refused("replica.shard-computed", named):
        check(4, 0, shards, claimants, 3)


# ---- runs


class Dawdling(p.Batchnorm):
    """Micro-batches take as long as it happens, and some stall. (All the dice of a step are the run's own, but these.)"""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if model.training:
            dawdle()
        return super().loss(model, batch)


def dawdle() -> None:
    time.sleep(Random(os.urandom(8)).choice([0, 0, 0, 0.001, 0.004]))


class Leaping(p.Mlp):
    """Gradients of every other step are too large for the grid, so it is repeated."""

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        loss: Tensor = super().loss(model, batch)
        return loss * 2.0 ** (12 * (step % 2))


LAYOUTS = [Layout(2, "ring"), Layout(3, "tree"), Layout(4, "parameter_server"), Layout(4, "peer_to_peer")]


@pytest.mark.parametrize("pipeline", thinned([Dawdling, p.LayerDrop, Leaping], 3, 2), ids=lambda each: each.__name__)
@pytest.mark.parametrize("layout", thinned(LAYOUTS, 4, 1), ids=str)
def test_with_claims_and_without_the_run_is_the_same(pipeline: Any, layout: Layout) -> None:
    settings: dict[str, Any] = {"steps": 6, "shards": 7, "optimizer": {"name": "adam", "lr": 0.01}}
    expected = train(pipeline, ONE, **settings)
    for wanted in (True, False):
        found = train(pipeline, layout, claims=wanted, **settings)
        assert (found.digest, found.trace, found.metrics) == (expected.digest, expected.trace, expected.metrics)


MORE: dict[str, dict[str, Any]] = {
    "quantize": {"compression": {"name": "quantize", "error_feedback": False}},
    "topk": {"compression": {"name": "topk", "ratio": 0.3, "error_feedback": False}},
    "powersgd": {"compression": {"name": "powersgd", "rank": 1, "error_feedback": False}},
    "local": {"local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.05}}},
}


@pytest.mark.parametrize("name", thinned(MORE, 4))
def test_also_where_contributions_are_compressed_or_of_local_steps(name: str) -> None:
    settings = MORE[name]
    expected = train(p.Mlp, ONE, steps=6, shards=7, claims=False, **settings)
    found = train(p.Mlp, Layout(3), steps=6, shards=7, claims=True, **settings)
    assert (found.digest, found.trace, found.metrics) == (expected.digest, expected.trace, expected.metrics)


def test_shards_that_keep_a_state_are_not_claimed() -> None:
    settings: dict[str, Any] = {"steps": 4, "compression": {"name": "quantize"}}
    windows = windows_of(p.Mlp, Layout(2), **settings)
    assert all("shards" not in window for each in windows.values() for window in each)


def test_it_is_told_who_computed_how_many() -> None:
    windows = windows_of(Dawdling, Layout(3), steps=5, shards=7, claims=True)
    told = [window["shards"] for each in windows.values() for window in each if "shards" in window]
    assert sum(computed for computed, _ in told) == 5 * 7
    assert all(others <= computed for computed, others in told)


class Sleeper(QueueConsumer):
    """Rank 0 stands still in each step until the others have taken all its shards."""

    gates: dict[int, threading.Barrier]

    def turns(self, step: int, dealt: Sequence[Sequence[int]]) -> Iterator[int]:
        if step == 0:
            yield from super().turns(step, dealt)
            return
        if self._rank == 0:
            self.gates[step].wait(PATIENCE_S)
        yield from super().turns(step, dealt)
        if self._rank != 0:
            self.gates[step].wait(PATIENCE_S)


@pytest.mark.parametrize("pipeline", thinned([p.Batchnorm, Leaping], 2), ids=lambda each: each.__name__)
def test_a_worker_may_be_left_without_any_shard(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(pipeline, ONE, steps=5, shards=4, claims=False)
    monkeypatch.setattr(Sleeper, "gates", {step: threading.Barrier(3) for step in range(1, 5)}, raising=False)
    monkeypatch.setattr(strategies, "QueueConsumer", Sleeper)
    found = train(pipeline, Layout(3), steps=5, shards=4, claims=True)
    assert (found.digest, found.trace, found.metrics) == (expected.digest, expected.trace, expected.metrics)
    monkeypatch.setattr(Sleeper, "gates", {step: threading.Barrier(3) for step in range(1, 5)})
    windows = windows_of(pipeline, Layout(3), steps=5, shards=4, claims=True)
    assert sum(window.get("shards", [0])[0] for window in windows[0]) == 2  # of the first step, in which nobody claims


def test_who_computes_without_claiming_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: QueueConsumer, step: int, dealt: Sequence[Sequence[int]]) -> Iterator[int]:  # noqa: ARG001
        yield from dealt[0]

    monkeypatch.setattr(shared_queue.QueueConsumer, "turns", always)
    ends = members_end(p.Mlp, Layout(2), steps=3, shards=4, claims=True)
    assert any(isinstance(end, Inconsistent) and "not at all" in str(end) for end in ends)


@pytest.mark.long
@pytest.mark.ray
def test_loaders_go_on_while_others_take_what_they_have_read() -> None:
    expected = train(p.Augmented, ONE, steps=5, shards=7)
    found = train(Slowed, Layout(2), steps=5, shards=7, loaders=1, claims=True)
    assert (found.digest, found.trace) == (expected.digest, expected.trace)


class Slowed(p.Augmented):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if model.training:
            dawdle()
        return super().loss(model, batch)


@pytest.mark.parametrize("seed", thinned(range(4), 4))
def test_whoever_dies_at_whatever_moment_no_bit_changes(seed: int) -> None:
    dice = Random(seed)
    layout = Layout(4, dice.choice(["ring", "tree", "peer_to_peer"]))
    expected = train(p.Batchnorm, ONE, steps=8, shards=6)
    faults = [
        Fault(dice.randrange(4), dice.randrange(20, 160), dice.choice(["die", "call off", "join"])) for _ in "123"
    ]
    settings = elastic_settings(p.Batchnorm, layout, 3, steps=8, shards=6, claims=True)
    told = Elastic(settings, layout, faults, keeps_width=True).run()
    assert (told.digest, told.trace) == (expected.digest, expected.trace)


def test_claims_that_are_asked_for_are_refused_where_shards_keep_a_state() -> None:
    layout = Layout(2)
    settings = elastic_settings(p.Mlp, layout, claims=True)
    with refused("claims.kept", "cluster.claims"):
        Elastic(settings, layout, contribution=ERROR_FEEDBACK)


def test_a_shard_is_claimed_when_its_device_has_come_near_it() -> None:
    log: list[str] = []
    launched = itertools.count()

    def claimed() -> Iterator[int]:
        for shard in range(4):
            log.append(f"claim {shard}")
            yield shard

    def mark() -> Callable[[], None]:
        nth = next(launched)
        return lambda: log.append(f"done {nth}")

    assert list(paced(claimed(), mark)) == [0, 1, 2, 3]
    assert log == ["claim 0", "claim 1", "done 0", "claim 2", "done 1", "claim 3", "done 2"]
