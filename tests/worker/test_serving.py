"""The trained model as MLflow serves it: the pipeline's own, with the trained bits, whatever its inputs come as."""

from __future__ import annotations

import json
import warnings
from collections import UserDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from orchestrator import Pipeline
from orchestrator.numerics import batch_invariance
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.numerics.streams import seeded
from orchestrator.worker.between_steps import serving_trial
from orchestrator.worker.serving import _load_pyfunc, served
from orchestrator.worker.serving.names import ARCHITECTURE, WEIGHTS
from tests.portable.answering import MODELS, bits, inputs_of, picked
from tests.products import thinned
from tests.refusals import refused

pytestmark = pytest.mark.slow


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
    for asked in (rows, numpy.array(rows), numpy.array(rows, dtype=numpy.float32), torch.tensor(rows)):
        found = loaded.predict(asked)
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
    with refused("serving.other-model"):
        served.load(folder)


def served_of(name: str) -> served.Served:
    """As a run leaves it whose trial was made with other rows."""
    with seeded(2, "model"):
        model = MODELS[name]().eval()
    rows = inputs_of(name, batch_invariance.EXAMPLES)
    with torch.no_grad():
        tried = batch_invariance.tried(model, rows)
    assert (tried.rows, tried.why) == (batch_invariance.ROWS, None)
    return served.Served(Plain(), model, served.Answers(tried.rows))


class Column:
    """A table of pandas with one column, as MLflow's server makes it of `dataframe_split`."""

    def __init__(self, rows: list[list[int]]) -> None:
        self._rows = rows

    def to_numpy(self) -> Any:
        found = numpy.empty((len(self._rows), 1), dtype=object)
        found[:, 0] = self._rows
        return found


@pytest.mark.parametrize("name", thinned(MODELS, 4))
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
    expected, before = (
        bits(model.predict(rows)),
        (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()),
    )
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: bits(model.predict(rows)), range(16)))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_an_algorithm_that_is_not_deterministic_still_only_warns_where_it_did() -> None:
    model, before = served_of("mlp"), torch.get_deterministic_debug_mode()
    try:
        torch.set_deterministic_debug_mode("warn")
        model.predict(inputs_of("mlp", 3))
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.set_deterministic_debug_mode(before)


class Uncertain(Pipeline):
    """Draws with dropout, and leaves the model so."""

    def predict(self, model: nn.Module, inputs: Any) -> Any:
        if float(inputs.sum()) < 0:
            return model.train()(inputs)
        return model(inputs)


def test_a_model_that_predict_has_left_in_training_mode_answers_in_evaluation_mode() -> None:
    """So a request changed the answers to all that came after it."""
    model = nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    served_model = served.Served(Uncertain(), model)
    rows = numpy.ones((8, 2))
    before = served_model.predict(rows)
    served_model.predict(-rows)
    assert not served_model.get_raw_model().training
    assert bits(served_model.predict(rows)) == bits(before)


class Odd(Plain):
    """Answers with tensors that numpy has no word for, or that are not written out."""

    def predict(self, model: nn.Module, inputs: Any) -> Any:
        scores = model(inputs)
        return {"short": scores.bfloat16(), "conj": (1j * scores).conj(), "weight": next(model.parameters())}


def test_answers_of_types_that_numpy_does_not_have_are_given_too() -> None:
    model = nn.Linear(2, 3)
    found, scores = served.Served(Odd(), model).predict(numpy.ones((1, 2))), model(torch.ones(1, 2)).detach()
    assert found["short"].dtype == numpy.float32
    assert (found["short"] == scores.bfloat16().float().numpy()).all()
    assert (found["conj"] == -1j * scores.numpy()).all()
    assert (found["weight"] == model.weight.detach().numpy()).all()


def test_parts_of_several_numbers_of_rows_are_refused_with_what_to_do() -> None:
    model = served_of("several")
    with refused("serving.rows"):
        model.predict({"words": inputs_of("gru", 4), "numbers": torch.zeros(3, 3)})


def test_what_has_to_stay_together_is_asked_at_once_and_says_why(tmp_path: Path) -> None:
    folder, trained = folder_of(Plain, tmp_path)
    told = json.loads((folder / ARCHITECTURE).read_text())
    (folder / ARCHITECTURE).write_text(
        json.dumps({**told, "answers": {"rows": None, "why": "a row depends on others"}})
    )
    loaded, rows = _load_pyfunc(str(folder)), torch.ones(9, 2)
    with pytest.warns(UserWarning, match="answered together: a row depends on others"):
        found = loaded.predict(rows)
    assert (found == trained.eval()(rows).detach().numpy()).all()


def test_a_process_that_has_torch_says_that_it_cannot_compute_portably_any_more(tmp_path: Path) -> None:
    folder, _ = folder_of(Plain, tmp_path)
    told = json.loads((folder / ARCHITECTURE).read_text())
    (folder / ARCHITECTURE).write_text(json.dumps({**told, "arithmetic": "portable"}))
    with pytest.warns(UserWarning, match="bits of this processor only: portable needs"):
        served.load(folder)


class Batch(UserDict[str, Tensor]):
    """A mapping that is no dict, and whose attributes are its keys, as the batches of Hugging Face are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError from None


class Tokens(nn.Module):
    """Places are learned, for 16 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(16, 8)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        places = torch.arange(input_ids.size(1))
        found = self.words(input_ids) + self.places(places)
        scores = found.sum(2) if mask is None else (found.sum(2) * mask)
        return {"scores": scores} if labels is None else {"loss": scores.mean(), "scores": scores}


class OfOneMapping(nn.Module):
    def forward(self, batch: Any) -> Tensor:
        answer: Tensor = batch["x"] * 2
        return answer


class OfAnything(OfOneMapping):
    def forward(self, *given: Any, **named: Any) -> Tensor:
        return super().forward(*given, **named)


class OfKeywords(nn.Module):
    def forward(self, **named: Tensor) -> Tensor:
        return named["x"] * 2


def tried(model: nn.Module, batch: Any, pipeline: Pipeline | None = None) -> batch_invariance.InvarianceTrial:
    """The trial of a model, as a run tells it whose first samples are this batch."""
    workload: Any = SimpleNamespace(pipeline=pipeline or Plain(), model=model, first_batch=lambda _: batch)
    return serving_trial._tried(workload, 1, "native")


def words(length: int = 6) -> Tensor:
    return torch.arange(12 * length).reshape(12, length) % 50


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Tokens(), Batch({"input_ids": words(), "mask": torch.ones(12, 6), "labels": torch.ones(12)})),
        (Tokens(), {"input_ids": words(), "label": torch.ones(12)}),
        (OfOneMapping(), {"x": torch.ones(12, 2)}),
        (OfAnything(), {"x": torch.ones(12, 2)}),
        (OfKeywords(), {"x": torch.ones(12, 2)}),
        (OfOneMapping(), {"x": torch.ones(12, 2), 3: torch.ones(12)}),
    ],
)
def test_a_mapping_is_passed_as_keywords_where_the_model_takes_them(model: nn.Module, batch: Any) -> None:
    assert tried(model, batch) == batch_invariance.InvarianceTrial(batch_invariance.ROWS)


def test_what_does_not_fit_is_named_by_its_type_with_what_to_write() -> None:
    class Wrong(Plain):
        def example(self, batch: Any) -> Any:
            return batch.nothing

    for model, batch, pipeline, detail in (
        (Tokens(), Batch({"x": words(), "mask": words()}), None, "predict() raised AttributeError; a Batch of x, mask"),
        (
            Tokens(),
            words(18),
            None,
            "predict() raised IndexError: index out of range in self; a tensor of int64, shape [12, 18]",
        ),
        (
            Tokens(),
            words(),
            Wrong(),
            "example() raised AttributeError: 'Tensor' object has no attribute 'nothing'; a tensor of int",
        ),
    ):
        found = tried(model, batch, pipeline)
        assert found.rows is None
        assert "write example() or predict() in the pipeline" in (found.why or "")
        assert (found.detail or "").replace("it was given ", "").startswith(detail)


def test_of_a_batch_that_is_one_tensor_of_tokens_all_or_all_but_the_last_are_given() -> None:
    """The last is only predicted; a pipeline that says itself what is given is asked nothing else."""

    class Own(Plain):
        def example(self, batch: Any) -> Any:
            return batch

    for length in (6, 16, 17):
        assert tried(Tokens(), words(length)).rows == batch_invariance.ROWS
    for batch, pipeline in ((words(17), Own()), (words(18), None), (words(17).float(), None)):
        assert tried(Tokens(), batch, pipeline).why == serving_trial.UNFIT


@given(st.floats(1.0, 1e16))
def test_a_trial_takes_rows_for_some_seconds_of_a_thread_or_none(flops: float) -> None:
    rows = serving_trial.rows_to_try(flops)
    assert rows in {0, *range(3, 13)} - {batch_invariance.ROWS}
    assert rows <= serving_trial.rows_to_try(flops / 2)
    assert rows * 5 * batch_invariance.ROWS * flops / 3 <= 5e11
    assert serving_trial.rows_to_try(None) == batch_invariance.EXAMPLES


def test_a_model_that_would_take_a_processor_long_is_not_asked() -> None:
    class Refusing(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise AssertionError("it was asked")

    workload: Any = SimpleNamespace(pipeline=Plain(), model=Refusing(), first_batch=lambda _: words())
    found = serving_trial._tried(workload, 1, "native", 1.8e11)
    assert (found.rows, found.why) == (None, serving_trial.TOO_LARGE)


def at_the_start(
    model: nn.Module, batch: Any, pipeline: Pipeline | None = None, *, stages: int = 1, privacy: Any = None
) -> dict[str, Any] | None:
    """The worker's answer before the first step; it takes as many rows of the batch as it asks for."""
    members, streams = SimpleNamespace(stages=stages), None
    plan: Any = SimpleNamespace(
        cluster=SimpleNamespace(members=members), run=SimpleNamespace(seed=1), data=SimpleNamespace(privacy=privacy)
    )
    samples = lambda rows: batch[:rows] if isinstance(batch, Tensor) else batch  # noqa: E731
    workload: Any = SimpleNamespace(
        pipeline=pipeline or Plain(), model=model, first_batch=samples, batches=SimpleNamespace(streams=streams)
    )
    return serving_trial.unfit(plan, workload)


def test_at_the_start_it_is_told_what_cannot_be_tried_and_the_model_is_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.tokens = Tokens()

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            return self.tokens(x)

    class Own(Plain):
        def predict(self, model: nn.Module, inputs: Any) -> Any:
            raise AssertionError(f"{model} is not asked for {inputs}")

    model = Counting()
    assert at_the_start(model, words(17)) is None
    assert at_the_start(model, words(18)) == {
        "why": serving_trial.UNFIT,
        "detail": "predict() raised IndexError: index out of range in self; it was given a tensor of int64, shape [1, 18]",
    }
    assert at_the_start(model, words(18), privacy=object()) == {"why": serving_trial.UNFIT}
    assert at_the_start(model, words(18), Own()) is None
    assert at_the_start(model, words(18), stages=2) is None
    assert (model.calls, model.training) == (0, True)


def test_nested_rows_whose_shape_torch_refuses_to_tell_are_named() -> None:
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # that they are a prototype
        rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    found = at_the_start(nn.Linear(2, 3), (rows, torch.ones(2)))
    assert found is not None
    assert str(found["detail"]).endswith("it was given a nested tensor of float32")


def test_a_forward_that_calls_layers_of_the_model_itself_moves_nothing_at_the_start() -> None:
    """A copy has such a function as it is."""

    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Any:
            raise AssertionError(f"the model itself is set to {mode}")

        def __deepcopy__(self, _: Any) -> nn.Linear:
            return nn.Linear(2, 3)

    model = nn.Sequential(Merging(2, 3), nn.BatchNorm1d(3))
    usual: Callable[[Tensor], Tensor] = model.forward
    model.forward = lambda x: usual(x) / 2  # type: ignore[method-assign]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert at_the_start(model, torch.randn(8, 2)) is None  # of one row, which a normalisation in training refuses
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(module.training for module in model.modules())


def test_a_part_of_an_answer_that_has_no_rows_is_named() -> None:
    class Keeping(Plain):
        def predict(self, model: nn.Module, inputs: Any) -> Any:
            return {"scores": model(inputs), "cache": object()}

    found = tried(nn.Linear(2, 2), torch.ones(12, 2), Keeping())
    assert (found.rows, found.detail) == (None, "asked with 12 rows, a part of the answer (cache) is of type object")


@pytest.mark.long
def test_a_model_of_hugging_face_is_served_as_it_comes() -> None:
    from transformers import BatchEncoding, BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
    told = {"input_ids": words(), "attention_mask": torch.ones_like(words()), "labels": torch.ones(12).long()}
    assert tried(model, BatchEncoding(told)) == batch_invariance.InvarianceTrial(batch_invariance.ROWS)
