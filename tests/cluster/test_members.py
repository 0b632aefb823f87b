"""How the driver asks a member for something that may take long; Ray is a double."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayTaskError

from orchestrator.cluster.actors import members
from orchestrator.cluster.actors.members import ActorPlacement, Members
from orchestrator.errors import RunFailed, WorkerLost
from orchestrator.plan.resolve import resolve
from orchestrator.settings import load


class SlowRay:
    """The weights come at the `after`-th look, and other answers at once or never."""

    def __init__(self, after: int, *, answers: bool) -> None:
        self._looks = after
        self._answers = answers

    def remote(self, **_: Any) -> Any:
        actor = SimpleNamespace(
            **{verb: SimpleNamespace(remote=lambda *_, verb=verb: verb) for verb in ("prepare", "take", "save_weights")}
        )
        return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: actor))

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: None)

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:  # noqa: ARG002
        self._looks -= 1
        return (references, []) if self._looks <= 0 else ([], references)

    def get(self, reference: str, timeout: float | None = None) -> str:
        if reference == "take" and not self._answers:
            raise GetTimeoutError("not in time")
        assert reference == "take" or timeout is None
        return reference


class FullRay(SlowRay):
    """What the member does fails."""

    def get(self, reference: str, timeout: float | None = None) -> str:  # noqa: ARG002
        full = OSError("No space left on device")
        raise RayTaskError("save_weights", "", full)  # type: ignore[no-untyped-call]


def members_on(ray: Any, monkeypatch: pytest.MonkeyPatch) -> Members:
    monkeypatch.setattr(members, "ray", ray)
    monkeypatch.setattr(members, "this_node", lambda: None)
    found = Members(resolve(load([{"run": {"steps": 1}, "pipeline": {"target": "a:B"}}], [])), b"secret")
    found.start(0, "worker", ActorPlacement(None, {}))
    return found


def test_large_weights_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    members_on(SlowRay(9, answers=True), monkeypatch).save_weights(0, "a path")


def test_weights_that_cannot_be_written_are_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match="could not be written to a path: No space left on device") as caught:
        members_on(FullRay(0, answers=True), monkeypatch).save_weights(0, "a path")
    assert caught.value.remedy == "make room on its disk"


def test_a_worker_that_is_stopped_does_not_hold_up_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerLost, match="lost with worker 0"):
        members_on(SlowRay(9, answers=False), monkeypatch).save_weights(0, "a path")
