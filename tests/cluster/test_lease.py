"""A member ends itself when its driver is silent, and only then."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cluster.actors.lease import Lease, Silence

LEASE_S = 10.0


@given(st.lists(st.booleans(), max_size=60))
def test_the_lease_ends_exactly_when_nothing_was_heard_for_so_long(heard: list[bool]) -> None:
    """A look every second; in some of them the driver has been heard just before."""
    silence, last = Silence(LEASE_S, 0.0), 0.0
    for second, is_heard in enumerate(heard, start=1):
        if is_heard:
            silence.heard(float(second))
            last = float(second)
        over = silence.is_over(float(second))
        assert over == (second - last > LEASE_S)
        if over:
            return


def test_whoever_was_stopped_itself_grants_another_lease() -> None:
    silence = Silence(LEASE_S, 0.0)
    assert not silence.is_over(1.0)
    assert not silence.is_over(500.0), "it was stopped: the driver may have called in vain"
    looks = [silence.is_over(500.0 + second) for second in range(1, 13)]
    assert looks.index(True) == 10


def test_a_lease_that_nobody_renews_expires() -> None:
    expired = threading.Event()
    Lease(0.05, expired.set)
    assert expired.wait(30)
