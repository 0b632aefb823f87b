"""Down with the square root of the step.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 5.3.
"""

from __future__ import annotations

import math

from orchestrator.optim.schedules.moment import Moment


def inverse_sqrt(at: Moment) -> float:
    return math.sqrt(max(1, at.warmup) / (at.step + 1))
