"""Threads that take turns: an order by the seed, time that costs nothing, processes that stop and die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from tests.virtual_cluster.scheduling import Condition, Killed, Process, Schedule


@pytest.fixture
def schedule() -> Iterator[Schedule]:
    """Nothing is left of it."""
    before = threading.active_count()
    found = Schedule(Random(1))
    yield found
    found.close()
    assert threading.active_count() == before


def told(seed: int) -> list[str]:
    schedule, said = Schedule(Random(seed)), list[str]()

    def speak(name: str) -> None:
        for _ in range(5):
            said.append(name)
            schedule.pause()

    for name in "abc":
        schedule.spawn(partial(speak, name), Process(name))
    schedule.wait_for(lambda: len(said) == 15, 10.0)
    schedule.close()
    return said


def test_the_order_is_a_function_of_the_seed() -> None:
    assert told(1) == told(1)
    assert len({"".join(told(seed)) for seed in range(20)}) > 15


def test_time_passes_when_all_wait(schedule: Schedule) -> None:
    begun, changed = schedule.now, Condition(schedule)

    def change() -> None:
        schedule.sleep(60.0)
        changed.notify_all()

    schedule.spawn(change, Process("late"))
    assert not changed.wait(59.0)
    assert changed.wait(2.0)
    assert 60.0 <= schedule.now - begun < 61.0


def test_who_is_stopped_goes_on_later_and_who_is_killed_unwinds(schedule: Schedule) -> None:
    process, said = Process("one"), list[str]()

    def act() -> None:
        try:
            schedule.sleep(1.0)
            said.append("went on")
            schedule.sleep(1.0)
        except Killed:
            said.append("unwound")
            raise

    schedule.spawn(act, process)
    schedule.sleep(0.1)
    process.stopped = True
    schedule.sleep(5.0)
    assert said == []
    process.stopped = False
    schedule.sleep(0.5)
    assert said == ["went on"]
    process.stopped, process.alive = True, False
    schedule.sleep(0.1)
    assert said == ["went on", "unwound"]


def test_who_waits_for_ever_is_told(schedule: Schedule) -> None:
    schedule.spawn(lambda: schedule.wait_for(lambda: False), Process("one"))
    with pytest.raises(AssertionError, match="all wait for ever"):
        schedule.wait_for(lambda: False)


def test_a_fault_of_a_task_is_raised_by_the_first(schedule: Schedule) -> None:
    schedule.spawn(lambda: 1 / 0, Process("one"))
    with pytest.raises(ZeroDivisionError):
        schedule.sleep(1.0)
