"""Waiting can be called off from outside, and whoever leaves for somebody else's sake says farewell."""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.base import DeadlineExceeded, PeerLeft, PeerLost, Received, Tag, Transport
from orchestrator.controller.events import Ended
from orchestrator.errors import PipelineRaised
from orchestrator.records.progress import Progress
from orchestrator.worker.member.cancellation import CancellableTransport, live
from orchestrator.worker.member.heartbeat import CalledOff, Heartbeat
from tests.comm.transports.memory import Hub
from tests.worker.runs import PATIENCE_S, generation_of

TAG = Tag(3, 0, 0, 0, 0)
GENERATION = generation_of(build_schedule("ring", 2), ((0,), (1,)), generation=3)


class Telling:
    """A transport that tells when its member begins to wait."""

    def __init__(self, inner: Transport) -> None:
        self.waits = threading.Event()
        self._inner = inner
        self.send, self.flush, self.close, self.abort = inner.send, inner.flush, inner.close, inner.abort
        self.travels = inner.travels

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        self.waits.set()
        return self._inner.receive(peer, tag, timeout_s)

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        self.waits.set()
        return self._inner.poll(phases, timeout_s)


def _wait(transport: CancellableTransport) -> Ended:
    transport.receive(1, TAG, PATIENCE_S)
    raise AssertionError("nothing was to come")


def test_a_call_off_ends_a_wait_and_the_member_says_farewell() -> None:
    hub, heartbeat = Hub(2), Heartbeat()
    transport = Telling(hub.transport(0))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(live, GENERATION, heartbeat, lambda: transport, _wait, lambda: Progress(4))
        transport.waits.wait()
        heartbeat.call_off(3)
        ended = ending.result()
    assert (ended.kind, ended.progress, ended.accuses) == ("called off", Progress(4), None)
    assert heartbeat.snapshot()["activity"] == "idle"
    with pytest.raises(PeerLeft):
        hub.transport(1).receive(0, TAG, PATIENCE_S)


def test_a_call_off_ends_a_poll() -> None:
    heartbeat = Heartbeat()
    transport = Telling(Hub(2).transport(0))

    def poll(cancellable: CancellableTransport) -> Ended:
        cancellable.activity = "exchange"
        assert cancellable.poll([0], PATIENCE_S) == []
        raise AssertionError("nothing was to come")

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(live, GENERATION, heartbeat, lambda: transport, poll, lambda: Progress(4))
        transport.waits.wait()
        assert heartbeat.snapshot()["activity"] == "exchange"
        heartbeat.call_off(3)
        assert ending.result().kind == "called off"


def test_to_look_is_no_activity_but_notices_a_call_off() -> None:
    hub, heartbeat = Hub(2), Heartbeat()
    heartbeat.enter(3)
    heartbeat.beat("compute", 7, 1)
    transport, before = CancellableTransport(hub.transport(0), heartbeat), heartbeat.snapshot()
    hub.transport(1).send(0, TAG, torch.ones(1), note=5)
    [(peer, tag, received)] = transport.poll([0], 0.0)
    assert (peer, tag, received.note) == (1, TAG, 5)
    assert transport.poll([0], 0.0) == []
    assert heartbeat.snapshot() == before
    assert transport.poll([0], 0.12) == [], "it waits in slices, and until the end"
    assert heartbeat.snapshot()["beats"] == before["beats"] + 1
    heartbeat.call_off(3)
    with pytest.raises(CalledOff):
        transport.poll([0], 0.0)


@pytest.mark.parametrize(("verb", "accuses"), [("abort", 1), ("close", None)])
def test_only_the_dead_are_accused(verb: str, accuses: int | None) -> None:
    hub = Hub(2)
    getattr(hub.transport(1), verb)()
    ended = live(GENERATION, Heartbeat(), lambda: hub.transport(0), _wait, lambda: None)
    assert (ended.kind, ended.progress, ended.accuses) == ("peer", None, accuses)
    with pytest.raises(ConnectionAbortedError):
        hub.transport(0).send(1, TAG, torch.zeros(1))


def test_a_silent_peer_is_accused_in_the_end() -> None:
    def wait(transport: CancellableTransport) -> Ended:
        transport.receive(1, TAG, 0.12)
        raise AssertionError("nothing was to come")

    hub = Hub(2)
    ended = live(GENERATION, Heartbeat(), lambda: hub.transport(0), wait, lambda: Progress(0))
    assert (ended.kind, ended.accuses) == ("peer", 1)
    assert "0.1 s" in ended.why
    with pytest.raises(DeadlineExceeded):
        CancellableTransport(Hub(2).transport(0), Heartbeat()).receive(1, TAG, 0.0)


@pytest.mark.parametrize(("fault", "loss"), [(PipelineRaised("mine"), PeerLeft), (ZeroDivisionError(), PeerLost)])
def test_faults_of_its_own_are_raised(fault: Exception, loss: type[PeerLost]) -> None:
    """One of the pipeline comes with a farewell, one of ours without: it may be anywhere in the exchange."""

    def fail(_: CancellableTransport) -> Ended:
        raise fault

    hub = Hub(2)
    with pytest.raises(type(fault)):
        live(GENERATION, Heartbeat(), lambda: hub.transport(0), fail, lambda: None)
    with pytest.raises(PeerLost) as raised:
        hub.transport(1).receive(0, TAG, PATIENCE_S)
    assert type(raised.value) is loss


def test_a_generation_that_is_called_off_before_is_not_entered() -> None:
    heartbeat = Heartbeat()
    heartbeat.call_off(3)

    def connect() -> Transport:
        raise AssertionError("it is over")

    assert live(GENERATION, heartbeat, connect, _wait, lambda: None).kind == "called off"
    with pytest.raises(CalledOff):
        heartbeat.check()
