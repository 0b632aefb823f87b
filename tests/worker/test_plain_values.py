"""Numbers and texts that code changes along a run: who sets them by the step is let alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.worker.step.plain_values import PlainValues
from tests.worker.faulty import Numbered
from tests.worker.pipelines import CLASSES, FEATURES
from tests.worker.runs import Layout, train


def test_the_first_values_are_there_within_the_block_alone() -> None:
    held = SimpleNamespace(p=0.1, training=True, _seen=1)
    values = PlainValues([("model.0", held)])
    assert values.changed() == []
    vars(held).update(p=0.5, phase="late", _seen=7, rows=[1])
    assert sorted(values.changed()) == ["model.0.p", "model.0.phase"]
    with values.restored():
        assert vars(held) == {"p": 0.1, "training": True, "_seen": 7, "rows": [1]}
        held.training, held.more = False, 1
    assert vars(held) == {"p": 0.5, "training": True, "_seen": 7, "rows": [1], "phase": "late"}


class Follows(Numbered):
    """A value that follows from the step in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> Any:
        self.factor = 1.0 + step
        return super().loss(model, batch) * self.factor


class Freezes(Numbered):
    """A layer that is frozen from a certain step on."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Linear(CLASSES, CLASSES))

    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> Any:
        model.get_submodule("0").requires_grad_(step < 2)
        return super().loss(model, batch)


class Late(Numbered):
    """A value and an array that any worker sets in its first step from a certain one on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.factor = False, 1.0
        self.weight: torch.Tensor | None = None

    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> Any:
        if step >= 1 and not self.begun:
            self.begun, self.factor, self.weight = True, 2.0, torch.tensor(0.5)
        return super().loss(model, batch) * (self.factor if self.weight is None else self.factor * self.weight)


@pytest.mark.parametrize("kind", [Follows, Freezes, Late])
def test_what_follows_from_the_step_trains(kind: type[Numbered]) -> None:
    assert len({train(kind, layout, steps=5).digest for layout in (Layout(), Layout(2))}) == 1
