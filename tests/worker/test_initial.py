"""Weights that a run begins with: put into the model to the bit, or refused by name, with nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from orchestrator.config.plan import Initial
from orchestrator.config.resolve import INITIAL_FOLDER, resolve
from orchestrator.errors import ConfigurationError
from orchestrator.numerics.digests import distinct_state, model_digest, state_digest
from orchestrator.pipeline import Pipeline
from orchestrator.worker.model import initial
from orchestrator.worker.worker import Worker
from tests.comm.transports.memory import LocalRegions
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.runs import ONE, rotating, settings_for, train


class Tied(nn.Module):
    """Two names of one tensor, a buffer, and one that is no part of the state."""

    def __init__(self, seed: int, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.rand(2), persistent=False)


def saved(model: nn.Module, folder: Path) -> Initial:
    file = folder / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in distinct_state(model).items()}, file)
    return Initial("models:/m/1", model_digest(model), str(file))


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", thinned([p.Batchnorm, p.Lstm], 2))
def test_a_run_goes_on_from_the_weights_of_another_on_every_layout(
    pipeline: type[Pipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = train(pipeline, steps=3)
    file = tmp_path / INITIAL_FOLDER / f"{before.digest}.safetensors"
    file.parent.mkdir(parents=True)
    save_file(before.parameters, file)
    monkeypatch.chdir(tmp_path)
    begun: dict[str, Any] = {"initial": {"name": "models:/m/1", "digest": before.digest}, "seed": 8}
    (reference, *others) = (train(pipeline, layout, **begun) for layout in (ONE, *rotating(2, 1)))
    assert {(str(run.trace), run.digest) for run in others} == {(str(reference.trace), reference.digest)}
    assert train(pipeline, seed=8).digest != reference.digest
    worker = Worker(resolve(settings_for(pipeline, **begun)), LocalRegions())
    assert worker.prepare()["initial_parameters"] == before.digest


def test_a_model_gets_the_very_bits(tmp_path: Path) -> None:
    trained, fresh = Tied(1), Tied(2)
    assert trained.norm.running_mean is not None
    trained.norm.running_mean.add_(0.1)
    weights = saved(trained, tmp_path)
    assert state_digest(initial.read(Path(weights.file), "m")) == weights.digest
    initial.begin_with(fresh, weights)
    assert model_digest(fresh) == model_digest(trained)
    assert fresh.head.weight is fresh.embedding.weight


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Tied(2, width=5), "embedding.weight is float32 of shape [4, 3] and not float32 of shape [4, 5]"),
        (nn.Linear(3, 4), "they lack bias; they lack weight; the model has no embedding.weight; and 5 more"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path: Path, other: nn.Module, told: str) -> None:
    weights, before = saved(Tied(1), tmp_path), model_digest(other)
    with pytest.raises(ConfigurationError) as raised:
        initial.begin_with(other, weights)
    assert told in str(raised.value)
    assert "models:/m/1" in str(raised.value)
    assert model_digest(other) == before


def test_other_weights_than_those_that_were_found_are_refused(tmp_path: Path) -> None:
    weights = saved(Tied(1), tmp_path)
    saved(Tied(3), tmp_path)
    with refused("initial.digest"):
        initial.begin_with(Tied(2), weights)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"nothing")
    with refused("initial.unreadable"):
        initial.begin_with(Tied(2), Initial("models:/m/1", "0" * 64, str(tmp_path / "w")))
