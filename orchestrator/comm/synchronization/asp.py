"""Approximate-synchronous: replicas run free and send what is significant, an element whose unsent change is at least
`threshold / sqrt(clock + 1)` of its value; the rest is kept and added to the next update's. At each rest everything is sent.

With `staleness`, the mirror clock of the source, nobody gets more updates than that ahead of the slowest.
Source: Hsieh et al., "Gaia: geo-distributed machine learning approaching LAN speeds" (NSDI 2017).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.comm.synchronization.mode import Mode, bounded, never
from orchestrator.comm.synchronization.options import REST_EVERY, RestEvery


def asp(
    *,
    threshold: Annotated[
        float, Field(gt=0, description="The relative change of an element from which on it is sent, at the start.")
    ] = 0.01,
    staleness: Annotated[
        int | None, Field(ge=0, description="By how many updates a shard may be ahead of the slowest.")
    ] = None,
    rest_every: RestEvery = REST_EVERY,
) -> Mode:
    waits = never if staleness is None else bounded(staleness)
    return Mode("sprints", waits, staleness=staleness, threshold=threshold, rest_every=rest_every)
