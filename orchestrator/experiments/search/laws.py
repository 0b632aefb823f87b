"""The laws of every search: the tests hold those of the table to them, and a sweep a user's own before it starts.

    points of the space    as many as are asked for, each with a value for every key, of the range or the choices
    pure                   what is asked for depends on space, results, seed and options alone: asked again, it is the same

They do not judge whether a search finds anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.experiments.search import SEARCHES
from orchestrator.experiments.search.asking import Result, Search, Trial, next_batch
from orchestrator.experiments.search.space import Space, problem_of

_BATCHES = 3  # that are looked at


def problems(space: Space, search: Search, seed: int) -> list[str]:
    """The fault of a search of the user's project; at most one sentence."""
    return SEARCHES.judge(search.name, lambda: broken(space, search, seed))


def broken(space: Space, search: Search, seed: int) -> str | None:
    """The law that it breaks, as a predicate; None where it keeps to all."""
    results: list[Result] = []
    for _ in range(_BATCHES):
        batch = next_batch(space, search, seed, results)
        wanted = max(0, min(search.batch, search.trials - len(results)))
        if len(batch) != wanted:
            return f"gives {len(batch)} points where {wanted} are asked for"
        wrong = next((found for trial in batch if (found := problem_of(space, trial.point)) is not None), None)
        if wrong is not None:
            return wrong
        again = next_batch(space, search, seed, results)
        if again != batch:
            return (
                f"is not pure: trial {batch[0].number} and those after it came out otherwise when asked for again; points must "
                "depend on what is asked and on the options alone"
            )
        results += _results(batch)
    return None


def _results(batch: Sequence[Trial]) -> list[Result]:
    """One trial in five fails, one is pruned, and the others have a value."""
    return [
        Result(
            trial,
            None if trial.number % 5 == 3 else math.sin(trial.number),
            steps=10,
            pruned=trial.number % 5 == 4,
        )
        for trial in batch
    ]
