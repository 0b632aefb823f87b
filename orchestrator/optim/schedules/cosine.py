"""From 1 to `final` at the step `end`, or the last one, along half a cosine, and `final` after it.

Source: Loshchilov and Hutter, "SGDR" (2017), equation 5.
"""

from __future__ import annotations

import math

from orchestrator.optim.schedules.moment import EndStep, FinalFactor, Moment


def cosine(at: Moment, *, final: FinalFactor = 0.0, end: EndStep = None) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * at.part(end))) / 2
