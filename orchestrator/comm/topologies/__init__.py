"""The table of topologies: who hands what to whom when workers add up their vectors.

A topology is a function that returns a `Schedule`; adding one is a file and a line in `TOPOLOGIES`, and the laws of
`tests/comm/topologies` then hold it to the same properties as the others. Settings and documentation read names and options
from here. One that has members besides the workers has an option `servers`, their number; one with a parameter `nodes` is told
which members share memory, which is no option: a layout changes no bit. A user's own meets the laws at launch.

Schedules are executed by `orchestrator.worker`, and the sync mode says when a replica may go on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.comm.topologies.hierarchical import hierarchical
from orchestrator.comm.topologies.listed import listed
from orchestrator.comm.topologies.parameter_server import parameter_server
from orchestrator.comm.topologies.peer_to_peer import peer_to_peer
from orchestrator.comm.topologies.ring import ring
from orchestrator.comm.topologies.schedule import Action, Add, Copy, Finish, Move, Schedule, Send, matrix, program
from orchestrator.comm.topologies.tree import tree
from orchestrator.common.registry import Table

__all__ = [
    "TOPOLOGIES",
    "Action",
    "Add",
    "Copy",
    "Finish",
    "Move",
    "Schedule",
    "Send",
    "asks_for_nodes",
    "build_schedule",
    "listed",
    "matrix",
    "program",
]


TOPOLOGIES: Table[Callable[..., Schedule]] = Table(
    "topology",
    {
        "ring": ring,
        "tree": tree,
        "parameter_server": parameter_server,
        "peer_to_peer": peer_to_peer,
        "hierarchical": hierarchical,
    },
    hidden=("nodes",),
)


def build_schedule(name: str, workers: int, *, nodes: Sequence[int] = (), **options: Any) -> Schedule:
    """The schedule of a topology; options that are not given have their defaults. nodes: by rank, servers too, for one that
    asks which members share memory; none: all do.

    Raises ConfigurationError for an unknown name or a wrong option, ValueError for a number of workers below 1.
    """
    build = TOPOLOGIES.build(name, options)
    return build(workers, nodes=nodes) if asks_for_nodes(name) else build(workers)


def asks_for_nodes(name: str) -> bool:
    """Whether who adds up with whom depends on which members share memory. Raises ConfigurationError for an unknown name."""
    return "nodes" in inspect.signature(TOPOLOGIES[name]).parameters
