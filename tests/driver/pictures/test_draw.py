"""The pictures exist, are what they say they are, leave no global state behind, and cost no run its life."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.comm.pipeline_schedules import nominal, programs, timeline
from orchestrator.comm.topologies import build_schedule
from orchestrator.config.plan import Variant
from orchestrator.data.drift import LABELS, Drift, Shift
from orchestrator.driver.report.pictures import RunHistory, draw, draw_drift
from orchestrator.driver.report.pictures.series import clocks, flow, staleness
from orchestrator.records.barriers import Staleness
from orchestrator.records.lines import LineFile
from tests.products import thinned

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _without_pyplot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its figures would be state of the process. A test before may have imported it, by torchmetrics."""
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    yield
    assert "matplotlib.pyplot" not in sys.modules


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    file = LineFile(path)
    file.append(lines)
    file.close()


@pytest.mark.parametrize("steps", thinned([1, 2, 3000], 2))
def test_both_pictures(tmp_path: Path, steps: int) -> None:
    trace, journal = tmp_path / "trace", tmp_path / "journal"
    write(trace, [{"step": step, "loss": (1 / (step + 1)).hex()} for step in range(steps)])
    found = {"validation/loss": 0.5, "validation/accuracy": 0.25}
    write(journal, [{"event": "evaluated", "step": steps - 1, "metrics": found}])
    schedule = build_schedule("parameter_server", 4, servers=2)
    assert (
        draw(tmp_path / "pictures", RunHistory(tmp_path / "trace", tmp_path / "journal"), "digits & more", schedule)
        is None
    )
    assert (tmp_path / "pictures" / "loss.png").read_bytes().startswith(b"\x89PNG")
    root = ElementTree.parse(tmp_path / "pictures" / "topology.svg").getroot()
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert texts == ["0", "1", "2", "3", "0", "1", "parameter server", "4 workers", "2 servers"]


def test_a_picture_of_one_schedule_is_always_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "other"):
        draw(tmp_path / name, RunHistory(tmp_path / "none", tmp_path / "none"), "", build_schedule("tree", 9))
    assert (tmp_path / "one" / "topology.svg").read_bytes() == (tmp_path / "other" / "topology.svg").read_bytes()
    assert not (tmp_path / "one" / "loss.png").exists()


def test_a_failure_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("no line of a trace\n")
    said = draw(tmp_path / "pictures", RunHistory(tmp_path / "trace", tmp_path / "none"), "", build_schedule("ring", 2))
    assert said is not None
    assert said.startswith("the pictures could not be drawn: ValueError: line 1 is not what was written")


@pytest.mark.parametrize(
    "name",
    [r"$\frac{$", "a$x^{$b", "\N{CJK UNIFIED IDEOGRAPH-65E5}\N{SLIGHTLY SMILING FACE}", "\x1b[31m", "of a head " * 30],
)
def test_names_are_drawn_as_they_are(tmp_path: Path, name: str) -> None:
    """A formula that cannot be read would end the drawing, and matplotlib would warn of what its font lacks, and of a name that
    leaves no room."""
    trace, journal = tmp_path / "trace", tmp_path / "journal"
    write(trace, [{"step": 0, "loss": (1.0).hex()}])
    write(journal, [{"event": "evaluated", "step": 0, "metrics": {f"validation/{name}": 0.25}}])
    seen = RunHistory(trace, journal, {"labels": [name], "counts": [[1], [2]]})
    assert draw(tmp_path, seen, name, build_schedule("ring", 2)) is None
    profiles: list[Any] = [
        {"columns": {name: {"values": [0, 1], "counts": [1, n]}}, "classes": {name: n}} for n in (1, 2)
    ]
    drift = Drift(tuple(Shift(column, 0.5, 0.5, 0.0, True, "") for column in (name, LABELS)))
    assert draw_drift(tmp_path / "drift.png", drift, (profiles[0], profiles[1]), ("a", "b")) is None
    assert {"loss.png", "partition.png", "drift.png"} <= {file.name for file in tmp_path.iterdir()}


def test_a_column_may_have_the_name_of_the_labels(tmp_path: Path) -> None:
    """As in data of Hugging Face, of one number for each sample."""
    before, after = ({"columns": {LABELS: {"values": [0, 1], "counts": [1, n]}}} for n in (1, 2))
    drift = Drift((Shift(LABELS, 0.5, 0.5, 0.0, True, ""),))
    assert draw_drift(tmp_path / "drift.png", drift, (before, after), ("a", "b")) is None


@pytest.mark.parametrize("labels", thinned([3, 20], 2))
def test_a_partition_is_drawn_where_there_is_one(tmp_path: Path, labels: int) -> None:
    table = {"labels": [str(label) for label in range(labels)], "counts": [[client] * labels for client in range(5)]}
    seen = RunHistory(tmp_path / "none", tmp_path / "none", table)
    assert draw(tmp_path, seen, "digits", build_schedule("ring", 2)) is None
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("seconds", thinned([[], [0.5, 0.25], [1.0]], 3, 1))
def test_the_pipeline_of_a_model_in_stages_is_drawn(tmp_path: Path, seconds: list[float]) -> None:
    """As of the last generation, in seconds where they are known of each stage."""
    seen = RunHistory(tmp_path / "none", tmp_path / "journal", pipelining=Variant("1f1b", {}))
    begun = {"event": "generation_started", "stages": [0, 1, 0], "shards": [[0, 1], [0, 1, 2, 3], [2, 3]]}
    write(tmp_path / "journal", [{**begun, "stages": [0, 1], "shards": [[0], [0]]}])
    assert flow(tmp_path / "journal", "1f1b", {}) == (
        timeline(((0,), (1,)), programs(((0,), (1,)), "1f1b"), nominal(2)),
        False,
    )
    write(tmp_path / "journal", [begun, *[{"event": "stages_proved", "seconds": seconds}] * bool(seconds)])
    found = flow(tmp_path / "journal", "1f1b", {})
    assert found is not None
    spans, in_seconds = found
    assert in_seconds == (seconds == [0.5, 0.25])
    assert {span.rank for span in spans} == {0, 1, 2}
    assert max(span.end for span in spans) == pytest.approx(4 * 0.25 + 0.5 if in_seconds else 4 * 3 + 3)
    assert draw(tmp_path, seen, "digits", build_schedule("ring", 3)) is None
    assert (tmp_path / "pipeline.png").read_bytes().startswith(b"\x89PNG")


def test_there_is_no_pipeline_where_every_worker_has_the_whole_model(tmp_path: Path) -> None:
    write(tmp_path / "journal", [{"event": "generation_started", "shards": [[0], [1]]}])
    seen = RunHistory(tmp_path / "none", tmp_path / "journal", pipelining=Variant("1f1b", {}))
    assert draw(tmp_path, seen, "digits", build_schedule("ring", 2)) is None
    assert not (tmp_path / "pipeline.png").exists()


@pytest.mark.parametrize("shards", thinned([2, 20], 2))
def test_the_clocks_of_an_asynchronous_run_are_drawn(tmp_path: Path, shards: int) -> None:
    updates = tuple((shard, ahead) for ahead in range(2) for shard in range(shards))
    rests = [Staleness(number, (2 * number + 2,) * shards, 1, updates) for number in range(3)]
    seen = RunHistory(tmp_path / "none", tmp_path / "none", barriers=rests)
    assert draw(tmp_path, seen, "digits", build_schedule("ring", 2)) is None
    assert (tmp_path / "clocks.png").read_bytes().startswith(b"\x89PNG")
    assert [series[-1] for series in clocks(rests)] == [(6 * shards, 6.0)] * shards
    assert staleness(rests)[:2] == [(1, 0.0), (2, 0.0)]


@pytest.mark.parametrize("windows", thinned([1, 9], 2, 1))
def test_where_time_went_has_a_picture(tmp_path: Path, windows: int) -> None:
    times = LineFile(tmp_path / "times")
    for first in range(windows):
        seconds = {"compute": 1.0 + first, "wait": 0.5}
        for member in range(40):
            told = {"member": f"worker {member}", "first": first, "steps": 1, "seconds": seconds, "busy": {}}
            times.append([told])
    times.append([{"member": "server 40", "first": 0, "steps": 0, "seconds": {"connect": 1.0}, "busy": {}}])
    times.close()
    seen = RunHistory(tmp_path / "none", tmp_path / "none", times=tmp_path / "times")
    assert draw(tmp_path / "pictures", seen, "digits", build_schedule("ring", 40)) is None
    assert (tmp_path / "pictures" / "time.png").stat().st_size > 20_000
