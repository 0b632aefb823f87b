"""How the driver asks a member for something that may take long; Ray is a double."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from orchestrator.cluster.actors import members
from orchestrator.cluster.actors.members import ActorPlacement, Members
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.worker.member.crash_record import CrashRecord
from tests.refusals import refused


class SlowRay:
    """The weights come at the `after`-th look, and other answers at once or never."""

    def __init__(self, after: int, *, answers: bool) -> None:
        self._looks = after
        self._answers = answers

    def remote(self, **_: Any) -> Any:
        actor = SimpleNamespace(
            **{verb: SimpleNamespace(remote=lambda *_, verb=verb: verb) for verb in ("prepare", "take", "save_weights")}
        )
        return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_, **__: actor))

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: None)

    def wait(self, references: list[Any], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:  # noqa: ARG002
        self._looks -= 1
        return (references, []) if self._looks <= 0 else ([], references)

    def get(self, reference: str, timeout: float | None = None) -> str:
        if reference == "take" and not self._answers:
            raise GetTimeoutError("not in time")
        assert reference == "take" or timeout is None
        return reference


class FullRay(SlowRay):
    """The work of the member fails."""

    def get(self, reference: str, timeout: float | None = None) -> str:  # noqa: ARG002
        full = OSError("No space left on device")
        raise RayTaskError("save_weights", "", full)  # type: ignore[no-untyped-call]


class DeadlyRay(SlowRay):
    """Each actor prepares, and its process dies while it is asked for more. Only one lives at a time, of this process."""

    def __init__(self) -> None:
        super().__init__(0, answers=True)
        self._asked = 0
        self.record = CrashRecord()

    def remote(self, **_: Any) -> Any:
        def ask(verb: str) -> tuple[str, int]:
            self._asked += 1
            return verb, self._asked

        verbs = {verb: SimpleNamespace(remote=lambda *_, verb=verb: ask(verb)) for verb in ("prepare", "take", "run")}
        actor = SimpleNamespace(**verbs)
        return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_, **__: actor))

    def get(self, reference: Any, timeout: float | None = None) -> Any:  # noqa: ARG002
        if reference[0] != "prepare":
            raise RayActorError
        return {"node": None, "pid": os.getpid(), "crash_record": self.record.fd}

    def kill(self, _actor: Any, *, no_restart: bool) -> None:
        assert no_restart


def members_on(ray: Any, monkeypatch: pytest.MonkeyPatch, *settings: str) -> Members:
    monkeypatch.setattr(members, "ray", ray)
    monkeypatch.setattr(members, "this_node", lambda: None)
    found = Members(resolve(load([{"run": {"steps": 1}, "pipeline": {"target": "a:B"}}], settings)), b"secret")
    found.start(0, "worker", ActorPlacement(None, {}))
    return found


def test_large_weights_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    members_on(SlowRay(9, answers=True), monkeypatch).save_weights(0, "a path")


def test_weights_that_cannot_be_written_are_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("worker.weights-unwritten") as caught:
        members_on(FullRay(0, answers=True), monkeypatch).save_weights(0, "a path")
    assert caught.value.remedy == "make room on its disk"


def test_a_worker_that_is_stopped_does_not_hold_up_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("worker.weights-lost"):
        members_on(SlowRay(9, answers=False), monkeypatch).save_weights(0, "a path")


def test_two_thousand_losses_leave_no_descriptor_and_no_member_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of descriptors is 1,024 in most shells."""
    ray = DeadlyRay()
    ray.record.note("compute", 7, 3)
    with members_on(ray, monkeypatch) as held:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for member in range(2000):
            (prepared,) = [heard for heard in held.hear(0.0) if heard.kind == "prepared"]
            assert prepared.member == member
            assert held.last_activity(member) == {"activity": "compute", "step": 7, "shard": 3, "beats": 1}
            held.forget(member)
            held.start(member + 1, "worker", ActorPlacement(None, {}))
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert [heard.member for heard in held.hear(0.0)] == [2000, 2000]


def test_one_worker_of_a_run_tries_how_the_model_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that it asks costs the others nothing."""
    tries = []
    ray = SlowRay(0, answers=True)
    actor = ray.remote()(None).options().remote()

    def start(role: str, *_: Any, tries_answers: bool) -> Any:
        tries.append((role, tries_answers))
        return actor

    kind = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))
    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: kind)
    held = members_on(ray, monkeypatch)
    held.start(1, "server", ActorPlacement(None, {}))
    held.start(2, "worker", ActorPlacement(None, {}))
    assert tries == [("worker", True), ("server", False), ("worker", False)]


def test_what_one_that_is_over_has_said_before_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was seen to have ended, and news of it that Ray has already are worth as much as any."""
    held = members_on(SlowRay(0, answers=True), monkeypatch)
    monkeypatch.setattr(SlowRay, "get", lambda *_, **__: {"entries": [{"printed": "last words"}], "heartbeat": {}})
    held.forget(0)
    assert [word for heard in held.hear(0.0) for word in heard.entries] == [{"printed": "last words"}]
    assert list(held.hear(0.0)) == []
    with refused("worker.weights-lost"):
        held.save_weights(0, "a path")
    assert held.profile(0) is None


def test_one_that_has_not_prepared_is_ended_by_its_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without descriptors hears nothing of Ray's requests."""
    ended: list[int] = []
    held = members_on(SlowRay(0, answers=True), monkeypatch)
    monkeypatch.setattr(members, "this_node", lambda: "n")
    entry = {"pid": 7, "node": "n"}
    monkeypatch.setattr(SlowRay, "get", lambda *_, **__: {"entries": [entry], "heartbeat": {}})
    monkeypatch.setattr(SlowRay, "kill", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(os, "kill", lambda pid, _: ended.append(pid))
    next(held.hear(0.0))
    held.kill(0)
    assert ended == [7]


def test_an_actor_answers_before_it_can_be_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accused member that is not heard of for `cluster.unreachable_s` is taken for dead."""
    held_for: list[float] = []

    class Idle(SlowRay):
        def remote(self, **_: Any) -> Any:
            def held(_seen: int, wait_s: float, _gather_s: float) -> str:
                held_for.append(wait_s)
                return "take"

            take = SimpleNamespace(remote=held)
            actor = SimpleNamespace(take=take, prepare=SimpleNamespace(remote=lambda: "prepare"))
            return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_, **__: actor))

    for unreachable_s in (2, 5, 60):
        members_on(Idle(0, answers=True), monkeypatch, f"cluster.unreachable_s={unreachable_s}")
    assert held_for == [0.8, 2.0, 2.0]
