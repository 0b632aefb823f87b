"""The name and the speed of a node, as this run knows them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.cluster.placement.reservation import Node, living_nodes
from orchestrator.errors import ClusterUnavailable, ConfigurationError


@dataclass(frozen=True)
class NodeTraits:
    """A node, as a run knows it."""

    name: str  # for a person
    speed: float = 1.0  # as declared


def unnamed(node: str) -> NodeTraits:
    return NodeTraits(f"node {node[:8]}")


class TraitsByNode:
    """The traits of the nodes of a Ray. The nodes are looked up again for one that came later."""

    def __init__(self, speeds: Mapping[str, float]) -> None:
        self._speeds = speeds
        self._nodes: dict[str, Node] = {}

    def __call__(self, node: str) -> NodeTraits:
        if node not in self._nodes:
            with contextlib.suppress(ClusterUnavailable):
                self._nodes = {each.id: each for each in living_nodes()}
        found = self._nodes.get(node)
        if found is None:  # it is gone
            return unnamed(node)
        return NodeTraits(f"node {found.name}", self._speeds.get(found.address, 1.0))


def refuse_unknown(speeds: Mapping[str, float], nodes: Sequence[Node]) -> None:
    """Raises ConfigurationError for speeds of nodes that this Ray does not have."""
    known = {node.address for node in nodes}
    if wrong := [address for address in speeds if address not in known]:
        raise ConfigurationError(
            [
                f"cluster.speeds: {address} is no node of this Ray, which has {', '.join(sorted(known))}"
                for address in wrong
            ],
            "give addresses of nodes as Ray lists them, start those that are missing first, or leave cluster.speeds out",
            code="ray.speeds",
        )
