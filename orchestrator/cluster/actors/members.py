"""The driver's side of the actors: start them, wait for what they report, call them, end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.actors.driver_loss import DriverHandle
from orchestrator.cluster.actors.fault_injection import inject
from orchestrator.cluster.actors.member_actor import Answer, MemberActor, Role
from orchestrator.cluster.ray_calls import unless_gone
from orchestrator.comm.transports.tls import Credentials
from orchestrator.common import processes
from orchestrator.config.plan import Plan
from orchestrator.controller.fault_injection import Fault
from orchestrator.errors import RunFailed, WorkerLost
from orchestrator.records.stacks import Home
from orchestrator.worker.member import lasting_memory, stack_dump
from orchestrator.worker.member.crash_record import CrashRecordReader
from orchestrator.worker.member.generation import Generation

_POLL_S = 2.0  # how long an idle actor holds a poll, at most
_HEARTBEAT_SHARE = 0.25  # of the time after which a member counts as stuck
_POLL_SHARE = 0.4  # of the time after which an accused member that is not heard of is taken for dead
_DRAIN_S = 5.0  # how long a member may take for its last words; one that is stopped never answers
_PROFILE_S = 30.0
_ANSWERS_S = 120.0
_SILENT_S = 30.0  # who has not answered for so long is stopped, or its host is gone
_PIECE_BYTES = 32 * 2**20
_STACKS_S = 10.0  # for a process of Ray's to start on another node


@dataclass(frozen=True)
class ActorPlacement:
    """The place of a member's actor, and how it is started. project: the folder in which it works, None for a copy that Ray
    unpacks; options: for `ray.remote`; node: its id, where that is known before."""

    project: str | None
    options: Mapping[str, Any]
    node: str | None = None


Kind = Literal["prepared", "ran", "entries", "described", "looked", "died"]


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
    crash_record: CrashRecordReader | None = None  # of its process; None until it is prepared
    # where its stacks are dumped; None until it is prepared, or where they are not
    stacks: stack_dump.DumpTarget | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)  # of Ray, with which its actor was started
    pending: int = 0  # answers that are waited for
    over: bool = False  # it is dead or killed, and what it was doing is known

    def close(self) -> None:
        if self.crash_record is not None:
            self.crash_record.close()
            self.crash_record = None


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
        options: dict[str, Any] = {"max_restarts": 0, "concurrency_groups": {"control": 3}}
        self._kind: Any = ray.remote(**options)(MemberActor)
        self._plan = plan
        self._secrets = secret, credentials
        self._driver_handle = driver_handle
        # How long an actor that has nothing to say may hold a poll, and so how old its heartbeat may be.
        timeouts = plan.cluster.timeouts
        self._poll_s = min(_POLL_S, timeouts.step_s * _HEARTBEAT_SHARE, timeouts.unreachable_s * _POLL_SHARE)
        self._members: dict[int, _Member] = {}
        self._waiting: dict[Any, tuple[int, Kind]] = {}
        self._eager: int | None = None
        self._tries_answers = (
            True  # the next worker: one is enough, and if it is lost, the end of the run tells what it finds
        )
        self._lasting_memory = lasting_memory.created()  # held open here: it outlives the workers of this node

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all members; a Ray that outlives the run must not keep them."""
        for member in self._members.values():
            unless_gone(lambda actor=member.actor: ray.kill(actor, no_restart=True), self._trouble)  # type: ignore[misc]
            member.close()
        os.close(self._lasting_memory)

    def start(self, member: int, role: Role, place: ActorPlacement) -> None:
        """Start its process and have it prepare; "prepared" is heard when it is ready."""
        tries = role == "worker" and self._tries_answers
        self._tries_answers = self._tries_answers and not tries
        actor = self._kind.options(**place.options).remote(
            role, self._plan, self._secrets, place.project, self._driver_handle, tries_answers=tries
        )
        self._members[member] = _Member(actor, runtime_env=place.options.get("runtime_env", {}))
        self._ask(member, "prepared", actor.prepare.remote())
        self._poll(member)

    def run(self, member: int, generation: Generation, rank: int, peers: dict[int, Any]) -> None:
        """Have the member take part in a generation; "ran" is heard when it has ended for this member. The entries of
        rank 0 are wanted at once; the others' may wait."""
        if rank == 0:
            self._eager = member
        known = self._members[member]
        slots = (os.getpid(), self._lasting_memory) if known.node == this_node() else None
        self._ask(member, "ran", known.actor.run.remote(generation, rank, peers, slots))

    def pid(self, member: int) -> int | None:
        """The id of its process; None before the member has reported it."""
        return self._members[member].pid

    def is_gone(self, member: int) -> bool:
        """Whether its process has ended; on this node that is seen at once, while Ray reports it later."""
        known = self._members[member]
        if known.pid is None or known.node != this_node():
            return False
        return not processes.lives(known.pid)

    def last_activity(self, member: int) -> Mapping[str, Any] | None:
        """The last activity of a dead member, in the form of its heartbeat; None if it cannot be known."""
        crash_record = self._members[member].crash_record
        return None if crash_record is None else crash_record.last()

    def stacks(self, members: Collection[int]) -> dict[int, stack_dump.ProcessStacks]:
        """The stacks of those that have prepared; on other nodes by a process of Ray's there, since who is stuck may answer
        nothing. Members out of reach are left out."""
        by_node: dict[str | None, list[int]] = {}
        for member in members:
            if member in self._members and self._members[member].stacks is not None:
                by_node.setdefault(self._members[member].node, []).append(member)
        there = {node: self._ask_for_stacks(node, known) for node, known in by_node.items() if node != this_node()}
        here = by_node.get(this_node(), [])
        found = dict(zip(here, stack_dump.take(self._places(here)), strict=True))
        deadline = time.monotonic() + _STACKS_S
        for node, reference in there.items():
            with contextlib.suppress(RayError, OSError):
                seen = ray.get(reference, timeout=max(0.0, deadline - time.monotonic()))
                found.update(zip(by_node[node], seen, strict=True))
        return found

    def _ask_for_stacks(self, node: str | None, members: Sequence[int]) -> Any:
        strategy = NodeAffinitySchedulingStrategy(str(node), soft=False)
        env = dict(self._members[members[0]].runtime_env)
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": strategy, "runtime_env": env}
        task: Any = ray.remote(**options)(stack_dump.take)
        return task.remote(self._places(members))

    def _places(self, members: Sequence[int]) -> list[stack_dump.DumpTarget]:
        return [place for member in members if (place := self._members[member].stacks) is not None]

    def home(self, member: int) -> Home | None:
        """The places at which its process finds its code; None before it has prepared."""
        place = self._members[member].stacks
        return None if place is None else Home(**place.home)

    def forget(self, member: int) -> None:
        """It is dead or killed, and what it was doing is known: let go of what is kept of it, once nothing it has said is on
        its way any more. A run may lose any number of members."""
        known = self._members[member]
        known.over = True
        known.close()
        self._drop_if_over(member, known)

    def ask(self, member: int, what: str) -> None:
        """Have the member ask for "regroup", "stop" or "save" at its next vote."""
        self._members[member].actor.ask.remote(what)

    def become_spare(self, member: int) -> None:
        """Have the worker let go of what it can make anew, until it takes part in a generation."""
        self._members[member].actor.become_spare.remote()

    def describe(self, member: int, origin: str | None) -> None:
        """Have the member report what its process is made of; "described" is heard."""
        self._ask(member, "described", self._members[member].actor.describe.remote(origin))

    def read_parameters(self, member: int, token: str, request: Mapping[str, Any]) -> None:
        """Have a server say what it holds of a parameter; "looked" is heard, with the token."""
        name, first, count = (request[key] for key in ("name", "first", "count"))
        self._ask(member, "looked", self._members[member].actor.read_parameters.remote(token, name, first, count))

    def profile(self, member: int) -> dict[str, Any] | None:
        """`{"profile", "partition", "layers"}`: a short description of the training data, how they are divided among the
        shards, if they are, and of the model; None when the member cannot give one."""
        return self._asked_of(member, "profile", _PROFILE_S)

    def answers(self, member: int) -> dict[str, Any] | None:
        """How the trained model may be asked when it is served, as the member finds by a trial; None when it finds nothing."""
        return self._asked_of(member, "answers", _ANSWERS_S)

    def _asked_of(self, member: int, method: str, timeout_s: float) -> dict[str, Any] | None:
        known = self._members.get(member)
        if known is None:
            return None
        try:
            answer: Answer = ray.get(getattr(known.actor, method).remote(), timeout=timeout_s)
        except RayError:
            return None
        return None if "failed" in answer else answer

    def call_off(self, member: int, generation: int) -> None:
        self._members[member].actor.call_off.remote(generation)

    def kill(self, member: int) -> None:
        """End its process for certain, also one that is stopped; on this node at once, on another within seconds."""
        known = self._members[member]
        if known.pid is not None and known.node == this_node():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(known.pid, signal.SIGKILL)
        unless_gone(lambda: ray.kill(known.actor, no_restart=True), self._trouble)

    def inject(self, member: int, wanted: Fault) -> None:
        """Do to its process what its user rehearses."""
        known = self._members[member]
        if known.pid is not None and known.node == this_node():
            inject(known.pid, wanted.kind, wanted.pause_s)
        else:
            known.actor.suffer.remote(wanted.kind, wanted.pause_s)

    def save_weights(self, member: int, path: str) -> None:
        """Bring the trained weights that the member has into a file here. Raises WorkerLost when it is gone, or does not
        answer, and RunFailed when the file cannot be written."""
        known = self._members.get(member)
        if known is None:
            raise _lost_weights(member)
        try:
            if known.node == this_node():
                self._await(known, known.actor.save_weights.remote(path))
            else:
                self._fetch(known, path)
        except RayError as error:  # before OSError, which the one of a time that is up is, too
            if isinstance(error, RayTaskError):
                raise unwritten(path, error.cause) from error
            raise _lost_weights(member, str(error)) from error
        except OSError as error:
            raise unwritten(path, error) from error

    def hear(self, timeout_s: float) -> Iterator[MemberMessage]:
        """The messages that came within `timeout_s`; an empty list if nothing came."""
        if not self._waiting:
            return
        ready, _ = ray.wait(list(self._waiting), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        # A member's messages go before its answer, and both before the news of its death.
        for reference in sorted(ready, key=lambda each: self._waiting[each][1] != "entries"):
            member, kind = self._waiting.pop(reference)
            known = self._members[member]
            known.pending -= 1
            try:
                answer = ray.get(reference)
            except RayError as error:
                yield MemberMessage(member, "died", why=str(error))
            else:
                yield self._heard(member, kind, answer)
                if kind == "entries" and not known.over:
                    self._poll(member)  # which lets the member forget them: only now they are in the run's files
            self._drop_if_over(member, known)

    def drain(self, member: int) -> list[dict[str, Any]]:
        """The entries that are still in the member's queue after its last answer."""
        known = self._members[member]
        try:
            answer: dict[str, Any] = ray.get(known.actor.take.remote(known.seen, 0.0, 0.0), timeout=_DRAIN_S)
        except RayError:
            return []
        known.seen += len(answer["entries"])
        return list(answer["entries"])

    def _heard(self, member: int, kind: Kind, answer: Answer) -> MemberMessage:
        known = self._members[member]
        if kind == "entries":
            known.seen += len(answer["entries"])
            for entry in answer["entries"]:
                if "pid" in entry and not known.over:
                    known.pid, known.node = entry["pid"], entry["node"]
            return MemberMessage(member, kind, entries=answer["entries"], heartbeat=answer["heartbeat"])
        if "node" in answer and not known.over:
            known.node = answer["node"]
            known.stacks = stack_dump.DumpTarget(**answer["stacks"]) if answer.get("stacks") else None
            if known.node == this_node():
                with contextlib.suppress(OSError):
                    known.crash_record = CrashRecordReader(answer["pid"], answer["crash_record"])
        return MemberMessage(member, kind, answer)

    def _fetch(self, known: _Member, path: str) -> None:
        """In pieces through Ray, so that big weights need no more memory here than a piece."""
        with open(path, "wb") as file:
            while piece := self._await(known, known.actor.read_weights.remote(file.tell(), _PIECE_BYTES)):
                file.write(piece)

    def _await(self, known: _Member, reference: Any) -> Any:
        """The answer of a member, which may take as long as the member answers others beside it. Raises RayError."""
        while not ray.wait([reference], timeout=_SILENT_S)[0]:
            ray.get(known.actor.take.remote(known.seen, 0.0, 0.0), timeout=_SILENT_S)
        return ray.get(reference)

    def _poll(self, member: int) -> None:
        known = self._members[member]
        gather_s = 0.05 if member == self._eager else 0.5
        self._ask(member, "entries", known.actor.take.remote(known.seen, self._poll_s, min(gather_s, self._poll_s)))

    def _ask(self, member: int, kind: Kind, reference: Any) -> None:
        self._waiting[reference] = (member, kind)
        self._members[member].pending += 1

    def _drop_if_over(self, member: int, known: _Member) -> None:
        if known.over and not known.pending:
            self._members.pop(member, None)


def this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


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
