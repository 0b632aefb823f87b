"""The layouts that a run could have, with the step times that follow from measured conditions, and which one is taken. Pure.

Which keys are free is the user's word; each that is not keeps its value. Layouts change no bit, so time alone decides; of those
that are as good within two in a hundred the plainest is taken: the fewest processes, then the first topology of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.common.figures import aligned
from orchestrator.experiments.simulation.calibration import Layout, Model, predicted
from orchestrator.experiments.simulation.conditions import Conditions

WITHIN: Final = 0.02
ALONE: Final = "ring"  # of a single worker: it has no servers
_MOST: Final = 64  # workers: up to 16 all numbers are tried, then those that divide the shards


@dataclass(frozen=True)
class Candidate:
    """A layout that a run could have. predicted_s: of a step; measured_s: None where it was not measured."""

    layout: Layout
    predicted_s: float
    measured_s: float | None = None


@dataclass(frozen=True)
class Choice:
    """The layout that was chosen. reason: a sentence for a person, with the figures."""

    candidate: Candidate
    reason: str


def numbers_of_workers(shards: int, cpus: int) -> list[int]:
    """Worth trying: no more than there are shards or processors, and of many those among which shards are dealt evenly."""
    most = max(1, min(shards, cpus, _MOST))
    return [workers for workers in range(1, most + 1) if workers <= 16 or shards % workers == 0]


def candidates(
    model: Model,
    topologies: Sequence[str],
    workers: Sequence[int],
    loaders: Sequence[int],
    conditions: Callable[[Layout], Conditions],
) -> list[Candidate]:
    """The fastest first. conditions: of a layout. A single worker talks to nobody but servers, so one topology will do."""
    alone = [ALONE if ALONE in topologies else topologies[0]]
    layouts = [
        Layout(topology, number, each)
        for each in loaders
        for number in workers
        for topology in (topologies if number > 1 else alone)
    ]
    listed = [Candidate(layout, predicted(model, layout, conditions(layout))) for layout in layouts]
    return sorted(listed, key=lambda each: (each.predicted_s, _plainness(each.layout, topologies)))


def choose(candidates: Sequence[Candidate], topologies: Sequence[str]) -> Choice:
    """Choose the layout with the shortest step. candidates: at least one. Measured figures count before predicted ones."""
    known = [each for each in candidates if each.measured_s is not None] or list(candidates)
    best = min(map(_seconds, known))
    taken = min(
        (each for each in known if _seconds(each) <= best * (1 + WITHIN)),
        key=lambda each: _plainness(each.layout, topologies),
    )
    others = sorted((each for each in known if each is not taken), key=_seconds)
    what = "measured" if taken.measured_s is not None else "predicted"
    reason = f"a step is {what} to take {_ms(_seconds(taken))}"
    if others:
        reason += f", with {in_words(others[0].layout)} {_ms(_seconds(others[0]))}"
        if _seconds(others[0]) <= _seconds(taken) * (1 + WITHIN):
            reason += ", which is as good, and not as plain"
    return Choice(taken, reason)


def table(candidates: Sequence[Candidate]) -> str:
    """Aligned text."""
    cells = [("topology", "workers", "loaders", "predicted ms", "measured ms")]
    for each in candidates:
        layout, measured = each.layout, "" if each.measured_s is None else f"{1e3 * each.measured_s:.2f}"
        cells.append(
            (layout.topology, str(layout.workers), str(layout.loaders), f"{1e3 * each.predicted_s:.2f}", measured)
        )
    return aligned(cells, left=1)


def in_words(layout: Layout) -> str:
    loaders = f" and {layout.loaders} loader{'s' * (layout.loaders > 1)} each" if layout.loaders else ""
    return f"{layout.workers} worker{'s' * (layout.workers > 1)}, topology {layout.topology}{loaders}"


def _plainness(layout: Layout, topologies: Sequence[str]) -> tuple[int, int, int]:
    return layout.workers * (1 + layout.loaders), layout.workers, topologies.index(layout.topology)


def _seconds(candidate: Candidate) -> float:
    return candidate.predicted_s if candidate.measured_s is None else candidate.measured_s


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
