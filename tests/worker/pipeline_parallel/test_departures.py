"""Messages that leave when a device has done what they tell of: in order, never before, and in time for who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.transports.base import ProtocolError
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.border_values import Activations, Generators, pack
from orchestrator.worker.pipeline_parallel.departures import Departures
from tests.comm.transports.memory import Hub

PATIENCE_S = 20.0


@dataclass
class Mark:
    """Implements `enqueued.Mark`. on_look: called with each question."""

    reached: bool = False
    waits: int = 0
    on_look: Callable[[], None] = lambda: None

    def query(self) -> bool:
        self.on_look()
        return self.reached

    def synchronize(self) -> None:
        self.waits += 1
        self.reached = True


@given(st.lists(st.sampled_from(["plain", "late", "reach", "go", "finish"]), max_size=40))
def test_each_leaves_in_its_turn_and_not_before_its_mark(acts: list[str]) -> None:
    departures, marks, left = Departures(), list[Mark | None](), list[int]()

    def leave(number: int) -> None:
        mark = marks[number]
        assert mark is None or mark.reached
        left.append(number)

    for act in acts:
        if act in ("plain", "late"):
            marks.append(None if act == "plain" else Mark())
            departures.add(marks[-1], partial(leave, len(marks) - 1))
        elif act == "reach":
            for mark in [mark for mark in marks if mark is not None and not mark.reached][:1]:
                mark.reached = True
        elif act == "go":
            before = len(left)
            assert departures.go() == (len(left) > before)
        else:
            departures.finish()
            assert departures.empty
        assert left == list(range(len(left)))
        assert departures.empty == (len(left) == len(marks))
    departures.finish()
    assert left == list(range(len(marks)))


def test_only_what_has_to_be_waited_for_is_waited_for() -> None:
    departures, mark = Departures(), Mark()
    departures.add(mark, lambda: None)
    assert not departures.go()
    assert mark.waits == 0
    departures.finish()
    assert mark.waits == 1


class Members:
    """Two neighbours, whose messages have marks of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hub = Hub(2)
        self.marks: list[Mark] = []
        self.borders = [messages.Border(self.hub.transport(rank), 0, PATIENCE_S, None) for rank in range(2)]
        self.seeded = Generators.now()
        monkeypatch.setattr(messages, "mark_of", self._mark)

    def _mark(self, _device: torch.device) -> Mark:
        self.marks.append(Mark())
        return self.marks[-1]

    def send(self, rank: int, shard: int, phase: int = messages.ACTIVATIONS) -> Mark:
        sent = Activations([pack(torch.full((3,), float(shard)))], [True], [(0, 0)], [], self.seeded)
        self.borders[rank].send(1 - rank, (0, 0, phase, shard), sent, self.seeded)
        return self.marks[-1]

    def receive(self, rank: int, shard: int, phase: int = messages.ACTIVATIONS) -> float:
        came = messages.activations(self.borders[rank].receive(1 - rank, (0, 0, phase, shard)), self.seeded)
        assert came is not None
        return float(came.border_values[0].data[0])


def test_what_has_come_is_taken_while_own_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch)
    for shard in range(3):
        mark = members.send(1, shard, messages.GRADIENTS)
        mark.reached = True
    members.borders[1].finish()
    own = members.send(0, 5)
    assert [members.receive(0, shard, messages.GRADIENTS) for shard in range(3)] == [0.0, 1.0, 2.0]
    assert own.waits == 0
    own.reached = True
    members.borders[0].finish()
    assert members.receive(1, 5) == 5.0


def test_who_waits_for_a_neighbour_sends_what_that_one_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch)
    first, looks = members.send(0, 0), list[None]()

    def look() -> None:
        looks.append(None)
        first.reached = len(looks) == 50

    first.on_look = look

    def answer() -> float:
        found = members.receive(1, 0)
        members.send(1, 1, messages.GRADIENTS)
        members.borders[1].finish()
        return found

    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        assert members.receive(0, 1, messages.GRADIENTS) == 1.0
        assert answered.result() == 0.0
    assert first.waits == 0


def test_messages_of_an_evaluation_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch)
    assert members.send(0, 0, messages.EVALUATED).waits == 1
    assert members.receive(1, 0, messages.EVALUATED) == 0.0


def test_another_message_than_the_next_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(monkeypatch)
    members.send(1, 3)
    members.borders[1].finish()
    members.send(0, 0)
    with pytest.raises(ProtocolError, match="expected"):
        members.receive(0, 4)
