"""Gossip: each shard has a model of its own, which it mixes with its neighbours' in a graph over the shards. The graph is over
shards and not over workers, or the number of workers would change the result.

Source: Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (NIPS 2017), D-PSGD.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.comm.synchronization.mode import Mode
from orchestrator.comm.synchronization.options import REST_EVERY, RestEvery


def gossip(
    *,
    graph: Annotated[
        Literal["ring", "exponential", "complete"], Field(description="Which shards mix their models.")
    ] = "ring",
    rest_every: RestEvery = REST_EVERY,
) -> Mode:
    return Mode("gossip", rest_every=rest_every, graph=graph)
