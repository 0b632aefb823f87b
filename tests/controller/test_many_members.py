"""The work of a decision does not grow with the square of the members. It is counted in instructions of Python, not in time."""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.virtual_members import VirtualRun
from orchestrator.controller import sites, state_recovery
from orchestrator.controller.load_balancing import Host, assign_by_speed, share_out
from orchestrator.controller.member_table import MemberTable, Status
from orchestrator.controller.rendezvous.balancing import _median_without
from orchestrator.controller.shard_assignment import assign_stages
from orchestrator.controller.state import present, waiting
from orchestrator.records.progress import Progress

FEW, MANY = 24, 96
SLACK = 1.3  # beyond the proportion: sorting, heaps, blocks


@dataclass
class Count:
    instructions: int = 0


@contextmanager
def counted() -> Iterator[Count]:
    """The instructions of Python that are carried out within the block."""
    found, before = Count(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        found.instructions += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)


@functools.cache
def work(members: int) -> dict[str, int]:
    run, spent = VirtualRun(members), {}
    parts = {
        "launch": run.launch,
        "a second": run.second,
        "loss": lambda: run.lose(members // 8),
        "join": run.join,
    }
    for name, act in parts.items():
        with counted() as found:
            act()
        spent[name] = found.instructions
    return spent


@pytest.mark.slow
@pytest.mark.parametrize("part", ["launch", "a second", "loss", "join"])
def test_the_work_of_a_part_is_in_proportion_to_the_members(part: str) -> None:
    assert work(MANY)[part] <= SLACK * MANY / FEW * work(FEW)[part]


def test_orders_and_their_sizes_are_in_proportion_too() -> None:
    few, many = VirtualRun(FEW).parts(), VirtualRun(MANY).parts()
    for part, cost in many.items():
        assert cost.orders <= MANY / FEW * few[part].orders + 8, part
        assert cost.events <= MANY / FEW * few[part].events + 8, part
        assert cost.begin_bytes <= SLACK * MANY / FEW * few[part].begin_bytes, part


def test_the_counts_are_those_of_the_members() -> None:
    run = VirtualRun(FEW)
    for act in (run.launch, run.second, lambda: run.lose(3), run.join):
        act()
        members = list(run.state.members.values())
        assert len(run.state.members) == len(members)
        assert [member.id for member in members] == sorted(member.id for member in members)
        assert run.state.members.count(takes_part=True) == len(present(run.state))
        assert run.state.members.count(takes_part=True, reported=False) == len(waiting(run.state))
        assert run.state.members.count("worker", ready=True) == sum(each.ready is not None for each in members)
        assert [each.rank for each in present(run.state)] == [
            run.state.generation.begin.members.index(each.id)  # type: ignore[union-attr]
            for each in present(run.state)
        ]


# ---- the table


@dataclass(frozen=True)
class One:
    status: Status


statuses = st.builds(Status, st.sampled_from(["worker", "server"]), *[st.booleans()] * 6)


@given(st.lists(st.tuples(st.integers(0, 99), st.one_of(st.none(), statuses)), max_size=60))
def test_a_table_is_a_dict_of_which_earlier_ones_stay(changes: list[tuple[int, Status | None]]) -> None:
    table, known = MemberTable[One](), dict[int, One]()
    seen = [(table, dict(known))]
    for member, status in changes:
        if status is None:
            table = table.without(member)
            known.pop(member, None)
        else:
            table = table.with_one(member, One(status))
            known[member] = One(status)
        seen.append((table, dict(known)))
    for table, known in seen:
        assert table == known
        assert len(table) == len(known)
        assert all((member in table) == (member in known) for member in range(100))
        for ready in (True, False):
            assert table.count("worker", ready=ready) == sum(
                (each.status.role, each.status.ready) == ("worker", ready) for each in known.values()
            )


# ---- what is decided is what the plain rules say


@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 9.0]), min_size=2, max_size=9))
def test_the_median_of_the_others(values: list[float]) -> None:
    for place, value in enumerate(values):
        others = values[:place] + values[place + 1 :]
        assert _median_without(sorted(values), value) == statistics.median(others)


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=12), st.lists(st.booleans(), max_size=12))
def test_a_newcomer_goes_to_the_stage_that_the_fewest_host(fixed: list[int | None], leaves: list[bool]) -> None:
    leaves = (leaves + [False] * len(fixed))[: len(fixed)]
    found = assign_stages(fixed, 4, leaves)
    here = [list(fixed).count(stage) for stage in range(4)]
    stays = [sum(own == stage and not goes for own, goes in zip(fixed, leaves, strict=True)) for stage in range(4)]
    for own, goes, given_ in zip(fixed, leaves, found, strict=True):
        if own is None:
            assert given_ == min(range(4), key=lambda stage: (stays[stage], here[stage], stage))
            here[given_] += 1
            stays[given_] += not goes


@given(st.data(), st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=6))
def test_who_ends_last_gives_up_first(data: st.DataObject, rates: list[float]) -> None:
    held = [data.draw(st.integers(0, 6)) for _ in rates]
    jobs = data.draw(st.integers(len(rates), 24))
    counts = share_out(jobs, rates, held, [1] * len(rates))
    assert sum(counts) == jobs
    assert min(counts) >= 1


def growth(few: Any, many: Any) -> float:
    """How much more work the second is, in proportion to four times the members."""
    counts = []
    for act in (few, many):
        with counted() as found:
            act()
        counts.append(found.instructions)
    return counts[1] / counts[0] / (MANY / FEW)


def test_assignments_are_in_proportion() -> None:
    def by_speed(number: int) -> None:
        hosts = [Host(1.0 + place % 3, place, frozenset({place})) for place in range(number)]
        assign_by_speed(2 * number, hosts)

    def at_sites(number: int) -> None:
        own = {f"site {place}": (2 * place, 2 * place + 1) for place in range(number // 2)}
        offered = [(f"site {place}",) if place < number // 2 else () for place in range(number)]
        sites.assign_at_sites(sites.hosts(2 * number, own, offered), [()] * number)

    def recovered(number: int) -> None:
        standings = [state_recovery.Standing(rank % 4, Progress(7 + rank % 2), True) for rank in range(number)]
        state_recovery.plan_recovery(standings, 4)

    for act in (by_speed, at_sites, recovered):
        assert growth(lambda act=act: act(FEW), lambda act=act: act(MANY)) <= SLACK, act.__name__
