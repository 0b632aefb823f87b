"""Whole runs under their driver, in which everything happens that can happen: some seeds here, any number by `runs.py`.

python -m tests.virtual_cluster.runs 0-4999         what to run after a change of the controller, the driver or the engine
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.comm.transports.base import Regions
from orchestrator.config.plan import Plan
from orchestrator.numerics import staging
from orchestrator.numerics.device.kernels import Operations
from orchestrator.worker import device
from tests.products import thinned
from tests.virtual_cluster import runs
from tests.virtual_cluster.plans import plan
from tests.worker.retracing import Retracer

SEEDS = 48
FREE_SEEDS = 48
STAGED_SEEDS = 1000
TOGETHER = 2


@pytest.mark.slow
def test_a_plan_is_a_function_of_its_seed_and_has_every_layout() -> None:
    plans = [plan(seed) for seed in range(20)]
    assert plans[:5] == [plan(seed) for seed in range(5)]
    layouts = [settings for drawn in plans for settings in drawn.layouts]
    assert {settings.topology.name for settings in layouts} == {*TOPOLOGIES}
    assert {settings.cluster.workers.start for settings in layouts} == {1, 2, 3, 4}
    assert {settings.topology.options.get("servers") for settings in layouts} == {None, 1, 2}
    meshes = [settings.cluster for seed in range(20) for settings in plan(seed, staged=True).layouts]
    assert {cluster.stages for cluster in meshes} == {1, 2, 3}
    assert any(cluster.workers.start % cluster.stages for cluster in meshes), "some are ragged from the start"


@pytest.mark.slow
def test_a_run_is_a_function_of_its_seed() -> None:
    seed = next(seed for seed in range(100) if plan(seed).budget == 9)
    one, other = runs.live(seed), runs.live(seed)
    assert one.story == other.story
    assert (one.journal, repr(one.outcomes)) == (
        other.journal,
        repr(other.outcomes),
    )  # errors are equal by what they say


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(0, SEEDS, TOGETHER), SEEDS // TOGETHER))
def test_whatever_happens_the_run_ends_as_if_nothing_had(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        runs.live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(0, SEEDS, TOGETHER), SEEDS // TOGETHER))
def test_so_it_does_where_shards_keep_state(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        runs.live(seed, shard_state=True)


# `reduction=fast` adds in another order on a device, so its undisturbed runs are others.
undisturbed_on_a_device = functools.cache(runs.undisturbed.__wrapped__)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(0, SEEDS, TOGETHER), SEEDS // TOGETHER))
def test_so_it_does_where_sums_stay_on_a_device(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """And passes are recorded. The device is none; the regions are those of a run in one process."""

    def opened(plan: Plan, regions: Regions, _tell: object) -> device.Device:
        compute = replace(plan.run.compute, device="cuda")
        there = replace(plan, run=replace(plan.run, compute=compute))
        if not (there.sums_stay_on_device or there.updates_stay_on_device):
            return device.Device(staging.Direct(), regions)
        resident = staging.Resident(torch.device("cpu"))
        return device.Device(resident, regions, kernels=Operations(), recorder=Retracer())

    monkeypatch.setattr(device, "opened", opened)
    monkeypatch.setattr(runs, "undisturbed", undisturbed_on_a_device)
    for seed in range(first, first + TOGETHER):
        runs.live(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(range(STAGED_SEEDS), STAGED_SEEDS, 1))
def test_so_it_does_where_the_model_is_cut_into_stages(seed: int) -> None:
    runs.live(seed, staged=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        *(({}, range(78, 79)), ({"shard_state": True}, range(11, 12))),
        pytest.param({}, range(72, 80), marks=pytest.mark.long),
        pytest.param({"shard_state": True}, range(9, 17), marks=pytest.mark.long),
        pytest.param({"staged": True}, range(8), marks=pytest.mark.long),
    ],
)
def test_so_it_does_where_speeds_change_all_the_time_and_shards_move(kind: dict[str, bool], seeds: range) -> None:
    """With whole models without a state, shards are dealt anew only between hosts: within a host they are claimed."""
    told = [runs.live(seed, uneven=True, **kind) for seed in seeds]
    assert sum(each.redealt for each in told)


@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(range(FREE_SEEDS), FREE_SEEDS, 1))
def test_whatever_happens_an_asynchronous_run_can_be_repeated(seed: int) -> None:
    runs.live_and_repeated(seed)
