"""A state arrives as it was sent, or not at all; in pieces, each with its own deadline; at several recipients at once."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from orchestrator.checkpoint.state import TrainingState
from orchestrator.comm.transports.base import PeerLost, Tag, Transport
from orchestrator.worker.between_steps import state_transfer
from tests.comm.transports.memory import Hub
from tests.worker.runs import PATIENCE_S

STATE = TrainingState(
    {"run_state": {"steps": 3}, "text": "\u00e9"},
    {
        "matrix": torch.arange(12, dtype=torch.float32).view(3, 4).T,
        "none": torch.empty(0, 3),
        "one": torch.tensor(2.5, dtype=torch.float64),
        "flags": torch.tensor([True, False, True]),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "turn": torch.tensor([1 + 2j]),
    },
)
ENTRIES: list[dict[str, Any]] = [
    {"trace": {"step": 2, "loss": "0x1p+0"}},
    {"event": "evaluated", "metrics": {"a": 0.1}},
]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "_PIECE_BYTES", 7)


def test_every_recipient_gets_the_whole() -> None:
    hub = Hub(3)
    donor, *recipients = (hub.transport(rank) for rank in range(3))
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(state_transfer.take, transport, 5, 0, PATIENCE_S) for transport in recipients]
        state_transfer.give(donor, 5, [1, 2], STATE, ENTRIES, PATIENCE_S)
    for state, entries in (future.result() for future in taken):
        assert state.values == STATE.values
        assert entries == ENTRIES
        assert state.tensors.keys() == STATE.tensors.keys()
        for name, tensor in STATE.tensors.items():
            assert state.tensors[name].dtype == tensor.dtype
            assert torch.equal(state.tensors[name], tensor)


class Altering:
    """A transport that flips a bit of its message number `victim`."""

    def __init__(self, inner: Transport, victim: int) -> None:
        self._numbers, self._victim, self._inner = itertools.count(), victim, inner
        self.receive, self.poll, self.flush = inner.receive, inner.poll, inner.flush
        self.travels, self.close, self.abort = inner.travels, inner.close, inner.abort

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        if next(self._numbers) == self._victim:
            payload = payload.clone()
            payload[0] ^= 1
        self._inner.send(peer, tag, payload, note, done=done)


@pytest.mark.parametrize("back", [1, 2, 5])
def test_what_came_altered_is_not_taken(back: int) -> None:
    pieces = _pieces()
    hub = Hub(2)
    state_transfer.give(Altering(hub.transport(0), pieces - back), 0, [1], STATE, ENTRIES, PATIENCE_S)
    with pytest.raises(PeerLost, match="member 0: the state that it sent arrived altered"):
        state_transfer.take(hub.transport(1), 0, 0, PATIENCE_S)


def test_a_donor_that_dies_half_way_has_given_nothing() -> None:
    for lost in range(1, _pieces(), 9):
        hub = Hub(2)
        state_transfer.give(hub.transport(0), 0, [1], STATE, ENTRIES, PATIENCE_S)
        messages = hub.messages[0, 1]
        while len(messages) > lost:
            messages.pop()
        hub.kill(0)
        with pytest.raises(PeerLost, match="member 0"):
            state_transfer.take(hub.transport(1), 0, 0, PATIENCE_S)


def _pieces() -> int:
    hub = Hub(2)
    state_transfer.give(hub.transport(0), 0, [1], STATE, ENTRIES, PATIENCE_S)
    return len(hub.messages[0, 1])
