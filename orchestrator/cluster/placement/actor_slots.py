"""Which slot each member gets: a reserved one, used again when its member is gone; beyond those, wherever there is
room.

A run's first members get a placement group with a bundle for each. A replacement takes the bundle of a lost member,
whose CPUs are free again; where its node is gone, Ray moves the bundle to another node that has room. Members beyond
the reserved bundles (a range of workers that grows with the cluster) are started by Ray whenever a node has room for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.controller.events import Role

_NODE_ID: Final = "ray.io/node-id"  # a label that Ray gives to each node


Copied = Callable[[ActorPlacement], ActorPlacement | None]


class ActorSlots:
    """The slots of a run's members. places: the reserved ones, those of workers first; elsewhere: for all further members;
    servers: how many of the reserved ones are kept for servers, where workers have to be at sites; copied: makes a place one
    where its member works in a copy of the project; None where it needs none."""

    def __init__(
        self,
        places: Sequence[ActorPlacement],
        elsewhere: ActorPlacement,
        servers: int = 0,
        copied: Copied = lambda _place: None,
    ) -> None:
        self._copied = copied
        self._in_copies: set[int] = set()
        self._servers = {id(place) for place in places[len(places) - servers :]}
        self._free = list(reversed(places))
        self._elsewhere = elsewhere
        self._taken: dict[int, ActorPlacement] = {}
        self._avoided: frozenset[str] = frozenset()

    def take(self, member: int, role: Role) -> ActorPlacement:
        """The slot for a new member."""
        place = self._place(member, role)
        copy = None if place.project is None else self._copied(place)
        if place.project is None or copy is not None:
            self._in_copies.add(member)
        return place if copy is None else copy

    def has_copy(self, member: int) -> bool:
        """Whether the member works in a copy of the project."""
        return member in self._in_copies

    def _place(self, member: int, role: Role) -> ActorPlacement:
        fit = [place for place in self._free if not self._servers or (id(place) in self._servers) == (role == "server")]
        if not fit:
            return self._somewhere()
        self._free.remove(fit[-1])
        self._taken[member] = fit[-1]
        return fit[-1]

    def leave(self, member: int) -> None:
        """The member is gone, and its slot is free again."""
        place = self._taken.pop(member, None)
        if place is not None and place.node not in self._avoided:
            self._free.append(place)

    def avoid(self, nodes: Collection[str]) -> None:
        """Nobody is started on these nodes any more."""
        self._avoided |= {*nodes}
        self._free = [place for place in self._free if place.node not in self._avoided]

    def _somewhere(self) -> ActorPlacement:
        if not self._avoided:
            return self._elsewhere
        others = {_NODE_ID: f"!in({','.join(sorted(self._avoided))})"}
        return replace(self._elsewhere, options={**self._elsewhere.options, "label_selector": others})
