"""One digest and one trace for every layout, kill and resume where samples are divided or drawn by weights and batches grow."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from orchestrator.config.settings import Every
from orchestrator.errors import ConfigurationError, OrchestratorError
from orchestrator.pipeline import Pipeline
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.elastic import Elastic, Fault, Saved, elastic_settings, stop_and_go_on, survive
from tests.worker.runs import LAYOUTS, LONELY, Layout, Run, assert_same_run, members_end, rotating, settings_for, train

pytestmark = pytest.mark.threads


class _Labelled(Pipeline):
    def labels(self, train: Dataset[Any], by: str) -> Any:
        assert isinstance(train, TensorDataset)
        return train.tensors[1] if by == "label" else [number % 5 for number in range(len(train))]

    def weights(self, train: Dataset[Any]) -> Any:
        assert isinstance(train, TensorDataset)
        return train.tensors[0][:, 0].abs()


class Labelled(_Labelled, p.Mlp):
    pass


class LabelledBatchnorm(_Labelled, p.Batchnorm):
    pass


class Quarrelling(Labelled):
    """Each worker says something else of its samples."""

    said = 0

    def labels(self, train: Dataset[Any], by: str) -> Any:
        Quarrelling.said += 1
        return torch.roll(super().labels(train, by), Quarrelling.said)


DIRICHLET = {"name": "dirichlet", "alpha": 0.3}
GROWING = {0: 10, 2: 17}
CASES: list[dict[str, Any]] = [
    {"partition": {"name": "iid"}},
    {"partition": {"name": "contiguous"}},
    {"partition": {"name": "stratified"}},
    {"partition": DIRICHLET},
    {"partition": {"name": "dirichlet", "alpha": 0.1, "least": 0}, "epochs": 2},
    {"partition": {"name": "pathological"}},
    {"partition": {"name": "natural"}},
    {"sampling": {"name": "balanced"}},
    {"sampling": {"name": "weighted"}},
    {"partition": DIRICHLET, "sampling": {"name": "balanced"}, "batch_size": GROWING},
    {"batch_size": GROWING},
    {"batch_size": {0: 5, 1: 22, 3: 9}, "epochs": 2},
    {"partition": DIRICHLET, "batch_size": {0: 40, 3: 60}, "epochs": 4},
    {"batch_size": GROWING, "schedule": {"name": "cosine", "warmup": 2, "scale": "sqrt", "base_batch": 5}},
    {"schedule": {"scale": "linear", "base_batch": 5, "warmup": 3}, "optimizer": {"name": "lars", "weight_decay": 0.1}},
    {"optimizer": {"name": "lamb", "lr": 0.05, "weight_decay": 0.1}, "clip": 0.5},
    {"order": {"name": "blocks", "files": 2, "samples": 3}, "epochs": 2},
    {"order": {"name": "blocks", "samples": 4}, "batch_size": {0: 5, 1: 22, 3: 9}, "epochs": 3},
    {"subset": {"name": "bagging", "member": 1}, "epochs": 2},
    {"subset": {"name": "disjoint", "member": 1, "members": 2, "shared_seed": 4}},
    {"subset": {"name": "bagging", "member": 2}, "partition": DIRICHLET, "sampling": {"name": "weighted"}},
]


@functools.cache
def _alone(number: int) -> Run:
    return train(Labelled, **CASES[number])


@pytest.mark.parametrize("nth", thinned(range(2), 2, 1))
@pytest.mark.parametrize("number", thinned(range(len(CASES)), 14, 2), ids=lambda number: str(CASES[number]))
def test_every_layout_gives_the_same_run(number: int, nth: int) -> None:
    assert_same_run(train(Labelled, rotating(2, number)[nth], **CASES[number]), _alone(number))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("layout", [*LAYOUTS, *LONELY], ids=str)
def test_a_divided_run_on_all_layouts(layout: Layout) -> None:
    settings = {"partition": DIRICHLET, "batch_size": GROWING, "optimizer": {"name": "lars"}}
    assert_same_run(train(LabelledBatchnorm, layout, **settings), _divided())


@functools.cache
def _divided() -> Run:
    return train(LabelledBatchnorm, partition=DIRICHLET, batch_size=GROWING, optimizer={"name": "lars"})


@pytest.mark.parametrize("every", thinned([7, 1], 2))
def test_all_of_these_are_different_runs(every: int) -> None:
    cases = [{}, *CASES[::every]]
    assert len({train(Labelled, **case).digest for case in cases}) == len(cases)


def test_another_seed_is_another_partition() -> None:
    """And another run, of course; labels are the same where the seed of the data is."""
    one, other = (train(Labelled, partition=DIRICHLET, seed=seed) for seed in (1, 2))
    assert one.digest != other.digest


@pytest.mark.long
@pytest.mark.slow
def test_loaders_draw_the_same() -> None:
    bagged = {"subset": {"name": "bagging", "member": 1, "shared_seed": 9}}
    for case in ({"partition": DIRICHLET}, {"sampling": {"name": "weighted"}}, bagged):
        assert_same_run(train(Labelled, Layout(2), loaders=1, **case), train(Labelled, **case))


RICH: dict[str, Any] = {
    "steps": 6,
    "shards": 4,
    "seed": 8,
    "args": {"rows": 18, "held_out": 4},
    "evaluate_every": Every(steps=2),
    "checkpoint_every": 2,
    "partition": DIRICHLET,
    "batch_size": {0: 8, 3: 14},
    "schedule": {"warmup": 2, "scale": "sqrt", "base_batch": 8},
}
OPTIMIZERS = [{"name": "lars", "weight_decay": 0.01}, {"name": "lamb", "lr": 0.02}]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", thinned(OPTIMIZERS, 2, 1), ids=str)
@pytest.mark.parametrize("first", thinned([3, 11, 19, 27, 40], 5, 3))
def test_members_may_die(first: int, optimizer: dict[str, Any]) -> None:
    settings = {**RICH, "optimizer": optimizer}
    whole = survive(LabelledBatchnorm, Layout(1), **settings)
    told = survive(
        LabelledBatchnorm, Layout(3, "tree"), [Fault(i, first + 15 * i, "die") for i in range(2)], **settings
    )
    assert sum(ends[-1] == "dead" for ends in told.ends) == 2
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_run_that_all_have_left_goes_on_from_its_checkpoint(optimizer: dict[str, Any]) -> None:
    settings = {**RICH, "optimizer": optimizer}
    whole, saved = survive(LabelledBatchnorm, Layout(1), **settings), Saved()
    prepared = elastic_settings(LabelledBatchnorm, Layout(2), **settings)
    told = Elastic(prepared, Layout(2), [Fault(0, 60, "die"), Fault(1, 60, "die")], saved=saved).run()
    assert told.trace[0]["step"] >= 2
    assert told.trace == whole.trace[told.trace[0]["step"] :]
    assert told.digest == whole.digest


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_stopped_run_goes_on_with_other_workers(optimizer: dict[str, Any]) -> None:
    settings = {**RICH, "optimizer": optimizer}
    whole = survive(LabelledBatchnorm, Layout(1), **settings)
    before, after = stop_and_go_on(LabelledBatchnorm, 30, **settings)
    assert before.trace + after.trace == whole.trace
    assert after.digest == whole.digest


def test_workers_that_read_other_labels_are_not_admitted() -> None:
    """The digest of the partition is among the facts that they have to agree on."""
    with pytest.raises(AssertionError):
        train(Quarrelling, Layout(2), partition={"name": "stratified"})


def test_a_partition_is_a_fact_only_where_there_is_one() -> None:
    from orchestrator.config.resolve import resolve
    from orchestrator.worker.worker import Worker
    from tests.comm.transports.memory import LocalRegions

    facts = [
        Worker(resolve(settings_for(Labelled, **case)), LocalRegions()).prepare()
        for case in ({}, {"partition": DIRICHLET}, {"sampling": {"name": "weighted"}})
    ]
    assert ["partition" in each for each in facts] == [False, True, True]
    assert facts[1]["partition"] != facts[2]["partition"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"partition": {"name": "natural"}, "shards": 6},
            "natural finds 5 clients by 'client', and there are 6 shards",
        ),
        (
            {"partition": {"name": "iid"}, "shards": 23, "batch_size": 23},
            "data.shards: 23 clients for 22 training samples",
        ),
        (  # what a shard had dropped of one client's gradient was added to that of another
            {"partition": {"name": "natural"}, "shards": 3, "compression": {"name": "quantize"}},
            "there are more clients than shards",
        ),
    ],
)
def test_what_only_the_data_show_is_told_by_the_first_worker(settings: dict[str, Any], words: str) -> None:
    (end,) = members_end(Labelled, **settings)
    assert isinstance(end, ConfigurationError)
    assert words in str(end)


def test_a_data_set_without_labels_is_told_with_the_hook() -> None:
    (end,) = members_end(p.Mlp, partition=DIRICHLET)
    assert isinstance(end, OrchestratorError)
    assert end.exit_code == 2
    assert "labels(self, train, by)" in str(end)


def test_scaled_rates_are_those_of_another_rate() -> None:
    scaled = train(Labelled, optimizer={"name": "sgd", "lr": 0.05}, schedule={"scale": "linear", "base_batch": 5})
    assert scaled.digest == train(Labelled, optimizer={"name": "sgd", "lr": 0.1}).digest
