"""The driver's loop with members that are scripts: what is heard goes to the right place, in whatever order it comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cluster.members import Heard
from orchestrator.driver.outcome import Outcome
from orchestrator.driver.session import Session
from orchestrator.driver.signals import Mailbox
from orchestrator.errors import Inconsistent, Interrupted, NonFinite, WorkerLost
from orchestrator.records.lines import LineFile, read
from orchestrator.settings import load
from orchestrator.topologies import build_schedule

FACTS = {"steps": 2}
LINES = [{"step": step, "loss": "0x1.8p+0", "gradient": "00"} for step in range(2)]


class Script:
    """Members that say what they were told to, one thing a time, and have last words."""

    def __init__(self, said: list[Heard], last_words: dict[int, list[dict[str, Any]]]) -> None:
        self.said = iter(said)
        self.last_words = last_words
        self.started: list[int] = []

    def hear(self, timeout_s: float) -> Iterator[Heard]:  # noqa: ARG002
        yield next(self.said)

    def run(self, member: int, generation: Any, peers: Any, facts: Any) -> None:  # noqa: ARG002
        self.started.append(member)

    def drain(self, member: int) -> list[dict[str, Any]]:
        return self.last_words.get(member, [])


def prepared(member: int) -> Heard:
    addresses = {"unix": ["unix", f"m{member}"]}
    return Heard(member, "prepared", {"facts": FACTS, "addresses": addresses, "pid": 100 + member, "node": "n"}, [])


def ran(member: int, digest: str = "d") -> Heard:
    return Heard(member, "ran", {"digest": digest}, [])


def entries(member: int, *said: dict[str, Any]) -> Heard:
    return Heard(member, "entries", {}, list(said))


def play(
    tmp_path: Path,
    said: list[Heard],
    last_words: dict[int, list[dict[str, Any]]] | None = None,
    signal: str | None = None,
) -> tuple[Outcome, list[dict[str, Any]], list[str]]:
    """The outcome, the journal and what was shown, of a run of two workers."""
    settings = load([{"run": {"steps": 2}, "pipeline": {"target": "a:B"}}], ["cluster.workers=2"])
    shown: list[str] = []
    nothing = lambda *_: None  # noqa: E731
    progress = SimpleNamespace(start=nothing, step=nothing, say=shown.append)
    tracker = SimpleNamespace(tick=nothing, metrics=nothing, trouble=None)
    journal, trace = LineFile(tmp_path / "journal"), LineFile(tmp_path / "trace")
    record: Any = SimpleNamespace(tracker=tracker, journal=journal, trace=trace)
    members: Any = Script(said, last_words or {})
    mailbox = Mailbox()
    mailbox.signal = signal
    session = Session(settings, build_schedule("ring", 2), members, record, progress)
    outcome = session.run(mailbox)
    journal.close()
    trace.close()
    return outcome, list(read(tmp_path / "journal")), shown


BEGIN = [prepared(0), prepared(1)]


def test_a_run_from_its_first_word_to_its_last(tmp_path: Path) -> None:
    first, second = ({"trace": line} for line in LINES)
    said = [*BEGIN, entries(0, first, {"printed": "hello"}), entries(1, first, {"printed": "hello"}), ran(0), ran(1)]
    outcome, journal, shown = play(tmp_path, said, {0: [second], 1: [second]})
    assert (outcome.status, outcome.steps, outcome.loss, outcome.digest) == ("finished", 2, 1.5, "d")
    assert list(read(tmp_path / "trace")) == LINES
    assert shown == ["[worker 0] hello"]
    assert [event["event"] for event in journal][:2] == ["worker_started", "worker_started"]


def test_replicas_that_disagree_in_their_last_words_are_an_error(tmp_path: Path) -> None:
    first, other = {"trace": LINES[0]}, {"trace": {**LINES[0], "gradient": "01"}}
    outcome, _, _ = play(tmp_path, [*BEGIN, ran(0), ran(1)], {0: [first], 1: [other]})
    assert isinstance(outcome.error, Inconsistent)
    assert "the gradient of step 0" in str(outcome.error)


def test_a_death_is_told_once_with_process_and_step(tmp_path: Path) -> None:
    dead = Heard(1, "died", {}, [], "in Ray's words")
    said = [entries(1, {"pid": 101}), *BEGIN, entries(0, {"trace": LINES[0]}), dead, dead]
    outcome, journal, _ = play(tmp_path, said)
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.message == "worker 1 died: its process (pid 101) ended at step 1"
    assert outcome.error.details == "in Ray's words"
    assert [event for event in journal if event["event"] == "worker_lost"] == [
        {"event": "worker_lost", "worker": 1, "rank": 1, "step": 1}
    ]


@pytest.mark.parametrize("before", [[], BEGIN])
def test_a_failure_and_a_signal_end_the_run(tmp_path: Path, before: list[Heard]) -> None:
    failed = Heard(0, "ran", {"failed": NonFinite("the loss is nan").as_dict()}, [])
    assert isinstance(play(tmp_path, [*before, failed])[0].error, NonFinite)
    assert isinstance(play(tmp_path, list(BEGIN), signal="SIGINT")[0].error, Interrupted)
