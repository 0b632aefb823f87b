"""The account of time on a card, which is behind the thread that launches its work. A double of a card answers late."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.load_balancing import Host, Pace, assign_by_speed, expected_seconds
from orchestrator.records import times
from orchestrator.worker.member import time_account, time_ledger
from orchestrator.worker.member.cuda_stamps import CudaStamps
from orchestrator.worker.member.stamps import HostStamps
from orchestrator.worker.member.time_account import TimeAccount
from tests.worker.pipelines import Mlp
from tests.worker.runs import Layout, windows_of

_VERBS = ("compute", "exchange", "update", "wait", "hold", "release", "launch", "host", "synchronize", "step", "take")
STORIES = st.lists(st.tuples(st.sampled_from(_VERBS), st.integers(1, 9)), max_size=60)
Windows = list[dict[str, Any]]


class Card:
    """Implements `Stamps`: a stamp is when all is done that was launched before. late: or else launching computes."""

    def __init__(self, *, late: bool = True) -> None:
        self.now = 1000.0  # of the thread that launches
        self.late = late
        self._done = 0.0  # when all is done that was launched
        self.waits = 0

    def launch(self, seconds: float) -> None:
        self._done = self.mark() + seconds
        if not self.late:
            self.synchronize()

    def synchronize(self) -> None:
        self.now = self.mark()

    def mark(self) -> float:
        return max(self.now, self._done)

    def between(self, begin: float, end: float) -> float | None:
        return end - begin if end <= self.now else None

    def wait(self, stamp: float) -> None:
        self.waits += 1
        self.now = max(self.now, stamp)


def begun(card: Card, *, spans: bool = False) -> TimeAccount:
    account = TimeAccount(spans=spans)
    account.use(card)
    account.turn("state_transfer")
    return account


def lived(story: list[tuple[str, int]], *, late: bool = True) -> tuple[Card, Windows, int]:
    """The card, the windows of a member that does this, and its steps. Each generation ends."""
    card = Card(late=late)
    account, windows, steps = begun(card, spans=True), [], 0
    for verb, number in story:
        match verb:
            case "compute":
                account.turn("compute", steps, number)
            case "exchange" | "update":
                account.turn(verb, steps)
            case "wait":
                before = account.waits()
                card.now += number
                account.goes_on(before)
            case "hold":
                account.hold("evaluate")
            case "release":
                account.release()
            case "launch":
                card.launch(number)
            case "host":
                card.now += number
            case "synchronize":
                card.synchronize()
            case "step":
                steps += 1
                account.stepped(steps)
            case "take":
                windows += [window] if (window := account.take(at_once=number == 1)) is not None else []
    last = account.take(at_once=True)
    assert last is not None
    return card, [*windows, last], steps


@given(STORIES)
def test_nothing_is_lost_counts_twice_or_changes_places(story: list[tuple[str, int]]) -> None:
    card, windows, steps = lived(story)
    assert sum(sum(window["seconds"].values()) for window in windows) == card.mark() - 1000
    assert sum(window["steps"] for window in windows) == steps
    assert [window["first"] for window in windows[1:]] == [each["first"] + each["steps"] for each in windows[:-1]]
    assert windows[-1]["started"] - windows[0]["started"] == pytest.approx(
        sum(each["wall"] for each in windows[:-1]), abs=1e-4
    )
    for window in windows:
        assert sum(window["seconds"].values()) == window["wall"]
        end = 0.0
        for _, _, _, since, seconds in window.get("spans", ()):
            assert since == end
            end = since + seconds
        assert end == window["wall"]


@given(STORIES)
def test_who_waits_for_all_it_launches_gets_the_same_account(story: list[tuple[str, int]]) -> None:
    """A card that is always done is a processor."""
    story = [each for each in story if each[0] != "synchronize"]
    followed = [one for each in story for one in ([each, ("synchronize", 1)] if each[0] == "launch" else [each])]
    late, at_once = lived(followed)[1], lived(story, late=False)[1]
    apart = ("busy", "process", "started")
    assert [{key: window[key] for key in window if key not in apart} for window in late] == [
        {key: window[key] for key in window if key not in apart} for window in at_once
    ]


def step(card: Card, account: TimeAccount, number: int, seconds: float) -> dict[str, Any] | None:
    """Four shards, a vote that needs their results, a wait of one second, and an update of two that nothing waits for."""
    for shard in range(4):
        account.turn("compute", number, shard)
        card.now += 0.125  # to launch it
        card.launch(seconds)
    card.synchronize()
    account.turn("exchange", number)
    before = account.waits()
    card.now += 1
    account.goes_on(before)
    account.turn("update", number)
    card.launch(2)
    account.stepped(number + 1)
    return account.take()


def test_micro_batches_that_are_computed_as_one_last_equal_parts_of_the_time() -> None:
    card = Card()
    account = begun(card)
    account.turn("compute", 0, together=4)
    card.launch(16)
    card.synchronize()
    account.turn("exchange", 0)
    window = account.take(at_once=True)
    assert window is not None
    assert (window["seconds"]["compute"], window["micro_batch_s"]) == (16, 4)


def test_a_window_tells_what_the_card_did_and_a_step_waits_for_nothing() -> None:
    card = Card()
    account = begun(card)
    first, second = step(card, account, 0, 4), step(card, account, 1, 4)
    assert first is not None
    assert second is not None
    assert first["seconds"] == {"compute": 16.125, "wait": 1}
    assert second["seconds"] == {"update": 2, "compute": 16, "wait": 1}, (
        "that update was done before these shards began"
    )
    assert (first["steps"], second["steps"]) == (0, 1), "a step belongs to the window that has its update"
    assert second["micro_batch_s"] == 4
    assert card.waits == 0
    account.turn("state_transfer")  # somebody is lost
    left = account.take(at_once=True)
    assert left is not None
    assert (left["first"], left["steps"], left["seconds"]) == (1, 1, {"update": 2})
    assert card.waits == 1


def test_shards_are_dealt_by_how_fast_cards_are() -> None:
    """The slow one takes three times as long, and both threads launch equally fast."""
    paces = []
    for seconds in (1.0, 3.0):
        card = Card()
        account = begun(card)
        told = [window["micro_batch_s"] for number in range(3) if (window := step(card, account, number, seconds))]
        paces.append(Pace(told, 1.0, 0))
    found = expected_seconds(paces)
    assert found is not None
    assert found == pytest.approx([1, 3], abs=0.2)
    hosts = [Host(each, rank, frozenset(range(4 * rank, 4 * rank + 4))) for rank, each in enumerate(found)]
    assert [len(shards) for shards in assign_by_speed(8, hosts)] == [6, 2]


class Later(HostStamps):
    """Stamps of this host that get known three marks later, or when they are waited for."""

    def __init__(self) -> None:
        self._marks: deque[float] = deque(maxlen=4)
        self._known = 0.0

    def mark(self) -> float:
        self._marks.append(super().mark())
        self._known = max(self._known, self._marks[0])
        return self._marks[-1]

    def between(self, begin: float, end: float) -> Any:
        return end - begin if end <= self._known else None

    def wait(self, stamp: float) -> None:
        self._known = stamp


@pytest.mark.slow
def test_every_step_of_a_training_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_account, "HostStamps", Later)
    monkeypatch.setattr(time_ledger, "_SHORTEST_S", 0.0)  # a window for each step
    for told in windows_of(Mlp, Layout(2), steps=4).values():
        assert sum(window["steps"] for window in told) == 4
        assert all(sum(window["seconds"].values()) == pytest.approx(window["wall"], abs=1e-4) for window in told)
        seconds = times.added(told)
        assert min(seconds["compute"], seconds["exchange"], seconds["update"], seconds["evaluate"]) > 0


class Event:
    """A double of `torch.cuda.Event`: the card comes to it `behind` queries later."""

    behind = 1
    fails = ""
    clock_ms = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        assert stream == "the current stream of card 0"
        self._raise("record")
        Event.clock_ms += 1500
        self._at_ms, self._left = Event.clock_ms, Event.behind

    def query(self) -> bool:
        self._raise("query")
        self._left -= 1
        return self._left < 0

    def elapsed_time(self, end: Event) -> float:
        assert max(self._left, end._left) < 0, "torch raises for an event that is not done"
        return end._at_ms - self._at_ms

    def synchronize(self) -> None:
        self._raise("synchronize")
        self._left = 0

    def _raise(self, call: str) -> None:
        if self.fails == call:
            raise RuntimeError("CUDA error: unspecified launch failure")


@pytest.fixture
def event(monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    class Fresh(Event):
        pass

    monkeypatch.setattr(torch.cuda, "Event", Fresh)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda card: f"the current stream of card {card}")
    return Fresh


@pytest.mark.usefixtures("event")
def test_events_are_asked_until_they_are_done() -> None:
    stamps = CudaStamps()
    begin, end = stamps.mark(), stamps.mark()
    asked = [stamps.between(begin, end) for _ in range(4)]
    assert asked == [None, None, 1.5, 1.5]
    last = stamps.mark()
    assert [stamps.between(end, last) for _ in range(2)] == [None, 1.5], "the end of an interval is asked once"
    last = stamps.mark()
    stamps.wait(last)
    assert stamps.between(end, last) == 3.0


@pytest.mark.parametrize("call", ["record", "query", "synchronize"])
def test_a_card_that_fails_leaves_the_time_of_the_host(event: type[Event], call: str) -> None:
    account = TimeAccount()
    account.use(CudaStamps())
    account.turn("state_transfer")
    account.turn("compute", 0, 0)
    event.fails = call
    account.turn("exchange", 0)
    account.turn("idle")
    window = account.take(at_once=True)
    assert window is not None
    assert times.added([window])["compute"] < 1, "and not what the double's clock tells"
    assert sum(window["seconds"].values()) == pytest.approx(window["wall"], abs=1e-5)
