"""Data that MLflow has not got are in a file, from which another process sends them: whole, once, however often it is
tried."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import ERROR, Store, Tracker, outbox
from orchestrator.provenance.tracking.outbox import Outbox, read, store_of


def test_the_file_has_contents_as_long_as_something_is_missing(tmp_path: Path) -> None:
    kept = Outbox(tmp_path / "r", "http://host")
    assert not (tmp_path / "r").exists()
    file = tmp_path / "r" / outbox.FILE
    kept.clear()
    kept.add({"tag": ["r", "a", "1"]})
    assert (store_of(file), read(file)) == ("http://host", [{"tag": ["r", "a", "1"]}])
    kept.clear()
    assert file.read_bytes() == b""
    kept.add({"tag": ["r", "b", "2"]})
    kept.close()
    again = Outbox(tmp_path / "r", "http://host")  # of the next process
    again.add({"end": "FAILED", "ms": 1})
    assert (store_of(file), read(file)) == ("http://host", [{"tag": ["r", "b", "2"]}, {"end": "FAILED", "ms": 1}])
    again.remove()
    assert not file.exists()


def test_a_file_that_cannot_be_opened_or_removed_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left, or somebody has removed the folder: training goes on."""
    kept, file = Outbox(tmp_path / "r", "http://host"), tmp_path / "r" / outbox.FILE
    first, second, third = ({"tag": ["r", name, "1"]} for name in "abc")

    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    kept.add(first)
    with monkeypatch.context() as patched:
        kept.close()
        patched.setattr(Path, "open", refuses)
        patched.setattr(Path, "unlink", refuses)
        kept.add(second)
        with pytest.raises(OSError, match="Too many open files"):
            kept.sync()
    kept.add(third)
    kept.sync()
    assert read(file) == [first, second, third]
    with monkeypatch.context() as patched:
        kept.close()
        patched.setattr(Path, "open", refuses)
        patched.setattr(Path, "unlink", refuses)
        kept.clear()
        kept.add(first)
        kept.remove()
    kept.add(second)
    assert read(file)[-1] == second
    shutil.rmtree(tmp_path / "r")
    kept.add(third)
    assert read(file)[-2:] == [second, third]
    shutil.rmtree(tmp_path / "r")
    kept.clear()
    kept.add(first)
    assert (store_of(file), read(file)) == ("http://host", [first])
    kept.close()


def test_an_end_behind_which_something_follows_was_none(tmp_path: Path) -> None:
    kept = Outbox(tmp_path, None)
    for item in ({"end": "FAILED", "ms": 1}, {"tag": ["r", "a", "1"]}, {"end": "FINISHED", "ms": 2}):
        kept.add(item)
    kept.close()
    assert read(tmp_path / outbox.FILE) == [{"tag": ["r", "a", "1"]}, {"end": "FINISHED", "ms": 2}]


def test_a_torn_line_was_not_told_yet_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / outbox.FILE
    file.write_text('{"store": null}\n{"tag": ["r", "a", "1"]}\n{"tag": ["r", "b"')
    assert read(file) == [{"tag": ["r", "a", "1"]}]
    file.write_text('{"store": null}\nnothing\n')
    assert store_of(file) is None
    with pytest.raises(ValueError, match="line 2 is not what was written"):
        read(file)


class Gone:
    """A client whose store is out of reach."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
@pytest.mark.long
def test_a_true_store_gets_each_metric_once_however_often_it_is_sent(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    folder, run_id = tmp_path / tracker.run_id, tracker.run_id
    tracker.metrics(0, {"train/loss": 4.0, "validation/loss": math.nan})
    tracker.flush()
    tracker._client = Gone()  # type: ignore[assignment]
    for step in range(1, 1500):
        tracker.metrics(step, {"train/loss": 1 / step, "validation/loss": math.nan if step % 2 else math.inf})
    tracker.inputs([("data", "d41d", "data")])
    tracker.tag("digest", "5e9b")
    (folder / "card.md").write_text("kept")
    tracker.artifact(folder / "card.md", "run")
    tracker.artifact(folder / "gone.md", "run")
    tracker.end("FINISHED")
    assert tracker.trouble == "log_batch"
    shutil.copy(folder / outbox.FILE, tmp_path / "copy")
    told = [json.loads(line) for line in (tmp_path / "copy").read_text().splitlines()]
    for _ in range(2):  # the second time by somebody who does not know of the first
        shutil.copy(tmp_path / "copy", folder / outbox.FILE)
        sender = Tracker.catch_up(store, run_id)
        assert (sender.trouble, sender.gone) == (None, ["gone.md"])
        assert not (folder / outbox.FILE).exists()
    for key in ("train/loss", "validation/loss"):
        history = store.client.get_metric_history(run_id, key)
        assert sorted(metric.step for metric in history) == list(range(1500)), key
    run = store.client.get_run(run_id)
    assert (run.info.status, run.info.end_time, run.data.tags["digest"]) == ("FINISHED", told[-1]["ms"], "5e9b")
    assert run.inputs is not None
    assert len(run.inputs.dataset_inputs) == 1
    assert [file.path for file in store.client.list_artifacts(run_id, "run")] == ["run/card.md"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_a_resumed_run_tells_nothing_twice_and_first_what_was_missing(tmp_path: Path) -> None:
    store = Store(None, tmp_path)
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    for step in range(6):
        tracker.metrics(step, {"train/loss": 1.0 / (step + 1)})
    tracker.flush()
    tracker._client = Gone()  # type: ignore[assignment]
    tracker.metrics(6, {"train/loss": 0.1})
    tracker.tag(ERROR, "of then")
    tracker.end("FAILED")
    assert tracker.trouble == "log_batch"
    again = Tracker.reopen(store, tracker.run_id, every_s=1.0, since=4)
    assert (tracker.reached, again.reached) == (0, 7)
    run = store.client.get_run(tracker.run_id)
    assert (run.info.status, ERROR in run.data.tags) == ("RUNNING", False)
    for step in (4, 5):  # computed again
        again.metrics(step, {"train/loss": 1.0 / (step + 1)})
    for step, loss in ((6, 0.1), (6, 0.2), (7, 0.05)):  # another value is another metric
        again.metrics(step, {"train/loss": loss})
    again.end("FINISHED")
    history = store.client.get_metric_history(tracker.run_id, "train/loss")
    assert sorted((metric.step, metric.value) for metric in history) == sorted(
        [*((step, 1.0 / (step + 1)) for step in range(6)), (6, 0.1), (6, 0.2), (7, 0.05)]
    )
    assert store.client.get_run(tracker.run_id).info.status == "FINISHED"
