"""From 1 to `final` at the last step, along half a cosine.

Source: Loshchilov and Hutter, "SGDR" (2017), equation 5.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from orchestrator.updates.schedules.moment import Moment


def cosine(
    at: Moment, *, final: Annotated[float, Field(ge=0, description="The factor at the last step.")] = 0.0
) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * at.part())) / 2
