"""Seats are taken in order, freed by the dead, and there is room elsewhere for everybody else."""

from __future__ import annotations

from orchestrator.cluster.members import Place
from orchestrator.cluster.seating import Seating

FIRST, SECOND, ELSEWHERE = (Place(name, {}) for name in ("first", "second", "elsewhere"))


def test_a_replacement_takes_the_seat_of_the_lost() -> None:
    seating = Seating([FIRST, SECOND], ELSEWHERE)
    assert [seating.take(0), seating.take(1), seating.take(2)] == [FIRST, SECOND, ELSEWHERE]
    seating.leave(0)
    seating.leave(2)  # which had none
    seating.leave(0)
    assert [seating.take(3), seating.take(4)] == [FIRST, ELSEWHERE]
