"""The table of partitions: which client owns which training sample. A shard is a client, or plays one
that is drawn for each step where there are more (`data/clients.py`), and draws its micro-batches from what the client owns.

A partition is a function `name(population: Population, *, option, ...)` that returns an owner per sample, int64 of shape
(samples,), from 0 on: a disjoint cover by its form. It depends on the population alone: seed, labels, numbers; never on workers
or time. Adding one is a file and a line in `PARTITIONS`. A user's own is held to the laws at launch (`laws.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.common.registry import Table
from orchestrator.data.sampling.partitions.contiguous import contiguous
from orchestrator.data.sampling.partitions.dirichlet import dirichlet
from orchestrator.data.sampling.partitions.iid import iid
from orchestrator.data.sampling.partitions.natural import natural
from orchestrator.data.sampling.partitions.pathological import pathological
from orchestrator.data.sampling.partitions.shared import shared
from orchestrator.data.sampling.partitions.stratified import stratified
from orchestrator.data.sampling.population import Whole

__all__ = ["PARTITIONS"]

PARTITIONS: Table[Callable[..., Whole | None]] = Table(
    "data.partition",
    {
        "shared": shared,
        "iid": iid,
        "contiguous": contiguous,
        "stratified": stratified,
        "dirichlet": dirichlet,
        "pathological": pathological,
        "natural": natural,
    },
)
