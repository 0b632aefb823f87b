"""Sums that stay on the device of the model: no bit differs, whoever is on it, and nothing leaves it.

No GPU is where these tests run. The driver's calls have a double on host memory, with true descriptors and mappings
(`tests/comm/transports/device_double.py`); the kernels are those of a card, compiled for a processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from orchestrator.comm import collectives
from orchestrator.comm.transports.base import Regions
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.numerics import staging
from orchestrator.numerics.device.kernels import Kernels, Operations, Plain
from orchestrator.numerics.layout import BLOCK
from orchestrator.pipeline import Pipeline
from orchestrator.worker import device
from tests.comm.transports import device_double
from tests.numerics.device import host
from tests.products import thinned
from tests.refusals import refused
from tests.worker import elastic
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.apart import sum_apart
from tests.worker.elastic import Fault, survive
from tests.worker.pipeline_parallel.sockets import Sockets, Wires
from tests.worker.runs import SGD, Layout, members_end, settings_for, train
from tests.worker.test_apart import CASES as APART

pytestmark = pytest.mark.slow

LOCAL: dict[str, Any] = {
    "local": {"steps": 3, "optimizer": {"name": "adamw", "lr": 0.01}, "proximal_mu": 0.1},
    "optimizer": {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True},
}
CASES = [(pipeline, settings) for pipeline, settings in APART if "reduction" not in settings] + [(p.Batchnorm, LOCAL)]
LAYOUTS = [
    Layout(1),
    Layout(2),
    Layout(4, "tree"),
    Layout(3, "peer_to_peer"),
    Layout(3, "ring"),
    Layout(3, "parameter_server", servers=2),
    Layout(4, "hierarchical", nodes=2),
]


def on_device(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], Kernels],
    regions: Callable[[Kernels], Any] = device_double.regions,
) -> None:
    """From now on, and until the test ends, workers and servers sum on a device."""
    here = staging.Resident(torch.device("cpu"))

    def summing(*_: object) -> device.Summing:
        kernels = make()
        return device.Summing(regions(kernels), kernels)

    def opened(_: object, own: Regions, __: object) -> device.Device:
        found, kernels = summing()
        return device.Device(here, found or own, kernels)

    monkeypatch.setattr(device, "opened", opened)
    monkeypatch.setattr(device, "summing", summing)


def trained(pipeline: type[Pipeline], layout: Layout, **settings: Any) -> Any:
    """By workers that are connected as processes are, on as many hosts as the layout has."""
    members = layout.workers + (layout.servers or 0)
    with Sockets("unix", members, layout.nodes_of(members)) as sockets:
        return train(pipeline, layout, wire=sockets.transport, regions=sockets.regions, **settings)


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 7))
def test_no_bit_differs_wherever_sums_are_made(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    pipeline, settings = CASES[number]
    direct = train(pipeline, **settings)
    makers: list[Callable[[], Kernels]] = [host.kernels, Operations]
    on_device(monkeypatch, makers[number % 2])
    resident = trained(pipeline, LAYOUTS[number % len(LAYOUTS)], **settings)
    assert (resident.trace, resident.digest) == (direct.trace, direct.digest)
    assert str(resident.metrics) == str(direct.metrics)


@pytest.mark.parametrize("layout", thinned([*LAYOUTS[:-1], Layout(3, "ring", nodes=2)], 3, 1), ids=str)
def test_plain_sums_are_those_of_the_same_layout_and_near_exact_ones(
    monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    settings: dict[str, Any] = {"shards": 6, "batch_size": 12, "steps": 3}
    exactly = train(p.Wide, **settings)
    on_device(monkeypatch, Plain)
    first, again = (trained(p.Wide, layout, reduction="fast", **settings) for _ in range(2))
    assert (first.trace, first.digest) == (again.trace, again.digest)
    assert first.digest != exactly.digest
    for name, tensor in exactly.parameters.items():
        assert torch.allclose(first.parameters[name], tensor, rtol=1e-5, atol=1e-6)


HOSTS = [
    Layout(2, "ring", nodes=2),
    Layout(4, "hierarchical", nodes=2),
    Layout(4, "tree", nodes=2),
    Layout(3, "peer_to_peer", nodes=3),
    Layout(3, "parameter_server", servers=1, nodes=2),
    Layout(5, "hierarchical", nodes=3),
]


@dataclass
class Counted:
    """Kernels that pack, and how often they did, or took what had come."""

    kernels: Kernels
    packed: int = 0
    unpacked: int = 0

    def pack(self, *arguments: Any) -> None:
        self.packed += 1
        self.kernels.pack(*arguments)

    def unpack(self, *arguments: Any) -> None:
        self.unpacked += 1
        self.kernels.unpack(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)


@pytest.mark.parametrize("layout", thinned(HOSTS, 2), ids=str)
def test_between_hosts_sums_are_packed_and_unpacked_on_the_device(
    monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    """In pieces, of which several are on their way at once; within a host they stay where they are."""
    monkeypatch.setattr(collectives, "_PIECE", BLOCK)
    direct = train(p.Wide, steps=3)
    made: list[Counted] = []

    def make() -> Any:
        made.append(Counted(host.kernels()))
        return made[-1]

    on_device(monkeypatch, make)
    resident = trained(p.Wide, layout, steps=3)
    assert (resident.trace, resident.digest) == (direct.trace, direct.digest)
    assert sum(each.packed for each in made) == sum(each.unpacked for each in made) > 0


@pytest.mark.parametrize("pipeline", thinned([p.Mlp, p.Batchnorm, p.Images, p.Frozen, p.AwkwardBuffers], 5, 1))
def test_nothing_is_computed_across(monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]) -> None:
    settings: dict[str, Any] = {
        "clip": 0.05,
        "optimizer": {"name": "adamw", "lr": 0.01},
        "evaluate_every": Every(steps=1),
    }
    direct = train(pipeline, **settings)
    sum_apart(monkeypatch)
    beside = trained(pipeline, Layout(2), **settings)
    assert (beside.trace, beside.digest) == (direct.trace, direct.digest)


@pytest.mark.long
def test_local_steps_are_not_computed_across(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = train(p.Batchnorm, steps=2, **LOCAL)
    sum_apart(monkeypatch)
    beside = trained(p.Batchnorm, Layout(2), steps=2, **LOCAL)
    assert (beside.trace, beside.digest) == (direct.trace, direct.digest)


@pytest.mark.parametrize("regions", [device_double.refused, device_double.damaged])
@pytest.mark.parametrize("layout", thinned([Layout(3, "tree"), Layout(2, "parameter_server", servers=1)], 2, 1))
def test_where_peers_cannot_map_it_the_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch, regions: Callable[[Kernels], Any], layout: Layout
) -> None:
    direct = train(p.Mlp)
    on_device(monkeypatch, host.kernels, regions)
    assert trained(p.Mlp, layout).trace == direct.trace


def test_servers_add_up_on_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[int] = []

    def make() -> Kernels:
        kernels, number = host.kernels(), len(finished)
        plain = kernels.finish
        finished.append(0)

        def finish(*arguments: Any) -> None:
            finished[number] += 1
            plain(*arguments)

        monkeypatch.setattr(kernels, "finish", finish)
        return kernels

    direct = train(p.Mlp)
    on_device(monkeypatch, make)
    assert trained(p.Mlp, Layout(2, "parameter_server", servers=1)).trace == direct.trace
    assert finished == [0, 0, len(direct.trace)]


@pytest.mark.parametrize("pipeline", thinned([p.Batchnorm, p.ChannelsLast], 2))
def test_members_come_and_go(monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]) -> None:
    settings: dict[str, Any] = {"steps": 4, "optimizer": {**SGD, "momentum": 0.9}, "checkpoint_every": 1}
    whole = survive(pipeline, Layout(1), **settings)
    on_device(monkeypatch, host.kernels)
    told = survive(pipeline, Layout(2), [Fault(0, 17, "join"), Fault(1, 38, "die")], **settings)
    assert told.generations == 3
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


@pytest.mark.parametrize(
    "layout", thinned([Layout(4, "hierarchical", nodes=2), Layout(3, "ring", nodes=3)], 2), ids=str
)
def test_members_of_several_hosts_come_and_go(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    """Over true sockets: who is killed has packed some and not others."""
    settings: dict[str, Any] = {"steps": 4, "optimizer": {**SGD, "momentum": 0.9}, "checkpoint_every": 1}
    whole = survive(p.Wide, Layout(1), **settings)
    on_device(monkeypatch, host.kernels, lambda _: None)  # a member gets them from its process, and so do the wires
    monkeypatch.setattr(elastic, "LocalRegions", lambda: device_double.regions(host.kernels()))
    monkeypatch.setattr(elastic, "Hub", partial(Wires, hosts=layout.nodes_of))
    monkeypatch.setattr(collectives, "_PIECE", BLOCK)
    told = survive(p.Wide, layout, [Fault(0, 17, "join"), Fault(1, 58, "die")], **settings)
    assert told.generations == 3
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


FAULTS = [f.NanLoss, f.NanGradient, f.InfiniteStatistic, f.CentresItsOutput, f.ClampedThroughData, f.ChangesFixedBuffer]


@pytest.mark.parametrize("pipeline", [f.CountsRows, *thinned(FAULTS, 3)])
def test_faults_are_told_alike(monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]) -> None:
    (plain,) = members_end(pipeline)
    on_device(monkeypatch, host.kernels)
    (resident,) = members_end(pipeline)
    assert isinstance(plain, Exception)
    assert str(resident) == str(plain)


def test_a_loss_that_is_looked_at_behind_its_backward_pass_is_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look before it would keep the card waiting, where gradients leave for host memory."""
    (plain,) = members_end(f.NanLoss)
    there = staging.Copying(torch.device("cpu"))
    monkeypatch.setattr(device, "opened", lambda _, regions, __: device.Device(there, regions))
    (copied,) = members_end(f.NanLoss)
    assert isinstance(plain, Exception)
    assert str(copied) == str(plain)


def test_where_memory_cannot_be_shared_only_sums_that_are_exact_are_made_in_host_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing() -> Any:
        raise RuntimeError("cuMemExportToShareableHandle: not supported")

    monkeypatch.setattr(device, "CudaDriver", refusing)
    monkeypatch.setattr(staging, "on", lambda _: staging.Direct())
    told: list[str] = []
    regions = SharedRegions()
    plan = resolve(settings_for(p.Mlp, Layout(1)))
    on_card = replace(plan, run=replace(plan.run, compute=replace(plan.run.compute, device="cuda")))
    there = device.opened(on_card, regions, told.append)
    assert there.regions is regions
    assert there.kernels is None
    assert "which is slower: cuMemExportToShareableHandle" in told[0]
    with refused("gpu.fast-sums"):
        device.opened(replace(on_card, exchange=replace(on_card.exchange, exact=False)), regions, told.append)
