"""The place at which a member is, and the halt that is wanted of it."""

from __future__ import annotations

import pytest

from orchestrator.worker.member.heartbeat import CalledOff, Halt, Heartbeat


def test_a_beat_says_where_and_counts() -> None:
    heartbeat = Heartbeat()
    before = heartbeat.snapshot()
    assert (before["activity"], before["beats"]) == ("prepare", 0)
    heartbeat.enter(3)
    heartbeat.beat("compute", 7, 2)
    assert heartbeat.snapshot() == {"activity": "compute", "step": 7, "shard": 2, "beats": 2}
    heartbeat.check()  # which is no beat
    assert heartbeat.snapshot()["beats"] == 2
    heartbeat.rest()
    assert heartbeat.snapshot()["activity"] == "idle"


def test_a_call_off_ends_that_generation_and_earlier_ones_only() -> None:
    heartbeat = Heartbeat()
    heartbeat.beat("prepare")  # in no generation yet
    heartbeat.enter(3)
    heartbeat.call_off(2)
    heartbeat.beat("compute")
    heartbeat.call_off(3)
    with pytest.raises(CalledOff, match="generation 3"):
        heartbeat.beat("compute")
    with pytest.raises(CalledOff, match="generation 3"):
        heartbeat.check()
    heartbeat.enter(4)
    heartbeat.call_off(6)
    with pytest.raises(CalledOff):
        heartbeat.enter(5)


def test_wishes_stay_until_they_are_heard() -> None:
    heartbeat = Heartbeat()
    assert (heartbeat.halt(), heartbeat.wants_save) == (Halt.NONE, False)
    heartbeat.enter(0)
    heartbeat.ask("regroup", 0)
    assert heartbeat.halt() == Halt.REGROUP
    heartbeat.ask("stop", 0)
    heartbeat.ask("save", 0)
    assert (heartbeat.halt(), heartbeat.wants_save) == (Halt.STOP, True)
    heartbeat.heard("save")
    assert not heartbeat.wants_save
    heartbeat.enter(1)  # which is a regroup
    assert heartbeat.halt() == Halt.STOP
    heartbeat.heard("stop")
    assert heartbeat.halt() == Halt.NONE


def test_a_generation_may_be_asked_to_end_before_it_is_entered() -> None:
    """The driver asks as soon as it has begun the generation, when the member may still come from the one before."""
    heartbeat = Heartbeat()
    heartbeat.ask("regroup", 1)
    assert heartbeat.halt() == Halt.NONE
    heartbeat.enter(1)
    assert heartbeat.halt() == Halt.REGROUP
    heartbeat.ask("regroup", 0)  # late
    heartbeat.enter(2)
    assert heartbeat.halt() == Halt.NONE
