"""The modes of synchronisation: when a replica may go on without the others.

A mode is a function of its options that returns a `Mode`; adding one is a function here and a line in `SYNCHRONY`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.comm.synchronization.mode import Mode, bounded, never
from orchestrator.common.registry import Table

# An option that several modes have.
REST_EVERY = 20
RestEvery = Annotated[
    int, Field(ge=1, description="Steps between two rests, at which all replicas become equal, at most.")
]


def bsp() -> Mode:
    """Bulk-synchronous, in lockstep: all replicas go from one equal state to the next together.

    The result does not depend on timing. Source: Valiant, "A bridging model for parallel computation" (1990).
    """
    return Mode("lockstep", bounded(0), staleness=0)


def ssp(
    *,
    staleness: Annotated[int, Field(ge=0, description="By how many updates a shard may be ahead of the slowest.")] = 3,
    rest_every: RestEvery = REST_EVERY,
) -> Mode:
    """Stale-synchronous: replicas run free, but nobody gets more than `staleness` updates ahead of the slowest.

    Source: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server" (NIPS 2013).
    """
    return Mode("sprints", bounded(staleness), staleness=staleness, rest_every=rest_every)


def asp(
    *,
    threshold: Annotated[
        float, Field(gt=0, description="The relative change of an element above which it is sent, at the start.")
    ] = 0.01,
    staleness: Annotated[
        int | None, Field(ge=0, description="By how many updates a shard may be ahead of the slowest.")
    ] = None,
    rest_every: RestEvery = REST_EVERY,
) -> Mode:
    """Approximate-synchronous: replicas run free and send only significant changes; the rest waits and adds up.

    An element is sent if its unsent change is more than `threshold / sqrt(clock + 1)` of its value. At each sync barrier
    everything is sent.

    With `staleness`, the mirror clock of the source, nobody gets more updates than that ahead of the slowest.
    Source: Hsieh et al., "Gaia: geo-distributed machine learning approaching LAN speeds" (NSDI 2017).
    """
    waits = never if staleness is None else bounded(staleness)
    return Mode("sprints", waits, staleness=staleness, threshold=threshold, rest_every=rest_every)


def bap(*, rest_every: RestEvery = REST_EVERY) -> Mode:
    """Barrierless: replicas run free and never wait for each other; each update is sent whole, as soon as it can be.

    Source: Han and Daudjee, "Giraph unchained: barrierless asynchronous parallel execution in Pregel-like graph processing
    systems" (VLDB 2015); for training, Recht et al., "Hogwild!" (NIPS 2011).
    """
    return Mode("sprints", rest_every=rest_every)


def gossip(
    *,
    graph: Annotated[
        Literal["ring", "exponential", "complete"], Field(description="Which shards mix their models.")
    ] = "ring",
    rest_every: RestEvery = REST_EVERY,
) -> Mode:
    """Each shard has a model of its own, which it mixes with those of its neighbours in a graph.

    The graph is over shards and not over workers, or the number of workers would change the result.

    Source: Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (NIPS 2017), D-PSGD.
    """
    return Mode("gossip", rest_every=rest_every, graph=graph)


SYNCHRONY: Table[Callable[..., Mode]] = Table(
    "sync", {"bsp": bsp, "ssp": ssp, "asp": asp, "bap": bap, "gossip": gossip}, given=0
)


def build_mode(name: str, options: Mapping[str, Any]) -> Mode:
    """A mode; options that are not given have their defaults. Raises ConfigurationError."""
    return SYNCHRONY.build(name, options)()
