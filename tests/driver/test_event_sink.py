"""Findings about the data beside the first steps are told once, and looked for with the first step and not before."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.data.drift import Drift, Shift
from orchestrator.driver.recording.record import Record
from orchestrator.driver.run import event_sink
from orchestrator.driver.run.checkpointing import SavedCheckpoint
from orchestrator.driver.run.drift_watch import DataDrift
from orchestrator.driver.run.event_sink import Audience, EventSink
from orchestrator.records import lines
from orchestrator.records.lines import LineFile
from orchestrator.records.merging import Change
from tests.driver.test_member_directory import begin, directory

MOVED = Shift("0[1]", 0.7, 0.3, 0.0, drifted=True, text="0[1]: median 1 -> 2")


def test_drift_is_told_once_with_the_run_that_it_is_since(tmp_path: Path) -> None:
    shown: list[str] = []
    done: list[str] = []
    found = [DataDrift("before", Drift((MOVED,)))]
    watch: Any = SimpleNamespace(begin=lambda: done.append("begun"), take=lambda: found.pop() if found else None)
    tracker = SimpleNamespace(tick=lambda: None, metrics=lambda *_: None, notes=list, trouble=None)
    files = {"journal": LineFile(tmp_path / "j"), "trace": LineFile(tmp_path / "t")}
    told: Any = {"logger_feed": SimpleNamespace(troubles=list), "comparisons": SimpleNamespace()}
    record: Any = SimpleNamespace(tracker=tracker, **told, **files)
    progress: Any = SimpleNamespace(say=shown.append, step=lambda *_: None)
    sink = EventSink(record, Audience(progress), None, watch)
    assert done == []
    sink.lines(Change(0, [{"step": 0, "loss": "0x1p+0"}]))
    assert done == ["begun"]
    sink.tick()
    sink.tick()
    assert shown == ["note: since run before of this experiment the data have drifted:\n  0[1]: median 1 -> 2"]
    assert record.comparisons.drift_told
    record.journal.close()
    record.trace.close()
    (event,) = lines.read(tmp_path / "j")
    assert (event["event"], event["run"], event["drifted"]) == ("data_compared", "before", ["0[1]"])


def test_a_callback_that_failed_is_a_warning_and_what_one_found_is_a_metric(tmp_path: Path) -> None:
    shown: list[str] = []
    told: list[Any] = []
    tracker: Any = SimpleNamespace(metrics=lambda step, values: told.append((step, values)))
    files = SimpleNamespace(untold=tmp_path / "u")
    record: Any = SimpleNamespace(tracker=tracker, journal=LineFile(tmp_path / "j"), files=files)
    progress: Any = SimpleNamespace(say=shown.append)
    sink = EventSink(record, Audience(progress))
    sink.heard(0, None, {"event": "called_back", "step": 9, "seconds": 0.5, "metrics": {"worst": 2.0}})
    late = {"event": "called_back", "step": 19, "failed": "on_evaluation() raised ValueError: no"}
    sink.catches_up([late])  # of which the last driver had not heard
    record.journal.close()
    assert [event["step"] for event in lines.read(tmp_path / "j")] == [9, 19]
    assert told == [(9, {"callback/worst": 2.0})]
    assert shown == ["warning: on_evaluation after step 20, the run goes on: on_evaluation() raised ValueError: no"]


def test_a_private_run_that_is_gone_on_with_knows_the_privacy_that_is_spent(tmp_path: Path) -> None:
    """Also where no step is left, and where members have made steps that the last driver had not heard of."""
    told: list[Any] = []
    tracker: Any = SimpleNamespace(metrics=lambda step, values: told.append((step, values)))
    record: Any = SimpleNamespace(tracker=tracker, journal=None, files=SimpleNamespace(untold=tmp_path / "u"))
    sink = EventSink(record, Audience(SimpleNamespace()), float)  # an epsilon of one for each step
    spent: list[float | None] = []
    for steps in (0, 8):
        sink.goes_on(steps, None, {}, steps or None, 0)
        spent.append(sink.outcome.epsilon)
    assert spent == [None, 8.0]
    sink.catches_up(
        [{"step": 7, "loss": "hmac:f"}, {"event": "evaluated", "step": 7, "metrics": {"validation/loss": 1.0}}]
    )
    assert told == [(7, {"train/epsilon": 8.0}), (7, {"validation/loss": 1.0})]


def test_what_is_untold_is_forgotten_once_it_is_at_the_store_or_on_the_disk(tmp_path: Path) -> None:
    done: list[Any] = []
    untold = tmp_path / "u"
    untold.touch()
    faults: list[OSError] = [OSError(28, "No space left on device")]

    def sync() -> None:
        assert untold.exists()
        done.append("synced")
        if faults:
            raise faults.pop()

    tracker: Any = SimpleNamespace(metrics=lambda step, _: done.append(step), sync=sync)
    record: Any = SimpleNamespace(tracker=tracker, journal=None, files=SimpleNamespace(untold=untold))
    sink = EventSink(record, Audience(SimpleNamespace()))
    sink.catches_up([{"step": 7, "loss": "0x1p+0"}])
    assert (done, untold.exists()) == ([7, "synced"], True)
    sink.catches_up([{"step": 7, "loss": "0x1p+0"}])
    assert (done[2:], untold.exists()) == ([7, "synced"], False)
    sink.catches_up([])
    assert len(done) == 4


def test_metrics_are_sent_before_a_checkpoint_of_their_steps_counts() -> None:
    """Or a run that is resumed from it would never send those of a driver that was killed before its next `tick`. Evaluations
    of before are in the journal alone, and a power cut would take those of the last step."""
    done: list[str] = []
    tracker: Any = SimpleNamespace(sync=lambda: done.append("sent"))
    trace, journal = (SimpleNamespace(sync=partial(done.append, name)) for name in ("trace", "journal"))
    files = SimpleNamespace(sync=lambda: done.append("of what it is made"))
    record: Any = SimpleNamespace(tracker=tracker, journal=journal, history=[trace], files=files)
    progress: Any = SimpleNamespace()
    sink = EventSink(record, Audience(progress))
    sink.sync()
    assert done == ["trace", "journal", "of what it is made", "sent"]


@pytest.mark.parametrize(
    ("shards", "micro_batch_s", "said"),
    [
        (
            (8,),
            0.0031,
            "note: 8 shards on 1 worker: a step makes 8 passes of 3.1 ms each, one after another, and is up to 8 times slower "
            "than with data.shards=1; other shards give other bits",
        ),
        ((8,), 0.5, None),
        ((2, 2, 2, 2), 0.0031, None),
    ],
)
def test_many_small_shards_on_few_workers_are_noted_once(
    tmp_path: Path, shards: tuple[int, ...], micro_batch_s: float, said: str | None
) -> None:
    shown: list[str] = []
    tracker: Any = SimpleNamespace(metrics=lambda *_: None)
    record: Any = SimpleNamespace(tracker=tracker, journal=LineFile(tmp_path / "j"))
    progress: Any = SimpleNamespace(say=shown.append, start=lambda _: None)
    generation: Any = SimpleNamespace(
        workers=len(shards),
        begin=SimpleNamespace(
            members=[*range(len(shards))],
            shards=[range(count) for count in shards],
            stages=(),
            absent=(),
            run_manifest={"steps": 10},
        ),
        writers=(0,),
        as_event=dict,
        schedule=None,
    )
    sink = EventSink(record, Audience(progress))
    sink.begins(generation)
    sink.times("worker", 0, {"first": 0})
    for _ in range(2):
        sink.times("worker", 0, {"first": 0, "micro_batch_s": micro_batch_s})
    record.journal.close()
    assert shown == ([] if said is None else [said])


def test_that_no_row_could_be_tried_is_told_once_at_the_start_and_not_at_the_end(tmp_path: Path) -> None:
    shown: list[str] = []
    journal = LineFile(tmp_path / "j")
    record: Any = SimpleNamespace(tracker=None, journal=journal, served_told=None)
    sink = EventSink(record, Audience(SimpleNamespace(say=shown.append)))
    for member in (1, 0):
        sink.heard(member, None, {"event": "unserved", "why": "w", "detail": "d"})
    journal.close()
    assert shown == ["note: when it is served, the model answers a whole request at once: w (d)"]
    assert [event["event"] for event in lines.read(tmp_path / "j")] == ["unserved"]
    for why, told in (
        ("w", None),
        (None, None),
        ("other", "when it is served, the model answers a whole request at once: other"),
    ):
        record.answers = {"rows": None, "why": why, "detail": None}
        assert Record.answering(record) == told


def test_a_launch_that_takes_long_says_now_and_then_how_many_workers_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now, shown = [100.0], list[str]()
    monkeypatch.setattr(event_sink, "time", SimpleNamespace(monotonic=lambda: now[0]))
    record: Any = SimpleNamespace(tracker=None, journal=None)
    progress: Any = SimpleNamespace(say=shown.append)
    sink = EventSink(record, Audience(progress))
    for workers in range(1, 129):
        sink.ready(workers, 128)
        now[0] += 0.25
    assert shown == ["41 of 128 workers are ready", "81 of 128 workers are ready", "121 of 128 workers are ready"]


def test_files_are_copied_at_checkpoints_more_seldom_where_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace of hundreds of MB was sent every 30 s, however slow the way."""
    now = [0.0]
    monkeypatch.setattr(event_sink, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tracker: Any = SimpleNamespace(metrics=lambda *_: None, upload_s=0.0)
    copied: list[float] = []
    record: Any = SimpleNamespace(
        tracker=tracker, journal=LineFile(tmp_path / "j"), seals=lambda _: {}, has_failover=False
    )
    record.upload = lambda: copied.append(now[0])
    sink = EventSink(record, Audience(SimpleNamespace()))
    manifest: Any = SimpleNamespace(step=1, size_bytes=1, state_digest="d", digest_without_streams=None)
    while now[0] < 300.0:
        now[0] += 10.0
        before = len(copied)
        sink.saved(SavedCheckpoint(manifest, 1, 0.0, 0.0))
        tracker.upload_s += 0.1 if len(copied) > before and now[0] < 80.0 else 0.0
        tracker.upload_s += 5.0 if len(copied) > before and now[0] >= 80.0 else 0.0
    record.journal.close()
    assert copied == [30.0, 60.0, 90.0, 190.0, 290.0]


def test_the_terminal_is_told_when_nobody_writes_checkpoints_any_more_and_when_somebody_does_again(
    tmp_path: Path,
) -> None:
    shown: list[str] = []
    record: Any = SimpleNamespace(tracker=SimpleNamespace(metrics=lambda *_: None), journal=LineFile(tmp_path / "j"))
    progress: Any = SimpleNamespace(say=shown.append, start=lambda _: None)
    sink, changes = EventSink(record, Audience(progress)), {"shards": ((0, 1), (2, 3)), "state_transfers": ()}
    told = []
    for members in ((3, 5), (5, 9), (5, 9), (3, 5)):  # 3 is on the driver's machine
        sink.begins(directory().generation(begin(members=members, nodes=(0, 1), **changes), None))
        told.append(len(shown))
    record.journal.close()
    assert told == [0, 1, 1, 2]
    assert shown[0].startswith("warning: no worker runs on this machine any more")
    assert shown[0].endswith("the newest holds 0 steps")
    assert shown[1] == "note: a worker runs on this machine again, and writes checkpoints"
