"""Stale-synchronous: replicas run free, but nobody gets more than `staleness` updates ahead of the slowest.

Source: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server" (NIPS 2013).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.comm.synchronization.mode import Mode, bounded
from orchestrator.comm.synchronization.options import REST_EVERY, RestEvery


def ssp(
    *,
    staleness: Annotated[int, Field(ge=0, description="By how many updates a shard may be ahead of the slowest.")] = 3,
    rest_every: RestEvery = REST_EVERY,
) -> Mode:
    return Mode("sprints", bounded(staleness), staleness=staleness, rest_every=rest_every)
