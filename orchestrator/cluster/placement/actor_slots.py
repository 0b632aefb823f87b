"""Which slot each member gets: a reserved one, used again when its member is gone; beyond those, wherever there is
room.

A run's first members get a placement group with a bundle for each. A replacement takes the bundle of a lost member,
whose CPUs are free again; where its node is gone, Ray moves the bundle to another node that has room. Members beyond
the reserved bundles (a range of workers that grows with the cluster) are started by Ray whenever a node has room for
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cluster.actors.members import ActorPlacement


class ActorSlots:
    """The slots of a run's members. places: the reserved ones; elsewhere: for all further members."""

    def __init__(self, places: Sequence[ActorPlacement], elsewhere: ActorPlacement) -> None:
        self._free = list(reversed(places))
        self._elsewhere = elsewhere
        self._taken: dict[int, ActorPlacement] = {}

    def take(self, member: int) -> ActorPlacement:
        """The slot for a new member."""
        if not self._free:
            return self._elsewhere
        self._taken[member] = self._free.pop()
        return self._taken[member]

    def leave(self, member: int) -> None:
        """The member is gone, and its slot is free again."""
        place = self._taken.pop(member, None)
        if place is not None:
            self._free.append(place)
