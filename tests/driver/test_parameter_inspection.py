"""An inspection of a running model gets one answer, whatever becomes of the servers, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.driver.run import inspection_requests
from orchestrator.driver.run.inspection_requests import InspectionRequests
from orchestrator.driver.run.parameter_inspection import ParameterInspection, refusal
from orchestrator.errors import UsageError
from orchestrator.worker.asynchronous.held_slice import Answer
from tests.worker import pipelines as p
from tests.worker.runs import Layout, settings_for

REQUEST = {"name": "w", "first": 0, "count": None}
ON_SERVERS = Layout(2, "parameter_server", servers=2)


def plan_of(sync: dict[str, Any], layout: Layout = ON_SERVERS) -> Plan:
    return resolve(settings_for(p.Mlp, layout, sync=sync))


def said(part: int, values: bytes) -> Answer:
    return {"part": part, "clocks": [part, 1], "first": part, "values": values, "parameters": {"w": [[2], [1]]}}


class Scene:
    """A run with two servers, 4 and 5, and somebody who asks."""

    def __init__(self, path: Path, sync: dict[str, Any]) -> None:
        self.path = path / "looks"
        self.asked: list[tuple[int, str]] = []
        self.looks = ParameterInspection(
            InspectionRequests(self.path), plan_of(sync), lambda server, token, _: self.asked.append((server, token))
        )
        self.answer: tuple[dict[str, Any], bytes] | None = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within, the request is there; afterwards the answer is."""

        def ask() -> None:
            self.answer = inspection_requests.ask(self.path, REQUEST, 60.0, lambda: None)

        asker = threading.Thread(target=ask)
        asker.start()
        while not (self.path.exists() and any(not each.name.startswith(".") for each in self.path.iterdir())):
            assert asker.is_alive()
        yield
        asker.join()
        assert self.answer is not None


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, {"name": "bap"})


def test_all_servers_are_asked_once_and_their_answers_put_together(scene: Scene) -> None:
    with scene.asking():
        scene.looks.tick([4, 5])
        scene.looks.tick([4, 5])
        assert [server for server, _ in scene.asked] == [4, 5]
        token = scene.asked[0][1]
        scene.looks.hear(5, {**said(1, b"5678"), "token": token})
        scene.looks.hear(4, {**said(0, b"1234"), "token": token})
    assert scene.answer is not None
    told, raw = scene.answer
    assert raw == b"12345678"
    assert told["slices"] == [
        {"server": 4, "clocks": [0, 1], "first": 0, "bytes": 4},
        {"server": 5, "clocks": [1, 1], "first": 1, "bytes": 4},
    ]
    assert not scene.path.exists()


@pytest.mark.parametrize("last", [lambda looks, _: looks.gone(5), lambda looks, token: looks.hear(5, {"token": token})])
def test_where_a_server_is_lost_or_holds_nothing_one_asks_again(
    scene: Scene, last: Callable[[ParameterInspection, str], None]
) -> None:
    with scene.asking():
        scene.looks.tick([4, 5])
        token = scene.asked[0][1]
        scene.looks.hear(4, {**said(0, b"1234"), "token": token})
        last(scene.looks, token)
    assert scene.answer == ({"slices": []}, b"")


def test_at_the_end_of_the_run_whoever_waits_is_told(scene: Scene) -> None:
    with scene.asking():
        scene.looks.tick([4])
        scene.looks.close()
    assert scene.answer is not None
    assert "has ended" in scene.answer[0]["failed"]["message"]


def test_what_somebody_left_who_was_killed_is_removed_at_the_end(scene: Scene) -> None:
    folder = scene.path / "abandoned"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text('{"name": null, "first": 0, "count": null}')
    scene.looks.tick([4])
    scene.looks.hear(4, {**said(0, b""), "token": "abandoned"})
    assert (folder / "answer").exists()
    scene.looks.close()
    assert not scene.path.exists()


def test_what_is_no_request_is_passed_over(scene: Scene) -> None:
    (scene.path / "strange").mkdir(parents=True)
    scene.looks.tick([4])
    assert scene.asked == []


def test_who_gets_no_answer_in_time_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        inspection_requests.ask(tmp_path / "looks", REQUEST, 0.0, lambda: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (plan_of({"name": "bsp"}), "with sync=bsp servers do not hold parameters"),
        (plan_of({"name": "gossip"}, Layout(2)), "with sync=gossip servers do not hold parameters"),
        (plan_of({"name": "bap"}, Layout(2)), "it has no server now, with topology=ring"),
        (replace(plan_of({"name": "bap"}), replay=({},)), "it repeats another run"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_with_the_reason(plan: Plan, why: str) -> None:
    found = refusal(plan, [])
    assert isinstance(found, UsageError)
    assert why in found.message
    assert "topology=parameter_server" in found.remedy
    assert refusal(plan_of({"name": "ssp"}), [4]) is None


def test_a_refusal_comes_as_the_answer(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"name": "bsp"})
    with scene.asking():
        scene.looks.tick([4, 5])
    assert scene.answer is not None
    assert "with sync=bsp" in scene.answer[0]["failed"]["message"]
    assert scene.asked == []
