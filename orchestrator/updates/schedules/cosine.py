"""From 1 to `final` at the step `end`, or the last one, along half a cosine, and `final` after it.

Source: Loshchilov and Hutter, "SGDR" (2017), equation 5.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from orchestrator.updates.schedules.moment import Moment
from orchestrator.values import Span


def cosine(
    at: Moment,
    *,
    final: Annotated[float, Field(ge=0, description="The factor at the end.")] = 0.0,
    end: Annotated[
        Span | None, Field(description="The step at which the factor is `final`, and stays so; null: the last one.")
    ] = None,
) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * at.part(end))) / 2
