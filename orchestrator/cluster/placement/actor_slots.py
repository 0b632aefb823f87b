"""Which slot each member gets: a reserved one, used again when its member is gone; beyond those, wherever there is
room.

A run's first members get a placement group with a bundle for each. A replacement takes the bundle of a lost member,
whose CPUs are free again; where its node is gone, Ray moves the bundle to another node that has room. Members beyond
the reserved bundles (a range of workers that grows with the cluster) are started by Ray whenever a node has room for
them. A bundle has its GPU for good. If that is left out, the bundle keeps it from others, and a replacement is started beyond
the bundles where a GPU is free. Ray gives a part of a GPU where most of it is taken already, so a replacement takes a whole one
where such a part is left of the GPU that is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement.reservation import NODE_ID
from orchestrator.controller.events import Role

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
        # whether there is room now, beyond the reserved places, for a member with so much of a GPU
        has_room: Callable[[float], bool] = lambda _gpus: False,
        gpus: Callable[[], float] = lambda: 0,  # how many the cluster has
    ) -> None:
        self._copied = copied
        self._has_room = has_room
        self._gpus = gpus
        self._cards: dict[int, str] = {}
        self._avoided_cards: frozenset[str] = frozenset()
        self._in_copies: set[int] = set()
        self._servers = {id(place) for place in places[len(places) - servers :]}
        self._free = list(reversed(places))
        self._elsewhere = elsewhere
        self._taken: dict[int, ActorPlacement] = {}
        self._avoided: frozenset[str] = frozenset()

    def take(self, member: int, role: Role) -> ActorPlacement | None:
        """The slot for a new member; None if all room is on GPUs that are left out."""
        place = self._place(member, role)
        if place is None:
            return None
        copy = None if place.project is None else self._copied(place)
        if place.project is None or copy is not None:
            self._in_copies.add(member)
        return place if copy is None else copy

    def has_copy(self, member: int) -> bool:
        """Whether the member works in a copy of the project."""
        return member in self._in_copies

    def _place(self, member: int, role: Role) -> ActorPlacement | None:
        fit = [place for place in self._free if not self._servers or (id(place) in self._servers) == (role == "server")]
        with_card = [place for place in fit if self._cards.get(id(place)) not in self._avoided_cards]
        if not with_card:
            return self._somewhere() if not fit or self._has_room(self._gpus_elsewhere()) else None
        place = with_card[-1]
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
        """Nobody is started on these GPUs any more."""
        self._avoided_cards |= {*cards}

    def others_have_cards(self) -> bool:
        """Whether the cluster has GPUs in which this run has no slot, so that one may become free."""
        return self._gpus() > len({*self._cards.values()})

    def _gpus_elsewhere(self) -> float:
        """The GPU that a member takes beyond the reserved places."""
        part: float = self._elsewhere.options.get("num_gpus", 0)
        reserved = Counter(card for card in self._cards.values() if card in self._avoided_cards)
        left = any(part * (bundles + 1) <= 1 for bundles in reserved.values())
        return 1 if 0 < part < 1 and left else part

    def _somewhere(self) -> ActorPlacement:
        options: dict[str, Any] = {}
        if (gpus := self._gpus_elsewhere()) != self._elsewhere.options.get("num_gpus", 0):
            options["num_gpus"] = gpus
        if self._avoided:
            options["label_selector"] = {NODE_ID: f"!in({','.join(sorted(self._avoided))})"}
        return replace(self._elsewhere, options={**self._elsewhere.options, **options}) if options else self._elsewhere
