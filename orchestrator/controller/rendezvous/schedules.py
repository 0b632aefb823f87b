"""By which schedules the workers of a generation add up. Pure functions; no bit depends on them under exact sums.

A gradient is added up among those who host its parameters: by the schedule of the generation where every worker has the whole
model, and by that of a stage's group where it is cut into stages. All members vote together, by a tree of their own
(`comm.topologies.voting`).
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.comm.topologies import Schedule, build_schedule
from orchestrator.config.plan import Exchange, Variant
from orchestrator.controller.events import Begin

_STAND_IN = Variant("peer_to_peer", {})  # while no server lives: any exact topology gives the same bits


@dataclass(frozen=True)
class Group:
    """The workers that host one stage, and how they add up. ranks: in the generation, ascending; schedule: among them, where
    `ranks[i]` is its rank i."""

    ranks: tuple[int, ...]
    schedule: Schedule

    def place(self, rank: int) -> int:
        """The rank in `schedule`. Raises ValueError for one that is not in this group."""
        return self.ranks.index(rank)

    def peers_of(self, rank: int) -> frozenset[int]:
        """The ranks of the generation that `rank` talks with in a sum."""
        return frozenset(self.ranks[peer] for peer in self.schedule.peers_of(self.place(rank)))


def schedule_of(begin: Begin, exchange: Exchange) -> Schedule:
    """The schedule of the run's topology, with the servers that live; another topology's if it wants servers and none
    lives."""
    topology = _STAND_IN if begin.without_servers else exchange.topology
    servers = {"servers": begin.servers} if begin.servers else {}
    return build_schedule(topology.name, begin.workers, nodes=begin.nodes, **{**topology.options, **servers})


def groups_of(begin: Begin, exchange: Exchange) -> tuple[Group, ...]:
    """By stage, those who add up its gradient; none where every worker has the whole model."""
    found: dict[int, list[int]] = {}
    for rank, stage in enumerate(begin.stages):
        found.setdefault(stage, []).append(rank)
    topology = exchange.topology

    def schedule(ranks: list[int]) -> Schedule:
        return build_schedule(
            topology.name, len(ranks), nodes=[begin.nodes[rank] for rank in ranks], **topology.options
        )

    return tuple(Group(tuple(ranks), schedule(ranks)) for _, ranks in sorted(found.items()))
