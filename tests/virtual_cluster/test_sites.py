"""A site goes and comes back under a true driver and true members; the run is repeated without sites on other layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement.actor_slots import ActorSlots
from orchestrator.common.values import Sites
from orchestrator.config.settings import Settings
from orchestrator.records import trace
from tests.products import thinned
from tests.virtual_cluster.cluster import HERE, THERE, Member
from tests.virtual_cluster.plans import START_TIMEOUT_S, STEP_TIMEOUT_S, Chance, Plan, plan
from tests.virtual_cluster.runs import Run, Told
from tests.worker import pipelines
from tests.worker.runs import ONE, Layout, settings_for

STEPS = 12
SGD = {"name": "sgd", "lr": 0.05}
DIVIDED = "by a divided update"
MODES: dict[str, dict[str, Any]] = {
    "in lockstep": {},
    "in rounds": {"local": {"epochs": 1, "optimizer": SGD}},
    DIVIDED: {"optimizer": {"name": "adamw", "lr": 0.02}},
}


class Outage(Chance):
    """The other node is lost in step `first`, and for so many seconds nothing starts there."""

    def __init__(self, drawn: Plan, first: int, seconds: float) -> None:
        super().__init__(drawn)
        self._first, self._seconds = first, seconds
        self._until: float | None = None

    def meets(self, member: Member | None) -> None:
        schedule = self.cluster.schedule
        there = [each for each in self.cluster.living("worker") if each.node == THERE and each.hubs]
        if member is None or self._until is not None or not there:
            return
        if max((each.progress.steps for each in there if each.progress), default=0) >= self._first:
            self._until = schedule.now + self._seconds
            for each in there:
                self.cluster.kill(each, heard=schedule.dice.random() < 0.5)

    def starts(self, member: Member) -> None:
        left = (self._until or 0.0) - self.cluster.schedule.now
        if member.node == THERE and left > 0:
            self.cluster.schedule.sleep(left)


class AtSites(Run):
    def __init__(self, drawn: Plan, folder: Path, outage: Outage) -> None:
        super().__init__(drawn, folder)
        self._chance = self._cluster.misfortune = outage
        outage.cluster = self._cluster

    def _actor_slots(self, settings: Settings) -> ActorSlots:
        third = HERE if settings.update.sharded else THERE
        places = [ActorPlacement(None, {"node": node}) for node in (HERE, THERE, third)]
        return ActorSlots(places[: settings.cluster.workers.most], places[0])


def free(mode: str, layout: Layout = ONE) -> Settings:
    plain: dict[str, Any] = {"steps": STEPS, "shards": 4, "partition": {"name": "contiguous"}}
    return settings_for(pipelines.Mlp, layout, **plain, **MODES[mode])


def pinned(mode: str, workers: int, absent: Literal["wait", "sit_out"]) -> Settings:
    plain = free(mode, Layout(workers))
    data = replace(plain.data, sites=Sites({HERE: (0, 1), THERE: (2, 3)}), absent=absent)
    timeouts: dict[str, Any] = {"step_timeout_s": STEP_TIMEOUT_S, "start_timeout_s": START_TIMEOUT_S}
    update = replace(plain.update, sharded=mode == DIVIDED)
    return replace(plain, data=data, update=update, cluster=replace(plain.cluster, address="h:1", **timeouts))


def lived(settings: Settings, seed: int, folder: Path) -> Told:
    drawn = Plan(
        seed, "sites", (settings,), 0.5, 0.1, 0, apart=True, everywhere=True, wild=False, misses_farewells=False
    )
    dice = Random(seed)
    outage = Outage(drawn, dice.randrange(1, STEPS - 4), dice.choice([0.5, 3.0, 30.0]))
    told = AtSites(drawn, folder, outage).live()
    assert told.outcomes[-1] is not None
    assert told.outcomes[-1].error is None
    return told


def absences(told: Told, folder: Path) -> dict[int, tuple[int, ...]]:
    file = folder / "trace.jsonl"
    file.write_bytes(told.trace)
    return trace.sat_out(file)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(0, 6, 3), 2))
@pytest.mark.parametrize("mode", thinned(MODES, 2))
def test_a_site_sits_out_and_the_repetition_without_sites_has_its_trace(mode: str, first: int, tmp_path: Path) -> None:
    sat_out = 0
    for seed in range(first, first + 3):
        workers = 3 if mode == DIVIDED else 2 + seed % 2
        told = lived(pinned(mode, workers, "sit_out"), seed, folder := tmp_path / f"live{seed}")
        away = absences(told, folder)
        assert set(away.values()) <= {(2, 3)}
        sat_out += bool(away)
        drawn = plan(seed)
        layouts = tuple(
            replace(free(mode), cluster=each.cluster, topology=each.topology, checkpoint=each.checkpoint)
            for each in drawn.layouts
        )
        run = Run(replace(drawn, layouts=layouts, identity="rich", wild=False), tmp_path / f"again{seed}")
        run._cluster.sat_out = away
        assert run.live().trace == told.trace
    assert sat_out > 1


@pytest.mark.slow
def test_a_run_that_waits_for_a_site_ends_as_if_it_had_not_gone(tmp_path: Path) -> None:
    told = lived(pinned("in lockstep", 2, "wait"), 3, tmp_path / "live")
    quiet = replace(plan(3), layouts=(free("in lockstep"),), budget=0, wild=False)
    assert Run(quiet, tmp_path / "calm").live().trace == told.trace
