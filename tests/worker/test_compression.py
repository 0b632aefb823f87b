"""A run whose gradients travel compressed is one run on every layout, whatever happens to its members."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.numerics import staging
from orchestrator.pipeline import Pipeline
from orchestrator.worker import device
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.apart import encode_apart
from tests.worker.elastic import EVERYTHING, Elastic, Fault, Saved, Told, drawn, elastic_settings
from tests.worker.retracing import Retracer
from tests.worker.runs import LAYOUTS, LONELY, Layout, Run, assert_same_run, rotating, train
from tests.worker.test_one_result import ADAM

pytestmark = pytest.mark.threads

QUANTIZE = {"name": "quantize"}
POWERSGD = {"name": "powersgd", "rank": 1}
WARMED_UP = {"name": "powersgd", "rank": 1, "warmup": 1}
RESET = {"name": "powersgd", "rank": 1, "warmup": 1, "reset": 3}
TOPK = {"name": "topk", "ratio": 0.1, "error_feedback": True}
METHODS: list[dict[str, Any]] = [
    QUANTIZE,
    {"name": "quantize", "error_feedback": False},
    {"name": "quantize", "bits": 16},
    POWERSGD,
    {"name": "powersgd", "rank": 2, "error_feedback": False},
    WARMED_UP,
    {"name": "powersgd", "rank": 1, "saving": 3.0},
    {"name": "powersgd", "rank": 1, "reset": 2},
    {"name": "topk", "ratio": 0.05, "warmup": 2},
    TOPK,
]
CASES: list[tuple[type[Pipeline], dict[str, Any]]] = [
    (p.Wide, {"steps": 2}),
    (p.Batchnorm, {}),
    (p.FrozenBatchnorm, {}),
    (p.ChannelsLast, {}),
    (p.Attention, {}),
    (p.MaskedTokens, {"steps": 5, "args": {"rows": 27}}),
    (p.LayerDrop, {"steps": 6, "optimizer": ADAM}),
    (p.Mlp, {"shards": 11, "batch_size": 13, "clip": 0.05}),
    (p.Mlp, {"shards": 8, "batch_size": 8, "args": {"rows": 3}, "steps": 6}),  # empty shards with waiting residuals
    (p.Mlp, {"args": {"rows": 1}}),
]


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 5), ids=lambda n: CASES[n][0].__name__)
def test_every_layout_gives_the_same_run(number: int) -> None:
    _try(METHODS[number % len(METHODS)], number)


@pytest.mark.slow
@pytest.mark.parametrize("number", thinned(range(len(CASES)), 10), ids=lambda n: CASES[n][0].__name__)
@pytest.mark.parametrize("method", thinned(METHODS, 10, 9), ids=str)
def test_every_method_does_so(method: dict[str, Any], number: int) -> None:
    _try(method, number)


def _try(method: dict[str, Any], number: int) -> None:
    pipeline, settings = CASES[number]
    reference = train(pipeline, compression=method, **settings)
    for layout in rotating(2, number + METHODS.index(method)):
        assert_same_run(train(pipeline, layout, compression=method, **settings), reference)


@pytest.mark.parametrize("layout", thinned([*LAYOUTS, *LONELY], 17), ids=str)
def test_one_model_on_all_layouts(layout: Layout) -> None:
    assert_same_run(train(p.Batchnorm, layout, steps=3, compression=QUANTIZE), _batchnorm())


@pytest.mark.parametrize("method", thinned(METHODS, 10, 3), ids=str)
def test_computing_beside_host_memory_changes_no_bit(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    direct = train(p.Batchnorm, compression=method)
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))
    assert_same_run(train(p.Batchnorm, Layout(2), compression=method), direct)


@pytest.mark.parametrize("method", thinned(METHODS, 10, 9), ids=str)
@pytest.mark.parametrize("pipeline", thinned([p.Batchnorm, p.FrozenBatchnorm, p.ChannelsLast], 3, 1))
def test_encoding_on_a_device_changes_no_bit(
    pipeline: type[Pipeline], method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = train(pipeline, compression=method)
    encode_apart(monkeypatch)
    assert_same_run(train(pipeline, Layout(2, "tree"), compression=method), direct)


class WithoutGradient(p.Mlp):
    """Some micro-batches have no gradient of any parameter."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, _ = batch
        if inputs[0, 0] > 0:
            return inputs.clone().requires_grad_().square().mean()
        return super().loss(model, batch)


@pytest.mark.parametrize("method", [QUANTIZE, POWERSGD, TOPK], ids=str)
def test_a_shard_without_any_gradient_has_its_place_on_a_device(
    method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = train(WithoutGradient, compression=method)
    encode_apart(monkeypatch)
    assert_same_run(train(WithoutGradient, compression=method), direct)


@pytest.mark.parametrize("method", thinned(METHODS, 10, 2), ids=str)
def test_contributions_of_recordings_are_held_though_the_next_takes_their_memory(
    method: dict[str, Any], retracer: Retracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = staging.Resident(torch.device("cpu"))
    monkeypatch.setattr(device, "opened", lambda _, regions, __: device.Device(here, regions, recorder=retracer))
    recorded = train(p.Batchnorm, compression=method, steps=6)
    assert retracer.replays > 6
    monkeypatch.undo()
    assert_same_run(recorded, train(p.Batchnorm, compression=method, steps=6))


@pytest.mark.parametrize("every", thinned([5, 1], 2))
def test_each_method_is_another_run(every: int) -> None:
    digests = [train(p.Batchnorm, compression=method).digest for method in [{"name": "none"}, *METHODS[::every]]]
    assert len(set(digests)) == len(digests)


def test_statistics_and_counters_stay_exact() -> None:
    """One step changes them by the batch alone, so they are those of the run without compression."""
    plain, compressed = (
        train(p.Batchnorm, steps=1, compression=each).parameters for each in ({"name": "none"}, QUANTIZE)
    )
    statistics = [name for name in plain if "running" in name or "batches" in name]
    assert len(statistics) >= 3
    assert all(torch.equal(plain[name], compressed[name]) for name in statistics)
    assert not all(torch.equal(plain[name], compressed[name]) for name in plain)


@functools.cache
def _batchnorm() -> Run:
    return train(p.Batchnorm, steps=3, compression=QUANTIZE)


# ---- what shards keep is lost with nobody but its host

RICH: dict[str, Any] = {**EVERYTHING, "early_stopping": {}, "checkpoint_every": 2}
KEEPING = [QUANTIZE, RESET, TOPK]


def told_of(method: int, layout: Layout, faults: list[Fault], **how: Any) -> tuple[Told, Elastic]:
    run = Elastic(elastic_settings(p.Batchnorm, layout, compression=KEEPING[method], **RICH), layout, faults, **how)
    return run.run(), run


@functools.cache
def undisturbed(method: int) -> Told:
    return told_of(method, Layout(1), [])[0]


def assert_same(method: int, told: Told) -> None:
    whole = undisturbed(method)
    assert told.digest == whole.digest
    assert all(whole.trace[line["step"]] == line for line in told.trace)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(0, 23, 3), 8))
@pytest.mark.parametrize("method", thinned(range(len(KEEPING)), 3))
def test_a_generation_may_be_called_off_at_any_moment(method: int, first: int) -> None:
    """Nobody is lost, so nothing is: who is a step behind has staged what others have committed."""
    layout = [Layout(2), Layout(3, "tree"), Layout(2, "parameter_server", servers=2), Layout(3, "peer_to_peer")][
        first % 4
    ]
    told, run = told_of(method, layout, [Fault(first % 2, first + 23 * i, "call off") for i in range(8)])
    assert told.generations > 1
    assert run.went_back == 0
    assert_same(method, told)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(0, 23, 3), 8, 4))
@pytest.mark.parametrize("method", thinned(range(len(KEEPING)), 3, 1))
def test_members_may_die_at_any_moment(method: int, first: int) -> None:
    layout = [Layout(4, "ring"), Layout(4, "tree"), Layout(4, "parameter_server")][first % 3]
    told, run = told_of(method, layout, [Fault(i, first + 23 * i, "die") for i in range(3)])
    assert run.went_back > 0
    assert_same(method, told)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", range(len(KEEPING)))
def test_chaos(method: int, seed: int) -> None:
    layout, faults, busy_for = drawn(random.Random(seed))
    assert_same(method, told_of(method, layout, faults, busy_for=busy_for)[0])


@pytest.mark.slow
@pytest.mark.parametrize("outlives", thinned([False, True], 2))
@pytest.mark.parametrize("method", thinned(range(len(KEEPING)), 3))
def test_what_shards_keep_on_a_device_is_handed_on_and_found_again(
    method: int, outlives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed(method)
    encode_apart(monkeypatch)
    faults = [Fault(0, 20, "join"), Fault(1, 33, "die"), Fault(0, 60, "call off"), Fault(2, 75, "die")]
    assert_same(method, told_of(method, Layout(3, "tree"), faults, outlives=outlives)[0])


@pytest.mark.long
@pytest.mark.parametrize("method", range(len(KEEPING)))
def test_a_stopped_run_goes_on_with_other_workers(method: int) -> None:
    saved = Saved()
    before, _ = told_of(method, Layout(3), [Fault(1, 26, "stop")], saved=saved)
    assert before.stopped
    after, _ = told_of(method, Layout(4, "tree"), [], saved=saved)
    assert before.trace + after.trace == undisturbed(method).trace
    assert after.digest == undisturbed(method).digest


# ---- on the driver's machine it is lost with nobody


def told_lastingly(method: int, layout: Layout, faults: list[Fault], **how: Any) -> tuple[Told, Elastic]:
    return told_of(method, layout, faults, outlives=True, **how)


@pytest.mark.long
@pytest.mark.parametrize("method", range(len(KEEPING)))
def test_what_outlives_its_host_is_not_computed_again(method: int) -> None:
    told, run = told_lastingly(method, Layout(4), [Fault(1, 60, "die"), Fault(2, 95, "die")])
    assert [ends[-1] for ends in told.ends].count("dead") == 2
    assert run.went_back == 0
    assert_same(method, told)


@pytest.mark.slow
@pytest.mark.parametrize("later", thinned(range(0, 24, 3), 8, 2))
@pytest.mark.parametrize("method", thinned(range(len(KEEPING)), 3))
def test_a_lone_worker_may_die_once_another_has_joined_it(method: int, later: int) -> None:
    """Its states go where they outlive it before that one gets the replica: it dies while it gives that away, and later."""
    told, run = told_lastingly(method, Layout(1), [Fault(0, 20, "join"), Fault(0, 103 + later, "die")])
    assert [ends[-1] for ends in told.ends].count("dead") == 1
    assert run.went_back == 0
    assert_same(method, told)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(50), 50, 25))
@pytest.mark.parametrize("method", thinned(range(len(KEEPING)), 3, 2))
def test_any_moment_may_be_the_last_of_a_host(method: int, first: int) -> None:
    """Its writes of what shards keep among them; one worker stays, since with the last one all is lost."""
    layout = [Layout(4, "ring"), Layout(4, "tree"), Layout(4, "parameter_server"), Layout(4, "peer_to_peer")][first % 4]
    told, run = told_lastingly(method, layout, [Fault(i, first + 31 * i, "die") for i in range(3)])
    assert sum(ends[-1] == "dead" for ends in told.ends) == 3
    assert run.went_back == 0
    assert_same(method, told)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_chaos_where_it_outlives_its_host(seed: int) -> None:
    """Faults at random moments lose no more than what the last living worker takes along. One that dies in restoring a
    checkpoint takes nothing along: the next restores it again."""
    method = seed % len(KEEPING)
    layout, faults, busy_for = drawn(random.Random(1000 + seed), least=2, deaths=2, faults=14, within=150)
    told, run = told_lastingly(method, layout, faults, busy_for=busy_for)
    assert run.lost_steps == 0
    assert_same(method, told)
