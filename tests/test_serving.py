"""The trained model as MLflow serves it: the pipeline's own, with the trained bits, whatever its inputs come as."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from orchestrator import Pipeline
from orchestrator.errors import PipelineRaised, UsageError
from orchestrator.numerics import tiles
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.numerics.streams import seeded
from orchestrator.serving import _load_pyfunc, served
from orchestrator.serving.names import ARCHITECTURE, WEIGHTS
from tests.portable.answering import MODELS, bits, inputs_of, picked


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
    save_file(dict(distinct_state(model)), place / WEIGHTS)
    told = {
        "target": f"{__name__}:{kind.__name__}",
        "args": {"width": width},
        "seed": 1,
        "answers": {"rows": 8, "why": None},
    }
    (place / ARCHITECTURE).write_text(json.dumps(told))
    return place, model


def test_it_has_the_trained_bits_and_takes_what_servers_are_sent(tmp_path: Path) -> None:
    folder, trained = folder_of(Plain, tmp_path)
    before = torch.get_rng_state()
    loaded = _load_pyfunc(str(folder))
    assert torch.equal(torch.get_rng_state(), before)
    assert model_digest(loaded.get_raw_model()) == model_digest(trained)
    rows = [[0.5, 1.5], [-1.0, 2.0]]
    expected = trained.eval()(torch.tensor(rows)).detach().numpy()
    for given in (rows, numpy.array(rows), numpy.array(rows, dtype=numpy.float32), torch.tensor(rows)):
        found = loaded.predict(given)
        assert type(found) is numpy.ndarray
        assert (found == expected).all()


def test_a_pipeline_says_itself_what_it_answers_and_may_need_its_data(tmp_path: Path) -> None:
    folder, _ = folder_of(Answering, tmp_path)
    found = served.load(folder).predict({"x": numpy.ones((4, 2))})
    assert found["scores"].shape == (4, 3)
    assert found["best"][0].dtype == numpy.int64


def test_another_model_than_the_trained_one_is_refused_by_name(tmp_path: Path) -> None:
    folder, _ = folder_of(Plain, tmp_path, width=5)
    assert served.Answers.of({}).rows is None  # of models that an older version has logged
    with pytest.raises(PipelineRaised, match=r"another model than the one that was trained: 0\.bias, 0\.weight differ"):
        served.load(folder)


def served_of(name: str) -> served.Served:
    """As a run leaves it whose trial was made with other rows."""
    with seeded(2, "model"):
        model = MODELS[name]().eval()
    rows = inputs_of(name, tiles.EXAMPLES)
    with torch.no_grad():
        tried = tiles.tried(model, rows)
    assert (tried.rows, tried.why) == (tiles.ROWS, None)
    return served.Served(Plain(), model, served.Answers(tried.rows))


class Column:
    """A table of pandas with one column, as MLflow's server makes it of `dataframe_split`."""

    def __init__(self, rows: list[list[int]]) -> None:
        self._rows = rows

    def to_numpy(self) -> Any:
        found = numpy.empty((len(self._rows), 1), dtype=object)
        found[:, 0] = self._rows
        return found


@pytest.mark.parametrize("name", MODELS)
def test_a_row_has_the_same_bits_in_every_batch_of_1_to_64_and_wherever_it_stands(name: str) -> None:
    model, rows = served_of(name), inputs_of(name, 64)
    alone = [bits(model.predict(picked(rows, slice(row, row + 1)))) for row in range(64)]
    order = numpy.random.default_rng(6)
    for number in range(1, 65):
        chosen = order.permutation(64)[:number].tolist()
        answers = model.predict(picked(rows, chosen))
        assert [bits(picked(answers, slice(place, place + 1))) for place in range(number)] == [
            alone[row] for row in chosen
        ]


def test_how_rows_lie_in_memory_changes_no_bit() -> None:
    model, rows = served_of("cnn"), inputs_of("cnn", 9).numpy()
    turned = numpy.ascontiguousarray(rows.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert bits(model.predict(turned)) == bits(model.predict(rows))


def test_rows_of_several_lengths_have_the_bits_that_they_have_alone() -> None:
    model = served_of("gru")
    words = inputs_of("gru", 9).tolist()
    rows = [row[: 3 + number % 4] for number, row in enumerate(words)]
    found = model.predict(rows)
    assert found.shape == (9, 13)
    assert bits(model.predict(Column(rows))) == bits(found)
    for row, answer in zip(rows, found, strict=True):
        assert model.predict([row])[0].tobytes() == answer.tobytes()


def test_asked_from_several_threads_it_answers_the_same_bits_and_leaves_their_settings() -> None:
    model, rows = served_of("mlp"), inputs_of("mlp", 16)
    expected, threads = bits(model.predict(rows)), torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: bits(model.predict(rows)), range(16)))
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_parts_of_several_numbers_of_rows_are_refused_with_what_to_do() -> None:
    model = served_of("several")
    with pytest.raises(UsageError, match="words 4, numbers 3"):
        model.predict({"words": inputs_of("gru", 4), "numbers": torch.zeros(3, 3)})


def test_what_has_to_stay_together_is_asked_at_once_and_loading_says_why(tmp_path: Path) -> None:
    folder, trained = folder_of(Plain, tmp_path)
    told = json.loads((folder / ARCHITECTURE).read_text())
    (folder / ARCHITECTURE).write_text(
        json.dumps({**told, "answers": {"rows": None, "why": "a row depends on others"}})
    )
    with pytest.warns(UserWarning, match="answered together: of this model, a row depends on others"):
        loaded = _load_pyfunc(str(folder))
    rows = torch.ones(9, 2)
    assert (loaded.predict(rows) == trained.eval()(rows).detach().numpy()).all()


def test_a_process_that_has_torch_says_that_it_cannot_compute_portably_any_more(tmp_path: Path) -> None:
    folder, _ = folder_of(Plain, tmp_path)
    told = json.loads((folder / ARCHITECTURE).read_text())
    (folder / ARCHITECTURE).write_text(json.dumps({**told, "arithmetic": "portable"}))
    with pytest.warns(UserWarning, match="bits of this processor only: portable needs"):
        served.load(folder)
