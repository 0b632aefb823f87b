"""Labels of the pipeline become parts of the shards, and what is wrong with them is said."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from orchestrator.common.values import Steps
from orchestrator.config.plan import Data, Variant
from orchestrator.data.division import divide
from orchestrator.data.labels import Labels
from orchestrator.data.sampling import partition_laws as laws
from orchestrator.data.sampling import samplings
from orchestrator.errors import OrchestratorError
from orchestrator.pipeline import Pipeline
from tests.refusals import refused

LABELS = [3, 1, 1, 3, 7, 1]


class With(Dataset[Any]):
    def __init__(self, targets: Any) -> None:
        self.targets = targets


class Saying(Pipeline):
    def __init__(self, said: Any) -> None:
        self.said = said

    def labels(self, train: Dataset[Any], by: str) -> Any:  # noqa: ARG002
        return self.said[by]

    def weights(self, train: Dataset[Any]) -> Any:  # noqa: ARG002
        return self.said["weights"]


def labels(targets: Any) -> Labels:
    return Labels(Pipeline(), With(targets), len(LABELS), 1)


def data(partition: str | None = None, sampling: str | None = None, shards: int = 3, **options: Any) -> Data:
    return Data(
        shards,
        Steps.constant(6),
        0,
        partition=None if partition is None else Variant(partition, options),
        sampling=None if sampling is None else Variant(sampling, {} if partition else options),
    )


@pytest.mark.parametrize(
    "targets",
    [
        LABELS,
        tuple(LABELS),
        torch.tensor(LABELS),
        [torch.tensor(label) for label in LABELS],
        numpy.array(LABELS, numpy.uint8),
        ["c", "a", "a", "c", "x", "a"],
    ],
    ids=lambda targets: type(targets).__name__,
)
def test_targets_of_any_form_are_labels(targets: Any) -> None:
    numbers, _ = labels(targets).of("label")
    assert numbers.tolist() == [1, 0, 0, 1, 2, 0]
    assert numbers.dtype == numpy.int64


def test_names_of_labels_are_kept() -> None:
    assert labels(LABELS).of("label")[1] == ["1", "3", "7"]
    assert labels([True, False, True, True, False, True]).of("label")[1] == ["False", "True"]


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (None, "data: a partition or sampling by 'label' needs labels of the training samples; the pipeline has none"),
        (LABELS[1:], r"labels(train, 'label') returned a list of shape (5,) and type int64 for 6 samples"),
        ([0.5] * 6, "type float64 for 6 samples"),
        ([[1], [2], [1, 2], [1], [1], [1]], "returned a list for 6 samples"),
        ([[1]] * 6, "of shape (6, 1)"),
        (torch.ones(6), "of shape (6,) and type float32"),
    ],
)
def test_labels_that_are_none_are_told(targets: Any, words: str) -> None:
    with pytest.raises(OrchestratorError) as caught:
        labels(targets).of("label")
    assert words in str(caught.value)


def test_a_data_set_without_targets_needs_the_hook() -> None:
    whole = Labels(Pipeline(), TensorDataset(torch.ones(6)), 6, 1)
    with refused("data.needs-labels") as caught:
        divide(whole, data("stratified"))
    assert caught.value.exit_code == 2
    with refused("data.needs-labels"):
        divide(labels(LABELS), data("natural", by="writer"))
    assert divide(whole, data("iid")) is not None  # needs none


def test_a_hook_that_raises_is_told() -> None:
    with refused("pipeline.raised"):
        divide(Labels(Saying({}), None, 6, 1), data("stratified"))


def test_without_partition_and_sampling_nothing_is_divided() -> None:
    assert divide(labels(None), data()) is None


@pytest.mark.parametrize("name", ["iid", "contiguous", "stratified", "dirichlet", "pathological", "natural"])
def test_parts_are_those_of_the_owners(name: str) -> None:
    given = Labels(Saying({"label": LABELS, "client": LABELS}), None, 6, 1)
    options: dict[str, Any] = {"runs": 1} if name == "pathological" else {}
    found = divide(given, data(name, **options))
    assert found is not None
    assert found.owners is not None
    assert sorted(index for part in found.parts for index in part.samples.tolist()) == list(range(6))
    table = found.table(given)
    assert table is not None
    assert table["labels"] == ["1", "3", "7"]
    assert [sum(row) for row in table["counts"]] == [len(part.samples) for part in found.parts]
    assert [sum(column) for column in zip(*table["counts"], strict=True)] == [3, 2, 1]


def test_a_picture_of_a_partition_without_labels_shows_sizes() -> None:
    found = divide(labels(None), data("contiguous", shards=2))
    assert found is not None
    assert found.table(labels(None)) == {"labels": ["samples"], "counts": [[3], [3]]}


def test_rare_labels_are_counted_together() -> None:
    many = Labels(Saying({"label": [*range(50), 49, 48]}), None, 52, 1)
    found = divide(many, data("contiguous", shards=2))
    assert found is not None
    table = found.table(many)
    assert table is not None
    assert len(table["labels"]) == 20
    assert table["labels"][-3:] == ["48", "49", "others"]
    assert [sum(row) for row in table["counts"]] == [26, 26]


def test_a_digest_tells_divisions_apart() -> None:
    given = Labels(Saying({"label": LABELS, "weights": [1, 2, 3, 4, 5, 6]}), None, 6, 1)
    other = Labels(Saying({"label": LABELS, "weights": [1, 2, 3, 4, 5, 7]}), None, 6, 1)
    plans = [data("iid"), data("contiguous"), data("stratified"), data("iid", "balanced"), data(sampling="weighted")]
    one, two = ([found.digest for each in plans if (found := divide(of, each))] for of in (given, other))
    assert len(set(one)) == 5
    assert two[:4] == one[:4]
    assert two[4] != one[4]


def test_what_has_no_weight_is_never_drawn() -> None:
    given = Labels(Saying({"weights": [0, 1, 0, 2, 0, 0]}), None, 6, 1)
    found = divide(given, data(sampling="weighted"))
    assert found is not None
    assert found.parts[0].samples.tolist() == [1, 3]
    with refused("data.sampling-gives"):
        divide(given, data("contiguous", "weighted"))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (None, "data.sampling: weighted needs the weights of the training samples"),
        ([1.0], "weights(train) returned a list of shape (1,)"),
        (["a"] * 6, "weights(train) returned a list"),
        ([1.0, -1.0, 1.0, 1.0, 1.0, 1.0], "weighted gives the weight -1.0"),
    ],
)
def test_weights_that_are_none_are_told(weights: Any, words: str) -> None:
    with pytest.raises(OrchestratorError) as caught:
        divide(Labels(Saying({"weights": weights}), None, 6, 1), data(sampling="weighted"))
    assert words in str(caught.value)


# --- variants of one's own: named by their module


def halves(population: Any) -> Any:
    return numpy.arange(population.samples) % 2


def crowd(population: Any) -> Any:
    return numpy.arange(population.samples)


def broken(population: Any) -> Any:
    raise RuntimeError(f"no plan for {population.samples}")


def some(population: Any, part: Any) -> Any:  # noqa: ARG001
    return None if 0 in part else numpy.ones(len(part))


def test_a_partition_of_ones_own_may_leave_shards_empty_and_have_more_clients_than_shards() -> None:
    found = divide(labels(None), data(f"{__name__}:halves"))
    assert found is not None
    assert [len(part.samples) for part in found.parts] == [3, 3, 0]
    crowded = divide(labels(None), data(f"{__name__}:crowd"))
    assert crowded is not None
    assert [len(part.samples) for part in crowded.parts] == [1] * 6
    with refused("data.division-raised"):
        divide(labels(None), data(f"{__name__}:broken"))
    with refused("data.sampling-some-weights"):
        divide(labels(None), data("contiguous", f"{__name__}:some"))


def test_variants_of_ones_own_are_held_to_the_laws() -> None:
    assert laws.problems(f"{__name__}:halves", {}, 3) == []
    (problem,) = laws.problems(f"{__name__}:broken", {}, 3)
    assert problem.startswith(f"data.partition: {__name__}:broken raised RuntimeError: no plan for 120")
    assert samplings.problems(f"{__name__}:some", {}, 2) == []
    (problem,) = samplings.problems(f"{__name__}:halves", {}, 2)
    assert "halves takes 1 positional arguments" in problem
