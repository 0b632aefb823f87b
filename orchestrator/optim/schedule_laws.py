"""The laws of every schedule: the tests hold those of the table to them, and a launch a user's own.

    finite, not negative    its factor is a number of at least 0
    pure                    the factor of a moment depends on the moment alone: asked again, it is the same

It does not look at every step of a long run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.optim.schedules import SCHEDULES, Moment, build

_LOOKS = 1000  # at so many steps, the last one among them


def problems(name: str, options: Mapping[str, Any], warmup: int, steps: int) -> list[str]:
    """The faults of a schedule of the user's project in a run of so many steps; at most one sentence."""
    return SCHEDULES.judge(name, lambda: broken(build(name, options), warmup, steps))


def broken(factor: Callable[[Moment], float], warmup: int, steps: int) -> str | None:
    """The law that it breaks, as a predicate; None where it keeps to all."""
    looks = sorted({*range(0, steps, max(1, steps // _LOOKS)), steps - 1})
    moments = [Moment(step, steps, warmup, reductions) for step in looks for reductions in (0, 3)]
    found = [factor(at) for at in moments]
    for at, value in zip(moments, found, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"gives {value!r} at step {at.step} of {steps}; the factor must be a number"
        if not math.isfinite(value) or value < 0:
            return f"gives {value!r} at step {at.step} of {steps}; the factor must be finite and at least 0"
    for at, value in reversed(list(zip(moments, found, strict=True))):
        again = factor(at)
        if again != value:
            return (
                f"is not pure: at step {at.step} of {steps} it gave {value!r}, and {again!r} when asked again; the factor must "
                "depend on the moment and the options alone"
            )
    return None
