"""Replicas that run free: whatever order updates came in, the records of the rests give every bit again on any other layout."""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.config.plan import Timeouts
from orchestrator.config.settings import Every
from orchestrator.controller.events import Ended
from orchestrator.errors import Inconsistent, PipelineRaised
from orchestrator.numerics import fixed_point
from orchestrator.numerics.layout import Layout as TensorLayout
from orchestrator.numerics.staging import Resident
from orchestrator.optim.optimizers import OPTIMIZERS, build
from orchestrator.optim.transforms import State
from orchestrator.pipeline import Pipeline
from orchestrator.records import barriers
from orchestrator.records.clocks import AsyncPhase
from orchestrator.worker.asynchronous import deltas, shard_rows
from orchestrator.worker.asynchronous.deltas import Deliveries, Delta
from orchestrator.worker.asynchronous.gossip import Mixing, ShardModels
from orchestrator.worker.asynchronous.shard_optimizers import ShardOptimizers
from orchestrator.worker.asynchronous.traffic import Traffic
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.runs import LAYOUTS, LONELY, Layout, Run, assert_same_run, members_end, train
from tests.worker.test_one_result import Case

pytestmark = pytest.mark.threads

MODES: list[dict[str, Any]] = [
    {"name": "bap"},
    {"name": "ssp", "staleness": 1},
    {"name": "asp", "threshold": 0.05},
    {"name": "asp", "staleness": 2},
]
TOPOLOGIES = [
    Layout(1),
    Layout(2),
    Layout(3, "tree"),
    Layout(2, "parameter_server", servers=2),
    Layout(4, "peer_to_peer"),
]
ADAM = {"name": "adam", "lr": 0.02}
RICH: dict[str, Any] = {
    "steps": 7,
    "shards": 4,
    "batch_size": 8,
    "args": {"rows": 18, "held_out": 4},
    "optimizer": ADAM,
    "clip": 0.5,
    "evaluate_every": Every(steps=2),
}
FITTING = [layout for layout in LAYOUTS if layout.workers <= RICH["shards"]]


def sprints_of(run: Run) -> list[AsyncPhase]:
    start = (0,) * len(run.rests[0]["clocks"])
    found: list[AsyncPhase] = []
    for rest in run.rests:
        found.append(AsyncPhase.decode(base64.b64decode(rest["updates"]), start))
        start = found[-1].end
    return found


def live_and_replayed(
    pipeline: type[Pipeline], layout: Layout, others: Sequence[Layout], mode: dict[str, Any], **settings: Any
) -> Run:
    run = train(pipeline, layout, sync=mode, **settings)
    for other in others:
        assert_same_run(train(pipeline, other, replay=run.rests, sync=mode, **settings), run)
    return run


@pytest.mark.parametrize("mode", thinned(MODES, 4, 1), ids=str)
@pytest.mark.parametrize("number", thinned(range(len(TOPOLOGIES)), 5, 2), ids=lambda n: str(TOPOLOGIES[n]))
def test_a_run_is_repeated_on_another_layout(number: int, mode: dict[str, Any]) -> None:
    layout, other = TOPOLOGIES[number], TOPOLOGIES[(number + MODES.index(mode) + 1) % len(TOPOLOGIES)]
    run = live_and_replayed(p.Batchnorm, layout, [other], {**mode, "rest_every": 3}, **RICH)
    assert [line["step"] for line in run.trace] == list(range(7))
    assert run.rests[-1]["steps"] == 7
    bound = mode.get("staleness")
    assert bound is None or max(each.largest for each in barriers.staleness(run.rests)) <= bound


@functools.cache
def gossip(graph: str, layout: Layout) -> Run:
    settings = {**RICH, "shards": 6, "batch_size": 12, "args": {"rows": 26, "held_out": 4}}
    return train(p.Batchnorm, layout, sync={"name": "gossip", "graph": graph, "rest_every": 3}, **settings)


@pytest.mark.parametrize(
    "layout", thinned([Layout(2), Layout(4, "tree"), Layout(3, "peer_to_peer"), Layout(5)], 4, 1), ids=str
)
@pytest.mark.parametrize("graph", thinned(["exponential", "ring", "complete"], 3))
def test_gossip_is_the_same_on_every_layout(graph: str, layout: Layout) -> None:
    """Though a model travels only to workers that host a neighbour, and those are others on each."""
    assert_same_run(gossip(graph, layout), gossip(graph, Layout(1)))


def test_models_are_mixed_by_opposite_integers_in_parts_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = torch.Generator().manual_seed(5)
    models = {shard: torch.randint(-(2**60), 2**60, (100,), generator=dice) for shard in range(3)}
    models[0][:3], models[1][:3] = torch.tensor([1, 3, -3]), torch.tensor([0, 0, 0])  # ties
    mixing = Mixing.of("ring", 3)
    changes = {shard: mixing.mixed(shard, models) for shard in models}
    assert not sum(changes.values()).any()  # type: ignore[union-attr]
    for count in (1, 7, 100):
        monkeypatch.setattr(fixed_point, "_AT_ONCE", count)
        assert all(torch.equal(mixing.mixed(shard, models), changes[shard]) for shard in models)


@pytest.mark.parametrize(
    ("mode", "steps", "lr"),
    [
        ("gossip", 1, 2e5),  # four models of 200,000, in units of 2**-44, whose sum is more than 2**63
        ("gossip", 11, 1e5),  # and each by itself would be 1,100,000 - 2**20
        *((mode, 11, 1e5) for mode in ("bap", "asp", "ssp")),
    ],
)
def test_a_parameter_that_leaves_its_range_ends_a_run(mode: str, steps: int, lr: float) -> None:
    """Also where it is back in it at the rest."""
    sync, sgd = {"name": mode, "rest_every": 11}, {"name": "sgd", "lr": lr}
    ends = members_end(p.Runaway, Layout(2), sync=sync, shards=4, batch_size=8, steps=steps, optimizer=sgd)
    assert any("the parameter bias has left the range of its numbers" in str(end) for end in ends), ends


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("layout", [*LONELY, *FITTING], ids=str)
def test_every_layout_is_repeated_on_every_other(layout: Layout, mode: dict[str, Any]) -> None:
    live_and_replayed(p.Batchnorm, layout, [*LONELY[:2], *FITTING], {**mode, "rest_every": 2}, **RICH)


CASES = [
    Case(p.Mlp, {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}}),
    Case(p.Mlp, {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}, "clip": 0.05}),
    Case(p.Mlp, {"schedule": {"name": "cosine", "warmup": 2}}),
    Case(p.Mlp, {"schedule": {"name": "plateau", "patience": 1, "gamma": 0.1}, "evaluate_every": Every(steps=1)}),
    Case(p.Mlp, {"shards": 8, "batch_size": 8, "args": {"rows": 3}}),  # empty micro-batches
    Case(p.Mlp, {"args": {"rows": 1}}),
    Case(p.Mlp, {"args": {"held_out": None}}),
    Case(p.Mlp, {"epochs": 2}),
    Case(p.Mlp, {"evaluate_every": Every(seconds=1e-4)}),
    Case(p.OwnOptimizer, {"optimizer": None}),
    Case(p.Langevin, {"optimizer": None}),
    Case(p.CumulativeBatchnorm),
    Case(p.AwkwardBuffers),
    Case(p.BatchnormFrozenByLoss),
    Case(p.LayerDrop, {"optimizer": ADAM}),
    Case(p.Frozen),
    Case(p.Caching, {"batch_size": 7}),
    Case(p.MaskedTokens, {"args": {"rows": 27}}),
    Case(p.Lstm),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", thinned(range(len(CASES)), 10, 3), ids=lambda number: str(CASES[number]))
def test_whatever_is_trained(number: int) -> None:
    case, mode = CASES[number], {**MODES[number % len(MODES)], "rest_every": 2}
    layout, other = TOPOLOGIES[1 + number % 4], TOPOLOGIES[(2 + number) % 5]
    live_and_replayed(case.pipeline, layout, [other], mode, **{"steps": 4, **case.settings})


class Filtered(p.Mlp):
    """Its optimizer has a function and a type among its options."""

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        options = {"filter": torch.is_tensor, "kind": torch.bfloat16}
        return type("Own", (torch.optim.Adam,), {})([{"params": model.parameters(), **options}], lr=0.01)  # type: ignore[no-any-return]


def test_functions_and_types_among_the_options_are_no_part_of_what_a_shard_keeps() -> None:
    live_and_replayed(Filtered, Layout(3), [Layout(2)], {"name": "ssp", "staleness": 1}, steps=4, optimizer=None)


def test_a_run_that_stops_early_is_repeated_to_the_same_step() -> None:
    settings: dict[str, Any] = {
        "steps": 30,
        "optimizer": {"name": "sgd", "lr": 3.0},
        "evaluate_every": Every(steps=1),
        "early_stopping": {"patience": 2},
    }
    run = live_and_replayed(p.Mlp, Layout(3), [Layout(1), Layout(2, "parameter_server")], {"name": "bap"}, **settings)
    assert 3 <= len(run.trace) < 30
    assert run.trace[-1]["parameters"] == run.digest


class Begun(torch.optim.Optimizer):
    """It has a state before its first step, as Adagrad of some versions of torch."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["sum"] = torch.ones_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["sum"] += parameter.grad
            parameter.sub_(self.state[parameter]["sum"])


class Counts(torch.optim.SGD):
    """Its first step adds an option, as in many packages."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["momentum"] = 1 / group["step"]
        return super().step(closure)


def _optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name in _OWN:
        own: torch.optim.Optimizer = _OWN[name](model.parameters())
        return own
    return build(name, {"lr": 0.1, **({"momentum": 0.9} if "momentum" in OPTIMIZERS.options(name) else {})}, model)


_OWN: dict[str, Any] = {"begun": Begun, "counts": Counts}


@pytest.mark.parametrize("name", [*OPTIMIZERS, *_OWN])
def test_shards_step_as_with_optimizers_of_their_own(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    parameters = list(model.parameters())
    shards = ShardOptimizers(_optimizer(name, model), parameters)
    rows: dict[int, State] = {0: {}, 1: {}}
    copies = [copy.deepcopy(model) for _ in rows]
    alone = [_optimizer(name, each) for each in copies]
    at = [[each.detach().clone() for each in parameters] for _ in rows]
    for step in range(4):
        shards.load(rows)
        for shard in rows if step else (1,):
            for parameter, own, value in zip(parameters, copies[shard].parameters(), at[shard], strict=True):
                parameter.data.copy_(value)
                parameter.grad = torch.randn(value.shape)
                own.grad = parameter.grad.clone()
            shards.begin(shard)
            shards.optimizer.step()
            shards.end(shard)
            alone[shard].step()
            at[shard] = [each.detach().clone() for each in parameters]
            assert all(map(torch.equal, at[shard], copies[shard].parameters())), (step, shard)
        rows = {shard: shards.row(shard) for shard in rows}


def test_an_optimizer_that_changes_frozen_parameters_is_refused() -> None:
    """It would do so in each replica alone."""
    ends = members_end(p.OfNoClassOfTorchs, Layout(2), sync={"name": "bap"}, optimizer=None)
    assert any("changed the parameter 'average.0.weight', which is frozen" in str(end) for end in ends), ends


class Cooling(torch.optim.Adam):
    """Keeps a temperature, which the loss reads."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        group = self.param_groups[0]
        group["temperature"] = 0.9 * group.get("temperature", 1.0)


class ReadsTheOptimizer(p.Small):
    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        self.own = Cooling(model.parameters(), lr=0.05)
        return self.own

    def loss(self, model: torch.nn.Module, batch: p.Batch) -> Any:
        loss = super().loss(model, batch) / self.own.param_groups[0].get("temperature", 1.0)
        moments = [state["exp_avg"].sum() for state in self.own.state.values()]
        return torch.stack([loss, *moments]).sum()


@pytest.mark.parametrize("mode", ["ssp", "gossip"])
def test_a_loss_reads_the_optimizer_of_its_shard(mode: str) -> None:
    """With one shard, what it reads is what it reads in lockstep. Each shard read one that had taken no step."""
    settings: dict[str, Any] = {"optimizer": None, "shards": 1, "steps": 6}
    found, lockstep = train(ReadsTheOptimizer, sync={"name": mode}, **settings), train(ReadsTheOptimizer, **settings)
    assert found.losses == pytest.approx(lockstep.losses, rel=1e-6)
    layouts = Layout(3), Layout(2, "tree")
    live_and_replayed(ReadsTheOptimizer, layouts[0], [layouts[1]], {"name": mode}, optimizer=None)


class Growing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.add_param_group({"params": [torch.zeros(2)]})


class GrowingGroups(p.Small):
    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return Growing(model.parameters(), lr=0.1)


@pytest.mark.parametrize("mode", ["bap", "gossip"])
def test_an_optimizer_that_adds_a_group_is_refused_by_its_name(mode: str) -> None:
    (end,) = members_end(GrowingGroups, sync={"name": mode}, optimizer=None)
    assert isinstance(end, PipelineRaised)
    assert end.code == "optimizer.groups"


def test_replicas_that_never_wait_read_each_other() -> None:
    """At least one of three runs has updates that had read some of another worker's."""
    runs = (train(p.Mlp, Layout(2), sync={"name": "bap"}, steps=12) for _ in range(3))
    assert any(
        update.reads for run in runs for sprint in sprints_of(run) for stream in sprint.streams for update in stream
    )


@pytest.mark.long
@pytest.mark.parametrize("layout", TOPOLOGIES[1:], ids=str)
def test_a_window_of_one_delta_is_enough(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.worker.asynchronous.traffic.window_of", lambda _: 1)
    for mode in MODES[:2]:
        live_and_replayed(p.Mlp, layout, [Layout(1)], mode, steps=6)


def test_a_window_holds_a_delta_and_at_most_eight() -> None:
    assert [deltas.window_of(size) for size in (0, 1, 10**6, 10**8)] == [8, 8, 8, 1]


class Alone:
    """An exchange of one member."""

    def gather(self, step: int, attempt: int, phase: int, payload: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG002
        return [payload]


def test_heirs_of_heirs_get_what_was_passed_on_until_then() -> None:
    """Shard 2 went on with what 0 kept; then 0 was lost itself, and went on with what 1 kept."""
    own = {shard: {"kept": torch.tensor([float(shard)])} for shard in range(3)}
    exchange: Any = Alone()
    for _ in range(2):  # a replay may be interrupted here and begin again
        found = shard_rows.fallback_rows(exchange, 4, [[2, 0], [0, 1]], own)
        assert {shard: float(row["kept"]) for shard, row in found.items()} == {2: 0.0, 0: 1.0}
    assert shard_rows.fallback_rows(exchange, 4, [], own) == {}


# ---- what the ledger finds


@pytest.mark.parametrize("layout", thinned(TOPOLOGIES[1:], 4, 1), ids=str)
@pytest.mark.parametrize("times", [0, 2])
def test_a_delta_that_is_dropped_or_applied_twice_is_found(
    layout: Layout, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the sum of the rest would repair it in silence."""
    receive, number = Deliveries.next, itertools.count()

    def spoiled(self: Deliveries) -> Delta | None:
        delta = receive(self)
        if delta is not None and next(number) == 1:
            for part in delta.slices:
                delta.slices[part] = delta.slices[part] * times
        return delta

    monkeypatch.setattr(Deliveries, "next", spoiled)
    ends = members_end(p.Mlp, layout, sync={"name": "ssp", "staleness": 0}, steps=8)
    assert any(isinstance(end, Inconsistent) and "not the sum of the updates" in str(end) for end in ends), ends


def test_a_slice_that_is_overwritten_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send, number = Traffic.send, itertools.count()

    def spoiled(self: Traffic, header: deltas.Header) -> None:
        if header.kind == deltas.DELTA and next(number) == 1:  # before it is told, or its reader may be the faster one
            self.memory.outgoing(header.number).add_(torch.ones(1, dtype=torch.int64))
        send(self, header)

    monkeypatch.setattr(Traffic, "send", spoiled)
    ends = members_end(p.Mlp, Layout(2), sync={"name": "ssp", "staleness": 0}, steps=8)
    assert any(isinstance(end, Inconsistent) for end in ends), ends


def test_workers_that_all_wait_in_vain_accuse_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates get lost: no clock moves any more, though everybody lives and looks around."""
    send = Traffic.send
    monkeypatch.setattr(Timeouts, "deadline_s", 0.5)
    monkeypatch.setattr(
        Traffic, "send", lambda self, header: None if header.kind == deltas.DELTA else send(self, header)
    )
    ends = members_end(p.Mlp, Layout(3), sync={"name": "ssp", "staleness": 0}, steps=8)
    assert all(isinstance(end, Ended) and end.kind == "peer" for end in ends), ends
    accused = {rank: end.accuses for rank, end in enumerate(ends) if isinstance(end, Ended) and end.accuses is not None}
    assert accused
    assert all(rank != other for rank, other in accused.items())
    assert any("waited 0.5 s" in end.why for end in ends if isinstance(end, Ended))


def test_who_never_ends_its_sprint_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    end, given_up = Traffic.end, threading.Event()

    def ending(self: Traffic, *given: Any) -> None:
        if self._member == 1:
            given_up.wait()
        try:
            end(self, *given)
        finally:
            given_up.set()

    monkeypatch.setattr(Timeouts, "deadline_s", 0.5)
    monkeypatch.setattr(Traffic, "end", ending)
    first = members_end(p.Mlp, Layout(2), sync={"name": "bap"})[0]
    assert isinstance(first, Ended)
    assert (first.kind, first.accuses) == ("peer", 1)


def test_what_a_row_kept_of_a_models_statistics_comes_back_to_its_device() -> None:
    """A shard whose micro-batches are empty until the next sync barrier adds these to a sum there."""
    layout = TensorLayout.of([("mean", torch.empty(3))])
    replica: Any = SimpleNamespace(layout=layout, parameters=[], staging=Resident(torch.device("meta")))
    nobody: Any = SimpleNamespace()
    row = {"buffer/0": torch.ones(3), "buffer/1": torch.tensor(2)}
    found = ShardModels(replica, nobody, nobody, nobody, nobody)._buffers_in(row)
    assert [each.device.type for each in found] == ["meta", "meta"]
