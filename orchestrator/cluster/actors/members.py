"""The driver's side of the actors: start them, wait for what they report, call them, end them.

Ray starts them, tells where they are and that they have ended, and ends them. All else is calls and reports by relays
(`host_relays.py`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.actors.calls import CallFailed, answered
from orchestrator.cluster.actors.calls import packed as packed_call
from orchestrator.cluster.actors.driver_loss import DriverHandle
from orchestrator.cluster.actors.event_queue import ANSWERS
from orchestrator.cluster.actors.fault_injection import inject
from orchestrator.cluster.actors.host_relay import Report
from orchestrator.cluster.actors.host_relays import HostRelays
from orchestrator.cluster.actors.lease import renewed
from orchestrator.cluster.actors.member_actor import Answer, MemberActor, Role
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.cluster.actors.reporter import beat_s
from orchestrator.cluster.ray_calls import not_set_up, unless_gone
from orchestrator.comm.transports.tls import Credentials
from orchestrator.common import locks, processes
from orchestrator.config.plan import Plan
from orchestrator.controller.fault_injection import Fault
from orchestrator.errors import ClusterUnavailable, RunFailed, WorkerLost
from orchestrator.records import redaction
from orchestrator.records.stacks import Home
from orchestrator.worker.member import lasting_memory, stack_dump
from orchestrator.worker.member.generation import Generation, packed

_ACKNOWLEDGE_SHARE = 0.75  # of the time between two heartbeats: each word costs the driver as much as a report
_LAST_WORDS_S = 2.0  # for the last reports of a member that has died on another node, whose relay may be busy
_DRAIN_S = 5.0  # how long a member may take for its last words; one that is stopped never answers
_PROFILE_S = 30.0
_ANSWERS_S = 120.0
_SILENT_S = 30.0  # who has not answered for so long is stopped, or its host is gone
_PIECE_BYTES = 32 * 2**20
_LOOK_S = 1.0  # between two looks whether a member that is to answer has died
_STACKS_S = 10.0  # for a process of Ray's to start on another node
# Options of actors that go on when this process is gone. Its Ray ends then, too, but not at once. On a busy machine raylet and
# head live for some milliseconds more, in which they would kill the actors of a driver that is gone. A detached one is
# nobody's. Ray asks for the name of a namespace where it is.
_OUTLIVING = {"lifetime": "detached", "namespace": "orchestrator"}


@dataclass(frozen=True)
class ActorPlacement:
    """The place of a member's actor, and how it is started. project: the folder in which it works, None for a copy that Ray
    unpacks; options: for `ray.remote`; node: its id, where that is known before; search_path: further folders for its modules,
    relative to the project, that come before those of the driver."""

    project: str | None
    options: Mapping[str, Any]
    node: str | None = None
    search_path: tuple[str, ...] = ()


Answered = Literal["prepared", "ran", "described", "looked"]
Kind = Answered | Literal["entries", "died"]


@dataclass(frozen=True)
class MemberMessage:
    """Something that came from a member."""

    member: int  # its id
    kind: Kind  # an answer to `prepare`, `run`, `describe` or `look`; entries; or its death
    answer: Answer = field(default_factory=dict)  # of the member, where it was asked
    entries: list[dict[str, Any]] = field(default_factory=list)  # of its event queue
    heartbeat: dict[str, Any] = field(default_factory=dict)  # of the member, with the entries
    why: str = ""  # of its death, Ray's message


@dataclass
class _Member:
    actor: Any  # Ray's handle
    seen: int = 0  # entries of its event queue
    pid: int | None = None  # of its process; None until it has told
    node: str | None = None  # Ray's id of its node; None until it has told
    lost: str | None = None  # what Ray told of its death
    not_set_up: str = ""  # as in `PostMortem`
    heard: float = 0.0  # when a report of it came last, in monotonic seconds
    next_call: int = 0  # number of the next call
    unplaced: list[tuple[int, bytes]] = field(default_factory=list)  # calls that wait until its node is known
    asked: dict[int, Answered] = field(default_factory=dict)  # by the number of the call, how its answer is told
    # by number of the call, answers that somebody waits for; None until they came
    awaited: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    acknowledged: float = 0.0  # when it was last told which of its entries are kept, in monotonic seconds
    # where its stacks are dumped; None until it has told, or where they are not
    stacks: stack_dump.DumpTarget | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)  # of Ray, with which its actor was started
    pending: int = 0  # answers of Ray that are waited for
    over: bool = False  # dead or killed, with its last activity known


def credentials_of(declared: Iterable[str]) -> dict[str, str]:
    """The declared variables of this process that hold credentials, as their names tell. Actors get them as arguments, since
    Ray shows the variables that it is given in its logs, and in the command line of a worker that starts."""
    here = {name: os.environ[name] for name in declared if name in os.environ}
    return {name: value for name, value in here.items() if redaction.names_secret(name, value)}


class _Unanswered(Exception):
    """A member does not answer. The text is what Ray says of its death, if anything."""


class Members:
    """All members of a run, by id."""

    def __init__(
        self,
        plan: Plan,  # of the run
        secret: bytes,  # with which members authenticate to each other
        credentials: Credentials | None = None,  # with which they encrypt; None where they do not
        # where somebody goes on with the run when this process is gone; None where nobody does
        driver_handle: DriverHandle | None = None,
        trouble: Callable[[], str | None] = lambda: None,  # with the Ray; None while there is none
    ) -> None:
        self._trouble = trouble
        self._kind: Any = ray.remote(max_restarts=0)(MemberActor)
        self._plan = plan
        self._secrets = secret, credentials, credentials_of(plan.declared.variables)
        self._driver_handle = driver_handle
        self._outliving = {} if driver_handle is None else _OUTLIVING
        self._here = this_node()
        self._relays = HostRelays(secret, self._here)
        self._acknowledge_s = _ACKNOWLEDGE_SHARE * beat_s(plan.cluster.timeouts)
        self._members: dict[int, _Member] = {}
        # what came and was not handed on yet; with entries, the number of the next one
        self._messages: deque[tuple[MemberMessage, int]] = deque()
        self._located: deque[tuple[int, Any]] = deque()  # filled by threads of Ray
        # the generation that was begun last, and its bytes: it is the same for hundreds of members, and pickled once
        self._packed: tuple[Generation, bytes] | None = None
        self._dying: dict[int, tuple[float, str]] = {}  # who has died: until when last reports are waited for; why
        self._has_worker = False
        self._lasting_memory = lasting_memory.created()  # held open here: it outlives the workers of this node
        self._renewing = renewed(plan.cluster.timeouts.lease_s, lambda: self._relays.renew(trouble))

    def __enter__(self) -> Self:
        self._renewing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all members; a Ray that outlives the run must not keep them."""
        self._renewing.__exit__(None, None, None)
        for member in self._members.values():
            unless_gone(lambda actor=member.actor: ray.kill(actor, no_restart=True), self._trouble)  # type: ignore[misc]
        self._relays.close(self._trouble)
        os.close(self._lasting_memory)

    def start(self, member: int, role: Role, place: ActorPlacement) -> None:
        """Start its process and have it prepare; "prepared" is heard when it is ready."""
        is_first = role == "worker" and not self._has_worker  # if it is lost, the end of the run tells what it finds
        self._has_worker = self._has_worker or is_first
        actor = self._kind.options(**place.options, **self._outliving).remote(
            *(role, member, self._plan, self._secrets, (place.project, place.search_path), self._driver_handle),
            is_first=is_first,
        )
        self._members[member] = _Member(actor, runtime_env=place.options.get("runtime_env", {}))
        for answer in (actor.locate.remote(), actor.serve.remote()):
            self._members[member].pending += 1
            answer.future().add_done_callback(partial(self._of_ray, member))
        # All nodes reach a place that was named. A worker of a private Ray writes as this process does.
        shares = self._plan.checkpoints.uri is not None and self._plan.cluster.address is not None
        storage = [self._packed[0].storage] if shares and self._packed is not None else []
        self._call(member, "prepare", *storage, told="prepared")

    def run(self, member: int, generation: Generation, rank: int, peers: dict[int, Any]) -> None:
        """Have the member take part in a generation; "ran" is heard when it has ended for this member. The entries of
        rank 0 are wanted at once; the others' may wait."""
        if rank == 0:
            self._relays.eager = member
        known = self._members[member]
        slots = (os.getpid(), self._lasting_memory) if known.node == self._here else None
        if self._packed is None or self._packed[0] is not generation:
            self._packed = generation, packed(generation)
        self._call(member, "run", self._packed[1], rank, peers, slots, told="ran")

    def pid(self, member: int) -> int | None:
        """The id of its process; None before the member has reported it."""
        return self._members[member].pid

    def is_gone(self, member: int) -> bool:
        """Whether its process has ended; on this node that is seen at once, while Ray reports it later."""
        known = self._members[member]
        if known.pid is None or known.node != self._here:
            return False
        return not processes.lives(known.pid)

    def post_mortem(self, member: int) -> PostMortem:
        """The last activity of a dead member, its card and the end of its standard error, as far as they are known."""
        found, known = self._relays.post_mortem(member), self._members.get(member)
        return found if known is None else found._replace(not_set_up=known.not_set_up)

    def stacks(self, members: Collection[int]) -> dict[int, stack_dump.ProcessStacks]:
        """The stacks of those that have told where they are; on other nodes by a process of Ray's there, since who is stuck may
        answer nothing. Members out of reach are left out."""
        by_node: dict[str | None, list[int]] = {}
        for member in members:
            if member in self._members and self._members[member].stacks is not None:
                by_node.setdefault(self._members[member].node, []).append(member)
        references = {node: self._ask_for_stacks(node, asked) for node, asked in by_node.items() if node != self._here}
        local_members = by_node.get(self._here, [])
        stacks = dict(zip(local_members, stack_dump.take(self._places(local_members)), strict=True))
        deadline = time.monotonic() + _STACKS_S
        for node, reference in references.items():
            with contextlib.suppress(RayError, OSError):
                answer = ray.get(reference, timeout=max(0.0, deadline - time.monotonic()))
                stacks.update(zip(by_node[node], answer, strict=True))
        return stacks

    def _ask_for_stacks(self, node: str | None, members: Sequence[int]) -> Any:
        strategy = NodeAffinitySchedulingStrategy(str(node), soft=False)
        env = dict(self._members[members[0]].runtime_env)
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": strategy, "runtime_env": env}
        task: Any = ray.remote(**options)(stack_dump.take)
        return task.remote(self._places(members))

    def _places(self, members: Sequence[int]) -> list[stack_dump.DumpTarget]:
        return [place for member in members if (place := self._members[member].stacks) is not None]

    def home(self, member: int) -> Home | None:
        """The places at which its process finds its code; None before it has told."""
        place = self._members[member].stacks
        return None if place is None else Home(**place.home)

    def forget(self, member: int) -> None:
        """It is dead or killed, and what it was doing is known: let go of what is kept of it, once nothing it has said is on
        its way any more. A run may lose any number of members."""
        known = self._members[member]
        known.over = True
        self._drop_if_over(member)

    def ask(self, member: int, what: str, generation: int) -> None:
        """Have the member ask for "regroup", "stop" or "save" at its next vote in this generation, which it may enter later."""
        self._call(member, "ask", what, generation)

    def become_spare(self, member: int) -> None:
        """Have the worker let go of what it can make anew, until it takes part in a generation."""
        self._call(member, "become_spare")

    def describe(self, member: int, origin: str | None) -> None:
        """Have the member report what its process is made of; "described" is heard."""
        self._call(member, "describe", origin, told="described")

    def read_parameters(self, member: int, token: str, request: Mapping[str, Any]) -> None:
        """Have a server say what it holds of a parameter; "looked" is heard, with the token."""
        name, first, count = (request[key] for key in ("name", "first", "count"))
        self._call(member, "read_parameters", token, name, first, count, told="looked")

    def profile(self, member: int) -> dict[str, Any] | None:
        """`{"profile", "partition", "layers"}`: a short description of the training data, how they are divided among the
        shards, if they are, and of the model; None when the member cannot give one."""
        return self._asked_of(member, "profile", _PROFILE_S)

    def answers(self, member: int) -> dict[str, Any] | None:
        """How the trained model may be asked when it is served, as the member finds by a trial; None when it finds nothing."""
        return self._asked_of(member, "answers", _ANSWERS_S)

    def _asked_of(self, member: int, verb: str, timeout_s: float) -> dict[str, Any] | None:
        if member not in self._members:
            return None
        try:
            answer: Answer = self._answer_of(member, verb, timeout_s=timeout_s)
        except (CallFailed, _Unanswered):
            return None
        return None if "failed" in answer else answer

    def call_off(self, member: int, generation: int) -> None:
        self._call(member, "call_off", generation)

    def kill(self, member: int) -> None:
        """End its process for certain, also one that is stopped; on this node at once, on another within seconds."""
        known = self._members[member]
        if known.pid is not None and known.node == self._here:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(known.pid, signal.SIGKILL)
        unless_gone(lambda: ray.kill(known.actor, no_restart=True), self._trouble)

    def inject(self, member: int, wanted: Fault) -> None:
        """Do to its process what its user rehearses."""
        known = self._members[member]
        if known.pid is not None and known.node == self._here:
            inject(known.pid, wanted.kind, wanted.pause_s)
        else:
            self._call(member, "suffer", wanted.kind, wanted.pause_s)

    def save_weights(self, member: int, path: str) -> None:
        """Bring the trained weights that the member has into a file here. Raises WorkerLost when it is gone, or does not
        answer, and RunFailed when the file cannot be written."""
        if member not in self._members:
            raise _lost_weights(member)
        try:
            if self._members[member].node == self._here:
                self._answer_of(member, "save_weights", path)
            else:
                self._fetch(member, path)
        except _Unanswered as error:
            raise _lost_weights(member, str(error)) from error
        except (CallFailed, OSError) as error:
            raise unwritten(path, error) from error

    def hear(self, timeout_s: float) -> Iterator[MemberMessage]:
        """The messages that came within `timeout_s`; an empty list if nothing came."""
        self._gather(0.0 if self._messages else timeout_s)
        while self._messages:
            message, number = self._messages.popleft()
            yield message
            if message.kind == "entries":
                self._acknowledge(message.member, number)

    def drain(self, members: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
        """By member, the entries that are still in its queue after its last answer. All are asked at once: many may be silent.
        Those for which Ray has found no room yet have said nothing."""
        placed = [member for member in members if self._members[member].node is not None]
        asked = {member: self._call(member, "flush", awaited=True) for member in placed}
        deadline = time.monotonic() + _DRAIN_S
        while any(map(self._is_owed, asked, asked.values())) and time.monotonic() < deadline:
            self._gather(max(0.0, min(_LOOK_S, deadline - time.monotonic())))
        for member, number in asked.items():
            del self._members[member].awaited[number]
        waiting, self._messages = self._messages, deque()
        entries: dict[int, list[dict[str, Any]]] = {member: [] for member in placed}
        for message, number in waiting:
            if message.member in entries and message.kind == "entries":
                entries[message.member] += message.entries
            else:
                self._messages.append((message, number))
        return entries

    def _is_owed(self, member: int, number: int) -> bool:
        """Whether the answer to this call may still come."""
        known = self._members[member]
        return known.awaited[number] is None and known.lost is None

    def _gather(self, timeout_s: float) -> None:
        """Wait for messages, and append all that came."""
        now = time.monotonic()
        self._relays.wait(min([timeout_s, *(max(0.0, until - now) for until, _ in self._dying.values())]))
        # A member's reports go before the news of its death.
        located = len(self._located)
        for report in self._relays.take():
            self._hear_report(report)
        for _ in range(located):
            self._hear_ray(*self._located.popleft())
        for member, (until, why) in list(self._dying.items()):
            if time.monotonic() >= until or not self._relays.may_say_more(member):
                del self._dying[member]
                self._messages.append((MemberMessage(member, "died", why=why), 0))
                self._drop_if_over(member)

    def _hear_report(self, report: Report) -> None:
        known = self._members.get(report.member)
        if known is None:
            return
        known.heard = time.monotonic()
        entries, heartbeat = pickle.loads(report.body)  # of a process of this user that knows the secret of the run
        new = _new(known, report.first, entries)
        number = known.seen - len(new)
        before: list[dict[str, Any]] = []
        has_answer = False
        for entry in new:
            number += 1
            if ANSWERS not in entry:
                before.append(entry)
            elif (answer := self._heard_answer(report.member, known, entry)) is not None:
                self._put_entries(report.member, before, heartbeat, number - 1)
                self._messages.append((answer, number))
                before, has_answer = [], True
        if before or not has_answer:
            self._put_entries(report.member, before, heartbeat, number)

    def _put_entries(self, member: int, entries: list[dict[str, Any]], heartbeat: dict[str, Any], number: int) -> None:
        self._messages.append((MemberMessage(member, "entries", entries=entries, heartbeat=heartbeat), number))

    def _heard_answer(self, member: int, known: _Member, entry: Mapping[str, Any]) -> MemberMessage | None:
        """The message that it is; None if somebody waits for it, or nobody."""
        number = entry[ANSWERS]
        if number in known.awaited:
            known.awaited[number] = entry
            return None
        told = known.asked.pop(number, None)
        if told is None:
            return None
        try:
            answer: Answer = answered(entry)
        except CallFailed as error:
            answer = {"failed": RunFailed(f"{error.kind}: {error}", code="worker.fault").as_dict()}
        self._learn(member, known, answer)
        return MemberMessage(member, told, answer)

    def _hear_ray(self, member: int, future: Any) -> None:
        """Learn where the member is, or that it has died."""
        known = self._members[member]
        known.pending -= 1
        try:
            self._learn(member, known, future.result())
        except RayError as error:
            if known.lost is None:
                known.lost, known.not_set_up = str(error), not_set_up(error)
                self._dying[member] = (time.monotonic() + _LAST_WORDS_S, known.lost)
                self._relays.died(member)
        self._drop_if_over(member)

    def _acknowledge(self, member: int, number: int) -> None:
        """Only now they are in the run's files."""
        known = self._members.get(member)
        now = time.monotonic()
        if known is not None and now >= known.acknowledged + self._acknowledge_s:
            known.acknowledged = now
            self._relays.acknowledge(member, number)

    def _heard_until(self, member: int) -> int:
        """The number of the next entry that was not handed on."""
        waiting = (
            number - len(each.entries) for each, number in self._messages if each.member == member and each.entries
        )
        return min(waiting, default=self._members[member].seen)

    def _learn(self, member: int, known: _Member, answer: Answer) -> None:
        """Note what an answer tells of the place of its process. Raises ClusterUnavailable where this process would never hear
        it."""
        if "node" not in answer or known.over:
            return
        if answer["node"] == self._here and answer.get("user", os.geteuid()) != os.geteuid():
            raise _of_another_user(locks.user_name(answer["user"]), locks.user_name(os.geteuid()))
        known.pid, known.node = answer["pid"], answer["node"]
        self._relays.reach(member, answer["node"], known.runtime_env)
        for call in known.unplaced:
            self._relays.call(member, *call)
        known.unplaced.clear()
        if answer.get("stacks"):
            known.stacks = stack_dump.DumpTarget(**answer["stacks"])

    def _fetch(self, member: int, path: str) -> None:
        """In pieces, so that big weights need no more memory here than a piece."""
        with open(path, "wb") as file:
            while piece := self._answer_of(member, "read_weights", file.tell(), _PIECE_BYTES):
                file.write(piece)

    def _call(
        self, member: int, verb: str, *arguments: Any, told: Answered | None = None, awaited: bool = False
    ) -> int:
        """Have the member do something; returns the number of the call. told: how its answer is heard of, if it is; awaited:
        whether somebody waits for it."""
        known = self._members[member]
        number = known.next_call
        known.next_call += 1
        if told is not None:
            known.asked[number] = told
        if awaited:
            known.awaited[number] = None
        call = packed_call(verb, arguments, wanted=awaited or told is not None)
        if known.node is None:
            known.unplaced.append((number, call))
        elif not known.over:
            self._relays.call(member, number, call)
        return number

    def _answer_of(self, member: int, verb: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """The answer of a member. timeout_s: None for as long as the member reports. Raises CallFailed and _Unanswered."""
        known, began = self._members[member], time.monotonic()
        number = self._call(member, verb, *arguments, awaited=True)
        try:
            while (entry := known.awaited[number]) is None:
                until = max(began, known.heard) + _SILENT_S if timeout_s is None else began + timeout_s
                if known.lost is not None or time.monotonic() >= until:
                    raise _Unanswered(known.lost or "")
                self._gather(min(_LOOK_S, until - time.monotonic()))
            # An answer may be large, and its member keeps it until then.
            self._relays.acknowledge(member, self._heard_until(member))
            return answered(entry)
        finally:
            del known.awaited[number]

    def _of_ray(self, member: int, future: Any) -> None:
        """In a thread of Ray."""
        self._located.append((member, future))
        self._relays.wake()

    def _drop_if_over(self, member: int) -> None:
        known = self._members.get(member)
        if known is not None and known.over and not known.pending and member not in self._dying:
            del self._members[member]
            self._relays.drop(member)


def _new(known: _Member, first: int, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of these entries that the member has not said before. first: the number of the first."""
    new = entries[max(0, known.seen - first) :]
    known.seen += len(new)
    return new


def this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _of_another_user(theirs: str, ours: str) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"the Ray of this machine runs as user {theirs}, and this command as {ours}: neither hears the other's processes",
        f"start Ray here as user {ours}, or type the command as {theirs}",
        code="ray.other-user",
    )


def _lost_weights(member: int, details: str = "") -> WorkerLost:
    return WorkerLost(
        f"the trained weights were lost with worker {member}", details=details, code="worker.weights-lost"
    )


def unwritten(path: str, why: Exception) -> RunFailed:
    """The error if the trained weights could not be written."""
    return RunFailed(
        f"the trained weights could not be written to {path}: {why}",
        "make room on its disk",
        code="worker.weights-unwritten",
    )
