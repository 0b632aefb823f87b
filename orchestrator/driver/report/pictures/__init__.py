"""Pictures of a run that has ended: the curves of loss and metrics, the topology it ran on, who owned which samples, and what
the members of a pipeline do in a step.

    places.py     where members stand: pure, no drawing
    series.py     what of a long trace can be seen: pure, no drawing
    drawing.py    both, with matplotlib, which only this module and the next two import, and only when they draw
    drifts.py     how the data of two runs differ
    time.py       where the time of a run went: of a step along the run, and of each worker

A run is complete without its pictures: `draw` never raises, and returns a sentence that says what it could not do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.comm.topologies import Schedule
from orchestrator.config.plan import Variant
from orchestrator.data.drift import Drift, Profile
from orchestrator.records.barriers import Staleness
from orchestrator.records.lines import written


@dataclass(frozen=True)
class RunHistory:
    """The history of a run, as pictures show it."""

    trace: Path  # file of the steps
    journal: Path  # file of the events
    partition: Mapping[str, Any] | None = None  # `data.division.Division.table`; None where samples are not divided
    barriers: Sequence[Staleness] = ()  # of an asynchronous run; empty in lockstep
    # order of the micro-batches of a model in stages, with its options; None without stages
    pipelining: Variant | None = None
    times: Path | None = None  # file of where time went; None where there is none to draw


@dataclass
class Failed:
    """The outcome of a drawing. why: the sentence that says what could not be drawn; None where all was."""

    why: str | None = None


@contextmanager
def drawing_of(what: str) -> Iterator[Failed]:
    """Within, what a drawing library raises is noted, whatever that is: a run is whole without its pictures."""
    failed = Failed()
    try:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
        yield failed
    except Exception as error:
        failed.why = f"{what} could not be drawn: {type(error).__name__}: {error}"


def prepare() -> None:
    """Import beside something else what draws: that takes a second."""
    threading.Thread(target=_imported, name="pictures", daemon=True).start()


def _imported() -> None:
    with drawing_of("the pictures"):  # `draw` meets what is raised again, and tells it
        from orchestrator.driver.report.pictures import drawing  # noqa: F401


def draw(folder: Path, seen: RunHistory, title: str, schedule: Schedule) -> str | None:
    """Write `loss.png` and `time.png` (when there was a step), `topology.svg`, `partition.png` (where there is one),
    `clocks.png` (of an asynchronous run) and `pipeline.png` (of a model in stages) into `folder`; None, or what went
    wrong."""
    with drawing_of("the pictures") as failed:
        from orchestrator.driver.report.pictures import drawing, series, time

        folder.mkdir(exist_ok=True)
        drawing.topology(schedule, folder / "topology.svg")
        if seen.partition is not None:
            drawing.partition(seen.partition["labels"], seen.partition["counts"], title, folder / "partition.png")
        losses = series.losses(seen.trace)
        if losses:
            drawing.curves(losses, series.metrics(seen.journal), title, folder / "loss.png")
        windows = [] if seen.times is None else list(written(seen.times))
        if windows:
            time.draw(windows, title, folder / "time.png")
        if seen.barriers:
            drawing.clocks(series.clocks(seen.barriers), series.staleness(seen.barriers), title, folder / "clocks.png")
        if seen.pipelining is not None:
            flow = series.flow(seen.journal, seen.pipelining.name, seen.pipelining.options)
            if flow is not None:
                drawing.pipeline(*flow, title, folder / "pipeline.png")
    return failed.why


def draw_drift(path: Path, drift: Drift, profiles: tuple[Profile, Profile], names: tuple[str, str]) -> str | None:
    """Write the picture of the columns that differ most; None, or what went wrong. profiles, names: of the two runs."""
    with drawing_of("the drift") as failed:
        from orchestrator.driver.report.pictures import drifts

        path.parent.mkdir(exist_ok=True)
        drifts.draw(path, drift, profiles, names)
    return failed.why
