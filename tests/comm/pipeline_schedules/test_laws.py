"""The laws of `orchestrator.comm.pipeline_schedules.laws`: the table keeps to them, and what breaks one is told so with its
name."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from orchestrator.comm.pipeline_schedules import Hosts, Order, PipelinePosition, Programs, Task, programs
from orchestrator.comm.pipeline_schedules.laws import broken, problems
from tests.comm.pipeline_schedules.cases import NAMES, columns, ragged

SIZES = [(stages, wide, shards) for stages, wide, shards in product((1, 2, 3, 6), (1, 2, 4), (4, 8, 16))]


@pytest.mark.parametrize("name", NAMES)
def test_every_order_keeps_to_all_in_columns(name: str) -> None:
    assert problems(name, {}, [columns(*size) for size in SIZES]) == []


@pytest.mark.parametrize("name", NAMES)
@given(hosts=ragged())
def test_every_order_keeps_to_all_on_ragged_columns(name: str, hosts: Hosts) -> None:
    assert problems(name, {}, [hosts]) == []


@given(hosts=ragged(), ahead=integers(0, 3))
def test_shards_ahead_keep_to_them_too(hosts: Hosts, ahead: int) -> None:
    assert problems("1f1b", {"ahead": ahead}, [hosts]) == []


F0, F1, B0, B1 = (Task(kind, 0, shard) for kind in ("forward", "backward") for shard in (0, 1))
F0_, F1_, B0_, B1_ = (task._replace(stage=1) for task in (F0, F1, B0, B1))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (((F0, F1, B0, B1), (F0_, B0_, F1_)), "is not complete: 7 tasks are done in 7 places, instead of 8"),
        (((F0, F1, B0, B1), (F0_, B0_, F1_, F1_)), "is not complete: 7 tasks are done in 8 places"),
        (((F0, F1, B0_, B1), (F0_, B0, F1_, B1_)), "is not complete: rank 0 does the backward of shard 0 in stage 1"),
        (((F0, F1, B0, B1), (B0_, F0_, F1_, B1_)), "is not in order: rank 1 waits|is not complete: rank 1 does"),
        (((F0, F1, B0, B1), (F1_, F0_, B0_, B1_)), "is not in order: rank 1 waits .* shard 1 .* sends .* shard 0"),
        (((F0, B0, F1, B1), (F0_, F1_, B0_, B1_)), r"has a deadlock: ranks \[0, 1\] wait for ever"),
    ],
)
def test_what_is_broken_is_named(found: Programs, problem: str) -> None:
    told = broken(((0, 0), (1, 1)), found)
    assert told is not None
    assert re.match(problem, told), told


def test_the_scene_of_the_broken_ones_is_whole() -> None:
    assert broken(((0, 0), (1, 1)), ((F0, F1, B0, B1), (F0_, B0_, F1_, B1_))) is None


def none_in_flight(place: PipelinePosition) -> Order:
    return Order(in_flight=place.stage)


def late(place: PipelinePosition) -> Order:
    return Order(in_flight=1, warmup=place.hosted)


def number(place: PipelinePosition) -> int:
    return place.stage


ASKED: list[PipelinePosition] = []


def moody(place: PipelinePosition) -> Order:
    ASKED.append(place)
    return Order(in_flight=len(ASKED))


def boundless(place: PipelinePosition) -> Order:
    raise KeyError(place.stage)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none_in_flight", "with stages of 1 \\+ 1 members and 3 shards has a deadlock: no task can start"),
        ("late", "with stages of .* has a deadlock"),
        ("number", "with stages of .* returns int; it must be an orchestrator.comm.pipeline_schedules.Order"),
        ("moody", "with stages of .* is not pure"),
        ("boundless", "with stages of .* raised KeyError"),
    ],
)
def test_an_order_of_the_users_own_meets_the_laws(name: str, problem: str) -> None:
    target = f"{__name__}:{name}"
    told = problems(target, {}, [columns(2, 1, 3)])
    assert len(told) == 1
    assert re.match(f"cluster.pipeline: {target} {problem}", told[0]), told


def test_hosts_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="stage 1 has hosts for 1 shards, stage 0 for 2"):
        programs(((0, 0), (1,)), "1f1b")
    with pytest.raises(ValueError, match="rank 0 is to host stages 0 and 1; a member hosts one stage"):
        programs(((0, 1), (2, 0)), "1f1b")
