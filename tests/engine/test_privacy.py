"""Clipped contributions, noise and masks: one digest and one trace for every layout, kill and resume, masked or not; and what a
server, a region and a repeated step show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.runs import LAYOUTS, LONELY, Layout, Run, rotating, train
from tests.engine.test_divided import Labelled

INNER = {"name": "sgd", "lr": 0.05}
MEAN = {"name": "sgd", "lr": 1.0}
CLIENTS = {"name": "dirichlet", "alpha": 0.5, "clients": 9, "least": 0}
CLIPPED = {"clipping_norm": 0.5}
NOISY = {"clipping_norm": 0.5, "noise_multiplier": 0.7, "delta": 1e-3}
ROUNDS: dict[str, Any] = {
    "partition": CLIENTS,
    "shards": 4,
    "batch_size": 8,
    "optimizer": MEAN,
    "local": {"epochs": 2, "optimizer": INNER, "weight": "uniform"},
}
CASES: list[dict[str, Any]] = [
    {"privacy": CLIPPED},
    {"privacy": {"clipping_norm": 3.0}, "optimizer": {"name": "adam", "lr": 0.02}, "clip": 0.1},
    {"privacy": CLIPPED, "partition": {"name": "iid"}, "sampling": {"name": "balanced"}},
    {"privacy": CLIPPED, **ROUNDS},
    {"privacy": NOISY, **ROUNDS},
    {"privacy": NOISY, **ROUNDS, "local": {"steps": 3, "optimizer": INNER, "weight": "uniform", "clip": 1.0}},
    {"privacy": NOISY, "partition": CLIENTS, "shards": 4, "batch_size": 8},
    {"privacy": {**NOISY, "clients": 6}, "partition": {"name": "natural"}, "shards": 3, "batch_size": 6},
]


def _assert_same(run: Run, reference: Run) -> None:
    assert run.trace == reference.trace
    assert run.digest == reference.digest


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_every_layout_gives_the_same_run(number: int) -> None:
    case = CASES[number]
    reference = train(Labelled, **case)
    for nth, layout in enumerate(rotating(4, number)):
        if layout.workers <= case.get("shards", 5):
            _assert_same(train(Labelled, layout, masked=nth % 2 == 0, **case), reference)


@pytest.mark.parametrize("layout", [*LAYOUTS, *LONELY], ids=str)
def test_masks_change_no_bit_on_any_layout(layout: Layout) -> None:
    if layout.workers <= 4:
        _assert_same(train(Labelled, layout, masked=True, steps=2, **CASES[4]), train(Labelled, steps=2, **CASES[4]))


def test_all_of_these_are_different_runs() -> None:
    assert len({train(Labelled, **case).digest for case in [{}, *CASES]}) == len(CASES) + 1
