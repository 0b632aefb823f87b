"""An optimizer may change gradients in place, which peers may still be reading: it finds copies of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.optim.optimizer_laws import problems
from orchestrator.worker.model.watched_step import Step, take
from tests.worker import pipelines as p
from tests.worker.runs import Layout, assert_same_run, train

pytestmark = pytest.mark.threads


class Decaying(torch.optim.SGD):
    """Adds the weight decay to the gradient itself, as many public optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(parameter.detach(), alpha=0.1)
        return super().step(closure)


class DecayingThroughData(torch.optim.SGD):
    """Raises no version of the gradient."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.data.add_(parameter.data, alpha=0.1)
        return super().step(closure)


class InPlace(p.Small):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Decaying(model.parameters(), lr=0.1)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("layout", [Layout(1), Layout(3, "tree"), Layout(2, "peer_to_peer")], ids=str)
def test_a_decay_that_is_added_to_gradients_is_that_of_torch(layout: Layout, clip: float | None) -> None:
    run = train(InPlace, layout, optimizer=None, clip=clip)
    assert_same_run(run, train(p.Small, optimizer={"name": "sgd", "lr": 0.1, "weight_decay": 0.1}, clip=clip))


def test_one_that_is_named_is_taken_too() -> None:
    named = {"name": f"{__name__}:Decaying", "lr": 0.1}
    assert problems(f"{__name__}:Decaying", {"lr": 0.1}) == []
    assert_same_run(train(p.Small, Layout(3), optimizer=named), train(InPlace, optimizer=None))


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [
        Decaying(model.parameters(), lr=0.1),
        DecayingThroughData(model.parameters(), lr=0.1),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    ]


@pytest.mark.parametrize("number", range(3))
def test_peers_read_what_was_summed(number: int) -> None:
    model = nn.Linear(3, 2)
    optimizer = optimizers(model)[number]
    gradients = torch.arange(8.0)
    model.weight.grad, model.bias.grad = gradients[:6].view(2, 3), gradients[6:]
    take(Step(0, 7, optimizer, model), gradients, optimizer.step)
    assert torch.equal(gradients, torch.arange(8.0))
