"""The checks of admission on a micro-batch before the first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.errors import Inconsistent
from orchestrator.numerics.determinism import FILL, prepare_thread
from orchestrator.optim.optimizers import OPTIMIZERS, build
from orchestrator.worker.admission import portability, proof

deterministic: Any = torch.utils.deterministic
WORKLOAD: Any = SimpleNamespace(user_objects=dict, model=torch.nn.Linear(1, 1))


def test_memory_that_nobody_has_written_is_filled_the_first_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an operation that reads it gives other bits, and is found."""
    with monkeypatch.context() as loop:
        loop.delenv(FILL)
        prepare_thread(1)
    try:
        with pytest.raises(Inconsistent) as caught:
            proof._verify(
                WORKLOAD, "micro-batch", [0, 1], lambda _: str(deterministic.fill_uninitialized_memory), fills=True
            )
        assert caught.value.code == "pipeline.not-repeatable"
        assert not deterministic.fill_uninitialized_memory
    finally:
        prepare_thread(1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_every_optimizer_is_tried_with_small_parameters(name: str) -> None:
    """The model has more rows than a trial takes. adagrad has a state of all of them before its first step."""
    model = torch.nn.Conv1d(20, 30, 3)
    found = portability.operators_of_step(build(name, {"lr": 0.1}, model))
    assert found
