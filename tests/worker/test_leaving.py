"""Members over real sockets that leave at any moment, the middle of connecting included: nobody accuses the living."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.base import Tag
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.controller.events import Ended
from orchestrator.worker.member.cancellation import CancellableTransport, live
from orchestrator.worker.member.heartbeat import Heartbeat
from tests.comm.transports.worlds import PATIENCE_S, SECRET
from tests.worker.runs import generation_of

MEMBERS = 4
GENERATIONS = 30
LATEST_S = 0.01  # a generation of so many members connects in some 5 ms


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_who_is_called_off_is_accused_by_nobody(kind: str) -> None:
    listeners = [Listener(SECRET, "127.0.0.1") for _ in range(MEMBERS)]
    pulses = [Heartbeat() for _ in range(MEMBERS)]
    dice = random.Random(kind)

    def exchange(number: int, rank: int, transport: CancellableTransport) -> Ended:
        for step in range(10**6):
            pulses[rank].beat("compute", step)
            tag = Tag(number, step, 0, 0, 0)
            for peer in range(MEMBERS):
                if peer != rank:
                    transport.send(peer, tag, torch.ones(1))
            for peer in range(MEMBERS):
                if peer != rank:
                    transport.receive(peer, tag, PATIENCE_S)
        raise AssertionError("it was not called off")

    def take_part(number: int, rank: int) -> Ended:
        peers = {peer: listener.addresses[kind] for peer, listener in enumerate(listeners) if peer != rank}
        return live(
            generation_of(build_schedule("peer_to_peer", MEMBERS), ((),) * MEMBERS, generation=number),
            pulses[rank],
            partial(connect, listeners[rank], rank, number, peers, None, PATIENCE_S),
            partial(exchange, number, rank),
            lambda: None,
        )

    def call_off(number: int, rank: int) -> None:
        pulses[rank].call_off(number)
        listeners[rank].cancel(number)

    try:
        with ThreadPoolExecutor(MEMBERS) as pool:
            for number in range(GENERATIONS):
                first, spread = LATEST_S * dice.random(), LATEST_S * dice.random()
                ends = [pool.submit(take_part, number, rank) for rank in range(MEMBERS)]
                for rank in range(MEMBERS):
                    threading.Timer(first + spread * dice.random(), call_off, [number, rank]).start()
                accusing = [end.result() for end in ends if end.result().accuses is not None]
                assert not accusing, number
    finally:
        for listener in listeners:
            listener.close()
