"""Which clients play in a round: each with the same chance, independent of all others (Poisson sampling).

A client's draw is at a place of its own in the stream, so whether it plays does not depend on who else there is. Who plays is
secret: it is what makes a round's epsilon small (Mironov, Talwar and Zhang, 2019), and is told to workers only.
"""

from __future__ import annotations

import numpy

from orchestrator.privacy.keys import Keys

_RANGE = 1 << 64


def players(keys: Keys, round_: int, expected: int, clients: int) -> list[int]:
    """The numbers of those that play, in order. expected: so many do on average, of `clients`."""
    if expected >= clients:
        return list(range(clients))
    below = numpy.uint64(expected * _RANGE // clients)
    found: list[int] = numpy.flatnonzero(keys.stream("clients", round_).take(clients) < below).tolist()
    return found


def dealt(players: list[int], slots: int) -> list[tuple[int, ...]]:
    """By slot, whom it plays: evenly, in turns."""
    return [tuple(players[slot::slots]) for slot in range(slots)]
