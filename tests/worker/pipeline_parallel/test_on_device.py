"""Stages that compute on a device: no bit differs from the unsplit model there, and nothing is computed across.

These tests run without a GPU. The doubles that stand for one, and what they cannot show, are described in
`tests/worker/apart.py` and `tests/comm/transports/device_double.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.numerics import staging, streams
from orchestrator.worker import device
from orchestrator.worker.pipeline_parallel import border_memory, messages
from orchestrator.worker.pipeline_parallel.fake_tensors import FakeTensor
from orchestrator.worker.strategies import PipelineStrategy
from orchestrator.worker.worker import Worker
from pipelines.characters import Characters
from tests.comm.transports import device_double
from tests.comm.transports.memory import LocalRegions
from tests.numerics.device import host
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines
from tests.worker.apart import compute_apart, sum_apart
from tests.worker.elastic import EVERYTHING, Fault, survive
from tests.worker.pipeline_parallel.sockets import Sockets
from tests.worker.pipeline_parallel.test_runs import ADAM, KINDS, MESHES, DrawsInEvaluation
from tests.worker.runs import ONE, Layout, settings_for, train

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "args": {"width": 16, "layers": 3, "heads": 2, "window": 128},
    "shards": 4,
    "batch_size": 8,
    "steps": 2,
    "optimizer": ADAM,
    "clip": 0.5,
}

# Pipelines that make no tensor by the name of the device, which is that of host memory here.
APART = (pipelines.CumulativeBatchnorm, pipelines.ChannelsLast, pipelines.LayerDrop, DrawsInEvaluation)


def _in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on stages compute on a device, and sums are made in host memory."""
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))


def _on_device(monkeypatch: pytest.MonkeyPatch, regions: Callable[[], Any] = device_double.regions) -> None:
    """From now on sums are made on the device, too."""
    here = staging.Resident(torch.device("cpu"))
    monkeypatch.setattr(device, "opened", lambda *_: device.Device(here, regions(), host.kernels()))


def _trained(kind: Any, layout: Layout, **settings: Any) -> Any:
    """By workers that are connected as processes are."""
    with Sockets("unix", layout.workers) as sockets:
        return train(kind, layout, wire=sockets.transport, regions=sockets.regions, **settings)


def _same(split: Any, unsplit: Any) -> None:
    assert split.trace == unsplit.trace
    assert split.digest == unsplit.digest
    assert str(split.metrics) == str(unsplit.metrics)


@pytest.mark.parametrize("where", [_on_device, pytest.param(_in_host_memory, marks=pytest.mark.long)])
@pytest.mark.parametrize("layout", thinned(MESHES, 3, 1), ids=str)
@pytest.mark.parametrize("kind", thinned(KINDS, 12, 1), ids=lambda kind: kind.__name__)
def test_no_bit_differs_wherever_sums_are_made(
    monkeypatch: pytest.MonkeyPatch, kind: Any, layout: Layout, where: Callable[[pytest.MonkeyPatch], None]
) -> None:
    settings: dict[str, Any] = {"clip": 0.05, "optimizer": ADAM, "evaluate_every": Every(steps=2), "steps": 2}
    unsplit = train(kind, ONE, **settings)
    where(monkeypatch)
    _same(_trained(kind, layout, **settings), unsplit)


@pytest.mark.parametrize(
    ("regions", "leaves"),
    [(device_double.regions, True), pytest.param(device_double.refused, False, marks=pytest.mark.long)],
)
def test_tensors_are_left_where_peers_map_them(
    monkeypatch: pytest.MonkeyPatch, regions: Callable[[], Any], leaves: bool
) -> None:
    """If peers do not map them, or there is less room than a shard takes, they travel."""
    unsplit = train(pipelines.Mlp, ONE, steps=2)
    _on_device(monkeypatch, regions)
    left = messages._left
    found: list[bool] = []

    def noted(*bodies_and_place: Any) -> Any:
        what = left(*bodies_and_place)
        found.append(what is not None)
        return what

    monkeypatch.setattr(messages, "_left", noted)
    for most, shards in ((border_memory._MOST_BYTES, range(5)), (4 * 512, range(4))):
        monkeypatch.setattr(border_memory, "_MOST_BYTES", most)
        found.clear()
        assert _trained(pipelines.Mlp, Layout(2, stages=2), steps=2).trace == unsplit.trace
        assert all(found)
        assert len(found) == leaves * len(shards) * 2 * 3  # both directions, in two steps, of which one is repeated


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", [_in_host_memory, _on_device])
def test_a_tied_embedding(monkeypatch: pytest.MonkeyPatch, where: Callable[[Any], Any], precision: str) -> None:
    unsplit = train(Characters, ONE, precision=precision, **TINY)
    where(monkeypatch)
    _same(_trained(Characters, Layout(3, stages=2), precision=precision, **TINY), unsplit)


@pytest.mark.parametrize(
    ("apart", "kind"),
    [(compute_apart, pipelines.Batchnorm), *((sum_apart, kind) for kind in (pipelines.Batchnorm, *APART))],
)
@pytest.mark.long
def test_nothing_is_computed_across(monkeypatch: pytest.MonkeyPatch, apart: Callable[[Any], Any], kind: Any) -> None:
    settings: dict[str, Any] = {"clip": 0.05, "optimizer": ADAM, "evaluate_every": Every(steps=2), "recompute": True}
    unsplit = train(kind, ONE, **{**settings, "recompute": False})
    apart(monkeypatch)
    _same(_trained(kind, Layout(2, stages=2), **settings), unsplit)


class Otherwise(staging.Copying):
    """A device that computes other bits."""

    factor = 1.5

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        there = super()._copied(tensor)
        return there * self.factor if there.is_floating_point() else there


@pytest.mark.long
def test_workers_agree_on_what_their_devices_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """And hold the whole model in host memory meanwhile."""
    plan = resolve(settings_for(pipelines.Batchnorm, Layout(2, stages=2), optimizer=ADAM))

    def told(where: staging.Staging) -> str:
        monkeypatch.setattr(staging, "on", lambda _: where)
        return str(Worker(plan, LocalRegions()).prepare()["reference"])

    device = torch.device("cpu")
    alike = [told(staging.Copying(device)) for _ in range(2)]
    assert alike[0] == alike[1] not in ("", told(staging.Direct()), told(Otherwise(device)))
    there = compute_apart(monkeypatch)
    worker = Worker(plan, LocalRegions())
    assert worker.prepare()["reference"] == alike[0]
    assert not any(parameter in there for parameter in worker._workload.model.parameters())
    assert isinstance(worker._strategy, PipelineStrategy)
    assert worker._strategy._replica is not None
    worker._strategy._replica.check_step()  # nothing has changed


class Varies(Otherwise):
    """A device that computes other bits each time."""

    def begin(self, batch: Any) -> staging.Arriving:
        self.factor += 1 / 64
        return super().begin(batch)


def test_a_device_that_varies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = resolve(settings_for(pipelines.Batchnorm, Layout(2, stages=2), optimizer=ADAM))
    monkeypatch.setattr(staging, "on", lambda _: Varies(torch.device("cpu")))
    with refused("stages.not-repeatable", "the first to differ is the "):  # which one depends on the processor
        Worker(plan, LocalRegions()).prepare()


DRAWN = torch.Generator()  # as that of a GPU, from which code draws that computes there


class DropsOnDevice(pipelines.Mlp):
    def model(self) -> nn.Module:
        class Noise(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.rand(1, generator=DRAWN) if self.training else x

        hidden, classes = nn.Linear(8, 8), nn.Linear(8, pipelines.CLASSES)
        return nn.Sequential(nn.Linear(pipelines.FEATURES, 8), Noise(), hidden, Noise(), classes, Noise())


@pytest.mark.long
def test_the_generators_of_a_device_travel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "torch_generators", lambda: (torch.default_generator, DRAWN))
    unsplit = train(DropsOnDevice, ONE, optimizer=ADAM)
    _same(train(DropsOnDevice, Layout(2, stages=2), optimizer=ADAM), unsplit)


def test_what_another_stage_has_says_that_it_is_on_the_device() -> None:
    without = SimpleNamespace(value_of=lambda _: None)
    fake = FakeTensor.like(torch.empty(2), without, "weight", "cuda:0")
    later = fake * 2
    assert (later.device, later.is_cuda, later.is_cpu) == (torch.device("cuda:0"), True, False)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(3, 40, "die"), Fault(0, 90, "join")],
        [Fault(1, 60, "die"), Fault(3, 61, "die")],  # a stage is lost
        [Fault(2, 100, "call off"), Fault(0, 150, "die")],
    ],
)
@pytest.mark.parametrize("where", [_in_host_memory, _on_device])
@pytest.mark.long
def test_members_come_and_go(
    monkeypatch: pytest.MonkeyPatch, where: Callable[[pytest.MonkeyPatch], None], faults: list[Fault]
) -> None:
    unsplit = survive(pipelines.Batchnorm, ONE, checkpoint_every=2, **EVERYTHING)
    where(monkeypatch)
    told = survive(pipelines.Batchnorm, Layout(4, stages=2), faults, 2, **EVERYTHING)
    assert told.generations > 1
    assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics)
