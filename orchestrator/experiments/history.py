"""The course of a run as a table: a row for each step of its trace, with the evaluations of its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.driver.recording.recorded import Recorded
from orchestrator.records import lines, trace

if TYPE_CHECKING:
    import pandas


def history(recorded: Recorded) -> pandas.DataFrame:
    """By step, counted from 0 as in the trace. If a step was done again, its last evaluation counts. Raises
    NotRerunnable for a damaged trace."""
    import pandas

    rows: dict[int, dict[str, Any]] = {int(line["step"]): {"loss": trace.loss_of(line)} for line in recorded.trace()}
    journal = recorded.files.journal
    for event in lines.written(journal):
        if event["event"] == "evaluated" and event["step"] in rows:
            rows[event["step"]] |= {name: float(value) for name, value in event["metrics"].items()}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("step")
