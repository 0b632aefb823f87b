"""Code that leaves a layer in another mode, or frozen, changes no later validation batch, and is named where it changes a
micro-batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.config.settings import Every
from orchestrator.errors import Inconsistent
from tests.worker import pipelines as p
from tests.worker.runs import ONE, Layout, assert_same_run, members_end, train

pytestmark = pytest.mark.threads


class Dropped(p.Small):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(p.FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, p.CLASSES))


class MonteCarlo(Dropped):
    """Asks several times with dropout, and does not call eval() again."""

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        model.train()
        return {"spread": torch.stack([model(batch[0]) for _ in range(3)]).std(0).mean()}


class Freezing(Dropped):
    """As code does that is to save memory in an evaluation."""

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        model.get_submodule("0").requires_grad_(False)
        return {"mean": model(batch[0]).mean()}


class Attacked(Dropped):
    """As an adversarial training does, which is in training mode again behind its attack."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        model.train()
        return super().loss(model, batch)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"mean": model(batch[0]).mean()}


class Measured(Attacked):
    loss = Dropped.loss


class LeftInEvaluation(Dropped):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        model.get_submodule("1").eval()
        return loss


@pytest.mark.parametrize("layout", [Layout(2), Layout(3, "tree"), Layout(2, stages=2)], ids=str)
def test_a_validation_batch_begins_in_evaluation_mode_whatever_was_left_before_it(layout: Layout) -> None:
    """Which batches were computed in training mode followed from the layout, and with them what stops early."""
    reference = train(MonteCarlo, ONE, evaluate_every=Every(steps=2))
    plain = train(Dropped, ONE, evaluate_every=Every(steps=2))
    assert [each["validation/loss"] for each in reference.metrics] == [
        each["validation/loss"] for each in plain.metrics
    ]
    assert reference.metrics[0]["validation/spread"] > 0
    assert_same_run(train(MonteCarlo, layout, evaluate_every=Every(steps=2)), reference)


def test_metrics_are_those_of_evaluation_mode_though_the_loss_has_called_train() -> None:
    """The accuracy of a TRADES was that with dropout."""
    attacked, measured = (train(kind, ONE, evaluate_every=Every(steps=2)) for kind in (Attacked, Measured))
    assert attacked.trace == measured.trace
    assert [each["validation/mean"] for each in attacked.metrics] == [
        each["validation/mean"] for each in measured.metrics
    ]
    assert [each["validation/loss"] for each in attacked.metrics] != [
        each["validation/loss"] for each in measured.metrics
    ]


def test_what_an_evaluation_freezes_is_trained_on() -> None:
    """It was frozen from the first step on, as a worker evaluates before it."""
    frozen, plain = (train(kind, ONE, evaluate_every=Every(steps=2)) for kind in (Freezing, Dropped))
    assert frozen.trace == plain.trace


def test_a_mode_that_changes_the_next_micro_batch_is_named() -> None:
    (end,) = members_end(LeftInEvaluation, ONE)
    assert isinstance(end, Inconsistent)
    assert "what had changed: the mode of model.1, by train() or eval()" in end.message
