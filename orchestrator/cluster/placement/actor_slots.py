"""Which slot each member gets: a reserved one, used again when its member is gone; beyond those, wherever there is
room.

A run's first members get a placement group with a bundle for each. A replacement takes the bundle of a lost member,
whose CPUs are free again; where its node is gone, Ray moves the bundle to another node that has room. Members beyond
the reserved bundles (a range of workers that grows with the cluster) are started by Ray whenever a node has room for
them. A bundle has its GPU for good. If that is left out, the bundle keeps it from others, and a replacement is started beyond
the bundles where a GPU is free.
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
    """The slots of a run's members."""

    def __init__(
        self,
        places: Sequence[ActorPlacement],  # the reserved ones, those of workers first
        elsewhere: ActorPlacement,  # for all further members
        servers: int = 0,  # how many of the reserved ones are kept for servers, where workers have to be at sites
        # makes a place one where its member works in a copy of the project; None where it needs none
        copied: Copied = lambda _place: None,
        has_room: Callable[[], bool] = lambda: False,  # whether there is room now beyond the reserved places
    ) -> None:
        self._copied = copied
        self._has_room = has_room
        self._cards: dict[int, str] = {}
        self._avoided_cards: frozenset[str] = frozenset()
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
        with_card = [place for place in fit if self._cards.get(id(place)) not in self._avoided_cards]
        if not fit or (not with_card and self._has_room()):
            return self._somewhere()
        place = (with_card or fit)[-1]
        self._free.remove(place)
        self._taken[member] = place
        return place

    def leave(self, member: int) -> None:
        """The member is gone, and its slot is free again."""
        place = self._taken.pop(member, None)
        if place is not None and place.node not in self._avoided:
            self._free.append(place)

    def avoid(self, nodes: Collection[str]) -> None:
        """Nobody is started on these nodes any more."""
        self._avoided |= {*nodes}
        self._free = [place for place in self._free if place.node not in self._avoided]

    def computes_on(self, member: int, card: str) -> None:
        """The member has told the UUID of its GPU, which is that of its slot."""
        if member in self._taken:
            self._cards[id(self._taken[member])] = card

    def avoid_cards(self, cards: Collection[str]) -> None:
        """Nobody is started on these GPUs any more where there is room on others."""
        self._avoided_cards |= {*cards}

    def _somewhere(self) -> ActorPlacement:
        if not self._avoided:
            return self._elsewhere
        others = {_NODE_ID: f"!in({','.join(sorted(self._avoided))})"}
        return replace(self._elsewhere, options={**self._elsewhere.options, "label_selector": others})
