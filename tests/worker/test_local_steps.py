"""One digest and one trace for every layout, kill and resume where shards train by themselves in rounds, as their own clients
or as those that are drawn; and the round is what its parts are by hand."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.data.clients import ClientSampler
from orchestrator.errors import ConfigurationError, NonFinite, OrchestratorError, PipelineRaised
from orchestrator.worker.step.local_steps import LocalSteps
from orchestrator.worker.worker import Worker
from tests.comm.transports.memory import LocalRegions
from tests.products import thinned
from tests.refusals import refused
from tests.worker import apart
from tests.worker import pipelines as p
from tests.worker.elastic import Elastic, Fault, Saved, Told, elastic_settings, stop_and_go_on, survive
from tests.worker.runs import LAYOUTS, LONELY, Layout, Run, assert_same_run, members_end, rotating, settings_for, train
from tests.worker.test_divided import Labelled, LabelledBatchnorm

pytestmark = pytest.mark.threads

INNER = {"name": "sgd", "lr": 0.05}
MEAN = {"name": "sgd", "lr": 1.0}
DIRICHLET = {"name": "dirichlet", "alpha": 0.3}
CLIENTS = {"name": "dirichlet", "alpha": 0.5, "clients": 9, "least": 0}
CASES: list[dict[str, Any]] = [
    {"local": {"steps": 3, "optimizer": INNER}, "optimizer": MEAN},
    {"local": {"steps": 1, "optimizer": INNER, "weight": "uniform"}, "optimizer": MEAN},
    {
        "local": {"steps": 4, "optimizer": {"name": "adamw", "lr": 0.01}, "clip": 0.5},
        "optimizer": {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True},
        "schedule": {"name": "cosine", "warmup": 1},
    },
    {"local": {"steps": 3, "optimizer": INNER, "proximal_mu": 0.1}, "partition": DIRICHLET, "optimizer": MEAN},
    {"local": {"epochs": 2, "optimizer": INNER}, "partition": DIRICHLET, "optimizer": {"name": "adam", "eps": 1e-3}},
    {"local": {"epochs": 2, "optimizer": INNER}, "partition": CLIENTS, "optimizer": MEAN, "shards": 4},
    {"local": {"steps": 5, "optimizer": INNER}, "partition": CLIENTS, "optimizer": MEAN, "shards": 4},
    {
        "local": {"epochs": 1, "optimizer": INNER, "weight": "uniform"},
        "partition": CLIENTS,
        "sampling": {"name": "balanced"},
        "shards": 4,
    },
    {"partition": CLIENTS, "shards": 4},
    {"partition": {"name": "natural"}, "shards": 4, "local": {"epochs": 1, "optimizer": INNER}},
]


@functools.cache
def _alone(number: int) -> Run:
    return train(LabelledBatchnorm, **CASES[number])


@pytest.mark.parametrize("nth", thinned(range(3), 3, 2))
@pytest.mark.parametrize("number", thinned(range(len(CASES)), 16), ids=lambda number: str(CASES[number]))
def test_every_layout_gives_the_same_run(number: int, nth: int) -> None:
    case, layout = CASES[number], rotating(3, number)[nth]
    if layout.workers <= case.get("shards", 5):
        assert_same_run(train(LabelledBatchnorm, layout, **case), _alone(number))


COMPRESSED: list[dict[str, Any]] = [
    {**CASES[2], "compression": {"name": "quantize"}},
    {**CASES[0], "compression": {"name": "powersgd", "rank": 1}},
    {**CASES[4], "compression": {"name": "quantize", "error_feedback": False}},
    {**CASES[5], "compression": {"name": "topk", "ratio": 0.1}},
]


@functools.cache
def _compressed(number: int) -> Run:
    case = COMPRESSED[number]
    found = train(LabelledBatchnorm, **case)
    assert found.digest != train(LabelledBatchnorm, **{**case, "compression": {"name": "none"}}).digest
    return found


@pytest.mark.parametrize("nth", thinned(range(3), 3, 2))
@pytest.mark.parametrize(
    "number", thinned(range(len(COMPRESSED)), 6), ids=lambda number: str(COMPRESSED[number]["compression"])
)
def test_compressed_rounds_too(number: int, nth: int) -> None:
    case, layout = COMPRESSED[number], rotating(3, 2 * number + 1)[nth]
    if layout.workers <= case.get("shards", 5):
        assert_same_run(train(LabelledBatchnorm, layout, **case), _compressed(number))


@functools.cache
def _compressed_longer() -> Run:
    return train(LabelledBatchnorm, **{**COMPRESSED[0], "steps": 6})


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("outlives", [False, True], ids=["far", "here"])
@pytest.mark.parametrize("at", [30, 60, 75])
def test_and_members_of_them_may_die(at: int, outlives: bool) -> None:
    """The state of what rounds have dropped lies with the host, or in memory that outlives it."""
    case = {**COMPRESSED[0], "steps": 6}
    settings = elastic_settings(LabelledBatchnorm, Layout(3, "tree"), checkpoint_every=2, **case)
    run = Elastic(settings, Layout(3, "tree"), [Fault(1, at, "die"), Fault(0, at + 60, "join")], outlives=outlives)
    told = run.run()
    assert told.generations > 1
    assert told.digest == _compressed_longer().digest
    assert run.went_back == (not outlives)


@pytest.mark.long
def test_and_stop_and_go_on_with_other_workers() -> None:
    case = {**COMPRESSED[0], "steps": 6}
    before, after = stop_and_go_on(LabelledBatchnorm, 60, Layout(2, "tree"), **case)
    assert before.trace + after.trace == _compressed_longer().trace
    assert after.digest == _compressed_longer().digest


@pytest.mark.parametrize("every", thinned([5, 1], 2))
def test_all_of_these_are_different_runs(every: int) -> None:
    cases = [{}, *CASES[::every]]
    assert len({train(Labelled, **{"steps": 2, **case}).digest for case in cases}) == len(cases)


FEDERATED: dict[str, Any] = {**CASES[5], "shards": 5}


@pytest.mark.slow
@pytest.mark.parametrize("layout", thinned([*LAYOUTS, *LONELY], 25, 17), ids=str)
def test_federated_rounds_on_all_layouts(layout: Layout) -> None:
    assert_same_run(train(LabelledBatchnorm, layout, **FEDERATED), _federated())


@functools.cache
def _federated() -> Run:
    return train(LabelledBatchnorm, **FEDERATED)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", [5, 0, 6])
def test_loaders_draw_the_same(number: int) -> None:
    """Two for each worker."""
    case = CASES[number]
    assert_same_run(train(Labelled, Layout(2), loaders=2, **case), train(Labelled, **case))


@pytest.mark.long
@pytest.mark.slow
def test_computing_beside_host_memory_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {**CASES[4], "steps": 2}
    expected = train(LabelledBatchnorm, **case)
    apart.compute_apart(monkeypatch)
    assert_same_run(train(LabelledBatchnorm, Layout(2), **case), expected)


# --- by size


@pytest.mark.long
@pytest.mark.parametrize(("number", "steps"), [(4, 3), (5, 6)])
def test_shards_of_a_round_are_dealt_by_their_local_steps(
    number: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each computes other shards in other rounds, all of them together each once; the bits are those of one worker."""
    case = {**CASES[number], "steps": steps}
    computed: list[tuple[int, int]] = []
    trained = LocalSteps._trained

    def told(self: LocalSteps, step: int, shard: int) -> Any:
        computed.append((step, shard))
        return trained(self, step, shard)

    dealt: list[tuple[int, tuple[int, ...]]] = []
    deal_of = LocalSteps.step_assignment

    def noted(self: LocalSteps, step: int, assigned: Any) -> Any:
        found = deal_of(self, step, assigned)
        dealt.append((step, tuple(found[0])))
        return found

    reference = train(LabelledBatchnorm, **case)
    monkeypatch.setattr(LocalSteps, "_trained", told)
    monkeypatch.setattr(LocalSteps, "step_assignment", noted)
    assert_same_run(train(LabelledBatchnorm, Layout(3), **case), reference)
    shards = case.get("shards", 5)
    assert {each for each in computed if each[0] > 0} == {(step, s) for step in range(1, steps) for s in range(shards)}
    assert len({first for _, first in dealt}) > 1 or number == 4  # there each round has the same clients


@pytest.mark.slow
@pytest.mark.long
def test_loaders_read_for_whoever_computes() -> None:
    case = {**CASES[5], "steps": 5}
    assert_same_run(train(LabelledBatchnorm, Layout(2), loaders=1, **case), train(LabelledBatchnorm, **case))


# --- what a round is


def test_a_local_step_with_the_mean_is_a_step_of_plain_sgd() -> None:
    """x - mean(x - (x - lr g)) against x - lr mean(g); each is rounded elsewhere."""
    plain = train(Labelled, optimizer={"name": "sgd", "lr": 0.1})
    local = train(Labelled, optimizer=MEAN, local={"steps": 1, "optimizer": {"name": "sgd", "lr": 0.1}})
    assert local.losses == pytest.approx(plain.losses, rel=1e-5)
    for name, tensor in plain.parameters.items():
        assert torch.allclose(local.parameters[name], tensor, rtol=1e-4, atol=1e-6)


def test_one_shard_with_the_mean_is_its_own_training() -> None:
    """Rounds of three steps of one shard are as many steps, but for x - (x - y), which is not quite y."""
    rounds = train(Labelled, steps=2, shards=1, optimizer=MEAN, local={"steps": 3, "optimizer": INNER})
    plain = train(Labelled, steps=6, shards=1, optimizer=INNER)
    assert rounds.losses == pytest.approx([sum(plain.losses[:3]) / 3, sum(plain.losses[3:]) / 3], rel=1e-1)
    for name, tensor in plain.parameters.items():
        assert torch.allclose(rounds.parameters[name], tensor, rtol=1e-3, atol=1e-5)


def test_parameters_are_the_rounds_start_again_after_each_shard() -> None:
    worker = Worker(resolve(settings_for(LabelledBatchnorm, **CASES[4])), LocalRegions())
    worker.prepare()
    replica, contributing = worker._strategy.model_state.replica, worker._strategy._trainer._gradients  # type: ignore[attr-defined]
    before = replica.flat.clone().view(torch.int32)
    found = [contributing.compute(0, shard) for shard in range(5)]
    assert torch.equal(replica.flat.view(torch.int32), before)
    replica.check_step()
    again = [contributing.compute(0, shard) for shard in reversed(range(5))]
    assert sum(each is not None for each in found) >= 3
    for one, other in zip(found, reversed(again), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.loss, one.weight) == (other.loss, other.weight)
            assert all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))


@pytest.mark.long
def test_the_largest_counter_is_taken() -> None:
    """Clients of unequal sizes count unequal numbers of batches."""
    parts = _parts(4)
    for layout in (Layout(), Layout(3)):
        run = train(LabelledBatchnorm, layout, **{**CASES[4], "steps": 1})
        assert run.parameters["1.num_batches_tracked"].item() == 2 * max(-(-len(part) // 2) for part in parts)


def _parts(number: int) -> list[Any]:
    worker = Worker(resolve(settings_for(LabelledBatchnorm, **CASES[number])), LocalRegions())
    worker.prepare()
    assert worker._workload.samples.division is not None
    return [part.samples for part in worker._workload.samples.division.parts]


@pytest.mark.long
def test_a_proximal_term_keeps_shards_near() -> None:
    lengths = []
    start = train(p.Mlp, steps=1, optimizer={"name": "sgd", "lr": 0.0})
    for mu in (0.0, 5.0):
        run = train(p.Mlp, steps=1, optimizer=MEAN, local={"steps": 20, "optimizer": INNER, "proximal_mu": mu})
        lengths.append(sum((run.parameters[name] - start.parameters[name]).norm() for name in run.parameters))
    assert lengths[1] < lengths[0]


def test_a_local_optimizer_that_diverges_ends_the_run() -> None:
    (end,) = members_end(Labelled, optimizer=MEAN, local={"steps": 9, "optimizer": {"name": "sgd", "lr": 1e30}})
    assert isinstance(end, NonFinite)


class ChangesParameters(Labelled):
    def loss(self, model: torch.nn.Module, batch: p.Batch) -> Any:
        with torch.no_grad():
            next(model.parameters()).mul_(0.5)
        return super().loss(model, batch)


def test_a_loss_that_changes_parameters_is_refused_as_elsewhere() -> None:
    (end,) = members_end(ChangesParameters, optimizer=MEAN, local={"steps": 2, "optimizer": INNER})
    assert isinstance(end, PipelineRaised)
    assert "was changed in place while a batch was computed" in str(end)


class FrozenAtTimes(p.Mlp):
    """Its last micro-batch of a round freezes a layer, which the first one of the next trains."""

    def loss(self, model: torch.nn.Module, batch: p.Batch, step: int = 0) -> Any:
        model[0].requires_grad_(step % 3 == 0)  # type: ignore[index]
        return super().loss(model, batch)


@pytest.mark.parametrize("layout", [Layout(2), Layout(3, "tree")], ids=str)
def test_a_layer_that_is_frozen_as_a_round_begins_is_trained_on_each_layout(layout: Layout) -> None:
    """A local optimizer without it moved it in no round whose shard began behind such a micro-batch of its worker."""
    local = {"steps": 3, "optimizer": INNER}
    reference = train(FrozenAtTimes, optimizer=MEAN, local=local)
    assert_same_run(train(FrozenAtTimes, layout, optimizer=MEAN, local=local), reference)
    ends = [train(FrozenAtTimes, optimizer=MEAN, steps=steps, local=local).parameters["0.weight"] for steps in (1, 2)]
    assert not torch.equal(*ends)


def test_more_slots_than_clients_with_samples_are_refused() -> None:
    partition = {"name": "dirichlet", "alpha": 0.01, "clients": 20, "least": 0}
    (end,) = members_end(Labelled, shards=19, batch_size=19, partition=partition)
    assert isinstance(end, ConfigurationError)
    assert "data.shards: 19 shards, but only" in str(end)


# --- losses of members

RICH: dict[str, Any] = {
    "steps": 5,
    "shards": 4,
    "seed": 8,
    "batch_size": 8,
    "args": {"rows": 30, "held_out": 4},
    "evaluate_every": Every(steps=2),
    "checkpoint_every": 2,
    "partition": CLIENTS,
    "local": {"epochs": 2, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5}, "proximal_mu": 0.1},
    "optimizer": {"name": "adam", "lr": 0.05, "eps": 1e-3},
}


@functools.cache
def _whole() -> Told:
    return survive(LabelledBatchnorm, Layout(1), **RICH)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned([14, 3, 26, 40, 61], 5))
def test_members_may_die(first: int) -> None:
    whole = _whole()
    faults = [Fault(i, first + 15 * i, "die") for i in range(2)]
    told = survive(LabelledBatchnorm, Layout(3, "tree"), faults, **RICH)
    assert sum(ends[-1] == "dead" for ends in told.ends) == 2
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("at", thinned(range(20, 60, 13), 4, 1))
def test_a_round_that_is_called_off_in_the_middle_is_repeated(at: int) -> None:
    """Also between two local steps: the parameters are those of the round's start then."""
    told = survive(LabelledBatchnorm, Layout(2), [Fault(1, at, "call off")], **RICH)
    assert (told.trace, told.digest) == (_whole().trace, _whole().digest)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_all_have_left_goes_on_from_its_checkpoint() -> None:
    whole, saved = _whole(), Saved()
    prepared = elastic_settings(LabelledBatchnorm, Layout(2), **RICH)
    told = Elastic(prepared, Layout(2), [Fault(0, 150, "die"), Fault(1, 150, "die")], saved=saved).run()
    assert told.trace == whole.trace[told.trace[0]["step"] :]
    assert told.digest == whole.digest


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_run_goes_on_with_other_workers() -> None:
    before, after = stop_and_go_on(LabelledBatchnorm, 40, **RICH)
    assert before.trace + after.trace == _whole().trace
    assert after.digest == _whole().digest


class Narrow(Labelled):
    """Batch normalisation of single values: a batch of one row has no deviation."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(p.FEATURES, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, p.CLASSES)
        )


class Lonely(Narrow):
    """Client 0 owns one sample."""

    def labels(self, train: Any, by: str) -> Any:
        return [min(number, 1) + (number > 12) for number in range(len(train))] if by == "client" else []


def _told(kind: type[Labelled] = Narrow, **settings: Any) -> OrchestratorError:
    with refused("pipeline.raised") as caught:
        train(kind, steps=60, **{"shards": 4, "batch_size": 16, "optimizer": MEAN, **settings})
    assert caught.value.recurs
    return caught.value


def test_who_owns_one_sample_is_named_by_round_client_and_local_step() -> None:
    clients = {"name": "dirichlet", "alpha": 0.3, "clients": 12, "least": 1}
    error = _told(partition=clients, local={"epochs": 2, "optimizer": INNER})
    found = re.match(
        r"loss\(\) \(round (\d+), local step 0, client (\d+), shard (\d)\) raised ValueError", error.message
    )
    assert found is not None
    worker = Worker(
        resolve(
            settings_for(
                Narrow,
                shards=4,
                batch_size=16,
                optimizer=MEAN,
                partition=clients,
                local={"epochs": 2, "optimizer": INNER},
            )
        ),
        LocalRegions(),
    )
    worker.prepare()
    sampler = worker._workload.samples._sampler
    assert isinstance(sampler, ClientSampler)
    round_, client, shard = map(int, found.groups())
    assert (sampler.client(round_, shard), sampler.samples(round_, shard)) == (client, 1)
    assert "this client owns one sample: set data.partition.least=2, or put GroupNorm" in error.remedy
    assert "data.batch_size" not in error.remedy


def test_the_remedy_is_one_that_helps() -> None:
    natural = _told(Lonely, partition={"name": "natural"}, local={"epochs": 1, "optimizer": INNER}, shards=3)
    assert natural.message.startswith("loss() (round 0, local step 0, client 0, shard 0)")
    assert "give each client two samples or more" in natural.remedy
    iid = {"name": "iid", "clients": 8}
    odd: dict[str, Any] = {"partition": iid, "local": {"epochs": 1, "optimizer": INNER}, "batch_size": 8}
    assert re.search(
        r"of this client's \d+ samples a batch was left one: set data\.batch_size=12,", _told(**odd).remedy
    )
    train(Narrow, steps=6, shards=4, optimizer=MEAN, **{**odd, "batch_size": 12})
    least = {"name": "dirichlet", "alpha": 2.0, "clients": 5, "least": 2}
    train(Narrow, steps=12, shards=4, batch_size=16, optimizer=MEAN, partition=least, local=odd["local"])


def test_drawn_clients_without_local_steps_are_named_too() -> None:
    error = _told(partition={"name": "iid", "clients": 8}, batch_size=4)
    assert re.match(r"loss\(\) \(step 0, client \d, shard 0\) raised", error.message)
    assert "set data.batch_size=12" in error.remedy
