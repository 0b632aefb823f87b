"""Settings that are drawn together: the run alone, on another layout and under faults has one result.

The other tests change one or two settings at a time. Here each run has some of all of them, as many as go together.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from orchestrator.config.settings import Every
from orchestrator.errors import ConfigurationError
from orchestrator.optim.optimizers import OPTIMIZERS
from orchestrator.pipeline import Pipeline
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.elastic import Told, drawn, survive
from tests.worker.runs import LAYOUTS, ONE, Run, assert_same_run, train

pytestmark = pytest.mark.slow

PIPELINES: list[type[Pipeline]] = [
    p.Mlp,
    p.Wide,
    p.Images,
    p.Batchnorm,
    p.CumulativeBatchnorm,
    p.BatchnormFrozenByLoss,
    p.Groupnorm,
    p.Instancenorm,
    p.ChannelsLast,
    p.Attention,
    p.Frozen,
    p.LayerDrop,
    p.Augmented,
    p.Caching,
    p.Packed,
    p.Annealed,
    p.CustomBatches,
    p.AwkwardBuffers,
    p.RareStatistics,
]
# By the section of a setting its values, None for its default, and how often it is another one.
DRAWN: dict[str, tuple[float, list[Any]]] = {
    "clip": (0.3, [0.05, 0.5]),
    "evaluate_every": (0.5, [Every(steps=1), Every(steps=2)]),
    "tensors_every": (0.2, [2]),
    "precision": (0.2, ["bfloat16"]),
    "schedule": (0.4, [{"name": "cosine"}, {"name": "linear", "warmup": 1}, {"name": "exponential", "gamma": 0.9}]),
    "early_stopping": (0.2, [{"patience": 1}]),
    "partition": (0.3, [{"name": "iid"}, {"name": "contiguous"}, {"name": "iid", "clients": 14}]),
    "subset": (0.1, [{"name": "bagging", "member": 2}]),
    "order": (0.1, [{"name": "sequential"}]),
    "compression": (
        0.3,
        [
            {"name": "quantize", "bits": 8},
            {"name": "quantize", "bits": 16, "error_feedback": False},
            {"name": "powersgd", "rank": 2, "saving": 1},
            {"name": "topk", "ratio": 0.2},
        ],
    ),
    "local": (
        0.2,
        [
            {"steps": 2, "optimizer": {"name": "adam", "lr": 0.02}, "proximal_mu": 0.1},
            {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}, "clip": 0.5, "weight": "uniform"},
        ],
    ),
    "privacy": (0.1, [{"clipping_norm": 1.0}]),
    "masked": (0.1, [True]),
    "sharded": (0.2, [True]),
    "check_every": (0.2, [1, 2]),
    "claims": (0.2, [True, False]),
    "loaders": (0.1, [1]),
}
SEEDS = 60


def settings_of(dice: random.Random) -> tuple[type[Pipeline], dict[str, Any]]:
    shards = dice.choice([1, 2, 3, 5, 8])
    settings: dict[str, Any] = {
        "args": {"rows": dice.choice([7, 22, 40]), "held_out": dice.choice([1, 7])},
        "shards": shards,
        "batch_size": dice.choice([10, 13, {0: 10, 2: 20, 5: 11}]),
        "steps": dice.choice([6, 8]),
        "optimizer": {"name": dice.choice(sorted(OPTIMIZERS)), "lr": 0.01},
        "digest_every": dice.choice([0, 1, 3]),
    }
    for name, (often, values) in DRAWN.items():
        if dice.random() < often:
            settings[name] = dice.choice(values)
    return dice.choice(PIPELINES), settings


def alone(dice: random.Random) -> tuple[type[Pipeline], dict[str, Any], Run]:
    """Settings that go together, and the run that they give."""
    while True:
        pipeline, settings = settings_of(dice)
        try:
            return pipeline, settings, train(pipeline, ONE, **settings)
        except ConfigurationError:
            continue


def assert_survived(told: Told, reference: Run) -> None:
    """A driver that hears nothing of a member that dies may lack the first lines, and no others."""
    assert told.trace == reference.trace[-len(told.trace) :]
    assert told.digest == reference.digest
    metrics = [str(each) for each in reference.metrics]
    heard = [told.metrics[step] for step in sorted(told.metrics)]
    assert heard == metrics[len(metrics) - len(heard) :]


@pytest.mark.parametrize("seed", thinned(range(SEEDS), 20, 1))
def test_settings_that_are_drawn_together_have_one_result(seed: int) -> None:
    dice = random.Random(seed)
    pipeline, settings, reference = alone(dice)
    layout = dice.choice([layout for layout in [ONE, *LAYOUTS] if layout.workers <= settings["shards"]])
    assert_same_run(train(pipeline, layout, **settings), reference)
    elsewhere, faults, _ = drawn(dice)
    if elsewhere.workers > settings["shards"]:
        elsewhere = ONE
    told = survive(pipeline, elsewhere, faults, dice.choice([None, 2]), **settings)
    assert_survived(told, reference)
