"""The transport between threads alone can script a death."""

from __future__ import annotations

import pytest
import torch

from orchestrator.comm.transports.base import PeerLost
from tests.comm.transports.memory import Hub
from tests.comm.transports.worlds import PATIENCE_S, TAG, together


def test_a_killed_member_stops_and_is_lost_to_all_after_its_last_words() -> None:
    hub = Hub(3)
    victim, second, third = (hub.transport(rank) for rank in range(3))

    def live() -> None:
        victim.send(1, TAG, torch.ones(1))
        with pytest.raises(ConnectionAbortedError):
            victim.receive(2, TAG, PATIENCE_S)

    def see() -> None:
        second.receive(0, TAG, PATIENCE_S)
        hub.kill(0)
        with pytest.raises(PeerLost, match="member 0"):
            second.receive(2, TAG, PATIENCE_S)

    def wait() -> None:
        with pytest.raises(PeerLost, match="member 0"):
            third.receive(1, TAG, PATIENCE_S)

    together([live, see, wait])
    with pytest.raises(ConnectionAbortedError):
        victim.send(1, TAG, torch.ones(1))
    with pytest.raises(PeerLost, match="member 0"):
        second.send(0, TAG, torch.ones(1))


def test_who_has_left_cannot_be_killed() -> None:
    hub = Hub(2)
    hub.transport(0).close()
    hub.kill(0)
    with pytest.raises(PeerLost, match="it has left"):
        hub.transport(1).receive(0, TAG, PATIENCE_S)
