"""Marks as benchmarks/nodes.py reads them; the rest of it needs root and minutes."""

from __future__ import annotations

import os

import pytest

from benchmarks.nodes import first_step, main, repeated, stillness
from benchmarks.recovery import Marks

LOSS = 10.0  # at step 3, which the victim, 1, has completed as well
SURVIVED: Marks = {
    1: [(9.8, 2), (9.9, 3)],
    2: [(9.8, 2), (9.9, 3), (10.1, 4), (10.5, 5), (10.7, 6)],
    3: [(9.8, 2), (9.9, 3), (10.1, 4), (10.6, 5), (10.8, 6)],
}
RESTARTED: Marks = {
    1: [(9.8, 2), (9.9, 3)],
    2: [(9.8, 2), (9.9, 3), (10.1, 4)],
    4: [(30.0, 3), (30.1, 4), (30.2, 5)],
    5: [(30.1, 3), (30.2, 4), (30.3, 5)],
}


def of(marks: Marks, *group: int) -> Marks:
    return {pid: marks[pid] for pid in group}


def test_who_survives_counts_from_the_step_that_the_lost_one_had_no_part_in() -> None:
    assert first_step(of(SURVIVED, 2, 3), LOSS, 5) == 10.6
    assert first_step(of(SURVIVED, 2, 3), LOSS, 7) is None
    assert stillness(SURVIVED, LOSS, 10.6) == pytest.approx(0.4)
    assert repeated(SURVIVED, {2, 3}, LOSS) == 0


def test_who_restarts_counts_from_its_first_step_and_repeats_those_since_the_checkpoint() -> None:
    assert first_step(of(RESTARTED, 4, 5), LOSS, 5) == 30.1
    assert stillness(RESTARTED, LOSS, 30.1) == pytest.approx(19.9)
    assert repeated(RESTARTED, {4, 5}, LOSS) == 2


def test_who_joins_makes_the_group_larger_with_its_first_step() -> None:
    joined = {**of(SURVIVED, 2, 3), 6: [(10.75, 6)]}
    assert first_step(joined, LOSS, 0) == 10.8
    assert repeated({**joined, 1: SURVIVED[1]}, {2, 3, 6}, LOSS) == 0
    assert first_step({}, LOSS, 0) is None


def test_a_step_that_a_process_does_twice_is_repeated() -> None:
    assert repeated({2: [(9.8, 2), (9.9, 3), (10.1, 3), (10.2, 4)]}, {2}, LOSS) == 1


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="needs root"):
        main([])
