"""The learning rate: a pipeline's own factor is as good as a schedule, and epochs are so many steps."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.settings import Span
from tests.worker import pipelines as p
from tests.worker.runs import Layout, train


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
