"""The price of the orders of the table: the bubble, and how many shards are in flight."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.pipeline_schedules import (
    Hosts,
    Programs,
    bubble,
    groups_of,
    next_task,
    nominal,
    programs,
    timeline,
)
from orchestrator.comm.pipeline_schedules.laws import Interpreter
from tests.comm.pipeline_schedules.cases import NAMES, columns, ragged


def in_flight(hosts: Hosts, found: Programs) -> list[int]:
    interpreter = Interpreter(hosts, found)
    assert interpreter.run() is None
    return interpreter.most


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stages", "shards"), [(1, 4), (2, 8), (4, 16), (3, 3)])
def test_the_bubble_is_that_of_the_paper(name: str, stages: int, shards: int) -> None:
    hosts = columns(stages, 1, shards)
    spans = timeline(hosts, programs(hosts, name), nominal(stages))
    assert bubble(spans) == pytest.approx((stages - 1) / (shards + stages - 1))


def test_one_forward_one_backward_holds_fewer_shards() -> None:
    hosts = columns(4, 1, 16)
    assert in_flight(hosts, programs(hosts, "1f1b")) == [4, 3, 2, 1]
    assert in_flight(hosts, programs(hosts, "gpipe")) == [16, 16, 16, 16]


def test_shards_ahead_are_held_before_the_last_stage() -> None:
    hosts = columns(4, 1, 16)
    assert in_flight(hosts, programs(hosts, "1f1b", {"ahead": 1})) == [5, 4, 3, 1]
    words = [
        " ".join(f"{task.kind[0]}{task.shard}" for task in program)
        for program in programs(((0,) * 4, (1,) * 4), "1f1b", {"ahead": 1})
    ]
    assert words == ["f0 f1 f2 b0 f3 b1 b2 b3", "f0 b0 f1 b1 f2 b2 f3 b3"]


def test_gpipe_goes_forward_with_all_and_then_back() -> None:
    for program in programs(columns(3, 2, 8), "gpipe"):
        assert [kind for kind, _ in groupby(program, lambda task: task.kind)] == ["forward", "backward"]


def test_a_program_in_words() -> None:
    hosts = ((0, 0, 1, 1), (2, 2, 2, 2))
    words = [" ".join(f"{task.kind[0]}{task.shard}" for task in program) for program in programs(hosts, "1f1b")]
    assert words == ["f0 f1 b0 b1", "f2 f3 b2 b3", "f0 b0 f2 b2 f1 b1 f3 b3"]
    assert groups_of(hosts) == ((0, 1), (2,))


@pytest.mark.parametrize("name", NAMES)
@given(hosts=ragged(), data=st.data())
def test_times_fit_whatever_stages_cost(name: str, hosts: Hosts, data: st.DataObject) -> None:
    """No task begins before what it needs has ended, and no member does two at once."""
    found = programs(hosts, name)
    costs = {key: data.draw(st.floats(0.01, 10)) for key in nominal(len(hosts))}
    spans = timeline(hosts, found, costs)
    assert [tuple(span.task for span in own) for _, own in groupby(spans, lambda span: span.rank)] == [
        program for program in found if program
    ]
    ends = {span.task: span.end for span in spans}
    for span in spans:
        following = next_task(span.task, len(hosts))
        assert following is None or span.end <= next(other.start for other in spans if other.task == following)
    for _, own in groupby(spans, lambda span: span.rank):
        listed = list(own)
        assert all(one.end <= other.start for one, other in pairwise(listed))
    assert len(ends) == len(spans)
    assert 0 <= bubble(spans) < 1
