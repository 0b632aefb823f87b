"""Planted bugs of the protocol are found; without them the same hunts find nothing."""

from __future__ import annotations

import pytest

from campaign import lives, mutants

QUICK = 20


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: mutants.Mutant) -> None:
    told = mutants.hunt(mutant)
    assert told["found"] or mutant.missed, told


@pytest.mark.slow
@pytest.mark.parametrize("kind", lives.KINDS)
def test_lives_without_a_planted_bug_end_as_they_should(kind: str) -> None:
    for seed in range(QUICK):
        lives.live(kind, seed)


def test_there_are_twenty_and_each_has_a_name() -> None:
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 20
    assert sum(not mutant.missed for mutant in mutants.MUTANTS) >= 19
