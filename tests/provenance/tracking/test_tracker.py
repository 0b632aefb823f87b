"""A tracker keeps everything when its store fails, in order, until it can be sent."""

from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mlflow.exceptions import MlflowException

from orchestrator.provenance import tracking
from orchestrator.provenance.tracking.outbox import FILE, read
from orchestrator.provenance.tracking.store_errors import reason
from orchestrator.provenance.tracking.tracker import Tracker


class Client:
    """Takes what a client is told, or refuses all of it."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.fails = False
        self.attempts = 0
        self.patience_s = 20.0

    def create_run(self, *_: Any, **__: Any) -> Any:
        class Run:
            class info:  # noqa: N801
                run_id = "r"
                run_name = "name"
                experiment_id = "1"
                start_time = 0
                artifact_uri = "mlflow-artifacts:/1/r/artifacts"

        return Run

    def log_batch(self, run_id: str, metrics: Sequence[Any] = (), tags: Sequence[Any] = ()) -> None:  # noqa: ARG002
        self._hear([*((metric.key, metric.step) for metric in metrics), *((tag.key, tag.value) for tag in tags)])

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
    monkeypatch.setattr("orchestrator.provenance.tracking.tracker.time.monotonic", lambda: now[0])
    return now


def make(folder: Path) -> tuple[Client, Tracker]:
    store: Any = Store(folder)
    return store.client, Tracker.create(store, "1", "named", every_s=1.0)


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


class Picky(Client):
    """Refuses what is called so, and takes the rest."""

    def log_batch(
        self, run_id: str, metrics: Sequence[Any] = (), tags: Sequence[Any] = (), **others: Sequence[Any]
    ) -> None:
        metrics = [*metrics, *itertools.chain(*others.values())]
        if any("bad" in each.key for each in (*metrics, *tags)):
            raise ValueError("no such name")
        super().log_batch(run_id, metrics, tags)

    def log_artifact(self, *_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        if "bad" in key:
            raise ValueError("no such name")
        super().set_tag(run_id, key, value)

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id, lifecycle_stage=self.stage))

    stage = "active"


@pytest.mark.usefixtures("clock")
def test_what_is_refused_holds_nothing_else_back_and_is_told_once(tmp_path: Path) -> None:
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", Picky())
    client.stage = "active"
    tracker.metrics(0, {f"m{number}": 1.0 for number in range(9)} | {"bad": 1.0})
    tracker.metrics(1, {"loss": 1.0})
    tracker.tag("bad", "x")
    tracker.tag("digest", "y")
    tracker.end("FINISHED")
    assert tracker.trouble is None
    told = [each for batch in client.said if isinstance(batch, list) for each in batch]
    assert sorted(told) == [("digest", "y"), ("loss", 1), *((f"m{number}", 0) for number in range(9))]
    assert client.said[-2:] == [[("digest", "y")], "FINISHED"]
    assert tracker.notes() == ["MLflow refuses metric bad (no such name), tag bad (no such name); all else is there"]
    assert tracker.notes() == []
    assert not (tmp_path / "r" / FILE).exists()


@pytest.mark.usefixtures("clock")
def test_tags_that_follow_each_other_are_one_request(tmp_path: Path) -> None:
    """Behind a password a server takes two seconds for each."""
    client, tracker = make(tmp_path)
    began = client.attempts
    for number in range(20):
        tracker.tag(f"t{number}", "a")
    tracker.tag("t3", "b")
    tracker.tag_other("other", "verdict", "exact")
    tracker.tag("t4", "c")
    tracker.end("FINISHED")
    values = {f"t{number}": "a" for number in range(20)} | {"t3": "b"}
    assert client.said[began:] == [[*values.items()], ("verdict", "exact"), ("t4", "c"), "FINISHED"]


@pytest.mark.usefixtures("clock")
def test_a_deleted_run_refuses_nothing_for_good(tmp_path: Path) -> None:
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", Picky())
    client.stage = "deleted"
    tracker.metrics(0, {"bad": 1.0})
    tracker.end("FINISHED")
    assert (tracker.trouble, tracker.refused) == ("no such name", [])
    client.stage = "active"
    tracker.flush()
    assert (trouble(tracker), len(tracker.refused)) == (None, 1)


@pytest.mark.usefixtures("clock")
def test_a_file_that_cannot_be_copied_does_not_hold_back_the_status(tmp_path: Path) -> None:
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", Picky())
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "card.md").touch()
    tracker.artifact(tmp_path / "r" / "card.md", "run")
    tracker.end("FINISHED")
    assert client.said == ["FINISHED"]
    assert "Permission denied" in str(tracker.trouble)
    assert [*map(set, read(tmp_path / "r" / FILE))] == [{"artifact"}, {"end", "ms"}]


class Slow(Client):
    """Takes everything, for four seconds each."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    def _hear(self, what: Any) -> None:
        self._clock[0] += 4.0
        super()._hear(what)


def test_a_slow_store_and_much_to_be_sent_leave_the_driver_time_for_its_workers(
    clock: list[float], tmp_path: Path
) -> None:
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", Slow(clock))
    for step in range(3000):
        tracker.metrics(step, {"loss": 1.0})
    tracker.tag("a", "1")
    requests = []
    while tracker._left:
        began, before = clock[0], client.attempts
        tracker.tick()
        if client.attempts > before:
            requests.append((began, clock[0]))
        clock[0] += 0.5
    assert [end - began for began, end in requests] == [4.0] * 4, "one request a time"
    assert all(after - end >= 12.0 for (_, end), (after, _) in itertools.pairwise(requests))
    assert (trouble(tracker), read(tmp_path / "r" / FILE)) == (None, [])
    assert [len(batch) for batch in client.said] == [1000, 1000, 1000, 2]


def test_a_slow_store_does_not_hold_up_each_checkpoint(clock: list[float], tmp_path: Path) -> None:
    """A driver that sent for each part of each of them was minutes behind its workers."""
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", Slow(clock))
    for step in range(6):
        tracker.metrics(step, {"loss": 1.0})
        tracker.sync()
        clock[0] += 1.0
    assert client.attempts == 1
    assert [item["step"] for item in read(tmp_path / "r" / FILE)] == [1, 2, 3, 4, 5]
    tracker.end("FINISHED")
    assert client.said[1:] == [[("loss", step) for step in range(1, 6)], "FINISHED"]


class Gateway(Client):
    """A server behind a gateway that answers in its place: to these uploads with success."""

    def __init__(self, answers: set[str]) -> None:
        super().__init__()
        self._answers = answers
        self.has: dict[str, int] = {}

    def log_artifact(self, _: str, path: str, folder: str) -> None:
        name = Path(path).name
        if name in self._answers:
            self._answers.remove(name)
        else:
            self.has[f"{folder}/{name}"] = Path(path).stat().st_size

    def list_artifacts(self, _: str, folder: str) -> list[Any]:
        there = [(path, size) for path, size in self.has.items() if path.startswith(f"{folder}/")]
        return [SimpleNamespace(path=path, file_size=size, is_dir=False) for path, size in there]


def test_what_a_gateway_took_in_the_place_of_the_server_is_sent_again(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("orchestrator.provenance.tracking.tracker.time.sleep", pauses.append)
    (tmp_path / "r").mkdir()
    for name in ("card.md", "trace.jsonl", "loss.png"):
        (tmp_path / "r" / name).write_text(name)

    def send(client: Any, end: Callable[[Tracker], object]) -> Tracker:
        _, tracker = make(tmp_path)
        tracker._client = client
        for name, folder in (("card.md", "run"), ("trace.jsonl", "run"), ("loss.png", "pictures")):
            tracker.artifact(tmp_path / "r" / name, folder)
        end(tracker)
        return tracker

    everything = {"run/card.md": 7, "run/trace.jsonl": 11, "pictures/loss.png": 8}
    client = Gateway({"trace.jsonl", "loss.png"})
    tracker = send(client, Tracker.flush)
    assert "though it was sent" in str(trouble(tracker))
    assert len(read(tmp_path / "r" / FILE)) == 3, "whoever goes on sends all again"
    clock[0] += 30.0
    tracker.tick()
    assert (trouble(tracker), client.has, read(tmp_path / "r" / FILE)) == (None, everything, [])

    client = Gateway({"trace.jsonl", "loss.png"})
    tracker = send(client, lambda tracker: tracker.end("FINISHED"))
    assert (trouble(tracker), client.has, client.said, pauses) == (None, everything, ["FINISHED"], [1.0])


class OfOthers(Client):
    """Lets this user write the run `r` and read all."""

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        if run_id != "r":
            raise MlflowException(
                "API request to endpoint /x failed with error code 403 != 200. Response body: 'Denied'"
            )
        super().set_tag(run_id, key, value)


@pytest.mark.usefixtures("clock")
def test_a_run_is_whole_without_a_tag_on_a_run_of_others(tmp_path: Path) -> None:
    """Else it lacks something for ever, which no later launch can send."""
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", OfOthers())
    tracker.tag_other("q", "confirms", "r")
    tracker.tag("confirms", "q")
    tracker.end("FINISHED")
    assert (tracker.trouble, client.said) == (None, [("confirms", "q"), "FINISHED"])
    (note,) = tracker.notes()
    assert note.startswith("MLflow refuses tag confirms of run q (the server answers 403 (Forbidden): Denied)")
    assert not (tmp_path / "r" / FILE).exists()


class Old(Gateway):
    """A server before MLflow 3, whose artifacts MLflow 3 cannot list."""

    def list_artifacts(self, _: str, folder: str) -> list[Any]:  # noqa: ARG002
        raise MlflowException(
            "API request to endpoint /api/2.0/mlflow/logged-models/search failed with error code 404 !="
        )


def test_a_server_that_cannot_be_asked_for_its_files_is_not_asked_again(tmp_path: Path) -> None:
    _, tracker = make(tmp_path)
    tracker._client = cast("Any", Old(set()))
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "card.md").touch()
    tracker.artifact(tmp_path / "r" / "card.md", "run")
    tracker.end("FINISHED")
    assert (trouble(tracker), tracker._left, (tmp_path / "r" / FILE).exists()) == (None, 0, False)


class Busy(Client):
    """Answers to its first requests that there are too many."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self._requests = requests

    def _hear(self, what: Any) -> None:
        self.attempts += 1
        if self.attempts <= self._requests:
            raise MlflowException("Max retries exceeded with url (Caused by 'too many 429 error responses')")
        self.said.append(what)


@pytest.mark.usefixtures("clock")
def test_the_end_is_told_again_to_a_server_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("orchestrator.provenance.tracking.tracker.time.sleep", pauses.append)
    for busy, heard in ((3, ["FINISHED"]), (9, [])):
        _, tracker = make(tmp_path)
        client = tracker._client = cast("Any", Busy(busy))
        tracker.end("FINISHED")
        assert (client.said, trouble(tracker) is None) == (heard, bool(heard))
    assert pauses == [1.0, 2.0, 4.0] * 2


def test_artifacts_that_a_server_cannot_keep_hold_back_neither_tags_nor_the_status(tmp_path: Path) -> None:
    """Its own place for them may be out of order for all."""
    _, tracker = make(tmp_path)
    client = tracker._client = cast("Any", Picky())
    (tmp_path / "r").mkdir()
    for number in range(9):
        (tmp_path / "r" / f"{number}.png").touch()
        tracker.artifact(tmp_path / "r" / f"{number}.png", "pictures")
    tracker.tag("digest", "5e9b")
    tracker.end("FINISHED")
    assert client.said == [("digest", "5e9b"), "FINISHED"]
    assert "Permission denied" in str(tracker.trouble)
    assert len(tracker._later) == 9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_any_names_and_infinite_values_are_in_mlflow_and_read_again(tmp_path: Path) -> None:
    strange = {
        "top1/": 0.5,
        "..": 1.0,
        "/": 2.0,
        "": 3.0,
        "a[0]": math.inf,
        "a(0": -math.inf,
        "x" * 300: 4.0,
        "n": math.nan,
    }
    store = tracking.Store(None, tmp_path)
    tracker = Tracker.create(store, store.experiment("e"), "caf\udcc3", every_s=1.0)
    tracker.describe({f"pipeline.args.table.{key}": key for key in strange} | {"/": "\udcc3\0"}, {"../tag": "\udcc3"})
    tracker.metrics(0, strange)
    tracker.end("FINISHED")
    assert tracker.trouble is None
    (note,) = tracker.notes()
    assert note.startswith("MLflow takes other names: there ")
    assert "and 10 more" in note
    for found in (store.past()[0], tracking.store._past(store._asked("tags.`orchestrator.host` LIKE '%'")[0])):
        assert found.status == "FINISHED"
        cut = next(key for key in found.metrics if key.endswith("..."))
        known = {key: value for key, value in found.metrics.items() if key not in (cut, "n")}
        assert known == {key: value for key, value in strange.items() if key not in ("x" * 300, "n")}
        assert math.isnan(found.metrics["n"])
        assert found.settings["pipeline.args.table.a[0]"] == "a[0]"
        assert found.settings["/"] == "\\udcc3\\x00"
    tags = store.client.get_run(tracker.run_id).data.tags
    assert "x" * 300 in tags.values()


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
