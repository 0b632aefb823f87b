"""Deltas are applied in an order that follows what caused what, in whatever order they come; windows are respected."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.clocks import AsyncPhase, Update
from orchestrator.worker.asynchronous import reports
from orchestrator.worker.asynchronous.deltas import DELTA, Deliveries, Header, window_of
from orchestrator.worker.asynchronous.reports import BarrierConsensus, BarrierReport, CompletedUpdate
from orchestrator.worker.asynchronous.shard_rows import decode, encode
from orchestrator.worker.member.heartbeat import Halt
from orchestrator.worker.step_report import Requests, Shape

SHARDS, WORKERS, SLICES = 4, 3, 2
seeds = st.integers(0, 2**32)


def header(origin: int, number: int, read: list[int], applied: list[int]) -> Header:
    return Header(DELTA, origin, number, 7 * number, (1, 0, 2, 0), tuple(read), tuple(applied))


@given(seeds)
def test_a_header_is_what_was_encoded(seed: int) -> None:
    chance = random.Random(seed)
    one = header(chance.randrange(3), chance.randrange(99), [chance.randrange(9) for _ in range(3)], [0, 1, 2])
    assert Header.decode(one.encode(), SHARDS) == one


@given(seeds)
def test_effects_come_after_their_causes(seed: int) -> None:
    """Worker 0 and 1 send in turn, having read all; worker 2 gets their messages in any order that keeps each one's own."""
    chance = random.Random(seed)
    applied = [[0] * WORKERS for _ in range(2)]
    sent: list[list[Header]] = [[], []]
    for _ in range(chance.randrange(1, 12)):
        origin = chance.randrange(2)
        if chance.random() < 0.5:
            applied[origin][1 - origin] = len(sent[1 - origin])
        read = list(applied[origin])
        applied[origin][origin] += 1
        sent[origin].append(header(origin, len(sent[origin]) + 1, read, applied[origin]))
    inbox = Deliveries(WORKERS, 2, SLICES)
    taken: list[tuple[int, int]] = []
    whole = 0
    waiting = [[(each, part) for each in own for part in range(SLICES)] for own in sent]
    while any(waiting):
        own = chance.choice([each for each in waiting if each])
        each, part = own.pop(0)
        inbox.header(each)
        inbox.part(each.origin, each.number, part, torch.zeros(1))
        whole += part == SLICES - 1
        assert len(inbox.waiting()) == whole - len(taken)
        while (delta := inbox.next()) is not None:
            caused = delta.header.read
            assert all(inbox.applied[o] >= caused[o] for o in range(2) if o != delta.header.origin)
            taken.append((delta.header.origin, delta.header.number))
    assert inbox.applied == [len(sent[0]), len(sent[1]), 0]
    assert [n for o, n in taken if o == 0] == list(range(1, len(sent[0]) + 1))


def test_what_others_have_not_applied_is_unacknowledged() -> None:
    inbox = Deliveries(WORKERS, 0, 1)
    assert [inbox.sent(), inbox.sent(), inbox.unacknowledged] == [1, 2, 2]
    inbox.header(header(1, 1, [0, 0, 0], [2, 1, 0]))
    assert inbox.unacknowledged == 2
    inbox.header(header(2, 1, [0, 0, 0], [1, 0, 1]))
    assert inbox.unacknowledged == 1
    assert Deliveries(1, 0, 1).unacknowledged == 0


@pytest.mark.parametrize(("elements", "window"), [(0, 8), (10**5, 8), (2 * 10**6, 4), (10**9, 1)])
def test_the_window_keeps_within_its_memory(elements: int, window: int) -> None:
    assert window_of(elements) == window


def test_a_report_is_what_was_encoded_and_the_maximum_what_all_agree_on() -> None:
    shape = Shape(shards=3, tensors=2, counters=1)
    one = BarrierReport(None, Requests(save=True), {0: 5, 2: 7}, [3, 4], [9])
    other = BarrierReport(1, Requests(halt=Halt.STOP), {1: 6}, [5, 1], [2])
    agreed = BarrierConsensus.decode(torch.maximum(one.encode(shape), other.encode(shape)), shape)
    assert (agreed.failing_shard, agreed.clocks, agreed.magnitudes, agreed.counters) == (1, (5, 6, 7), [5, 4], [9])
    assert agreed.requests == Requests(halt=Halt.STOP, save=True)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1))),
    st.integers(-(2**63), 2**63 - 1),
)
def test_updates_are_what_was_encoded(told: list[tuple[int, float | None, int]], added: int) -> None:
    made = [
        CompletedUpdate(Update(shard, ((1, 2), (4, 1))[: shard % 3]), loss, printed) for shard, loss, printed in told
    ]
    same = [each._replace(loss=None if each.loss is None else each.loss + 0.0) for each in made]
    assert reports.decode(reports.encode(made, added)) == (same, added)


def test_lines_take_the_updates_in_canonical_order_and_the_last_one_all_that_is_left() -> None:
    stream = [
        CompletedUpdate(Update(0, ()), 1.0, 10),
        CompletedUpdate(Update(1, ()), None, 20),
        CompletedUpdate(Update(0, ()), 3.0, 30),
    ]
    sprint = AsyncPhase((0, 0), ((0, 1),), (tuple(each.update for each in stream),))
    ordered = reports.in_order(sprint, [stream])
    lines, carry = reports.lines(ordered, 0, 1, last=False, per_line=2)
    assert [(line["loss"], line["gradient"]) for line in lines] == [((1.0).hex(), f"{30:016x}")]
    assert carry == (((3.0).hex(), 30),)
    (last,), none = reports.lines(ordered, 0, 1, last=True, per_line=2)
    assert (last["loss"], last["gradient"], none) == ((2.0).hex(), f"{60:016x}", ())


def test_rows_are_what_was_encoded() -> None:
    rows = {3: {"a": torch.arange(6.0).reshape(2, 3), "b/c": torch.tensor(7)}, 5: {}}
    back = decode(encode(rows))
    assert back.keys() == {3}
    assert torch.equal(back[3]["a"], rows[3]["a"])
    assert torch.equal(back[3]["b/c"], rows[3]["b/c"])
    assert decode(encode({})) == {}
