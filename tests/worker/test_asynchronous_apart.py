"""Replicas that run free with a model beside host memory, as on a GPU: nothing is computed across, and no bit differs.

A run of one worker does not depend on timing, so a run beside host memory is compared with one within it. With several
workers, live or lost, the record decides: it is repeated within host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from orchestrator.numerics import staging
from orchestrator.optim.transforms import State
from orchestrator.worker import device
from orchestrator.worker.asynchronous.shard_optimizers import ShardOptimizers
from orchestrator.worker.model.shard_states import ShardStates
from tests.comm.transports import device_double
from tests.numerics.device import host
from tests.products import thinned
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.apart import compute_apart, sum_apart
from tests.worker.elastic import Elastic, Fault, Told, elastic_settings
from tests.worker.runs import Layout, assert_same_run, members_end, train
from tests.worker.test_asynchronous import CASES, MODES, RICH
from tests.worker.test_on_device import on_device, trained

pytestmark = pytest.mark.slow

ALL: list[dict[str, Any]] = [*MODES[:3], {"name": "gossip"}]
# Without the one that depends on the clock, and the one whose first state torch makes by the name of the device.
SEEN = [number for number, case in enumerate(CASES) if case.pipeline is not p.Lstm and "seconds=0" not in str(case)]


def assert_alike(monkeypatch: pytest.MonkeyPatch, pipeline: Any, layout: Layout, **settings: Any) -> None:
    one = train(pipeline, **settings)
    there, stage = compute_apart(monkeypatch), ShardStates.stage

    def staged(states: ShardStates, shard: int, row: State) -> None:
        assert all(tensor in there for tensor in row.values() if tensor.dim() and tensor.is_floating_point())
        stage(states, shard, row)

    monkeypatch.setattr(ShardStates, "stage", staged)
    assert_same_run(train(pipeline, **settings), one)
    assert_same_run(train(pipeline, layout, replay=one.rests, **settings), one)


# The first two of these modes compute something of their own, a mean of neighbours and a threshold.
PAIR = thinned([3, 2, 0, 1], 4)


@pytest.mark.parametrize("number", PAIR, ids=lambda number: str(ALL[number]))
def test_nothing_is_computed_across(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    layout = [Layout(2, "parameter_server", servers=1), Layout(2)][number % 2]
    settings = {**RICH, "steps": 2, "evaluate_every": None, "sync": {**ALL[number], "rest_every": 1}}
    assert_alike(monkeypatch, p.Batchnorm, layout, **settings)


@pytest.mark.parametrize("number", PAIR, ids=lambda number: str(ALL[number]))
def test_nor_where_replicas_stay_there(number: int) -> None:
    """Two workers map what they send each other."""
    settings = {**RICH, "steps": 2, "evaluate_every": None, "sync": {**ALL[number], "rest_every": 1}}
    one = train(p.Batchnorm, **settings)
    with pytest.MonkeyPatch.context() as patched:
        sum_apart(patched)
        assert_same_run(trained(p.Batchnorm, Layout(2), replay=one.rests, **settings), one)
        two = trained(p.Batchnorm, Layout(2, "ring"), **settings)
    assert_same_run(train(p.Batchnorm, replay=two.rests, **settings), two)


def test_servers_add_updates_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what workers map of each other travels to them."""
    settings = {**RICH, "steps": 2, "evaluate_every": None, "sync": MODES[0]}
    with monkeypatch.context() as patched:
        patched.setattr(device, "opened", lambda *_: opened())
        run = trained(p.Batchnorm, Layout(2, "parameter_server", servers=1), **settings)
    assert_same_run(train(p.Batchnorm, replay=run.rests, **settings), run)


def opened() -> device.Device:
    return device.Device(staging.Resident(torch.device("cpu")), device_double.regions(), host.kernels())


@pytest.mark.long
@pytest.mark.parametrize("mode", ALL, ids=str)
@pytest.mark.parametrize("number", SEEN, ids=lambda number: str(CASES[number]))
def test_whatever_is_trained(monkeypatch: pytest.MonkeyPatch, number: int, mode: dict[str, Any]) -> None:
    case = CASES[number]
    settings = {"steps": 4, **case.settings, "sync": {**mode, "rest_every": 2}}
    assert_alike(monkeypatch, case.pipeline, Layout(3, "tree"), **settings)


def added_here(patched: pytest.MonkeyPatch) -> None:
    """Updates are added in host memory."""
    patched.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))


def added_there(patched: pytest.MonkeyPatch) -> None:
    """Replicas stay on the device, where kernels add."""
    on_device(patched, host.kernels)


def disturbed(mode: dict[str, Any], beside: Callable[[pytest.MonkeyPatch], None], faults: list[Fault]) -> None:
    """Live with a device, then repeated without one, where members are lost too."""
    told: list[Told] = []
    settings = {**RICH, "checkpoint_every": 2, "sync": {**mode, "rest_every": 2}}
    for layout, replay, apart in ((Layout(3), (), True), (Layout(2), None, False)):
        with pytest.MonkeyPatch.context() as patched:
            if apart:
                beside(patched)
            records = told[0].rests if replay is None else replay
            run = Elastic(elastic_settings(p.Batchnorm, layout, **settings), layout, faults, replay=records)
            told.append(run.run())
    live, again = told
    assert live.generations > 1
    assert (again.rests, again.trace, again.metrics, again.digest) == (
        live.rests,
        live.trace,
        live.metrics,
        live.digest,
    )


@pytest.mark.parametrize("beside", thinned([added_here, added_there], 2, 1))
def test_members_die_and_join(beside: Callable[[pytest.MonkeyPatch], None]) -> None:
    disturbed(MODES[1], beside, [Fault(1, 23, "die"), Fault(0, 31, "join")])


@pytest.mark.long
@pytest.mark.parametrize("mode", ALL, ids=str)
@pytest.mark.parametrize("at", range(5, 50, 9))
def test_members_may_die_at_any_moment(mode: dict[str, Any], at: int) -> None:
    disturbed(
        mode,
        [added_here, added_there][at % 2],
        [Fault(1, at, "die"), Fault(0, at + 8, "join"), Fault(0, at + 30, "call off")],
    )


@pytest.mark.parametrize("pipeline", thinned([f.NanLoss, f.NanGradient, f.InfiniteStatistic], 3))
def test_faults_are_told_alike(monkeypatch: pytest.MonkeyPatch, pipeline: Any) -> None:
    (plain,) = members_end(pipeline, sync=MODES[1])
    added_there(monkeypatch)
    (resident,) = members_end(pipeline, sync=MODES[1])
    assert isinstance(plain, Exception)
    assert str(resident) == str(plain)


def test_steps_change_copies_of_what_a_shard_keeps() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    own = ShardOptimizers(torch.optim.Adam([parameter], lr=0.1), [parameter])
    row: State = {}
    for step in range(3):
        own.load({0: row})
        before = {name: tensor.clone() for name, tensor in row.items()}
        own.begin(0)
        own.optimizer.step()
        own.end(0)
        assert all(torch.equal(row[name], tensor) for name, tensor in before.items())
        row = own.row(0)
        assert (row["optimizer/state/0/1/step"] == step + 1).all()


def test_a_state_is_put_where_its_optimizer_looks() -> None:
    """`meta` stands for a device. A step in a kernel reads its own count there."""
    here, there = (torch.nn.Parameter(torch.ones(3, device=device)) for device in ("cpu", "meta"))
    before = ShardOptimizers(torch.optim.Adam([here], lr=0.1), [here])
    before.load({0: {}})
    before.begin(0)
    here.grad = torch.ones(3)
    before.optimizer.step()
    before.end(0)
    row = before.row(0)
    for fused in (False, True):
        optimizer = torch.optim.Adam([there], lr=0.1)
        optimizer.param_groups[0]["fused"] = fused
        after = ShardOptimizers(optimizer, [there])
        after.load({0: row})
        after.begin(0)
        places = {key: value.device.type for key, value in optimizer.state[there].items()}
        assert places == {"step": "meta" if fused else "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}
        assert optimizer.param_groups[0]["fused"] is fused
    assert all(tensor.is_cpu for tensor in row.values())
