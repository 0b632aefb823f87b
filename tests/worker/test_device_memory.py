"""A GPU that has no memory left: one error that says what holds it and what to do, wherever it came from.

No GPU is where these tests run: torch's error is raised by hand, and what its allocator tells is written down here.
"""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import nn

from orchestrator.comm.transports.device_memory import DeviceMemoryFull, DeviceRegions
from orchestrator.common import gpu_memory
from orchestrator.common.gpu_memory import MemoryUse
from orchestrator.config.plan import Variant
from orchestrator.config.resolve import resolve
from orchestrator.errors import OutOfDeviceMemory, PipelineRaised, from_dict
from orchestrator.numerics import cuda, staging
from orchestrator.numerics.device.kernels import Operations
from orchestrator.pipeline import naming
from orchestrator.worker import device, device_memory
from orchestrator.worker.device_memory import HeldMemory, Place, explained, explanation, held_memory, place_of
from orchestrator.worker.hooks import WorkerHooks
from orchestrator.worker.model import recorder
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.worker import Worker
from tests.comm.transports import device_double
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.runs import Layout, members_end, settings_for

GB = 10**9
CODE = "gpu.out-of-memory"
TOLD = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\nand more"
PLAN = resolve(settings_for(p.Mlp, batch_size=80, shards=8))
NOW = MemoryUse(total=80 * GB, free=GB, allocated=50 * GB, reserved=60 * GB, pools=6 * GB, in_pools=2 * GB)
FRAME = {"filename": "mine.py", "line": 3, "name": "loss"}
SEGMENTS: list[dict[str, Any]] = [
    {
        "device": 1,
        "address": 1 << 40,
        "total_size": 2048,
        "allocated_size": 512,
        "active_size": 512,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "blocks": [
            {"address": 1 << 40, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": [FRAME]},
            {"address": (1 << 40) + 512, "size": 1536, "requested_size": 0, "state": "inactive", "frames": []},
        ],
    }
]
HELD = HeldMemory(parameters=4 * GB, optimizer=8 * GB, gradients=4 * GB, sums=12 * GB, trained=GB)


def out_of(where: str = "loss() (step 3, shard 2)", taken: MemoryUse = NOW, wanted: int = 2 * GB) -> OutOfDeviceMemory:
    error = gpu_memory.out_of_memory(where, torch.OutOfMemoryError(TOLD), "\n    mine.py:3 in loss: x @ y")
    error.taken, error.wanted = taken, wanted
    return error


@pytest.fixture(autouse=True)
def nobody_has_set_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)


def test_it_says_what_holds_the_memory_and_what_helps_most_first() -> None:
    told = explanation(out_of(), Place("H100", sharing=1, rows=10), HELD, PLAN)
    assert told.message == (
        "loss() (step 3, shard 2) found no memory left on the GPU (H100, 80 GB): 2 GB more were needed, and 1 GB are free. "
        "This worker holds 72 GB: parameters and buffers 4 GB, optimizer's state 8 GB, sums 12 GB, graphs 6 GB, activations, "
        "gradients and other tensors 36 GB, reserved without a tensor in it 6 GB; others, and the driver, hold 7 GB"
        "\n    mine.py:3 in loss: x @ y"
    )
    ways = told.remedy.split("; or ")
    assert [way.split()[0] for way in ways] == ["raise", "set", "call", "look", "set", "take"]
    assert "run.precision=bfloat16" in ways[1]
    assert told.codes == (CODE,)
    assert from_dict(told.as_dict()).kind == "OutOfDeviceMemory"


@pytest.mark.parametrize(("free", "of_the_machine"), [(GB, False), (3 * GB, False), (5 * GB, True), (79 * GB, True)])
def test_what_the_driver_refuses_while_the_card_has_memory_is_told_as_the_machines(
    free: int, of_the_machine: bool
) -> None:
    """CUDA says of a page-locked copy only that it is out of memory. torch's allocator tells how much was wanted."""
    error = gpu_memory.out_of_memory("loss() (step 0, shard 4)", torch.AcceleratorError("CUDA error: out of memory"))
    error.taken = NOW._replace(free=free)
    told = explanation(error, Place("H100", sharing=1, rows=10), HELD, PLAN)
    assert told.message.startswith("loss() (step 0, shard 4) found no memory left on the GPU")
    assert ("page-locked" in told.message) == ("memory of this machine" in told.remedy) == of_the_machine
    assert (told.codes, told.recurs) == ((CODE,), False)
    error.wanted = GB
    assert "page-locked" not in explanation(error, Place("H100", sharing=1, rows=10), HELD, PLAN).message


def test_contributions_that_a_compression_holds_are_told_with_the_remedy() -> None:
    holding = HELD._replace(contributions=20 * GB)
    compressed = replace(PLAN, update=replace(PLAN.update, compression=Variant("quantize")))
    told = explanation(out_of(), Place("H100", sharing=1, rows=1), holding, compressed)
    assert (
        "contributions that are held 20 GB, graphs 6 GB, activations, gradients and other tensors 16 GB" in told.message
    )
    assert "leave compression out" in told.remedy
    assert "leave compression out" not in explanation(out_of(), Place("H100", sharing=1, rows=1), HELD, PLAN).remedy
    assert holding.per_parameter == HELD.per_parameter + 20


@pytest.mark.parametrize(
    ("sharing", "own", "recurs"), [(1, 30 * GB, False), (1, 76 * GB, True), (2, 30 * GB, False), (2, 40 * GB, True)]
)
def test_it_comes_again_where_the_card_is_too_small_for_those_that_share_it(
    sharing: int, own: int, recurs: bool
) -> None:
    now = MemoryUse(total=80 * GB, reserved=own, allocated=own)
    place = Place("H100", sharing, rows=1, lost=True)
    told = explanation(out_of(taken=now, wanted=GB), place, None, PLAN)
    assert told.recurs == recurs
    assert ("cluster.gpus_per_worker" in told.remedy) == (sharing > 1)
    assert "fewer workers than before" in told.message
    assert "batch_size" not in told.remedy  # a single row


def test_graphs_may_be_left_out_and_segments_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PLAN.run
    graphs = replace(PLAN, run=replace(run, compute=replace(run.compute, graphs=True, precision="bfloat16")))
    place = Place("H100", sharing=1, rows=10)
    told = explanation(out_of(), place, HELD, graphs).remedy
    assert "run.graphs=false" in told
    assert "run.precision" not in told
    assert "expandable_segments:True" in told
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert "expandable_segments" not in explanation(out_of(), place, HELD, graphs).remedy
    small = explanation(out_of(taken=MemoryUse(total=80 * GB, free=80 * GB)), place, None, graphs).remedy
    assert "a smaller model" in small


def test_how_many_workers_share_a_card() -> None:
    quarter = replace(PLAN, cluster=replace(PLAN.cluster, gpus=0.25))
    assert [place_of(quarter, beside, lost=False).sharing for beside in (1, 3, 8)] == [1, 3, 4]
    assert place_of(PLAN, 8, lost=False)[1:] == (1, 10, False)


@pytest.mark.parametrize(
    "said",
    [
        torch.OutOfMemoryError(TOLD),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("the driver of the GPU refuses: CUresult.CUDA_ERROR_OUT_OF_MEMORY"),
        DeviceMemoryFull(2 << 30),
    ],
)
def test_whoever_says_it_the_error_is_one(said: Exception) -> None:
    doing = lambda: "update (step 4)"  # noqa: E731

    def fail() -> None:
        raise said

    with refused(CODE) as caught, explained(doing, lambda: Place("H100", 1, 10), lambda: None, PLAN):
        fail()
    assert caught.value.message.startswith("update (step 4) found no memory left")
    assert "error.txt" in caught.value.remedy
    assert "Traceback" in caught.value.details


def test_what_says_nothing_of_memory_is_passed_on() -> None:
    place = lambda: Place("H100", 1, 10)  # noqa: E731
    with pytest.raises(RuntimeError, match="shapes"), explained(str, place, lambda: None, PLAN):
        raise RuntimeError("shapes do not fit")
    with pytest.raises(PipelineRaised), explained(str, place, lambda: None, PLAN), naming("loss()"):
        raise MemoryError


def test_what_the_pass_needed_is_let_go() -> None:
    """Others have to go on, and a fault is kept until the vote."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def loss() -> None:
        activations = torch.ones(3)
        seen.append(weakref.ref(activations))
        raise torch.OutOfMemoryError(TOLD)

    with pytest.raises(OutOfDeviceMemory) as caught, naming("loss()"):
        loss()
    gc.collect()
    assert seen[0]() is None
    assert caught.value.wanted == 2 << 30


def test_what_stays_is_counted_once() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    replica = Replica(model)
    optimizer = torch.optim.AdamW(model.parameters())
    regions = device_double.regions()
    before = held_memory(replica, optimizer, regions).sums
    regions.allocate(5000, torch.float64)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    found = held_memory(replica, optimizer, regions)
    assert found[:3] == (4 * 30 + 4 * 10 + 8, 2 * 4 * 30 + 4 * 4, 4 * 30)
    assert found.sums - before == 3 * device_double.HostDriver.granularity
    assert found.by_name()["per_parameter"] == round((168 + 256 + 120 + found.sums) / 30, 3)
    regions.close()


class Greedy(p.Mlp):
    """A micro-batch for which a GPU has no memory."""

    def loss(self, model: nn.Module, batch: Any) -> Any:  # noqa: ARG002
        raise torch.OutOfMemoryError(TOLD)


class GreedyLater(p.Mlp):
    """The same in the optimizer's step."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(*_: object) -> None:
            raise torch.OutOfMemoryError(TOLD)

        made.register_step_pre_hook(step)
        return made


def test_a_worker_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = members_end(Greedy)
    assert [type(end) for end in ends] == [OutOfDeviceMemory]
    monkeypatch.setattr(gpu_memory, "_segments", lambda: SEGMENTS)
    monkeypatch.setattr(gpu_memory, "memory_use", lambda _: NOW)
    monkeypatch.setattr(gpu_memory, "_table", lambda _: "a table")
    (end,) = members_end(GreedyLater, optimizer=None)
    assert isinstance(end, OutOfDeviceMemory)
    assert end.message.startswith("the optimizer (step 0) found no memory left on the GPU (of this worker, 80 GB)")
    assert "test_device_memory.py" in end.message
    assert end.details.endswith("a table")
    told = from_dict(json.loads(json.dumps(end.as_dict())))
    assert isinstance(told, OutOfDeviceMemory)
    assert pickle.loads(told.snapshot)["segments"] == SEGMENTS
    assert "snapshot" not in told.told()


def test_a_snapshot_has_the_form_that_the_viewer_of_torch_draws() -> None:
    found = pickle.loads(gpu_memory.snapshot(SEGMENTS))
    assert found == {"segments": SEGMENTS, "device_traces": [[], []]}, "one list for each device, the first ones too"
    assert pickle.loads(gpu_memory.snapshot([])) == {"segments": [], "device_traces": [[]]}


def test_a_snapshot_leaves_out_stacks_and_then_itself_where_it_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = gpu_memory.snapshot(SEGMENTS)
    monkeypatch.setattr(gpu_memory, "_MOST_BYTES", len(whole) - 1)
    smaller = pickle.loads(gpu_memory.snapshot(SEGMENTS))
    assert [block["frames"] for block in smaller["segments"][0]["blocks"]] == [[], []]
    assert smaller["segments"][0]["blocks"][0]["size"] == 512
    monkeypatch.setattr(gpu_memory, "_MOST_BYTES", 8)
    assert gpu_memory.snapshot(SEGMENTS) == b""


def test_regions_that_a_card_has_no_room_for_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(device_double.HostDriver):
        def create(self, size_bytes: int) -> int:
            if self.mapped:
                raise DeviceMemoryFull(size_bytes)
            return super().create(size_bytes)

    here, regions = staging.Resident(torch.device("cpu")), DeviceRegions(Full())
    monkeypatch.setattr(device, "opened", lambda *_: device.Device(here, regions, Operations()))
    (end,) = members_end(p.Mlp, Layout(1))
    assert isinstance(end, OutOfDeviceMemory)
    assert "the prepare phase found no memory left" in end.message
    regions.close()


@pytest.mark.parametrize(("on", "rank", "asked"), [("cuda", 2, [(1, 2)]), ("cuda", 0, []), ("cpu", 2, [])])
def test_who_writes_checkpoints_has_their_memory_page_locked_once_steps_run(
    on: str, rank: int, asked: list[tuple[int, int]]
) -> None:
    found: list[tuple[int, int]] = []
    run, cadence = SimpleNamespace(compute=SimpleNamespace(device=on)), SimpleNamespace(digest_every=0)
    cluster = SimpleNamespace(timeouts=PLAN.cluster.timeouts)
    services = SimpleNamespace(
        emit=lambda _: None, writer=SimpleNamespace(reserve=lambda _, part, parts: found.append((part, parts)))
    )
    state: Any = SimpleNamespace(
        plan=SimpleNamespace(run=run, cluster=cluster, cadence=cadence),
        services=services,
        loop=SimpleNamespace(run_state=SimpleNamespace(steps=1)),
        model_state=SimpleNamespace(to_write=lambda _, part: part),
        boundary=SimpleNamespace(part=lambda _: None),
    )
    workload: Any = SimpleNamespace(samples=SimpleNamespace(may_wait_s=0))
    generation: Any = SimpleNamespace(number=0, writers=(1, 2))
    WorkerHooks(state, workload, generation, rank).running()
    assert found == asked


def test_a_recording_for_which_there_is_no_memory_is_left_out() -> None:
    told = recorder.reason(torch.OutOfMemoryError(TOLD))
    assert "no memory for a recording" in told
    assert told.endswith(": CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_worker_that_may_take_no_more_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = replace(PLAN, cluster=replace(PLAN.cluster, card_bytes=60 * GB))
    told = explanation(out_of(), Place("H100", sharing=1, rows=10), HELD, bound)
    assert "(H100, 80 GB, of which cluster.gpu_gb allows it 60 GB)" in told.message
    assert told.remedy.startswith("raise cluster.gpu_gb")
    assert told.recurs
    limits: list[int] = []
    monkeypatch.setattr(cuda, "limit", limits.append)
    regions = device_double.regions()
    before = device_memory.shared_bytes(regions)
    device_memory.limit(bound, regions)
    regions.allocate(1000, torch.uint8)
    device_memory.limit(bound, regions)
    device_memory.limit(PLAN, regions)
    after = device_memory.shared_bytes(regions)
    assert limits == [60 * GB - before, 60 * GB - after]
    assert after - before >= 1000


@pytest.mark.parametrize(("where", "calls"), [("cpu", []), ("cuda", ["empty_cache"])])
def test_a_spare_gives_back_what_its_first_micro_batch_took_of_the_gpu(
    where: Literal["cpu", "cuda"], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, run=replace(PLAN.run, compute=replace(PLAN.run.compute, device=where)))
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty_cache"))
    strategy = SimpleNamespace(become_spare=lambda: done.append("become_spare"))
    Worker.become_spare(SimpleNamespace(_strategy=strategy, _plan=plan))  # type: ignore[arg-type]
    assert done == ["become_spare", *calls]


def test_lines_of_python_itself_are_none_of_the_users() -> None:
    """A block of ours that is entered by contextlib fails there, too."""
    with pytest.raises(PipelineRaised) as caught, naming("loss() (step 1, shard 3)"):
        json.loads("{")
    assert "test_device_memory.py" in caught.value.message
    assert "json" not in caught.value.message.partition("test_device_memory.py")[2].partition("\n")[2]
