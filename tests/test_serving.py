"""The trained model as MLflow serves it: the pipeline's own, with the trained bits, whatever its inputs come as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from orchestrator import Pipeline, serving
from orchestrator.errors import PipelineRaised
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.numerics.streams import seeded


class Plain(Pipeline):
    def __init__(self, width: int = 3) -> None:
        self.width = width

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, self.width), nn.Dropout(0.9))

    def datasets(self) -> Any:
        raise AssertionError("they are not asked for")

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).sum()
        return loss


class Answering(Plain):
    """Knows its width from its data only, and answers with names."""

    def model(self) -> nn.Module:
        return nn.Linear(2, self.found)

    def datasets(self) -> Any:
        self.found = self.width

    def predict(self, model: nn.Module, inputs: Any) -> Any:
        scores = model(inputs["x"])
        return {"scores": scores, "best": [scores.argmax(1)]}


def folder_of(kind: type[Plain], place: Path, width: int = 3) -> tuple[Path, nn.Module]:
    pipeline = kind()
    with seeded(1, "model"):
        if kind is Answering:
            pipeline.datasets()
        model = pipeline.model()
    for parameter in model.parameters():
        parameter.data += 1.0  # it was trained
    save_file(dict(distinct_state(model)), place / serving.WEIGHTS)
    told = {"target": f"{__name__}:{kind.__name__}", "args": {"width": width}, "seed": 1}
    (place / serving.ARCHITECTURE).write_text(json.dumps(told))
    return place, model


def test_it_has_the_trained_bits_and_takes_what_servers_are_sent(tmp_path: Path) -> None:
    folder, trained = folder_of(Plain, tmp_path)
    before = torch.get_rng_state()
    served = serving._load_pyfunc(str(folder))
    assert torch.equal(torch.get_rng_state(), before)
    assert model_digest(served.get_raw_model()) == model_digest(trained)
    rows = [[0.5, 1.5], [-1.0, 2.0]]
    expected = trained.eval()(torch.tensor(rows)).detach().numpy()
    for given in (rows, numpy.array(rows), numpy.array(rows, dtype=numpy.float32), torch.tensor(rows)):
        found = served.predict(given)
        assert type(found) is numpy.ndarray
        assert (found == expected).all()


def test_a_pipeline_says_itself_what_it_answers_and_may_need_its_data(tmp_path: Path) -> None:
    folder, _ = folder_of(Answering, tmp_path)
    found = serving.load(folder).predict({"x": numpy.ones((4, 2))})
    assert found["scores"].shape == (4, 3)
    assert found["best"][0].dtype == numpy.int64


def test_another_model_than_the_trained_one_is_refused_by_name(tmp_path: Path) -> None:
    folder, _ = folder_of(Plain, tmp_path, width=5)
    with pytest.raises(PipelineRaised, match=r"another model than the one that was trained: 0\.bias, 0\.weight differ"):
        serving.load(folder)
