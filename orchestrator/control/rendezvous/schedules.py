"""By which schedule the workers of a generation add up. A pure function; no bit depends on it under exact sums."""

from __future__ import annotations

from orchestrator.control.events import Begin
from orchestrator.plan import Exchange, Variant
from orchestrator.topologies import Schedule, build_schedule

_STAND_IN = Variant("peer_to_peer", {})  # while no server lives: any exact topology gives the same bits


def schedule_of(begin: Begin, exchange: Exchange) -> Schedule:
    """That of the run's topology, with the servers that live; another topology's where it wants servers and none lives."""
    topology = _STAND_IN if begin.without_servers else exchange.topology
    servers = {"servers": begin.servers} if begin.servers else {}
    return build_schedule(topology.name, begin.workers, **{**topology.options, **servers})
