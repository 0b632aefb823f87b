"""Where a member is, and what is wanted of it."""

from __future__ import annotations

import pytest

from orchestrator.engine.pulse import CalledOff, Halt, Pulse


def test_a_beat_says_where_and_counts() -> None:
    pulse = Pulse()
    before = pulse.snapshot()
    assert (before["place"], before["beats"]) == ("prepare", 0)
    pulse.enter(3)
    pulse.beat("compute", 7, 2)
    assert pulse.snapshot() == {"place": "compute", "step": 7, "shard": 2, "beats": 2}
    pulse.check()  # which is no beat
    assert pulse.snapshot()["beats"] == 2
    pulse.rest()
    assert pulse.snapshot()["place"] == "idle"


def test_a_call_off_ends_that_generation_and_earlier_ones_only() -> None:
    pulse = Pulse()
    pulse.beat("prepare")  # in no generation yet
    pulse.enter(3)
    pulse.call_off(2)
    pulse.beat("compute")
    pulse.call_off(3)
    with pytest.raises(CalledOff, match="generation 3"):
        pulse.beat("compute")
    with pytest.raises(CalledOff, match="generation 3"):
        pulse.check()
    pulse.enter(4)
    pulse.call_off(6)
    with pytest.raises(CalledOff):
        pulse.enter(5)


def test_wishes_stay_until_they_are_heard() -> None:
    pulse = Pulse()
    assert (pulse.halt(), pulse.wants_save) == (Halt.NONE, False)
    pulse.ask("regroup")
    assert pulse.halt() == Halt.REGROUP
    pulse.ask("stop")
    pulse.ask("save")
    assert (pulse.halt(), pulse.wants_save) == (Halt.STOP, True)
    pulse.heard("save")
    assert not pulse.wants_save
    pulse.enter(1)  # which is a regroup
    assert pulse.halt() == Halt.STOP
    pulse.heard("stop")
    assert pulse.halt() == Halt.NONE
