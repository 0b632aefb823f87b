"""The price of the orders of the table: the bubble, how many shards are in flight, and where their messages lie."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.pipeline_schedules import (
    Hosts,
    Programs,
    Task,
    border_slots,
    bubble,
    groups_of,
    next_task,
    nominal,
    programs,
    timeline,
)
from orchestrator.comm.pipeline_schedules.flow import stages_of
from orchestrator.comm.pipeline_schedules.laws import Interpreter
from orchestrator.comm.pipeline_schedules.slots import numbers
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


@pytest.mark.parametrize("name", NAMES)
@given(hosts=ragged(), data=st.data())
def test_no_slot_is_used_again_while_it_may_still_be_read(name: str, hosts: Hosts, data: st.DataObject) -> None:
    """Members go on in any order: a message lies where it was put until the task that reads it last is done."""
    found = programs(hosts, name)
    slots = border_slots(hosts, found)
    dice = data.draw(st.randoms(use_true_random=False))
    done: set[Task] = set()
    at = [0] * len(found)
    lying: dict[tuple[int, str, int], Task] = {}
    while len(done) < sum(map(len, found)):
        able = [
            rank
            for rank, program in enumerate(found)
            if at[rank] < len(program) and ready(program[at[rank]], hosts, done)
        ]
        rank = dice.choice(able)
        task = found[rank][at[rank]]
        if task in slots[rank]:
            place = (rank, task.kind, slots[rank][task])
            assert place not in lying or lying[place] in done, (task, lying[place])
            receiver = next_task(task, len(hosts))
            assert receiver is not None
            lying[place] = receiver._replace(kind="backward")
        done.add(task)
        at[rank] += 1


def ready(task: Task, hosts: Hosts, done: set[Task]) -> bool:
    before = {next_task(other, len(hosts)): other for other in done}
    first = task.kind == "forward" and task.stage == 0
    return first or task in before


def test_how_many_slots_members_need() -> None:
    """Activations: what is in flight behind the border. Gradients: a next activation tells that one has been taken."""
    hosts = columns(4, 1, 16)
    found = [numbers(slots) for slots in border_slots(hosts, programs(hosts, "1f1b"))]
    assert found == [
        {"forward": 4, "backward": 0},
        {"forward": 3, "backward": 4},
        {"forward": 2, "backward": 3},
        {"forward": 0, "backward": 2},
    ]
    found = [numbers(slots) for slots in border_slots(hosts, programs(hosts, "gpipe"))]
    assert found[1] == {"forward": 16, "backward": 16}


@given(hosts=ragged())
def test_activations_need_no_more_slots_than_shards_are_in_flight(hosts: Hosts) -> None:
    found = programs(hosts, "1f1b")
    stages = stages_of(hosts)
    for rank, (slots, most) in enumerate(zip(border_slots(hosts, found), in_flight(hosts, found), strict=True)):
        if rank in stages and stages[rank] + 1 < len(hosts):
            assert numbers(slots)["forward"] <= most
