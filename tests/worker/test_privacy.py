"""Clipped contributions, noise and masks: one digest and one trace for every layout, kill and resume, masked or not; and what a
server, a region and a repeated step show."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import TensorDataset

from orchestrator.comm.collectives import END, EVALUATION, EVALUATION_VOTE, GRID_KEYS, GRID_SUM, VOTE
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.base import Received, Tag, Transport
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.controller.shard_assignment import assign_shards
from orchestrator.errors import ConfigurationError, NonFinite, PipelineRaised
from orchestrator.numerics.grid import Grid
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.privacy.masks import Masks
from orchestrator.optim.privacy.secret import Secret
from orchestrator.pipeline import Pipeline
from orchestrator.records.trace import loss_of
from orchestrator.worker.model import construction
from orchestrator.worker.worker import Worker
from tests.comm.transports.memory import Hub, LocalRegions
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker import runs
from tests.worker.apart import encode_apart
from tests.worker.elastic import Dead, Elastic, Fault, Saved, Told, elastic_settings, survive
from tests.worker.runs import (
    LAYOUTS,
    LONELY,
    SECRET,
    Layout,
    Run,
    assert_same_run,
    generation_of,
    members_end,
    rotating,
    settings_for,
    train,
)
from tests.worker.test_divided import Labelled, LabelledBatchnorm

pytestmark = pytest.mark.threads

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


@functools.cache
def _alone(number: int) -> Run:
    return train(Labelled, **CASES[number])


@pytest.mark.parametrize("nth", thinned(range(4), 4, 3))
@pytest.mark.parametrize("number", thinned(range(len(CASES)), 6), ids=lambda number: str(CASES[number]))
def test_every_layout_gives_the_same_run(number: int, nth: int) -> None:
    case, layout = CASES[number], rotating(4, number)[nth]
    if layout.workers <= case.get("shards", 5):
        assert_same_run(train(Labelled, layout, masked=nth % 2 == 0, **case), _alone(number))


@functools.cache
def _unmasked() -> Run:
    return train(Labelled, steps=2, **CASES[4])


@pytest.mark.parametrize("layout", thinned([each for each in [*LAYOUTS, *LONELY] if each.workers <= 4], 12, 1), ids=str)
def test_masks_change_no_bit_on_any_layout(layout: Layout) -> None:
    assert_same_run(train(Labelled, layout, masked=True, steps=2, **CASES[4]), _unmasked())


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 7, 4), ids=lambda number: str(CASES[number]))
def test_clipping_on_a_device_changes_no_bit(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _alone(number)
    encode_apart(monkeypatch)
    assert_same_run(train(Labelled, Layout(2, "tree"), masked=True, **CASES[number]), expected)


@pytest.mark.parametrize("every", thinned([5, 1], 2))
def test_all_of_these_are_different_runs(every: int) -> None:
    cases = [{}, *CASES[::every]]
    assert len({train(Labelled, **{"steps": 2, **case}).digest for case in cases}) == len(cases)


def test_a_run_without_the_key_of_its_noise_ends() -> None:
    prepared = settings_for(Labelled, **CASES[4])
    worker = Worker(resolve(prepared), LocalRegions())
    run_manifest = worker.prepare()
    generation = generation_of(build_schedule("ring", 1), assign_shards(4, 1), run_manifest=run_manifest)
    with refused("privacy.no-key-for-clients"):
        worker.run(generation, 0, lambda: Hub(1).transport(0, LocalRegions()))


def test_another_secret_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy, clipped = _alone(4), _alone(3)
    monkeypatch.setattr(runs, "SECRET", Secret(bytes(32), Path("nowhere")))
    assert train(Labelled, **CASES[4]).trace != noisy.trace
    assert train(Labelled, **CASES[3]).trace == clipped.trace


# --- what a step is


def test_without_clipping_and_noise_it_is_the_mean_over_the_shards() -> None:
    """But for the lattice, and for weights: in full steps shards have equal rows."""
    plain = train(Labelled, steps=2)
    clipped = train(Labelled, steps=2, privacy={"clipping_norm": 100.0})
    assert clipped.losses == pytest.approx(plain.losses, abs=1e-6)
    for name, tensor in plain.parameters.items():
        assert torch.allclose(clipped.parameters[name], tensor, rtol=1e-4, atol=1e-6)


def test_no_step_is_longer_than_the_clipping_norm() -> None:
    start = train(Labelled, steps=1, optimizer={"name": "sgd", "lr": 0.0}).parameters
    end = train(Labelled, steps=1, optimizer=MEAN, privacy={"clipping_norm": 0.01}).parameters
    moved = sum(float((end[name] - start[name]).double().square().sum()) for name in end) ** 0.5
    assert 0.001 < moved <= 0.01 * (1 + 1e-6)


class Twice(Labelled):
    """A client more, whose samples come behind those of the others."""

    def datasets(self) -> Any:
        train, held_out = super().datasets()
        assert isinstance(train, TensorDataset)
        inputs, labels = train.tensors
        return TensorDataset(inputs[: len(inputs) - 4], labels[: len(inputs) - 4]), held_out

    def labels(self, train: Any, by: str) -> Any:  # noqa: ARG002
        return torch.arange(len(train)) // 4


class WithAnother(Twice):
    def datasets(self) -> Any:
        return Labelled.datasets(self)


@pytest.mark.parametrize("local", [None, {"epochs": 2, "optimizer": INNER, "weight": "uniform"}])
def test_one_client_more_changes_the_sum_of_a_round_by_at_most_the_clipping_norm(local: Any) -> None:
    """Also where it has the most samples, and whatever others are drawn: nothing that they contribute depends on it."""
    clients = {"args": {"rows": 24}, "partition": {"name": "natural"}, "shards": 4, "batch_size": 4, "local": local}
    privacy = {"clipping_norm": 0.25, "noise_multiplier": 1e-6, "delta": 1e-3, "clients": 8}
    settings: dict[str, Any] = {"privacy": privacy, "optimizer": MEAN, **clients}
    workers = [_prepared(each, **settings) for each in (Twice, WithAnother)]
    distances = []
    for secret in range(6):
        keys = Secret(bytes([secret] * 32), Path("nowhere")).keys("the same")
        sums = [_sums(each, keys) for each in workers]
        distances.append(float((sums[0] - sums[1]).double().norm()))
    assert max(distances) == pytest.approx(0.25, rel=1e-3)  # it plays
    assert min(distances) < 1e-9  # it does not play


def _prepared(pipeline: type[Pipeline], **settings: Any) -> Worker:
    worker = Worker(resolve(settings_for(pipeline, **settings)), LocalRegions())
    worker.prepare()
    return worker


def _sums(worker: Worker, keys: Keys) -> torch.Tensor:
    """The sum of the shards of step 0, as real numbers."""
    trainer: Any = worker._strategy._trainer  # type: ignore[attr-defined]
    trainer.unlock(keys)
    trainer.take_on([range(4)])
    trainer.contribute(0, 0, Grid.unset(1, 1))
    carrier, lattice = trainer._clipped._carrier, trainer._clipped._grid
    found: torch.Tensor = carrier.own.double() * lattice.lsb
    return found


def test_losses_are_hidden_where_noise_hides_clients() -> None:
    told = [line["loss"] for line in _alone(4).trace]
    assert all(loss.startswith("hmac:") and loss_of({"loss": loss}) is None for loss in told)
    assert len(set(told)) == len(told)
    assert all(loss_of(line) is not None for line in _alone(3).trace)


# --- what others see


class Seen:
    """A transport that remembers what it hands to its member: of a worker's sum, not of votes and keys."""

    def __init__(self, inner: Any, seen: list[tuple[int, torch.Tensor]]) -> None:
        self._inner = inner
        self._seen = seen
        self.send, self.flush, self.poll = inner.send, inner.flush, inner.poll
        self.travels, self.close, self.abort = inner.travels, inner.close, inner.abort

    @property
    def sent_bytes(self) -> int:
        return int(self._inner.sent_bytes)

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        received: Received = self._inner.receive(peer, tag, timeout_s)
        if tag.phase == GRID_SUM:
            self._seen.append((peer, received.payload.clone()))
        else:
            assert tag.phase in (VOTE, GRID_KEYS, EVALUATION, EVALUATION_VOTE, END)
        return received


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("servers", thinned([1, 2], 2))
def test_a_server_sees_only_masked_sums(servers: int, masked: bool) -> None:
    """Unmasked, most of what it gets are small numbers; masked, all bytes are as good as drawn by chance."""
    seen: list[tuple[int, torch.Tensor]] = []

    def wire(hub: Hub, rank: int, regions: LocalRegions) -> Transport:
        transport = hub.transport(rank, regions)
        return Seen(transport, seen) if rank >= 3 else transport

    layout = Layout(3, "parameter_server", servers=servers)
    ends = members_end(Labelled, layout, wire, masked=masked, steps=3, **CASES[3])
    assert not any(isinstance(end, BaseException) for end in ends)
    assert {peer for peer, _ in seen} == {0, 1, 2}
    numbers = torch.cat([payload for _, payload in seen])
    counts = numpy.bincount(numbers.numpy().view(numpy.uint8), minlength=256)
    expected = len(numbers) * 8 / 256
    like_chance = ((counts - expected) ** 2 / expected).sum() < 450  # chi-squared with 255 degrees of freedom
    assert like_chance == masked


def test_the_vote_of_a_step_tells_nothing_of_samples() -> None:
    plan = resolve(settings_for(Labelled, **CASES[3]))
    worker = Worker(plan, LocalRegions())
    worker.prepare()
    trainer: Any = worker._strategy._trainer  # type: ignore[attr-defined]
    trainer.unlock(SECRET.keys("tests"))
    trainer.take_on([(0, 2)])
    told = trainer.contribute(0, 0, Grid.unset(1, 1))
    assert (told.failing_shard, list(told.magnitudes), told.weights, told.losses) == (None, [], {}, {})
    assert set(told.present) == {True}


def test_a_region_that_peers_map_never_holds_a_plain_sum() -> None:
    """At each message of a worker each part of its region is as good as random, or as it was made."""
    strange: list[int] = []

    def wire(hub: Hub, rank: int, regions: LocalRegions) -> Transport:
        transport = hub.transport(rank, regions)
        send = transport.send

        def look(peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
            for region in regions._regions if rank == 1 and tag.phase in (VOTE, GRID_SUM) else ():
                for part in region.view(torch.int64).chunk(2):  # the contribution, and the result
                    strange.append(int((part.abs() < 2**45).sum()) if bool(part.any()) else 0)
            send(peer, tag, payload, note, done=done)

        transport.send = look  # type: ignore[method-assign]
        return transport

    ends = members_end(Labelled, Layout(3, "parameter_server"), wire, masked=True, steps=1, **CASES[3])
    assert not any(isinstance(end, BaseException) for end in ends)
    assert strange
    assert max(strange) < 100  # of thousands


# --- losses of members

RICH: dict[str, Any] = {**ROUNDS, "privacy": NOISY, "steps": 5, "seed": 8, "args": {"rows": 30, "held_out": 4}}
RICH |= {"evaluate_every": Every(steps=2), "checkpoint_every": 2, "optimizer": {"name": "adam", "lr": 0.05}}


@functools.cache
def _whole() -> Told:
    return survive(Labelled, Layout(1), **RICH)


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned(range(3, 60, 7), 9, 3))
def test_members_may_die_also_after_masking_and_the_same_bytes_are_released(first: int) -> None:
    """A trace tells a fingerprint of what each step released, so equal traces are equal releases: no epsilon is spent."""
    whole = _whole()
    layout = [Layout(3, "tree"), Layout(4), Layout(3, "parameter_server"), Layout(3, "peer_to_peer")][first % 4]
    told = survive(Labelled, layout, [Fault(i, first + 9 * i, "die") for i in range(2)], masked=True, **RICH)
    assert sum(ends[-1] == "dead" for ends in told.ends) == 2
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


@pytest.mark.slow
def test_a_worker_that_dies_right_after_masking_takes_its_masks_along(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _whole()
    used: list[tuple[int, int, int]] = []
    add = Masks.add

    def dying(self: Masks, step: int, attempt: int, total: torch.Tensor) -> None:
        plain = total.clone()
        add(self, step, attempt, total)
        used.append((id(self), step, hash(tuple((total - plain)[:8].tolist()))))
        if step == 2 and len(used) % 3 == 0 and not any(each[0] == -1 for each in used):
            used.append((-1, step, 0))
            raise Dead(-1)

    monkeypatch.setattr(Masks, "add", dying)
    told = survive(Labelled, Layout(3), masked=True, **RICH)
    assert (told.trace, told.digest) == (whole.trace, whole.digest)
    assert told.generations > 1
    masks = [mask for number, _, mask in used if number != -1]
    assert len(set(masks)) == len(masks)  # the repeated step has others


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("at", range(5, 45, 8))
def test_a_round_that_is_called_off_is_repeated(at: int) -> None:
    told = survive(Labelled, Layout(2), [Fault(1, at, "call off")], masked=True, **RICH)
    assert (told.trace, told.digest) == (_whole().trace, _whole().digest)


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_run_goes_on() -> None:
    whole, saved = _whole(), Saved()
    prepared = elastic_settings(Labelled, Layout(3), masked=True, **RICH)
    first = Elastic(prepared, Layout(3), [Fault(1, 20, "stop")], saved=saved).run()
    assert first.stopped
    other = Layout(2, "parameter_server")
    after = Elastic(elastic_settings(Labelled, other, **RICH), other, saved=saved).run()
    assert first.trace + after.trace == whole.trace
    assert after.digest == whole.digest


# --- refused


class Weighted(Labelled):
    def loss(self, model: torch.nn.Module, batch: p.Batch) -> Any:
        return super().loss(model, batch), 2.0


class Counting(Labelled):
    def model(self) -> torch.nn.Module:
        model = super().model()
        model.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        return model

    def loss(self, model: torch.nn.Module, batch: p.Batch) -> Any:
        model.get_buffer("count").add_(1)
        return super().loss(model, batch)


class Infinite(Labelled):
    def loss(self, model: torch.nn.Module, batch: p.Batch) -> Any:
        loss = super().loss(model, batch)
        return loss + (next(model.parameters()) * 0).sum().sqrt()  # whose gradient is not finite


@pytest.mark.parametrize(
    ("pipeline", "error", "words"),
    [
        (LabelledBatchnorm, PipelineRaised, "keeps running statistics .*GroupNorm"),
        (Weighted, PipelineRaised, "returned a weight, and with privacy.clipping_norm all count the same"),
        (Counting, PipelineRaised, "integer buffer 'count' of the model changed"),
        (Infinite, NonFinite, "is not finite"),
    ],
)
def test_what_cannot_be_bounded_ends_the_run(pipeline: type[Pipeline], error: type[Exception], words: str) -> None:
    (end,) = members_end(pipeline, privacy=CLIPPED)
    assert isinstance(end, error)
    assert re.search(words, str(end), re.DOTALL)


def test_batch_normalisation_is_refused_before_anything_is_started() -> None:
    plan = resolve(settings_for(LabelledBatchnorm, privacy=CLIPPED))
    with refused("model.running-statistics"):
        construction.rehearse(plan)


def test_more_clients_than_the_settings_say_are_refused() -> None:
    (end,) = members_end(Labelled, **{**CASES[7], "privacy": {**NOISY, "clients": 4}})
    assert isinstance(end, ConfigurationError)
    assert "privacy.clients: the partition finds 5 clients, and the settings allow 4" in str(end)


def test_no_text_or_event_of_a_generation_shows_its_keys() -> None:
    keys = SECRET.keys("tests")
    generation = replace(generation_of(build_schedule("ring", 1), assign_shards(4, 1)), keys=keys)
    root = keys._root
    for text in (repr(generation), str(generation), str(generation.as_event())):
        assert root.hex() not in text
        assert repr(root) not in text
        assert "keys" not in text
