"""Reports of members and calls of the driver by sockets, with members that are scripts and with true reporters."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.actors import reporter
from orchestrator.cluster.actors.calls import CallFailed, CallHandler, answered
from orchestrator.cluster.actors.calls import packed as packed_call
from orchestrator.cluster.actors.event_queue import ANSWERS, EventQueue
from orchestrator.cluster.actors.host_relay import HostRelay, RelayActor, Report, hello
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.cluster.actors.reporter import Reporter
from tests.cluster.callers import NO_RECORD, NODE, SECRET, Member, close_all, exchanged, packed

_LONG_S = 60.0  # reached only when a test hangs


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def relay() -> Iterator[HostRelay]:
    made = HostRelay(SECRET, NODE)
    yield made
    made.close()


def told(reports: list[Report]) -> list[tuple[Any, ...]]:
    return [(each.member, each.first, *pickle.loads(each.body)[0]) for each in reports]


def test_what_all_members_send_is_read_in_the_order_of_each(relay: HostRelay) -> None:
    one, other = Member(1), Member(2)
    one.says(0, "a", "b")
    other.says(0)
    one.says(2, "c")
    reports, ended = relay.take()
    assert [each for each in told(reports) if each[0] == 1] == [(1, 0, "a", "b"), (1, 2, "c")]
    assert [each for each in told(reports) if each[0] == 2] == [(2, 0)]
    assert ended == []
    relay.acknowledge(1, 3)
    relay.acknowledge(7, 3)  # nobody
    assert one.hears() == 3


def test_all_hear_of_the_driver_but_who_has_words_enough(relay: HostRelay) -> None:
    """In the middle of a call there is no place for another word."""
    one, full = Member(1), Member(2)
    relay.take()
    call = b"x" * 10_000_000
    relay.call(2, 0, call)
    relay.renew()
    assert one.hears() == 0
    assert relay._callers[2].unsent
    hears = threading.Thread(target=lambda: called.append(full.is_called()))
    called: list[tuple[int, bytes]] = []
    hears.start()
    while hears.is_alive():
        relay.take()
    assert called == [(0, call)]


def test_a_report_that_comes_in_pieces_is_one(relay: HostRelay) -> None:
    member, whole = Member(1), packed(0, "x" * 5_000)
    for piece in (whole[:3], whole[3:20], whole[20:]):
        assert relay.take() == ([], [])
        member.connection.sendall(piece)
    assert told(relay.take()[0]) == [(1, 0, "x" * 5_000)]


def test_a_process_that_has_ended_leaves_all_that_it_sent(relay: HostRelay) -> None:
    member = Member(1)
    member.says(0, "last words")
    member.connection.close()
    assert told(relay.take()[0]) == [(1, 0, "last words")]
    assert relay.take() == ([], [1])
    relay.acknowledge(1, 1)  # too late


def test_who_does_not_know_the_secret_is_not_heard(relay: HostRelay) -> None:
    stranger = Member(1, b"guessed")
    stranger.says(0, "a lie")
    assert relay.take() == ([], [])
    assert stranger.connection.recv(1) == b""


def test_a_member_that_calls_again_takes_the_place_of_its_first_call(relay: HostRelay) -> None:
    first, again = Member(1), Member(1)
    assert relay.take() == ([], [1])
    again.says(0, "a")
    assert told(relay.take()[0]) == [(1, 0, "a")]
    relay.acknowledge(1, 1)
    assert again.hears() == 1
    assert first.connection.recv(1) == b""


def test_two_connections_of_a_member_may_have_news_at_once(relay: HostRelay) -> None:
    first, again = Member(1), Member(1, says_hello=False)
    relay.take()
    relay.take()  # nothing is there any more, so news is told in the order in which it comes
    again.connection.sendall(
        hello(SECRET, 1, NO_RECORD)
    )  # the first one is closed for that, and has ended in the same moment
    first.connection.close()
    relay.take()
    again.says(0, "a")
    assert told(relay.take()[0]) == [(1, 0, "a")]


def test_a_member_is_dropped_also_where_a_child_holds_its_connection(relay: HostRelay) -> None:
    member = Member(1)
    child = member.connection.dup()
    relay.take()
    relay.drop(1)
    assert child.recv(1) == b""
    child.close()
    relay.drop(1)


def test_a_call_waits_for_its_member_and_is_kept_until_it_is_confirmed(relay: HostRelay) -> None:
    relay.call(1, 0, b"before it has connected")
    first = Member(1)
    relay.take()
    relay.call(1, 1, b"after it")
    assert [first.is_called() for _ in range(2)] == [(0, b"before it has connected"), (1, b"after it")]
    first.says(0, next_call=1)
    relay.take()
    again = Member(1)
    relay.take()
    assert again.is_called() == (1, b"after it")
    relay.call(1, 2, b"the last")
    assert again.is_called() == (2, b"the last")
    again.says(0, next_call=3)
    relay.take()
    third = Member(1)
    relay.take()
    relay.acknowledge(1, 7)
    assert third.hears() == 7


def test_calls_that_a_stopped_member_has_no_room_for_are_not_torn(relay: HostRelay) -> None:
    member = Member(1)
    relay.take()
    calls = [bytes([number]) * 100_000 for number in range(20)]
    for number, call in enumerate(calls):
        relay.call(1, number, call)
        relay.acknowledge(1, number)
    heard: list[tuple[int, bytes]] = []
    reading = threading.Thread(target=lambda: heard.extend(member.is_called() for _ in calls))
    reading.start()
    while reading.is_alive():
        relay.wait(0.01, 0.0)
    assert heard == list(enumerate(calls))
    relay.drop(1)
    assert Member(1).connection is not None  # it is told nothing of them
    relay.take()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # its thread ends by one
def test_what_is_urgent_wakes_an_owner_who_gathers(relay: HostRelay) -> None:
    """Its report is not looked at meanwhile."""
    member = Reported()
    reporter.begin(member.reporter, member.calls, SECRET, 1, NODE, NO_RECORD)
    began = time.monotonic()
    threading.Timer(0.05, lambda: member.queue.put({"a": 1}, urgent=True)).start()
    found: list[Any] = []
    while {"a": 1} not in found:
        relay.wait(_LONG_S, _LONG_S)
        found += [entry for report in relay.take()[0] for entry in pickle.loads(report.body)[0]]
    assert time.monotonic() - began < _LONG_S
    member.end()


def test_a_member_that_is_stopped_does_not_hold_up_its_relay(relay: HostRelay) -> None:
    """It reads nothing: words to it are left out once its socket is full, and none is torn."""
    member = Member(1)
    relay.take()
    for number in range(20_000):
        relay.acknowledge(1, number)
    heard = [member.hears() for _ in range(100)]
    assert heard == list(range(100))


def test_whoever_waits_is_woken_from_another_thread(relay: HostRelay) -> None:
    threading.Timer(0.01, relay.wake).start()
    began = time.monotonic()
    relay.wait(_LONG_S, _LONG_S)
    relay.wake()
    relay.wait_watchful(_LONG_S, _LONG_S)
    assert time.monotonic() - began < _LONG_S


@pytest.mark.parametrize("cuts_short", [lambda m: m.says(1, urgent=True), lambda m: m.connection.close()])
def test_who_is_watchful_gathers_until_something_urgent_comes_or_a_member_ends(
    relay: HostRelay, cuts_short: Callable[[Member], None]
) -> None:
    member = Member(1)
    member.says(0, "a")
    threading.Timer(0.01, lambda: cuts_short(member)).start()
    began = time.monotonic()
    relay.wait_watchful(_LONG_S, _LONG_S)
    assert time.monotonic() - began < _LONG_S


def test_a_relay_leaves_its_address_to_the_next_one_and_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        relay = HostRelay(SECRET, NODE)
        with pytest.raises(OSError, match="in use"):
            HostRelay(SECRET, NODE)
        member = Member(1)
        relay.take()
        relay.close()
        relay.close()
        relay.wake()
        member.connection.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- true reporters


class Reported:
    """A member's queue and reporter; its lease is renewed so many times."""

    def __init__(self, beat_s: float = _LONG_S) -> None:
        self.queue = EventQueue()
        self.renewed = 0
        self.over = False  # its thread ends with the next report
        self.called: list[str] = []
        self.calls = CallHandler(self, lambda answer: self.queue.put(answer, urgent=True))
        self.reporter = Reporter(self.queue, self._beat, self._renew, beat_s, lambda: self.calls.next)

    def ask(self, what: str) -> str:
        """A call that is carried out at once."""
        self.called.append(what)
        return f"{what} is asked for"

    def _beat(self) -> dict[str, Any]:
        if self.over:
            raise SystemExit
        return {"beats": 7}

    def _renew(self) -> None:
        self.renewed += 1

    def end(self) -> None:
        self.over = True
        self.queue.put({}, urgent=True)
        until(lambda: all(thread.name != "reports" for thread in threading.enumerate()))


def read(relay: HostRelay, wanted: int) -> list[Report]:
    found: list[Report] = []
    deadline = time.monotonic() + _LONG_S
    while len(found) < wanted and time.monotonic() < deadline:
        relay.wait(1.0, 0.0)
        found += relay.take()[0]
    return found


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONG_S
    while not is_so():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.parametrize("trouble", [OSError, RuntimeError("can't start new thread"), MemoryError])
def test_a_member_for_which_there_is_no_room_at_the_moment_reports_later(
    monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    """Such as where a container has as many threads as it may: its reports ended for good, and the run waited."""
    monkeypatch.setattr(reporter, "_RETRY_S", 0.0)
    member, tried = Reported(), []

    def dial() -> reporter.Send:
        tried.append(trouble)
        if len(tried) == 1:
            raise trouble
        raise SystemExit

    with pytest.raises(SystemExit):
        member.reporter.serve(dial)
    assert len(tried) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # its thread ends by one
def test_what_the_driver_has_not_acknowledged_is_sent_again_to_another_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_RETRY_S", 0.01)
    monkeypatch.setattr(reporter, "_GATHER_S", 0.0)
    member = Reported(beat_s=0.05)
    relay = HostRelay(SECRET, NODE)
    reporter.begin(member.reporter, member.calls, SECRET, 1, NODE, NO_RECORD)
    beat = read(relay, 1)[0]
    assert (beat.first, pickle.loads(beat.body)) == (0, ([], {"beats": 7}))
    member.queue.put({"a": 1})
    member.queue.put({"b": 2}, urgent=True)
    while not any(each.first == 0 and pickle.loads(each.body)[0] for each in read(relay, 1)):
        pass
    relay.acknowledge(1, 1)
    until(lambda: member.renewed > 0)
    assert member.queue.unacknowledged() == [{"b": 2}]
    relay.call(1, 0, packed_call("ask", ("stop",)))
    until(lambda: member.called == ["stop"])
    relay.close()
    relay = HostRelay(SECRET, NODE)
    again = read(relay, 1)[0]
    first, second = pickle.loads(again.body)[0]
    assert (again.first, again.next_call, first) == (1, 1, {"b": 2})
    assert (second[ANSWERS], answered(second)) == (0, "stop is asked for")
    relay.call(1, 0, packed_call("ask", ("stop",)))  # it has heard that one
    relay.call(1, 1, packed_call("ask", ("save",)))
    until(lambda: len(member.called) > 1)
    assert member.called == ["stop", "save"]
    member.end()
    relay.close()


def test_the_actor_of_another_node_hands_reports_on_and_acknowledgements_back() -> None:
    actor = RelayActor(SECRET, NODE)
    member = Member(1)
    member.says(0, "a")
    reports, ended = exchanged(actor, _LONG_S)
    while not reports:
        reports, ended = exchanged(actor, _LONG_S)
    assert (told(reports), ended) == ([(1, 0, "a")], {})
    assert exchanged(actor, 0.0, {1: 1}) == ([], {})
    assert member.hears() == 1
    actor.hand([(1, 0, b"a call")])
    assert exchanged(actor, 0.0) == ([], {})
    assert member.is_called() == (0, b"a call")
    assert exchanged(actor, 0.0, dropped=[1]) == ([], {1: PostMortem()})
    actor._relay.close()


# ---- calls


class Verbs:
    """A member whose verbs note in which thread they are carried out."""

    def __init__(self) -> None:
        self.threads: dict[str, str] = {}

    def __getattr__(self, verb: str) -> Any:
        def carry_out(*arguments: Any) -> Any:
            self.threads[verb] = threading.current_thread().name
            if verb == "fail":
                raise OSError(28, "No space left on device")
            return threading.Lock() if verb == "lock" else (verb, *arguments)

        return carry_out


def test_calls_are_carried_out_once_and_in_order_and_answered_in_words_where_they_raise() -> None:
    answers: list[dict[str, Any]] = []
    verbs = Verbs()
    handler = CallHandler(verbs, answers.append)
    threading.Thread(target=handler.serve, name="compute", daemon=True).start()
    for number, verb in enumerate(("run", "fail", "ask", "describe", "lock", "prepare")):
        for _ in range(2):
            handler.hear(number, packed_call(verb, (number,)))
    until(lambda: len(answers) == 6)
    told = {entry[ANSWERS]: entry for entry in answers}
    assert [answered(told[number]) for number in (0, 2, 3, 5)] == [
        ("run", 0),
        ("ask", 2),
        ("describe", 3),
        ("prepare", 5),
    ]
    for number, text in ((1, "No space left on device"), (4, "cannot pickle")):
        with pytest.raises(CallFailed, match=text):
            answered(told[number])
    assert [each[ANSWERS] for each in answers if each[ANSWERS] in (0, 1, 4, 5)] == [0, 1, 4, 5]
    handler.hear(6, packed_call("ask", (6,), wanted=False))
    handler.hear(7, packed_call("flush", ()))
    assert [each[ANSWERS] for each in answers[6:]] == [7]
    here = threading.current_thread().name
    assert verbs.threads == {
        **dict.fromkeys(("run", "fail", "lock", "prepare"), "compute"),
        "ask": here,
        "flush": here,
        "describe": "describe",
    }


# ---- the queue between them


def test_entries_stay_until_they_are_acknowledged() -> None:
    queue = EventQueue()
    for number in range(3):
        queue.put({"n": number})
    assert queue.take(0, 0.0, 0.0)[:2] == (0, [{"n": 0}, {"n": 1}, {"n": 2}])
    assert queue.take(2, 0.0, 0.0)[:2] == (2, [{"n": 2}])
    queue.acknowledge(2)
    queue.acknowledge(1)  # late
    assert queue.unacknowledged() == [{"n": 2}]
    assert queue.take(0, 0.0, 0.0) == (2, [{"n": 2}], False)
    assert queue.take(3, 0.0, 0.0) == (3, [], False)


def test_what_is_urgent_does_not_wait_for_more() -> None:
    queue = EventQueue()
    queue.put({"n": 0})
    threading.Timer(0.01, lambda: queue.put({"n": 1}, urgent=True)).start()
    began = time.monotonic()
    assert queue.take(0, _LONG_S, _LONG_S) == (0, [{"n": 0}, {"n": 1}], True)
    assert time.monotonic() - began < _LONG_S
    assert queue.take(2, 0.0, 0.0).urgent is False
