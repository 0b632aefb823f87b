"""Tells a person what a run that was disturbed on purpose (`chaos`) has shown, and what not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LOSSES = ("lost", "restarted")


def sentence(
    done: Mapping[str, int], recoveries: Sequence[Mapping[str, Any]], run_id: str, *, repeats: bool = True
) -> str:
    """Empty where nothing was done. done: how often what; recoveries: of the run, whatever led to them; repeats: whether a
    step that is done again has to be the same, or the run would have failed."""
    if not done:
        return ""
    listed = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in sorted(done.items()))
    again = sum(recovery["steps_lost"] for recovery in recoveries)
    losses = sum(recovery["kind"] in _LOSSES for recovery in recoveries)
    redone = f"{again} step{'s' * (again != 1)} computed again" if again else "no step lost"
    shown = "; what members reported of a step was the same each time" if repeats else ""
    return (
        f"{listed}; {losses} recover{'ies' if losses != 1 else 'y'}, {redone}{shown}. With an undisturbed run it is compared "
        f"by rerun={run_id}"
    )
