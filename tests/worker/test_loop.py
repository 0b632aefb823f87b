"""Schedules, early stopping and the plateau are decided by all members alike: one result for every layout."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import Subset, TensorDataset

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.worker.worker import ProcessServices, Worker
from tests.comm.transports.memory import LocalRegions
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.runs import ONE, Layout, settings_for, train

pytestmark = pytest.mark.threads

EVERY = Every(steps=1, seconds=None)
SCATTERED = [Layout(3, "ring"), Layout(4, "parameter_server", servers=2), Layout(5, "peer_to_peer"), Layout(2, "tree")]
STOPPING: dict[str, Any] = {
    "steps": 30,
    "evaluate_every": EVERY,
    "digest_every": 0,
    "optimizer": {"name": "sgd", "lr": 3.0},
}


@pytest.mark.parametrize("layout", thinned(SCATTERED, 4, 1), ids=str)
@pytest.mark.parametrize("metric", [{}, {"metric": "validation/accuracy", "mode": "max"}])
def test_early_stopping_stops_everybody_after_the_same_step(metric: dict[str, Any], layout: Layout) -> None:
    settings = {**STOPPING, "early_stopping": {"patience": 2, **metric}}
    one = train(p.Mlp, ONE, **settings)
    assert 3 <= len(one.trace) < 30
    assert one.trace[-1]["parameters"] == one.digest
    assert len(one.metrics) == len(one.trace)
    assert train(p.Mlp, layout, **settings).trace == one.trace


@pytest.mark.parametrize("layout", thinned(SCATTERED, 4, 3), ids=str)
def test_a_plateau_lowers_the_rate_for_everybody(layout: Layout) -> None:
    settings = {**STOPPING, "steps": 12, "schedule": {"name": "plateau", "patience": 1, "gamma": 0.1}}
    one = train(p.Mlp, ONE, **settings)
    assert one.digest != train(p.Mlp, ONE, **{**settings, "schedule": {}}).digest
    assert train(p.Mlp, layout, **settings).trace == one.trace


def test_a_schedule_changes_the_result_and_not_with_the_layout() -> None:
    settings = {"steps": 6, "schedule": {"name": "cosine", "warmup": 2}}
    one = train(p.Mlp, ONE, **settings)
    assert one.digest != train(p.Mlp, ONE, steps=6).digest
    assert train(p.Mlp, Layout(4, "tree"), **settings).trace == one.trace


def test_an_unknown_metric_is_named_with_those_there_are() -> None:
    with refused("pipeline.no-such-metric"):
        train(p.Mlp, ONE, **{**STOPPING, "early_stopping": {"patience": 1, "metric": "validation/f1"}})


@pytest.mark.parametrize("layout", [ONE, Layout(3, "parameter_server", servers=1)], ids=str)
def test_an_epoch_between_evaluations_is_its_steps(layout: Layout) -> None:
    settings = {"steps": None, "epochs": 2, "early_stopping": {"patience": 5}}
    by_epoch = train(p.Mlp, layout, evaluate_every=Every(epochs=1), **settings)
    by_step = train(p.Mlp, layout, evaluate_every=Every(steps=len(by_epoch.trace) // 2), **settings)
    assert len(by_epoch.metrics) == 2
    assert (by_epoch.trace, by_epoch.metrics) == (by_step.trace, by_step.metrics)


@pytest.mark.parametrize("every", [None, Every(steps=None, seconds=30.0)])
def test_what_watches_needs_evaluations_at_known_steps(every: Every | None) -> None:
    with refused("evaluation.in-steps"):
        settings_for(p.Mlp, evaluate_every=every, early_stopping={"patience": 1})


@pytest.mark.parametrize(
    ("held_out", "every", "told"), [(None, EVERY, 1), (0, EVERY, 1), (7, EVERY, 0), (None, None, 0)]
)
def test_evaluations_that_nothing_can_be_evaluated_in_are_told(
    held_out: int | None, every: Every | None, told: int
) -> None:
    said: list[Any] = []
    settings = settings_for(p.Small, args={"held_out": held_out}, evaluate_every=every)
    Worker(resolve(settings), LocalRegions(), ProcessServices(emit=said.append)).prepare()
    why = [each["why"] for each in said if each.get("event") == "device"]
    assert why == ["evaluation.every is set, and there is no validation set: nothing is evaluated"] * told


class Phased(TensorDataset):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class InPhases(p.Small):
    def datasets(self) -> tuple[Any, None]:
        rows = Phased(*super().datasets()[0].tensors)  # type: ignore[attr-defined]
        return Subset(rows, range(len(rows))), None


def test_a_training_set_that_waits_to_be_told_the_epoch_is_pointed_out() -> None:
    said: list[Any] = []
    Worker(resolve(settings_for(InPhases)), LocalRegions(), ProcessServices(emit=said.append)).prepare()
    (why,) = [each["why"] for each in said if each.get("event") == "device"]
    assert why.startswith("the training set has a set_epoch(), which nobody calls")


def test_what_watches_needs_a_validation_set() -> None:
    with refused("evaluation.no-validation", "leave these settings out"):
        train(p.Small, args={"held_out": None}, evaluate_every=EVERY, early_stopping={"patience": 1})
