"""Planted bugs of the protocol are found; without them the same hunts find nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from campaign import disagreements, lives, mutants, reports
from tests.products import thinned

QUICK = 20
SEEDS = range(30)


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(SEEDS, 15))
def test_a_replica_that_differs_in_one_bit_ends_the_run_by_the_name_of_that_step(seed: int) -> None:
    disagreements.one_differs(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(SEEDS, 15, 2))
def test_votes_of_several_levels_change_no_bit(seed: int) -> None:
    disagreements.none_differs(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(SEEDS, 15, 1))
def test_each_report_of_a_member_comes_to_the_driver_once_whatever_happens(seed: int) -> None:
    reports.each_comes_once(seed)


@pytest.mark.long
def test_lives_and_mutants_need_no_pytest(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "campaign", "--lives", "1", "--results", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout.count("1 lives")) == (0, len(lives.KINDS)), told.stderr


def test_there_are_many_and_each_has_a_name() -> None:
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 28
    assert sum(not mutant.missed for mutant in mutants.MUTANTS) >= 26
