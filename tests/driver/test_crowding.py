"""The notes on more workers than a machine is made for."""

from __future__ import annotations

import os

import pytest

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.driver.launch import rehearsal
from orchestrator.driver.preflight import crowding
from orchestrator.worker.model.construction import Rehearsal

BASE = {"run": {"steps": 2}, "pipeline": {"target": "a:B"}, "data": {"shards": 32}}


@pytest.mark.parametrize(("processes", "turns"), [(2, None), (4, None), (5, 3), (128, 64)])
def test_more_than_two_processes_on_a_core_are_told_what_they_cost(processes: int, turns: int | None) -> None:
    said = [*crowding.sentences("all", processes, 1, 2, 10**9)]
    if turns is None:
        assert said == []
    else:
        (told,) = said
        assert told.startswith("all on 2 cores: ")
        assert f", {turns} on a core," in told


def test_more_than_fits_into_memory_is_told_whatever_the_cores() -> None:
    (told,) = crowding.sentences("all", 4, 3 * 10**9, 64, 10**10)
    assert told == (
        "all take at least 12 GB of memory, 3 GB each, and 10 GB are free: use fewer, or the kernel may end "
        "some of them"
    )
    assert not [*crowding.sentences("all", 4, 25 * 10**8, 64, 10**10)]


def test_it_is_the_largest_layout_of_a_private_ray_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})
    monkeypatch.setattr(crowding, "available_bytes", lambda: 10**9)
    plan = resolve(load([BASE], ["cluster.workers={min: 1, max: 20}"]))
    crowded, large = crowding.notes(plan, 10**6)
    assert crowded.startswith("20 workers on 2 cores")
    assert "at least 1.36 GB of memory, 68 MB each" in large
    assert len(crowding.notes(plan, None)) == 2
    joined = resolve(load([BASE], ["cluster.workers={min: 1, max: 20}", "cluster.address=head:6379"]))
    assert crowding.notes(joined, 10**6) == []


@pytest.mark.parametrize(
    ("free", "said"), [(2 * 10**9, "1 of 5 workers prepares"), (4 * 10**9, "3 of 5 workers prepare")]
)
def test_stages_that_cannot_all_prepare_at_once_are_told(free: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {*range(64)})
    monkeypatch.setattr(crowding, "available_bytes", lambda: free)
    plan = resolve(load([BASE], ["cluster.workers=4", "cluster.spares=1", "cluster.stages=2", "optimizer=sgd"]))
    assert crowding.notes(rehearsal.with_preparing(plan, Rehearsal([], None)), 10**6) == []
    plan = rehearsal.with_preparing(plan, Rehearsal([], 10**8))
    (told,) = crowding.notes(plan, 10**6)
    assert told.startswith(f"{said} at a time: each has the whole model then, which takes 800 MB, and ")
    monkeypatch.setattr(crowding, "available_bytes", lambda: 10**10)
    assert crowding.notes(plan, 10**6) == []
