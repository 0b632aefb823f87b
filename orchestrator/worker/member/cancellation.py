"""A transport whose waits can be cancelled, and how a member leaves a generation.

Waits are cut into slices, between which the heartbeat is asked. So a member that waits for a peer notices a call-off without
any descriptor. It can still say farewell to the others, which then do not take it for dead (rule C5).

It does not cancel a `connect`: the listener is cancelled for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import torch

from orchestrator.comm.transports.base import DeadlineExceeded, PeerLeft, PeerLost, Received, Tag, Transport
from orchestrator.common import injection
from orchestrator.controller.events import Ended
from orchestrator.errors import OrchestratorError
from orchestrator.records.progress import Activity, Progress
from orchestrator.worker.member.generation import Connect, Distrusted, Generation, Withdrawn
from orchestrator.worker.member.heartbeat import CalledOff, Heartbeat

_SLICE_S: Final = 0.05
_FAREWELL_S: Final = 0.2  # for peers that do not read, when there is no time to lose


class CancellableTransport:
    """A transport whose waits beat, and may also raise CalledOff; implements `comm.transports.base.Transport`.

    activity: what the heartbeat is told while it waits. waits: the phases in which a wait is one for slower members, and
    whether what was done before goes on after it; in others it is part of the exchange.
    """

    def __init__(self, inner: Transport, heartbeat: Heartbeat) -> None:
        self._inner = inner
        self._heartbeat = heartbeat
        self.activity: Activity = "state_transfer"
        self.waits: Mapping[int, bool] = {}
        self.travels = inner.travels
        self.close = inner.close
        self.abort = inner.abort

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        injection.at("send", tag.step, tag)
        self._inner.send(peer, tag, payload, note, done=done)

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        injection.at("receive", tag.step, tag)
        times = self._heartbeat.times
        interrupted = times.kind
        self._heartbeat.beat(self.activity, tag.step)
        goes_on = self.waits.get(tag.phase)
        if goes_on is None:
            return self._receive(peer, tag, timeout_s)
        before = times.waits()
        received = self._receive(peer, tag, timeout_s)
        times.goes_on(interrupted if goes_on else before)
        return received

    def _receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._inner.receive(peer, tag, _slice(deadline))
            except DeadlineExceeded as error:
                self._go_on_waiting(error, tag, deadline, timeout_s)

    def poll(self, phases: Collection[int], timeout_s: float) -> list[tuple[int, Tag, Received]]:
        if timeout_s <= 0:  # no wait, and so no activity of its own: its caller computes
            self._heartbeat.check()
            return self._inner.poll(phases, 0.0)
        self._heartbeat.beat(self.activity)
        before = self._heartbeat.times.waits()
        deadline = time.monotonic() + timeout_s
        while True:
            came = self._inner.poll(phases, _slice(deadline))
            if came or time.monotonic() >= deadline:
                self._heartbeat.times.goes_on(before)
                return came
            self._heartbeat.check()

    def flush(self, timeout_s: float) -> None:
        self._heartbeat.beat(self.activity)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._inner.flush(_slice(deadline))
            except DeadlineExceeded as error:
                self._go_on_waiting(error, None, deadline, timeout_s)
            else:
                return

    def _go_on_waiting(self, error: DeadlineExceeded, tag: Tag | None, deadline: float, timeout_s: float) -> None:
        self._heartbeat.check()
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(error.peer, tag, timeout_s) from None


def live(
    generation: Generation,
    heartbeat: Heartbeat,
    connect: Connect,
    walk: Callable[[CancellableTransport], Ended],
    progress: Callable[[], Progress | None],
) -> Ended:
    """Take part in a generation: connect, call `walk`, and leave properly. A member that leaves because of another's
    loss, a call-off or an error of the pipeline says farewell first, so that only the neighbours of a dead member
    accuse it. progress: called when the walk is over.

    Raises what is this member's own: OrchestratorError, and what connecting may raise apart from losses and call-offs.
    """
    transport: Transport | None = None
    try:
        heartbeat.enter(generation.number)
        transport = connect()
        ended = walk(CancellableTransport(transport, heartbeat))
        transport.close()
    except OrchestratorError:
        if transport is not None:
            transport.close(_FAREWELL_S)
        raise
    except (CalledOff, Withdrawn, Distrusted, PeerLost, DeadlineExceeded, ConnectionAbortedError) as error:
        if transport is not None:
            transport.close(_FAREWELL_S)
        return _left(error, progress())
    except BaseException:
        if transport is not None:
            transport.abort()
        raise
    finally:
        heartbeat.rest()
    return ended


def _left(error: Exception, progress: Progress | None) -> Ended:
    if isinstance(error, Withdrawn):
        return Ended("withdrew", progress, why=str(error))
    if isinstance(error, Distrusted):
        return Ended("distrust", progress, why=str(error), verdict=error.verdict)
    if isinstance(error, (PeerLost, DeadlineExceeded)):
        accuses = None if isinstance(error, PeerLeft) else error.peer
        return Ended("peer", progress, accuses=accuses, why=str(error))
    return Ended("called off", progress, why=str(error))


def _slice(deadline: float) -> float:
    return max(0.0, min(_SLICE_S, deadline - time.monotonic()))
