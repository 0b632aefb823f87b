"""The table of topologies: who hands what to whom when workers add up their vectors.

A topology is a function that returns a `Schedule`; adding one is a file and a line in `TOPOLOGIES`, and the laws of
`tests/topologies` then hold it to the same properties as the others. The settings read names and options from here.

What it does not do: execute anything (`orchestrator.engine`), or say when a replica may go on (the sync mode).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.topologies.parameter_server import parameter_server
from orchestrator.topologies.peer_to_peer import peer_to_peer
from orchestrator.topologies.ring import ring
from orchestrator.topologies.schedule import Action, Add, Copy, Finish, Move, Schedule, Send, matrix, program
from orchestrator.topologies.tree import tree

__all__ = [
    "TOPOLOGIES",
    "Action",
    "Add",
    "Copy",
    "Finish",
    "Move",
    "Schedule",
    "Send",
    "Topology",
    "build_schedule",
    "matrix",
    "program",
]


@dataclass(frozen=True)
class Topology:
    """`build(workers, **options)` returns the schedule; `options` are the names it takes, with defaults >= 1."""

    build: Callable[..., Schedule]
    options: dict[str, int] = field(default_factory=dict)


TOPOLOGIES: dict[str, Topology] = {
    "ring": Topology(ring),
    "tree": Topology(tree, {"arity": 2}),
    "parameter_server": Topology(parameter_server, {"servers": 1}),
    "peer_to_peer": Topology(peer_to_peer),
}


def build_schedule(name: str, workers: int, **options: int) -> Schedule:
    """The schedule of a topology; options that are not given have their defaults.

    Raises ValueError for an unknown name, an option that this topology does not have, or a number below 1.
    """
    if name not in TOPOLOGIES:
        raise ValueError(f"there is no topology {name!r}; choose one of {', '.join(TOPOLOGIES)}")
    topology = TOPOLOGIES[name]
    unknown = [option for option in options if option not in topology.options]
    if unknown:
        on_offer = f"its options are {', '.join(topology.options)}" if topology.options else "it has no options"
        raise ValueError(f"topology {name} has no option {', '.join(unknown)}; {on_offer}")
    return topology.build(workers, **{**topology.options, **options})
