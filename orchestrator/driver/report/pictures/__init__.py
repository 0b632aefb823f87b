"""Pictures of a run that has ended: the curves of loss and metrics, and the topology it ran on.

    places.py     where members stand: pure, no drawing
    series.py     what of a long trace can be seen: pure, no drawing
    drawing.py    both, with matplotlib, which only this module imports, and only when it draws

A run is complete without its pictures: `draw` never raises, and returns a sentence that says what it could not do.
"""

from __future__ import annotations

import logging
from pathlib import Path

from orchestrator.topologies import Schedule


def draw(folder: Path, trace: Path, journal: Path, title: str, schedule: Schedule) -> str | None:
    """Write `loss.png` (when there was a step) and `topology.svg` into `folder`; None, or what went wrong."""
    try:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
        from orchestrator.driver.report.pictures import drawing, series

        folder.mkdir(exist_ok=True)
        drawing.topology(schedule, folder / "topology.svg")
        losses = series.losses(trace)
        if losses:
            drawing.curves(losses, series.metrics(journal), title, folder / "loss.png")
    except Exception as error:  # whatever a drawing library can raise: the run is whole without its pictures
        return f"the pictures could not be drawn: {type(error).__name__}: {error}"
    return None
