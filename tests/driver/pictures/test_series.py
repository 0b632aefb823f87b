"""The series that are shown of a trace and a journal; many points become few without hiding an extreme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.driver.report.pictures.series import COLUMNS, columns, losses, metrics, wants_logarithm
from orchestrator.records.lines import LineFile


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    file = LineFile(path)
    file.append(lines)
    file.close()


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    trace, journal = tmp_path / "trace", tmp_path / "journal"
    write(
        trace, [{"step": step, "loss": loss.hex()} for step, loss in enumerate((1.5, float("nan"), float("inf"), 0.5))]
    )
    write(journal, [{"event": "generation_started"}])
    write(
        journal, [{"event": "evaluated", "step": 1, "metrics": {"validation/loss": 2.0, "validation/accuracy": "nan"}}]
    )
    write(journal, [{"event": "evaluated", "step": 3, "metrics": {"validation/loss": 1.0, "validation/accuracy": 0.5}}])
    assert losses(tmp_path / "trace") == [(0, 1.5), (3, 0.5)]
    assert metrics(tmp_path / "journal") == {
        "validation/loss": [(1, 2.0), (3, 1.0)],
        "validation/accuracy": [(3, 0.5)],
    }
    assert list(metrics(tmp_path / "journal")) == ["validation/loss", "validation/accuracy"]


def test_a_run_that_never_began_has_nothing_to_show(tmp_path: Path) -> None:
    assert (losses(tmp_path / "trace"), metrics(tmp_path / "journal")) == ([], {})


@pytest.mark.parametrize("count", [1, 2, COLUMNS, COLUMNS + 1, 1000, 100_000])
def test_columns_are_few_and_cover_all(count: int) -> None:
    series = [(step, float(step % 97)) for step in range(count)]
    found = columns(series)
    assert 1 <= len(found) <= COLUMNS
    assert min(column.low for column in found) == 0.0
    assert max(column.high for column in found) == max(value for _, value in series)
    assert all(column.low <= column.mean <= column.high for column in found)
    assert [column.step for column in found] == sorted(column.step for column in found)
    if count <= COLUMNS:
        assert [(column.step, column.mean) for column in found] == series


def test_a_logarithm_only_where_it_helps_and_is_defined() -> None:
    assert wants_logarithm([(0, 3.0), (1, 0.01)])
    assert not wants_logarithm([(0, 3.0), (1, 1.0)])
    assert not wants_logarithm([(0, 3.0), (1, 0.0)])
    assert not wants_logarithm([])
