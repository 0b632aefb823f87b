"""Readings of marks in benchmarks/scale, and its tables; the rest of it starts launches and needs minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.recovery import Marks
from benchmarks.scale import __main__ as scale
from benchmarks.scale.true_workers import Course, Instant, Loss, completed, next_step, told

PAGE = Path("docs/benchmarks/scale.md")
KILLED = 10.0  # at step 3, which the victim, 1, has completed as well
MARKS: Marks = {
    1: [(9.8, 2), (9.9, 3)],
    2: [(9.8, 2), (9.9, 3), (10.1, 4), (10.5, 5)],
    3: [(9.8, 2), (9.9, 3), (10.1, 4), (10.4, 5)],
}


def test_the_step_under_way_is_not_the_next_one() -> None:
    assert next_step(MARKS, KILLED, [1]) == 10.4
    assert next_step({**MARKS, 3: MARKS[3][:3], 2: MARKS[2][:3]}, KILLED, [1]) is None


def test_steps_are_those_of_all_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.scale.true_workers.lives", lambda pid: pid != 1)
    assert completed(MARKS) == 5


def test_tables_divide_by_steps_and_seconds() -> None:
    sent = {"vote": (40, 4000), "sum": (20, 2000), "report": (4, 400), "connection": (2, 200)}
    more = {"vote": (240, 44000), "sum": (220, 22000), "report": (44, 4400), "connection": (2, 200)}
    begun = Instant(100.0, 10, {"driver": [1.0], "worker": [2.0, 2.0], "raylet": [0.5]}, (1000, 10), sent)
    ended = Instant(110.0, 110, {"driver": [1.2], "worker": [3.0, 3.0], "raylet": [0.6]}, (21000, 110), more)
    course = Course(2, 12.5, begun, begun, ended, Loss(0.25, 3.0, 0.125), None, 240.0, 100.0, 60.0, 2853)
    lines = told([course]).splitlines()
    assert "| 2 | 12.5 | 5.5 | 1 | 0.5 | 0 | 2 | 0 |" in lines
    assert "| 2 | 10 | 2 | 1 | 10 | 20 | 10 | 100 | 2 | 10 |" in lines
    assert "| 2 | 1 | 200 | 1 | 100 | 2 | 200 | 1 | 100 |" in lines
    assert "| 2 | 0.125 | 0.25 | - | - | 3 |" in lines
    assert "| 2 | 240 | 100 | 60 | 2.85 |" in lines


def test_each_part_has_its_place_on_the_page(tmp_path: Path) -> None:
    copy = tmp_path / "scale.md"
    copy.write_text(PAGE.read_text())
    for name in scale.PARTS:
        pages.replace(copy, name, f"what {name} found")
        assert f"what {name} found" in copy.read_text()


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.main(["--parts", "none"])
    assert "no part none" in capsys.readouterr().err
