"""Which place each member lives in: a reserved one, again when its member is gone; beyond those, wherever there is room.

A run's first members get a placement group with a seat for each. A replacement takes the seat of a lost member, whose CPUs
are free again; where its node is gone, Ray moves the seat to another node that has room. Members beyond the reserved seats
(a range of workers that grows with the cluster) are started by Ray whenever a node has room for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cluster.actors.members import ActorPlacement


class ActorSlots:
    """places: the reserved ones; elsewhere: for everybody else."""

    def __init__(self, places: Sequence[ActorPlacement], elsewhere: ActorPlacement) -> None:
        self._free = list(reversed(places))
        self._elsewhere = elsewhere
        self._taken: dict[int, ActorPlacement] = {}

    def take(self, member: int) -> ActorPlacement:
        """A place for a new member."""
        if not self._free:
            return self._elsewhere
        self._taken[member] = self._free.pop()
        return self._taken[member]

    def leave(self, member: int) -> None:
        """The member is no more."""
        place = self._taken.pop(member, None)
        if place is not None:
            self._free.append(place)
