"""The driver's side of the relays: its own one, and an actor on each other node that has members."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.actors.calls import Unconfirmed
from orchestrator.cluster.actors.host_relay import MOST_PARTS, PART_BYTES, Answer, Call, HostRelay, Report, actor_kind
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.cluster.ray_calls import unless_gone

_GATHER_S = 0.1  # for reports that come together, so that many members do not wake the driver more often
_GATHER_THERE_S = 0.25  # on another node, where each answer is a call of Ray
_HELD_S = 2.0  # an actor holds a call that nothing answers, at most
_RETRY_S = 1.0  # until the next relay where one was lost


@dataclass(eq=False)
class _Other:
    """The relay of another node."""

    node: str  # its id
    runtime_env: Mapping[str, Any]  # of the members there
    members: set[int] = field(default_factory=set)  # that may report still
    actor: Any = None  # Ray's handle; None while there is none
    asked: bool = False  # a call is outstanding
    retry: float = 0.0  # when to start the next one, in monotonic seconds
    kept: dict[int, int] = field(default_factory=dict)  # by member, the number of the next entry; not told it yet
    dropped: list[int] = field(default_factory=list)  # members that are gone; not told of it yet
    dead: list[int] = field(default_factory=list)  # members that are dead as Ray says; not told of it yet
    ended: dict[int, PostMortem] = field(default_factory=dict)  # members whose connections have ended, or that are dead
    calls: dict[int, Unconfirmed] = field(default_factory=dict)  # by member
    unsent: list[Call] = field(default_factory=list)  # calls that its relay does not have yet
    parts: list[bytes] = field(default_factory=list)  # of an answer that goes on
    left: int = 0  # bytes of it that are still there


class HostRelays:
    """All relays of a run. The driver's thread uses them; `wake` and `renew` may come from any other."""

    def __init__(self, secret: bytes, here: str) -> None:
        """here: this node, by its id."""
        self._secret = secret
        self._here = here
        self._own = HostRelay(secret, here)
        self._others: dict[str, _Other] = {}
        self._by_member: dict[int, _Other] = {}
        # from whom something came, Ray's references to it, and the future of the last of these
        self._answered: deque[tuple[_Other, Sequence[Any], Any]] = deque()
        self.eager: int | None = None  # the member whose entries are wanted at once

    def reach(self, member: int, node: str, runtime_env: Mapping[str, Any]) -> None:
        """The member is on this node. runtime_env: of Ray, with which its actor was started."""
        if node != self._here:
            other = self._others.setdefault(node, _Other(node, runtime_env))
            other.members.add(member)
            self._by_member[member] = other

    def wake(self) -> None:
        """Have `wait` return, now or the next time."""
        self._own.wake()

    def renew(self, trouble: Callable[[], str | None]) -> None:
        """Have all members hear of the driver. trouble: with the Ray; None while there is none."""
        self._own.renew()
        for actor in [other.actor for other in list(self._others.values()) if other.members]:
            if actor is not None:
                call = actor.renew.options(concurrency_group="calls")
                unless_gone(lambda call=call: call.remote(), trouble)  # type: ignore[misc]

    def wait(self, timeout_s: float) -> None:
        """Until somebody wakes it, or reports have come; up to `timeout_s`."""
        for other in self._others.values():
            self._ask(other)
        self._own.wait(timeout_s, _GATHER_S)

    def take(self) -> list[Report]:
        """All that has come until now, in the order of each member."""
        reports, _ = self._own.take()
        for _ in range(len(self._answered)):
            other, references, future = self._answered.popleft()
            other.asked = False
            try:
                answer = self._joined(other, references, future.result())
            except RayError:  # its process has ended, or could not begin
                other.actor, other.retry = None, time.monotonic() + _RETRY_S
                other.ended.clear()
                other.parts, other.left = [], 0
                continue
            if answer is None:
                continue
            there, ended = answer
            for report in there:
                other.ended.pop(report.member, None)
                if report.member in other.calls:
                    other.calls[report.member].confirm(report.next_call)
            reports += there
            other.ended.update(ended)
        return reports

    def acknowledge(self, member: int, number: int) -> None:
        """The driver has the member's entries before this number."""
        other = self._by_member.get(member)
        if other is None:
            self._own.acknowledge(member, number)
        else:
            other.kept[member] = number

    def call(self, member: int, number: int, call: bytes) -> None:
        """Hand a call on to the member, whose node is known."""
        other = self._by_member.get(member)
        if other is None:
            self._own.call(member, number, call)
        else:
            other.calls.setdefault(member, Unconfirmed()).put(number, call)
            other.unsent.append((member, number, call))

    def died(self, member: int) -> None:
        """Ray says so: have the relay of its node tell what is known of it there."""
        other = self._by_member.get(member)
        if other is not None:
            other.dead.append(member)

    def post_mortem(self, member: int) -> PostMortem:
        """The post-mortem of a dead member, once it may say no more."""
        other = self._by_member.get(member)
        return self._own.post_mortem(member) if other is None else other.ended.get(member, PostMortem())

    def may_say_more(self, member: int) -> bool:
        """Whether reports of a member that has died may be on their way still. Here none are once `take` has been called."""
        other = self._by_member.get(member)
        return other is not None and other.actor is not None and member not in other.ended

    def drop(self, member: int) -> None:
        """Nothing is expected of it any more."""
        other = self._by_member.pop(member, None)
        if other is None:
            self._own.drop(member)
            return
        other.members.discard(member)
        other.ended.pop(member, None)
        other.kept.pop(member, None)
        other.calls.pop(member, None)
        other.unsent = [call for call in other.unsent if call[0] != member]
        other.dropped.append(member)

    def close(self, trouble: Callable[[], str | None]) -> None:
        """End the actors. trouble: with the Ray; None while there is none."""
        for other in self._others.values():
            if other.actor is not None:
                unless_gone(lambda actor=other.actor: ray.kill(actor, no_restart=True), trouble)  # type: ignore[misc]
        self._own.close()

    def _ask(self, other: _Other) -> None:
        if not other.members or (other.actor is None and time.monotonic() < other.retry):
            return
        if other.actor is None:
            where = NodeAffinitySchedulingStrategy(other.node, soft=False)
            kind = actor_kind(ray).options(scheduling_strategy=where, runtime_env=dict(other.runtime_env))
            other.actor = kind.remote(self._secret, other.node)
            other.unsent = [(member, *call) for member, calls in other.calls.items() for call in calls.rest()]
        if other.unsent:
            other.actor.hand.options(concurrency_group="calls").remote(other.unsent)
            other.unsent = []
        if other.dead:
            other.actor.died.options(concurrency_group="calls").remote(other.dead)
            other.dead = []
        if other.asked:
            return
        if other.left:
            count = min(MOST_PARTS, -(-other.left // PART_BYTES))
            given = other.actor.rest.options(num_returns=count).remote(count)
            references = given if count > 1 else [given]
        else:
            gather_s = _GATHER_S if self.eager in other.members else _GATHER_THERE_S
            references = [other.actor.exchange.remote(other.kept, other.dropped, _HELD_S, gather_s)]
            other.kept, other.dropped = {}, []
        other.asked = True
        references[-1].future().add_done_callback(partial(self._hear, other, references))

    @staticmethod
    def _joined(other: _Other, references: Sequence[Any], last: Any) -> Answer | None:
        """The answer, once it is whole. last: the value of the last of these references, with which all are there."""
        if not other.parts:
            first, other.left = last
            other.parts = [first]
        else:
            parts = [*ray.get(list(references[:-1])), last]
            other.parts += parts
            other.left -= sum(map(len, parts))
        if other.left:
            return None
        answer: Answer = pickle.loads(b"".join(other.parts))  # of an actor of this run
        other.parts = []
        return answer

    def _hear(self, other: _Other, references: Sequence[Any], future: Any) -> None:
        """In a thread of Ray."""
        self._answered.append((other, references, future))
        self._own.wake()
