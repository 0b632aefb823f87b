"""Batches that are on their way to the device before their turn: no bit depends on it, and streams and events order all.

Loaders have a double in the compute thread, which has read what it was asked for, or has not, as a story says. Streams have one
that judges their order (`tests/numerics/ordered_streams.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from orchestrator.comm.transports.base import Regions
from orchestrator.data import loaders
from orchestrator.data.loaders import Key, Recipe
from orchestrator.numerics import staging
from orchestrator.numerics.copy_stream import CopyStream
from orchestrator.numerics.device.kernels import Operations
from orchestrator.numerics.staging import Arriving, Copying, Resident
from orchestrator.records.input_audit import InputAudit
from orchestrator.worker import device, worker
from orchestrator.worker.model import batch_place, shard_graphs
from orchestrator.worker.model.micro_batches import MicroBatches
from tests.comm.transports import device_double
from tests.numerics.ordered_streams import Ordered, Stream, order_streams
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.elastic import Fault, survive
from tests.worker.retracing import Retracer
from tests.worker.runs import Layout, members_end, train
from tests.worker.test_on_device import trained

pytestmark = pytest.mark.threads

HERE = torch.device("cpu")
SETTINGS: dict[str, Any] = {"steps": 5, "shards": 4, "optimizer": {"name": "adamw", "lr": 0.01}}


@dataclass
class Seen:
    """The events that a test has seen."""

    ordered: Ordered  # the streams of all threads
    retracer: Retracer = field(default_factory=Retracer)
    begun: list[Key] = field(default_factory=list)  # micro-batches ahead
    used: list[Key] = field(default_factory=list)  # those of them that were taken
    held: list[Key] = field(default_factory=list)  # at the ends of generations


class Loaders:
    """A double of `loaders.Loaders`. story: whether it has read, each time that it is asked."""

    story: Iterator[bool]

    def __init__(self, recipe: Recipe, *_: object) -> None:
        self.input_audit = InputAudit()
        self._recipe, self._source = recipe, loaders._source(recipe)

    def batch(self, key: Key, upcoming: Iterator[Key], is_over: Callable[[Key], bool]) -> Any:
        assert next(upcoming, None) != key
        assert not is_over(key)
        return loaders._result(loaders._answer(self._recipe, self._source, key))

    def has_read(self, key: Key) -> bool:
        return bool(key.indices) and next(Loaders.story)

    def verify(self, *_: object) -> None: ...

    forget = close = verify


@pytest.fixture(params=["eager", pytest.param("recorded", marks=pytest.mark.long)])
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Workers of this test copy in a stream of its own, and sums are made in host memory, or on the device of recordings."""
    found = Seen(order_streams(monkeypatch))
    monkeypatch.setattr(staging, "_BESIDE_BYTES", 0)
    monkeypatch.setattr(worker, "Loaders", Loaders)
    monkeypatch.setattr(Loaders, "story", itertools.repeat(True), raising=False)
    monkeypatch.setattr(
        shard_graphs, "_host_generators", tuple
    )  # a processor's random numbers are part of its recordings

    def opened(_: object, regions: Regions, __: object) -> device.Device:
        if request.param == "eager":
            return device.Device(Copying(HERE, CopyStream(HERE)), regions)
        return device.Device(Resident(HERE, CopyStream(HERE)), device_double.regions(), Operations(), found.retracer)

    monkeypatch.setattr(device, "opened", opened)
    _watch(monkeypatch, found)
    return found


def _watch(monkeypatch: pytest.MonkeyPatch, seen: Seen) -> None:
    fetch, drop = MicroBatches.fetch, MicroBatches.drop_following
    begin = MicroBatches.begin_following

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def within(each: Any, *arguments: Any) -> Any:
            with seen.ordered.watched():
                return method(each, *arguments)

        return within

    def fetched(batches: Any, micro_batch: Any) -> Arriving:
        before = batches._following
        found = fetch(batches, micro_batch)
        if before is not None and found is before[1]:
            seen.used.append(before[0])
        return found

    def begun(batches: Any, key: Key) -> None:
        begin(batches, key)
        if batches._following is not None:
            seen.begun.append(batches._following[0])

    def dropped(batches: Any) -> None:
        if batches._following is not None:
            seen.held.append(batches._following[0])
        drop(batches)

    for name in ("prepare", "run"):
        monkeypatch.setattr(worker.Worker, name, watched(getattr(worker.Worker, name)))
    monkeypatch.setattr(MicroBatches, "fetch", fetched)
    monkeypatch.setattr(MicroBatches, "begin_following", begun)
    monkeypatch.setattr(MicroBatches, "drop_following", dropped)


def test_no_bit_differs_and_each_micro_batch_but_the_first_is_on_its_way(seen: Seen) -> None:
    plain = train(p.Batchnorm, **SETTINGS)
    found = trained(p.Batchnorm, Layout(2), loaders=1, claims=False, **SETTINGS)
    assert (found.trace, found.digest) == (plain.trace, plain.digest)
    assert seen.ordered.wrong == []
    again = 2  # the first step is computed again on a grid that fits, behind what had begun for the second
    assert len(seen.used) == len(seen.begun) - again
    empty, first = 2, 2
    assert len(set(seen.used)) == 5 * 4 - empty - first


@pytest.mark.long
def test_so_it_is_where_loaders_have_read_only_now_and_then(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loaders, "story", itertools.cycle([False, True, True, False, True]))
    plain = train(p.Mlp, **SETTINGS)
    found = trained(p.Mlp, Layout(2), loaders=1, claims=True, **SETTINGS)
    assert found.trace == plain.trace
    assert seen.ordered.wrong == []
    assert seen.used


def test_members_come_and_go(seen: Seen) -> None:
    settings: dict[str, Any] = {**SETTINGS, "steps": 4, "checkpoint_every": 1}
    plain = survive(p.Augmented, Layout(1), **settings)
    seen.begun.clear()
    told = survive(p.Augmented, Layout(2), [Fault(0, 17, "join"), Fault(1, 38, "die")], loaders=1, **settings)
    assert told.generations == 3
    assert (told.trace, told.digest, told.metrics) == (plain.trace, plain.digest, plain.metrics)
    assert seen.held, "what was on its way as a generation ended is let go"
    assert seen.ordered.wrong == []


@pytest.mark.usefixtures("seen")
def test_a_fault_is_of_its_own_micro_batch() -> None:
    (plain,) = members_end(f.RaisesInDataset, loaders=0)
    (found,) = members_end(f.RaisesInDataset, loaders=1)
    assert isinstance(plain, Exception)
    assert str(found) == str(plain)


@pytest.mark.parametrize("call", ["wait_event", "record_stream"])
def test_a_call_that_is_left_out_is_found(seen: Seen, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(Stream if call == "wait_event" else torch.Tensor, call, lambda *_: None)
    train(p.Mlp, loaders=1, steps=2)
    assert seen.ordered.wrong


@pytest.mark.parametrize("seen", ["recorded"], indirect=True)
def test_a_recording_that_is_filled_in_another_stream_is_found(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    load, stream = batch_place.BatchPlace.load, Stream()

    def early(recorded: Any, arriving: Arriving, tensors: Any) -> Any:
        with seen.ordered.within(stream):
            return load(recorded, arriving, tensors)

    monkeypatch.setattr(batch_place.BatchPlace, "load", early)
    train(p.Mlp, loaders=1, steps=3)
    assert any("still uses" in each for each in seen.ordered.wrong)
