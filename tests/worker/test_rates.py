"""The learning rate: a pipeline's own factor is as good as a schedule, and epochs are so many steps."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from orchestrator.adapters.table import find
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Span
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from tests.worker import pipelines as p
from tests.worker.elastic import Fault, survive
from tests.worker.runs import Layout, members_end, settings_for, train


class Halving(p.Mlp):
    def rate(self, step: int) -> float:
        return 0.5**step


class NamedRate(p.Mlp):
    """A number that happens to have the name of the method."""

    rate: Any = 0.4


@pytest.mark.slow
def test_a_rate_of_the_pipelines_own_is_a_schedule() -> None:
    expected = train(p.Mlp, schedule={"name": "exponential", "gamma": 0.5})
    assert train(p.Mlp).digest != expected.digest
    for layout in (Layout(), Layout(3, "tree")):
        assert train(Halving, layout).digest == expected.digest


class CountsItsRates(Halving):
    _asked: ClassVar[list[int]] = []

    def rate(self, step: int) -> float:
        self._asked.append(step)
        return super().rate(step)


def test_the_rate_of_a_step_is_computed_once() -> None:
    """For the loss and for the update; and that of the first for the worker's admission, twice."""
    CountsItsRates._asked.clear()
    train(CountsItsRates, steps=4)
    assert [CountsItsRates._asked.count(step) for step in range(1, 4)] == [1, 1, 1]


@pytest.mark.slow
def test_a_number_of_the_name_is_none() -> None:
    assert train(NamedRate).digest == train(p.Mlp).digest


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"name": "steps", "every": 3}, {"name": "cosine", "end": 3, "final": 0.1}])
def test_epochs_are_the_steps_that_they_take(options: dict[str, Any]) -> None:
    """22 rows in batches of 10: three steps."""
    name, length = next((key, value) for key, value in options.items() if isinstance(value, int))
    runs = [
        train(p.Mlp, layout, epochs=2, schedule={**options, name: span})
        for layout, span in ((Layout(), Span(steps=length)), (Layout(2), Span(epochs=1)))
    ]
    assert runs[0].digest == runs[1].digest
    assert train(p.Mlp, epochs=2).digest != runs[0].digest


class ReadsItsRate(p.Mlp):
    """Its loss reads the rate of the step, and has that rate times the size of a parameter as a penalty."""

    is_tensor = False

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        self.own = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5) if self.is_tensor else 0.5)
        return self.own

    def loss(self, model: torch.nn.Module, batch: p.Batch) -> Any:
        penalty = next(model.parameters()).square().sum()
        return super().loss(model, batch) + self.own.param_groups[0]["lr"] * penalty


class ReadsItsTensor(ReadsItsRate):
    is_tensor = True


class ReadsTheStep(ReadsItsRate):
    def loss(self, model: torch.nn.Module, batch: p.Batch, step: int = 0) -> Any:
        return p.Mlp.loss(self, model, batch) + 0.5 * self.rate(step) * next(model.parameters()).square().sum()

    def rate(self, step: int) -> float:
        return 0.5**step


_READERS: dict[str, Any] = {"optimizer": None, "schedule": {"name": "exponential", "gamma": 0.5}}


@pytest.mark.parametrize("layout", [Layout(), Layout(3, "tree"), Layout(2, "parameter_server")], ids=str)
def test_a_loss_reads_the_rate_of_its_step(layout: Layout) -> None:
    """As in a loop of torch. It read that of the step before."""
    reads = train(ReadsItsRate, layout, **_READERS)
    assert reads.digest == train(ReadsTheStep, optimizer=None).digest
    assert reads.losses[0] != reads.losses[-1]


def test_a_rate_that_is_a_tensor_is_read_as_one() -> None:
    runs = [train(ReadsItsTensor, layout, **_READERS) for layout in (Layout(), Layout(3))]
    assert runs[0].digest == runs[1].digest
    assert runs[0].losses == pytest.approx(train(ReadsItsRate, **_READERS).losses, rel=1e-6)


@pytest.mark.parametrize("mode", ["ssp", "gossip"])
def test_a_loss_of_a_free_replica_reads_it_too(mode: str) -> None:
    """With one shard, what it reads is what it reads in lockstep."""
    settings: dict[str, Any] = {**_READERS, "shards": 1}
    found = train(ReadsItsRate, sync={"name": mode}, **settings)
    assert found.losses == pytest.approx(train(ReadsItsRate, **settings).losses, rel=1e-6)


def test_a_worker_that_dies_leaves_the_rates_of_the_step_before() -> None:
    """A state that others get, or a checkpoint, does not tell whether a step had begun."""
    told = survive(ReadsItsRate, Layout(3), [Fault(1, 4, "die")], **_READERS)
    assert told.digest == survive(ReadsItsRate, Layout(2), **_READERS).digest


class ItsStepFails(ReadsItsRate):
    def rate(self, step: int) -> float:
        if step == 2:
            raise ValueError("no rate")
        return 0.5**step


def test_a_rate_that_fails_is_told_by_all() -> None:
    ends = members_end(ItsStepFails, Layout(2, "parameter_server"), optimizer=None)
    assert [str(end) for end in ends if "no rate" in str(end)], ends


class KeepsGroups(ReadsItsRate):
    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.5)
        self.kept = self.wrap(made)
        return made

    def wrap(self, optimizer: torch.optim.Optimizer) -> Any:
        return optimizer.param_groups


class KeepsOneGroup(KeepsGroups):
    def wrap(self, optimizer: torch.optim.Optimizer) -> Any:
        return optimizer.param_groups[0]


class KeepsByName(KeepsGroups):
    def wrap(self, optimizer: torch.optim.Optimizer) -> Any:
        return {"one": optimizer}


@pytest.mark.parametrize("kind", [ReadsItsRate, KeepsGroups, KeepsOneGroup, KeepsByName])
def test_no_recording_is_made_of_a_loss_that_may_read_rates(kind: Any) -> None:
    """It would read the rate of the step in which it was recorded."""
    plan = resolve(settings_for(kind, optimizer=None))
    adapter = PipelineAdapter(find(plan.run.pipeline), plan.run, plan.data)
    assert not adapter.why_not_recorded(asks_step=True)
    adapter.pipeline.optimizer(adapter.model)
    assert "learning rates" in adapter.why_not_recorded(asks_step=True)
