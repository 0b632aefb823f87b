"""What a tracker keeps when its store fails: everything, in order, until it can be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.outbox import FILE, read
from orchestrator.tracking.store import reason
from orchestrator.tracking.tracker import Tracker


class Client:
    """Takes what a client is told, or refuses all of it."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.fails = False
        self.attempts = 0

    def create_run(self, *_: Any, **__: Any) -> Any:
        class Run:
            class info:  # noqa: N801
                run_id = "r"
                run_name = "name"
                experiment_id = "1"
                start_time = 0
                artifact_uri = "mlflow-artifacts:/1/r/artifacts"

        return Run

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:  # noqa: ARG002
        self._hear([(metric.key, metric.step) for metric in metrics])

    def set_tag(self, run_id: str, key: str, value: str) -> None:  # noqa: ARG002
        self._hear((key, value))

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:  # noqa: ARG002
        self._hear(status)

    def _hear(self, what: Any) -> None:
        self.attempts += 1
        if self.fails:
            raise ConnectionError("no route\nto the server")
        self.said.append(what)


class Store:
    name = None

    def __init__(self, folder: Path) -> None:
        self.client = Client()
        self.folder = folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("orchestrator.tracking.tracker.time.monotonic", lambda: now[0])
    return now


def make(folder: Path) -> tuple[Client, Tracker]:
    store: Any = Store(folder)
    return store.client, Tracker.create(store, "1", None, every_s=1.0)


def trouble(tracker: Tracker) -> str | None:
    """A call, because a type checker takes an attribute for what it was."""
    return tracker.trouble


def test_what_a_failing_store_did_not_take_is_sent_later(clock: list[float], tmp_path: Path) -> None:
    client, tracker = make(tmp_path)
    client.fails = True
    tracker.metrics(0, {"loss": 1.0})
    clock[0] = 2.0
    tracker.tick()
    assert trouble(tracker) == "no route"
    tracker.metrics(1, {"loss": 0.5})
    clock[0] = 31.0
    tracker.tick()
    assert client.attempts == 1, "a store that fails is left alone for half a minute"
    client.fails = False
    clock[0] = 33.0
    tracker.tick()
    assert trouble(tracker) is None
    assert client.said == [[("loss", 0), ("loss", 1)]]


@pytest.mark.usefixtures("clock")
def test_before_a_checkpoint_all_is_at_the_store_or_on_the_disk(tmp_path: Path) -> None:
    client, tracker = make(tmp_path)
    tracker.metrics(0, {"loss": 1.0})
    tracker.sync()
    assert (client.said, read(tmp_path / "r" / FILE)) == ([[("loss", 0)]], [])
    client.fails = True
    for step in (1, 2):
        tracker.metrics(step, {"loss": 1.0})
        tracker.sync()
    assert client.attempts == 2, "a store that fails is left alone until it is due"
    assert [item["step"] for item in read(tmp_path / "r" / FILE)] == [1, 2]
    tracker.end("KILLED")
    assert [*read(tmp_path / "r" / FILE)[-1]] == ["end", "ms"]


@pytest.mark.usefixtures("clock")
def test_the_status_is_the_last_word_and_trouble_tells_whether_it_was_heard(tmp_path: Path) -> None:
    client, tracker = make(tmp_path)
    tracker.tag("steps", "3")
    tracker.end("FINISHED")
    assert (client.said, tracker.trouble) == ([("steps", "3"), "FINISHED"], None)
    client, tracker = make(tmp_path)
    client.fails = True
    tracker.tag("steps", "3")
    tracker.end("FINISHED")
    assert (client.said, client.attempts, tracker.trouble) == ([], 1, "no route")


@pytest.mark.usefixtures("clock")
def test_many_metrics_go_in_batches_that_mlflow_takes(tmp_path: Path) -> None:
    client, tracker = make(tmp_path)
    for step in range(2500):
        tracker.metrics(step, {"loss": 1.0})
    tracker.flush()
    assert [len(batch) for batch in client.said] == [1000, 1000, 500]


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            "NewConnectionError(\"HTTPConnection(host='h', port=1): Failed to establish: [Errno 111] Connection refused\")",
            "Connection refused",
        ),
        (
            "NameResolutionError(\"Failed to resolve 'h' ([Errno -2] Name or service not known)\")",
            "Name or service not known",
        ),
        ('ReadTimeoutError("x: Read timed out. (read timeout=10)")', "not in time"),
    ],
)
def test_why_a_server_does_not_answer_is_told_in_a_line_for_people(cause: str, told: str) -> None:
    said = f"HTTPConnectionPool(host='h', port=1): Max retries exceeded with url: /api (Caused by {cause})"
    for each in (said, f"API request to http://h:1/api failed with exception {said}"):
        assert reason(ValueError(each)) == f"no answer from the server: {told}"


def test_what_else_a_store_says_is_its_first_line_that_is_for_people() -> None:
    assert reason(ValueError("(raised as a result of x)\nBAD_REQUEST: no\nmore")) == "BAD_REQUEST: no"
    assert reason(ValueError()) == "ValueError"
