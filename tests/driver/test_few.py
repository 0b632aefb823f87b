"""Some of three thousand metrics are shown and drawn, and it is said how many there are and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.driver.report import few, summary
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.report.pictures import RunHistory, draw

MANY = {"validation/loss": 0.5} | {f"validation/class_{number:04}/iou": 0.1 for number in range(3000)}
MANY["validation/mean_iou"] = 0.25


def test_those_of_the_whole_come_first_and_few_are_all() -> None:
    shown = few.few(MANY, 3)
    assert list(shown) == ["validation/loss", "validation/class_0000/iou", "validation/mean_iou"]
    assert few.line({"b": 1.0, "a/b": 2.0}) == "b 1, a/b 2"


def test_a_line_says_how_many_there_are_and_where() -> None:
    told = few.line(MANY)
    assert told.count("class_") == few.IN_A_LINE - 2
    assert "validation/mean_iou 0.25, and 2,994 more metrics, in MLflow and the run's journal.jsonl" in told
    whole = summary.text(RunOutcome(steps=3, loss=0.5, digest="d", metrics=dict(MANY)), "n", "1 worker", "r", "look")
    assert f"  results  loss 0.5, {told}\n" in whole


@pytest.mark.long
@pytest.mark.slow
def test_very_many_metrics_are_drawn_at_once(tmp_path: Path) -> None:
    """It took minutes."""
    journal, trace = tmp_path / "journal.jsonl", tmp_path / "trace.jsonl"
    events = [{"event": "evaluated", "step": step, "metrics": MANY} for step in range(3)]
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    trace.write_text("".join(json.dumps({"step": step, "loss": (0.5).hex()}) + "\n" for step in range(3)))
    assert draw(tmp_path, RunHistory(trace, journal), "many", TOPOLOGIES["ring"](2)) is None
    assert (tmp_path / "loss.png").stat().st_size > 10_000
