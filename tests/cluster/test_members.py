"""How the driver asks a member for something that may take long; Ray is a double."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError, RuntimeEnvSetupError

from orchestrator.cluster.actors import host_relays, members
from orchestrator.cluster.actors.driver_loss import DriverHandle
from orchestrator.cluster.actors.event_queue import ANSWERS
from orchestrator.cluster.actors.host_relay import Call, RelayActor, Report
from orchestrator.cluster.actors.members import ActorPlacement, MemberMessage, Members
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.cluster.actors.reporter import beat_s
from orchestrator.common import locks
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.worker.member.crash_record import CrashRecord
from tests.cluster.callers import NO_RECORD, NODE, Member, close_all
from tests.refusals import refused


@dataclass
class Reference:
    """A call that a double of Ray was asked for, and its answer, which is there when that is known or an error."""

    verb: str
    told: Any = None

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(self.told, Exception):
            future.set_exception(self.told)
        elif self.told is not None:
            future.set_result(self.told)
        return future


class DoubleOfRay:
    """An actor is started, and says only what `told` has."""

    def told(self, verb: str) -> Any:  # noqa: ARG002
        """The answer to a call that is heard of; None while there is none."""
        return None

    def remote(self, **_: Any) -> Any:
        def call(verb: str) -> Any:
            return SimpleNamespace(remote=lambda: Reference(verb, self.told(verb)))

        actor = SimpleNamespace(locate=call("locate"), serve=call("serve"))
        kind = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_, **__: actor))
        return lambda _: kind

    def kill(self, _actor: Any, *, no_restart: bool) -> None:
        assert no_restart


class Called(Member):
    """A member that answers calls. says: by the verb, what it answers; a verb that is not there is not answered."""

    def __init__(self, number: int = 0, crash_record: int = NO_RECORD, **says: Any) -> None:
        super().__init__(number, crash_record=crash_record)
        self.said = 0
        self._says = says

    def answers(self, until: str = "") -> None:
        """Answer calls until this verb was called, or for ever."""
        verb = None
        while verb != until:
            number, call = self.is_called()
            verb, arguments, wanted = pickle.loads(call)
            if wanted and verb in self._says:
                said = self._says[verb]
                self.answer(number, said(*arguments) if callable(said) else said)

    def answer(self, number: int, said: Any) -> None:
        outcome = (False, (type(said).__name__, str(said))) if isinstance(said, Exception) else (True, said)
        self.says(self.said, {ANSWERS: number, "packed": pickle.dumps(outcome)}, urgent=True, next_call=number + 1)
        self.said += 1


class DeadlyRay(DoubleOfRay):
    """The process of each actor dies at once. Only one lives at a time, of this process."""

    def told(self, verb: str) -> Any:
        return {"node": NODE, "pid": os.getpid()} if verb == "locate" else RayActorError(error_msg="it died")


FAR = "fa" * 28  # another node, by its id


def members_on(
    ray: Any, monkeypatch: pytest.MonkeyPatch, *settings: str, handle: DriverHandle | None = None
) -> Members:
    monkeypatch.setattr(members, "ray", ray)
    monkeypatch.setattr(members, "this_node", lambda: NODE)
    plan = resolve(load([{"run": {"steps": 1}, "pipeline": {"target": "a:B"}}], settings))
    found = Members(plan, b"secret", driver_handle=handle)
    _held.append(found)
    found.start(0, "worker", ActorPlacement(None, {}))
    if ray.told("locate") is None:
        found._learn(0, found._members[0], {"pid": None, "node": NODE})
    return found


_held: list[Members] = []


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001
    """Before Ray is the true one again."""
    yield
    close_all()
    while _held:
        _held.pop()._relays.close(lambda: None)


def told(held: Members) -> list[tuple[str, Any]]:
    return [told_by(heard) for heard in held.hear(0.0)]


def told_by(heard: MemberMessage) -> tuple[str, Any]:
    return heard.kind, heard.entries or heard.why or heard.answer


def answering(member: Called) -> None:
    """Have it answer in a thread, until the driver lets go of it."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            member.answers()

    threading.Thread(target=answer, daemon=True).start()


SHARED = ("cluster.address=10.0.0.1:6379", "checkpoint.uri=/shared")


@pytest.mark.parametrize(("settings", "told"), [(SHARED, ("there",)), (SHARED[:1], ()), (SHARED[1:], ())])
def test_who_comes_late_is_told_where_checkpoints_lie_if_its_node_may_not_reach_that(
    settings: tuple[str, ...], told: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = members_on(DoubleOfRay(), monkeypatch, *settings)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(held, "_call", lambda *arguments, **_: calls.append(arguments))
    held.start(1, "worker", ActorPlacement(None, {}))
    held.run(0, SimpleNamespace(storage="there"), 1, {})  # type: ignore[arg-type]
    held.start(2, "worker", ActorPlacement(None, {}))
    assert [each for each in calls if each[1] == "prepare"] == [(1, "prepare"), (2, "prepare", *told)]


def test_a_ray_of_another_user_on_this_machine_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers ended one after the other, as their driver never answered. On another node its own user hears them."""
    held = members_on(DoubleOfRay(), monkeypatch)
    theirs = {"pid": 1, "user": os.geteuid() + 1}
    held._learn(0, held._members[0], {"node": FAR, **theirs})
    with refused("ray.other-user", f"runs as user {locks.user_name(os.geteuid() + 1)},"):
        held._learn(0, held._members[0], {"node": NODE, **theirs})


def test_large_weights_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as reports of the member come. Its silences leave room for a machine that stands still for most of a second."""
    monkeypatch.setattr(members, "_SILENT_S", 1.0)
    held = members_on(DoubleOfRay(), monkeypatch)

    def save(_: str) -> None:
        for _number in range(12):
            time.sleep(0.1)
            caller.says(0)

    caller = Called(save_weights=save)
    answering(caller)
    held.save_weights(0, "a path")


def test_leases_are_renewed_while_the_driver_waits_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker ended itself when writing them took longer than a lease, and so the run never ended."""
    held = members_on(DoubleOfRay(), monkeypatch, "cluster.lease_s=0.2")

    def save(_: str) -> None:
        for each in (caller, beside):
            for _number in range(3):
                assert each.hears() == 0

    with held:
        held.start(1, "worker", ActorPlacement(None, {}))
        caller, beside = Called(save_weights=save), Member(1)
        threading.Thread(target=caller.answers, args=("save_weights",), daemon=True).start()
        held.save_weights(0, "a path")


def test_weights_that_cannot_be_written_are_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    held = members_on(DoubleOfRay(), monkeypatch)
    answering(Called(save_weights=OSError(28, "No space left on device")))
    with refused("worker.weights-unwritten") as caught:
        held.save_weights(0, "a path")
    assert caught.value.remedy == "make room on its disk"
    assert "No space left on device" in caught.value.message


def test_a_worker_that_is_stopped_does_not_hold_up_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_SILENT_S", 0.1)
    held = members_on(DoubleOfRay(), monkeypatch)
    Member(0)
    with refused("worker.weights-lost"):
        held.save_weights(0, "a path")


def test_weights_of_another_node_come_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = members_on(DoubleOfRay(), monkeypatch)
    whole = bytes(range(10))
    monkeypatch.setattr(members, "_PIECE_BYTES", 4)
    answering(Called(read_weights=lambda offset, limit: whole[offset : offset + limit]))
    held._fetch(0, str(tmp_path / "weights"))
    assert (tmp_path / "weights").read_bytes() == whole


def test_an_answer_that_was_waited_for_is_let_go_of_but_no_line_before_it_is_in_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights would be kept by their member a second time, piece by piece."""
    held = members_on(DoubleOfRay(), monkeypatch)
    let_go: list[int] = []
    monkeypatch.setattr(held._relays, "acknowledge", lambda _, number: let_go.append(number))

    def piece() -> bytes:
        if caller.said == 2:
            caller.says(2, {"printed": "a line"})
            caller.said = 3
        return b"a piece"

    caller = Called(read_weights=piece)
    answering(caller)
    assert [held._answer_of(0, "read_weights") for _ in range(3)] == [b"a piece"] * 3
    assert let_go == [1, 2, 2]


def test_what_comes_while_an_answer_is_waited_for_is_heard_later(monkeypatch: pytest.MonkeyPatch) -> None:
    held = members_on(DoubleOfRay(), monkeypatch)
    other = Member(1)
    held.start(1, "worker", ActorPlacement(None, {}))
    other.says(0, "a")
    caller = Called(profile={"layers": 3})
    caller.says(0, "b")
    caller.said = 1
    answering(caller)
    assert held.profile(0) == {"layers": 3}
    assert sorted(str(heard.entries) for heard in held.hear(0.0) if heard.entries) == ["['a']", "['b']"]


def test_the_last_entries_of_a_member_are_those_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    held = members_on(DoubleOfRay(), monkeypatch)
    other = Member(1)
    held.start(1, "worker", ActorPlacement(None, {}))
    other.says(0, "of another one")

    def flush() -> None:
        caller.says(0, {"printed": "a"}, {"printed": "b"})
        caller.said = 2

    caller = Called(flush=flush)
    answering(caller)
    assert held.drain([0]) == {0: [{"printed": "a"}, {"printed": "b"}]}
    assert told(held) == [("entries", ["of another one"])]
    monkeypatch.setattr(members, "_DRAIN_S", 0.0)
    assert held.drain([1]) == {}
    held._learn(1, held._members[1], {"pid": None, "node": NODE})
    assert held.drain([1]) == {1: []}


def test_many_that_are_silent_hold_up_the_end_of_a_run_as_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as workers that stand in a call that lets no other thread on. Workers for which there was no room are not waited
    for: a run that might have grown took five seconds more for each."""
    held = members_on(DoubleOfRay(), monkeypatch)
    for member in range(1, 9):
        held.start(member, "worker", ActorPlacement(None, {}))
    gathered: list[float] = []
    monkeypatch.setattr(held, "_gather", gathered.append)
    assert held.drain(range(1, 9)) == {}
    assert gathered == []
    for member in range(1, 9):
        held._learn(member, held._members[member], {"pid": None, "node": NODE})
    now = iter(range(100))
    monkeypatch.setattr(members, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    assert held.drain(range(1, 9)) == {member: [] for member in range(1, 9)}
    assert next(now) < 2 * members._DRAIN_S + 5


@pytest.mark.slow
def test_two_thousand_losses_leave_no_descriptor_and_no_member_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of descriptors is 1,024 in most shells."""
    record = CrashRecord()
    record.note("compute", 7, 3)
    prepared_answer = {"node": NODE, "pid": os.getpid()}
    with members_on(DeadlyRay(), monkeypatch) as held:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for member in range(2000):
            caller = Called(member, crash_record=record.fd, prepare=prepared_answer)
            caller.answer(0, prepared_answer)
            entries, prepared, died = held.hear(0.0)
            assert (entries.kind, prepared.kind, died.kind) == ("entries", "prepared", "died")
            assert entries.member == prepared.member == died.member == member
            assert held.post_mortem(member).activity == {"activity": "compute", "step": 7, "shard": 3, "beats": 1}
            held.forget(member)
            close_all()
            assert list(held.hear(0.0)) == []
            held.start(member + 1, "worker", ActorPlacement(None, {}))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert len(held._members) == 1


def test_one_worker_of_a_run_is_told_that_it_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that it asks costs the others nothing."""
    tries = []
    ray = DoubleOfRay()
    actor = ray.remote()(None).options().remote()

    def start(role: str, *_: Any, is_first: bool) -> Any:
        tries.append((role, is_first))
        return actor

    kind = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))
    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: kind)
    held = members_on(ray, monkeypatch)
    held.start(1, "server", ActorPlacement(None, {}))
    held.start(2, "worker", ActorPlacement(None, {}))
    assert tries == [("worker", True), ("server", False), ("worker", False)]


@pytest.mark.parametrize("handle", [None, DriverHandle(1, "lock")])
def test_members_that_outlive_their_driver_are_not_its_rays_to_kill(
    monkeypatch: pytest.MonkeyPatch, handle: DriverHandle | None
) -> None:
    """Ray kills the actors of a driver that is gone, if it lives a moment longer, unless they are detached. None has a name,
    which another member would have to do without."""
    asked: list[dict[str, Any]] = []
    ray = DoubleOfRay()
    usual: Any = ray.remote()(None)

    def options(**given: Any) -> Any:
        asked.append(given)
        return usual.options()

    kind = SimpleNamespace(options=options)
    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: kind)
    held = members_on(ray, monkeypatch, handle=handle)
    asked.clear()
    for member in (1, 2):
        held.start(member, "worker", ActorPlacement(None, {"num_cpus": 1}))
    assert [each["num_cpus"] for each in asked] == [1, 1]
    assert [each.get("lifetime") for each in asked] == [None if handle is None else "detached"] * 2
    assert not any("name" in each for each in asked)


def test_what_one_that_is_over_has_said_before_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was seen to have ended, and news of it that are there already are worth as much as any."""
    ends: list[Future[Any]] = []

    def future(_: Reference) -> Future[Any]:
        ends.append(Future())
        return ends[-1]

    monkeypatch.setattr(Reference, "future", future)
    held = members_on(DoubleOfRay(), monkeypatch)
    caller = Member(0)
    caller.says(0, {"printed": "last words"})
    held.forget(0)
    for end in ends:
        end.set_exception(RayActorError(error_msg="it died"))
    assert told(held) == [("entries", [{"printed": "last words"}]), ("died", "it died")]
    assert told(held) == []
    with refused("worker.weights-lost"):
        held.save_weights(0, "a path")
    assert held.profile(0) is None


def test_entries_go_before_the_answer_and_both_before_the_news_of_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is heard once, though a member sends again what was not acknowledged."""
    asked: dict[str, Future[Any]] = {}
    monkeypatch.setattr(Reference, "future", lambda each: asked.setdefault(each.verb, Future()))
    held = members_on(DoubleOfRay(), monkeypatch)
    held.run(0, SimpleNamespace(), 1, {})  # type: ignore[arg-type]
    caller = Member(0)
    asked["serve"].set_exception(RayActorError(error_msg="it died"))
    answer = {ANSWERS: 1, "packed": pickle.dumps((True, {"ended": "so"}))}
    caller.says(0, "a", "b")
    caller.says(1, "b", "c", answer, "d")
    expected = [
        ("entries", ["a", "b"]),
        ("entries", ["c"]),
        ("ran", {"ended": "so"}),
        ("entries", ["d"]),
        ("died", "it died"),
    ]
    assert told(held) == expected


def test_a_call_that_raises_in_the_member_is_a_failure_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held = members_on(DoubleOfRay(), monkeypatch)
    Called().answer(0, ValueError("odd"))
    _, (kind, answer) = told(held)
    assert (kind, answer["failed"]["code"], answer["failed"]["message"]) == (
        "prepared",
        "worker.fault",
        "ValueError: odd",
    )


def test_calls_wait_until_it_is_known_where_a_member_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = DoubleOfRay()
    located: Future[Any] = Future()
    monkeypatch.setattr(ray, "told", lambda _: "later")
    monkeypatch.setattr(Reference, "future", lambda each: located if each.verb == "locate" else Future())
    held = members_on(ray, monkeypatch)
    held.ask(0, "stop", 0)
    caller = Member(0)
    assert told(held) == []
    located.set_result({"pid": 7, "node": NODE})
    assert told(held) == []
    assert [pickle.loads(caller.is_called()[1]) for _ in range(2)] == [
        ("prepare", (), True),
        ("ask", ("stop", 0), False),
    ]


def test_a_member_is_told_what_is_in_the_files_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    held = members_on(DoubleOfRay(), monkeypatch)
    caller = Member(0)
    caller.says(0, "a", "b")
    messages = held.hear(0.0)
    assert told_by(next(messages)) == ("entries", ["a", "b"])
    assert caller.is_called()[0] == 0  # to prepare
    caller.connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        caller.hears()
    assert list(messages) == []
    assert caller.hears() == 2


def test_what_is_not_looked_at_is_heard_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that cannot write stops between two messages."""
    held = members_on(DoubleOfRay(), monkeypatch)
    caller = Member(0)
    caller.says(0, "a")
    caller.says(1, "b")
    messages = held.hear(0.0)
    assert told_by(next(messages)) == ("entries", ["a"])
    messages.close()  # type: ignore[attr-defined]
    assert told(held) == [("entries", ["b"])]


def test_one_that_has_not_prepared_is_ended_by_its_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without descriptors hears nothing of Ray's requests."""
    ended: list[int] = []
    ray = DoubleOfRay()
    monkeypatch.setattr(ray, "told", lambda verb: {"pid": 7, "node": NODE} if verb == "locate" else None)
    held = members_on(ray, monkeypatch)
    monkeypatch.setattr(os, "kill", lambda pid, _: ended.append(pid))
    assert list(held.hear(0.0)) == []
    held.kill(0)
    assert ended == [7]


def test_an_actor_reports_before_it_can_be_taken_for_silent() -> None:
    """An accused member that is not heard of for `cluster.unreachable_s` is taken for dead."""
    given = [{"run": {"steps": 1}, "pipeline": {"target": "a:B"}}]
    plans = [resolve(load(given, [f"cluster.unreachable_s={unreachable_s}"])) for unreachable_s in (2, 5, 60)]
    assert [beat_s(plan.cluster.timeouts) for plan in plans] == [0.8, 2.0, 2.0]


# ---- members of other nodes


class FarRay(DoubleOfRay):
    """The member is on another node, whose relay answers what it is told to."""

    def __init__(self) -> None:
        self.relays: list[str] = []  # the nodes on which one was started
        self.calls: list[tuple[tuple[Any, ...], Future[Any]]] = []  # of `exchange`
        self.rests: list[list[Future[Any]]] = []  # of `rest`
        self.handed: list[list[Call]] = []  # by calls of `hand`
        self.dead: list[list[int]] = []  # by calls of `died`
        self.renewed = 0  # calls of `renew`
        self.stays: Future[Any] = Future()

    def told(self, verb: str) -> Any:
        return {"pid": 7, "node": FAR} if verb == "locate" else None

    def remote(self, **options: Any) -> Any:
        def exchange(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            self.calls.append((arguments, future))
            return SimpleNamespace(future=lambda: future)

        def rest(num_returns: int) -> Any:
            futures = [Future[Any]() for _ in range(num_returns)]
            self.rests.append(futures)
            given = [SimpleNamespace(future=lambda each=each: each) for each in futures]
            return SimpleNamespace(remote=lambda _: given if num_returns > 1 else given[0])

        def place(scheduling_strategy: Any, runtime_env: Any) -> Any:  # noqa: ARG001
            self.relays.append(scheduling_strategy.node_id)
            hand = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.handed.append))
            died = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.dead.append))
            renew = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.renew))
            exchanged, more = SimpleNamespace(remote=exchange), SimpleNamespace(options=rest)
            actor = SimpleNamespace(exchange=exchanged, rest=more, hand=hand, died=died, renew=renew)
            return SimpleNamespace(remote=lambda *_: actor)

        usual: Any = super().remote(**options)
        return lambda kind: SimpleNamespace(options=place) if kind is RelayActor else usual(kind)

    def renew(self) -> None:
        self.renewed += 1

    def get(self, references: list[Any]) -> list[Any]:
        return [each.future().result() for each in references]


def far(monkeypatch: pytest.MonkeyPatch) -> tuple[FarRay, Members]:
    ray = FarRay()
    monkeypatch.setattr(host_relays, "ray", ray)
    monkeypatch.setattr(host_relays, "_RETRY_S", 0.0)
    stays = Reference.future
    monkeypatch.setattr(Reference, "future", lambda each: ray.stays if each.verb == "serve" else stays(each))
    held = members_on(ray, monkeypatch)
    assert list(held.hear(0.0)) == []  # it has told where it is
    assert list(held.hear(0.0)) == []
    return ray, held


def test_leases_on_another_node_are_renewed_by_its_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, held = far(monkeypatch)
    held._relays.renew(lambda: None)
    assert ray.renewed == 1


def sent(first: int, *entries: Any) -> Report:
    return Report(0, first, False, pickle.dumps((list(entries), {"beats": 0})))


def answer(*reports: Report, **ended: PostMortem) -> tuple[bytes, int]:
    return pickle.dumps((list(reports), {int(member[1:]): each for member, each in ended.items()})), 0


def test_all_members_of_another_node_are_heard_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, held = far(monkeypatch)
    assert ray.relays == [FAR]
    ((_, call),) = ray.calls
    assert told(held) == []
    assert len(ray.calls) == 1
    call.set_result(answer(sent(0, "a"), sent(1, "b")))
    assert told(held) == [("entries", ["a"]), ("entries", ["b"])]
    assert told(held) == []
    assert [arguments[:2] for arguments, _ in ray.calls] == [
        ({}, []),
        ({0: 1}, []),
    ]  # the second word would come too soon


def test_another_relay_takes_the_place_of_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members send it again what was not acknowledged, and each entry is heard once."""
    ray, held = far(monkeypatch)
    ray.calls[0][1].set_result(answer(sent(0, "a")))
    assert told(held) == [("entries", ["a"])]
    assert told(held) == []
    begun, _ = answer(sent(1, "b"))
    ray.calls[1][1].set_result((begun[:7], len(begun) - 7))
    assert told(held) == []
    assert told(held) == []
    ray.rests[0][0].set_exception(RayActorError(error_msg="killed"))
    assert told(held) == []
    assert told(held) == []
    assert ray.relays == [FAR, FAR]
    ray.calls[2][1].set_result(answer(sent(0, "a", "b")))
    assert told(held) == [("entries", ["b"])]


def test_no_answer_of_a_relay_is_so_long_that_ray_takes_its_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of which the owner never heard the place held a run up for `cluster.step_timeout_s`. Long are reports, weights,
    and the last words of the dead."""
    relay = RelayActor(b"secret", f"node of {os.getpid()}")
    entries = [*map(str, range(900_000))]
    found = PostMortem(standard_error="x" * 400_000)
    relay._relay._reports += [sent(0, *entries), sent(len(entries), "b")]
    relay._relay._ended.append(0)
    monkeypatch.setattr(relay._relay, "post_mortem", lambda _: found)
    ray, held = far(monkeypatch)
    values: list[Any] = [relay.exchange({}, [], 0.0, 0.0)]
    ray.calls[-1][1].set_result(values[0])
    heard = told(held) + told(held)
    while len(ray.calls) == 1:
        futures = ray.rests[-1]
        given = relay.rest(len(futures)) if len(futures) > 1 else (relay.rest(1),)
        for future, value in zip(futures, given, strict=True):
            future.set_result(value)
        values += given
        heard += told(held) + told(held)  # it asks again
    relay._relay.close()
    assert heard == [("entries", entries), ("entries", ["b"])]
    assert held._relays._by_member[0].ended == {0: found}
    assert len(ray.rests) > 1
    assert max(len(pickle.dumps(each)) for each in values) < 100_000
    assert max(map(len, ray.rests)) * 100_000 < 10_000_000, "all that one call returns"


def test_another_relay_gets_the_calls_again_that_are_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, held = far(monkeypatch)
    held.ask(0, "stop", 0)
    held.ask(0, "save", 0)
    assert told(held) == []
    assert [[number for _, number, _ in calls] for calls in ray.handed] == [[0], [1, 2]]
    ray.calls[0][1].set_result(answer(sent(0)._replace(next_call=2)))
    assert told(held) == [("entries", {})]
    assert told(held) == []
    ray.calls[1][1].set_exception(RayActorError(error_msg="killed"))
    assert told(held) == []
    assert told(held) == []
    assert [[number for _, number, _ in calls] for calls in ray.handed] == [[0], [1, 2], [2]]


def test_the_last_reports_of_another_node_go_before_the_news_of_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_LAST_WORDS_S", 60.0)
    ray, held = far(monkeypatch)
    ray.stays.set_exception(RayActorError(error_msg="it died"))
    assert told(held) == []
    assert told(held) == []
    assert ray.dead == [[0]]
    found = PostMortem({"activity": "compute"}, "GPU-0", "all is lost")
    ray.calls[0][1].set_result(answer(sent(0, "last words"), _0=found))
    assert told(held) == [("entries", ["last words"]), ("died", "it died")]
    assert held.post_mortem(0) == found
    held.forget(0)
    assert len(held._members) == 0


@pytest.mark.parametrize("is_relay_lost", [True, False])
def test_a_death_is_told_where_no_last_report_comes(monkeypatch: pytest.MonkeyPatch, *, is_relay_lost: bool) -> None:
    monkeypatch.setattr(members, "_LAST_WORDS_S", 60.0 if is_relay_lost else 0.0)
    ray, held = far(monkeypatch)
    if is_relay_lost:
        ray.calls[0][1].set_exception(RayActorError(error_msg="its node is gone"))
    ray.stays.set_exception(RayActorError(error_msg="it died"))
    assert told(held) == [("died", "it died")]
    held.kill(0)


def test_ray_tells_why_it_could_not_set_up_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_LAST_WORDS_S", 0.0)
    ray, held = far(monkeypatch)
    ray.stays.set_exception(RuntimeEnvSetupError("Traceback ...\nOSError: [Errno 28] No space left on device"))
    assert [kind for kind, _ in told(held)] == ["died"]
    assert held.post_mortem(0).not_set_up.endswith("its process there: OSError: [Errno 28] No space left on device")
    held.kill(0)


def test_the_relays_of_other_nodes_end_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    ray, held = far(monkeypatch)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: ended.append((actor, no_restart)))
    with held:
        pass
    assert len(ended) == 2  # the member and the relay
