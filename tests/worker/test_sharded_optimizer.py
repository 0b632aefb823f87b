"""`update.sharded`: the workers of a host divide the optimizer's step, and nothing else is different, whoever dies when."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.transports.base import PeerLost
from orchestrator.config.settings.rules import sharded
from orchestrator.errors import RunFailed
from orchestrator.optim import by_element
from orchestrator.optim.chunked_step import Pieces
from orchestrator.optim.optimizers import OPTIMIZERS as OPTIMIZERS_OF_TABLE
from orchestrator.worker.member.shared_queue import MemoryHandle
from orchestrator.worker.model import sharded_optimizer
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.strategies import LockstepStrategy
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.elastic import EVERYTHING, Fault, Told, What, survive
from tests.worker.runs import LAYOUTS, ONE, Keeping, Layout, Run, Shared, settings_for, train

pytestmark = pytest.mark.threads

RICH: dict[str, Any] = {**EVERYTHING, "checkpoint_every": 2}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 0.01, "amsgrad": True},
    "adamw": {"lr": 0.01},
    "sgd": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "rmsprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "adagrad": {"lr": 0.05},
    "nadam": {"lr": 0.01},
    "radam": {"lr": 0.01},
    "adadelta": {"lr": 0.5},
    "adamax": {"lr": 0.01},
    "asgd": {"lr": 0.05},
    "rprop": {"lr": 0.01},
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_optimizer, "PIECE", 64)


@functools.cache
def whole(name: str) -> Run:
    return train(p.Mlp, ONE, optimizer={"name": name, **OPTIMIZERS[name]}, clip=0.5)


@pytest.mark.parametrize("name", thinned(OPTIMIZERS, 8))
def test_each_optimizer_gives_the_bits_of_the_whole_update(name: str) -> None:
    """With clipping by the norm of the whole gradient."""
    divided = train(p.Mlp, Layout(3), optimizer={"name": name, **OPTIMIZERS[name]}, clip=0.5, sharded=True)
    assert (divided.trace, divided.digest) == (whole(name).trace, whole(name).digest)


@pytest.mark.parametrize(
    "options", thinned([{"foreach": True}, {"fused": True}, {"maximize": True, "weight_decay": 0.1}], 3, 1), ids=str
)
def test_each_way_of_torch_gives_the_bits_of_the_whole_update(options: dict[str, Any]) -> None:
    optimizer = {"name": "adamw", "lr": 0.01, **options}
    runs = [train(p.Mlp, layout, optimizer=optimizer, sharded=layout.workers > 1) for layout in (ONE, Layout(2))]
    assert runs[0].trace == runs[1].trace


@pytest.mark.slow
@pytest.mark.parametrize("layout", thinned(LAYOUTS, 10, 9), ids=str)
def test_every_topology(layout: Layout) -> None:
    settings: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 0.01}, "args": {}}
    assert train(p.Batchnorm, layout, sharded=True, **settings).trace == _batchnorm().trace


@functools.cache
def _batchnorm() -> Run:
    return train(p.Batchnorm, ONE, optimizer={"name": "adamw", "lr": 0.01}, args={})


BESIDE: dict[str, dict[str, Any]] = {
    "compression": {"compression": {"name": "topk", "ratio": 0.25}},
    "local": {"local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.05}}},
    "claims": {"claims": True},
    "schedule": {"loaders": 0, "schedule": {"name": "cosine", "warmup": 2}},
}


@pytest.mark.parametrize("name", thinned(BESIDE, 4))
def test_what_it_goes_with(name: str) -> None:
    settings: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}, **BESIDE[name]}
    assert train(p.Mlp, Layout(3), sharded=True, **settings).trace == train(p.Mlp, ONE, **settings).trace


@pytest.mark.parametrize("pipeline", thinned([p.LayerDrop, p.Frozen, p.ChannelsLast], 3), ids=str)
def test_parameters_without_a_gradient_and_in_other_orders_of_memory(pipeline: Any) -> None:
    settings: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 0.01}, "steps": 6}
    assert train(pipeline, Layout(2), sharded=True, **settings).trace == train(pipeline, ONE, **settings).trace


class TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(p.FEATURES, p.CLASSES) for _ in range(2))


class LateHead(p.Small):
    """The second layer has gradients from step 3 on, and of some micro-batches only."""

    def model(self) -> torch.nn.Module:
        return TwoHeads()

    def loss(self, model: torch.nn.Module, batch: p.Batch, step: int = 0) -> torch.Tensor:
        assert isinstance(model, TwoHeads)
        inputs, labels = batch
        scores = model.first(inputs)
        if step >= 3 and not labels[0]:
            scores = scores + model.second(inputs)
        return torch.nn.functional.cross_entropy(scores, labels)

    def metrics(self, model: torch.nn.Module, batch: p.Batch) -> dict[str, torch.Tensor]:  # noqa: ARG002
        return {}


def test_a_parameter_has_its_first_gradient_late_where_all_step_by_one_kernel() -> None:
    settings: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "fused": True}, "steps": 8}
    assert train(LateHead, Layout(2), sharded=True, **settings).trace == train(LateHead, ONE, **settings).trace


def test_gradients_that_peers_may_still_read_stay_as_they_are() -> None:
    """torch's SGD by Nesterov writes into them, where it steps all parameters at once."""
    grounds = Shared()
    (place, _) = grounds.places((0, 0))
    worker = Stepping()
    optimizer = torch.optim.SGD([worker.parameter], lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    worker.divided = sharded_optimizer.ShardedOptimizer(optimizer, worker.replica)
    _settle([worker], place, 0)
    gradient = _gradient(1)
    for step in range(2):
        _step([worker], step, gradient)
    assert torch.equal(gradient, _gradient(1))


def test_groups_of_the_pipelines_own() -> None:
    divided = train(p.OwnOptimizer, Layout(3), sharded=True, optimizer=None)
    assert divided.trace == train(p.OwnOptimizer, ONE, optimizer=None).trace


class Stepping:
    """A worker that has a part in the update of a model of one vector."""

    def __init__(self, nth: int = 0) -> None:
        self.nth = nth
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.linspace(-1, 1, 300))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        self.replica = Replica(model)
        self.parameter = self.replica.parameters[0]
        self.divided = sharded_optimizer.ShardedOptimizer(self.optimizer, self.replica)

    def step(self, gradient: torch.Tensor) -> None:
        """By itself, undivided."""
        self.parameter.grad = gradient
        self.optimizer.step()

    def require_same(self, other: Stepping) -> None:
        assert torch.equal(self.replica.flat, other.replica.flat)
        kept, expected = self.optimizer.state[self.parameter], other.optimizer.state[other.parameter]
        assert list(kept) == list(expected)
        assert all(torch.equal(kept[key], expected[key]) for key in expected)


def _gradient(seed: int) -> torch.Tensor:
    return torch.randn(300, generator=torch.Generator().manual_seed(seed))


def _step(workers: list[Stepping], step: int, gradient: torch.Tensor) -> None:
    for worker in workers:
        worker.divided.make(step, [gradient], lambda go: go())
    for worker in workers:
        worker.divided.commit()


def _settle(workers: list[Stepping], place: MemoryHandle | None, generation: int) -> None:
    for worker in workers:
        worker.divided.settle(place, worker.nth, len(workers), generation)


def test_what_was_half_made_is_made_again() -> None:
    """A worker is killed in the middle of its pieces, and another one makes them in the next generation."""
    grounds = Shared()
    (place, _) = grounds.places((0, 0))
    workers, plain = [Stepping(nth) for nth in range(2)], Stepping()
    _settle(workers, place, 0)

    def killed(go: Callable[[], None]) -> None:
        go()
        memory = workers[0].divided._memory
        assert memory is not None
        memory.made[:100] = memory.kept["exp_avg"][0][:100] = torch.nan
        raise KeyboardInterrupt

    for step in range(3):
        _step(workers, step, _gradient(1))
    with pytest.raises(KeyboardInterrupt):
        workers[0].divided.make(3, [_gradient(1)], killed)
    workers[1].divided.make(3, [_gradient(1)], lambda go: go())
    workers[1].divided.settle(place, 0, 1, 1)
    _step(workers[1:], 3, _gradient(1))
    for _ in range(4):
        plain.step(_gradient(1))
    workers[1].require_same(plain)


@pytest.mark.parametrize("alone", [False, True])
def test_a_step_that_is_done_again_has_the_gradient_of_its_generation(alone: bool) -> None:
    """All had made step 1 when a site went, which sits out from then on. One of two workers of a host may go with it, and
    come back: what they had made of that step lies in their memory still."""
    grounds = Shared()
    (place, _) = grounds.places((0, 0))
    workers, plain = [Stepping(nth) for nth in range(2)], Stepping()
    _settle(workers, place, 0)
    _step(workers, 0, _gradient(0))
    for worker in workers:
        worker.divided.make(1, [_gradient(1)], lambda go: go())
    plain.step(_gradient(0))
    plain.step(_gradient(2))
    if alone:
        _settle(workers[:1], None, 1)
        workers[0].step(_gradient(2))
        _settle(workers[1:], None, 1)
        workers[1].step(_gradient(2))
    else:
        _settle(workers, place, 1)
        _step(workers, 1, _gradient(2))
    _settle(workers, place, 2)
    _step(workers, 2, _gradient(3))
    plain.step(_gradient(3))
    for worker in workers:
        worker.require_same(plain)


def test_a_state_that_is_taken_over_within_a_generation_is_gone_on_with() -> None:
    """As by an audit, whose segment begins with what the run had kept at the step where another segment has just ended."""
    grounds = Shared()
    (place, _) = grounds.places((0, 0))
    workers, plain = [Stepping(nth) for nth in range(2)], Stepping()
    _settle(workers, place, 0)
    for step in range(2):
        _step(workers, step, _gradient(step))
        plain.step(_gradient(-1 - step))
    for worker in workers:
        worker.replica.flat.copy_(plain.replica.flat)
        worker.optimizer.state[worker.parameter] = {
            k: v.clone() for k, v in plain.optimizer.state[plain.parameter].items()
        }
    _step(workers, 2, _gradient(2))
    plain.step(_gradient(2))
    for worker in workers:
        worker.require_same(plain)


def test_who_is_alone_again_before_it_has_made_a_step_goes_on_with_its_state() -> None:
    """Another worker of its host comes, and is gone before the first step of both."""
    grounds = Shared()
    (place, _) = grounds.places((0, 0))
    model, plain = (torch.nn.Linear(20, 30) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, plain)]
    divided = sharded_optimizer.ShardedOptimizer(optimizers[0], Replica(model))
    steps = [Pieces(optimizers[0]).step, optimizers[1].step]
    for memory, workers in ((None, 1), (None, 1), (place, 2), (None, 1)):
        divided.settle(memory, 0, workers, 0)
        for each, step in zip((model, plain), steps if memory is None else (), strict=False):
            for parameter in each.parameters():
                parameter.grad = torch.ones_like(parameter)
            step()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)
        kept, expected = optimizers[0].state[own], optimizers[1].state[other]
        assert all(torch.equal(kept[key], expected[key]) for key in expected)


def test_checkpoints_are_the_same_bytes(tmp_path: Path) -> None:
    """And the sums of states over all steps: what is kept of each element, numbers and their order."""
    kept = []
    for nth, layout in enumerate((ONE, Layout(2), Layout(3))):
        keeping = Keeping(tmp_path / str(nth), archive=1)
        optimizer = {"name": "adamw", "lr": 0.01}
        train(p.Mlp, layout, keeping=keeping, optimizer=optimizer, sharded=layout.workers > 1)
        kept.append(keeping.saved)
    assert kept[0]
    assert kept[0] == kept[1] == kept[2]


def test_each_steps_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them all pieces, and none twice."""
    made: list[int] = []
    keep = sharded_optimizer.ShardedOptimizer._keep

    def counted(self: Any, memory: Any, version: int, piece: Any, entry: Any) -> None:
        made.append(piece.at)
        keep(self, memory, version, piece, entry)

    monkeypatch.setattr(sharded_optimizer.ShardedOptimizer, "_keep", counted)
    train(p.Mlp, Layout(3), sharded=True, steps=1, optimizer={"name": "adamw", "lr": 0.01})
    assert len(made) == len(set(made)) > 3


@pytest.mark.parametrize("alive", [True, False])
def test_who_died_before_its_memory_was_shared_is_told_as_lost(alive: bool) -> None:
    """Campaign, seed 102: a worker that ended as the others began to share its memory ended the run."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    model = torch.nn.Linear(3, 2)
    divided = sharded_optimizer.ShardedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), Replica(model))
    place = MemoryHandle(0, gone.pid, 5)

    class Connected:
        def poll(self, _phases: object, _timeout_s: float) -> list[object]:
            if not alive:
                raise PeerLost(0, "it closed the connection")
            return []

    generation = SimpleNamespace(updates=(place, place), number=0)
    moment: Any = SimpleNamespace(generation=generation, rank=1, transport=Connected())
    execution: Any = SimpleNamespace(_updater=SimpleNamespace(divided=divided))
    with pytest.raises(RunFailed if alive else PeerLost):
        LockstepStrategy._divide(execution, moment)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_pieces_are_shared_out(sizes: list[int], workers: int) -> None:
    """Each to one worker, and nobody has more than its part and a piece."""
    shares = [list(sharded_optimizer._shares(sizes, nth, workers)) for nth in range(workers)]
    assert sorted(piece for share in shares for piece in share) == list(range(len(sizes)))
    assert all(sum(sizes[n] for n in share) <= sum(sizes) / workers + max(sizes) for share in shares)


@functools.cache
def undisturbed() -> Told:
    return survive(p.Batchnorm, Layout(1), **RICH)


def _disturbed(layout: Layout, faults: list[Fault]) -> None:
    told, untouched = survive(p.Batchnorm, layout, faults, sharded=True, **RICH), undisturbed()
    assert told.digest == untouched.digest
    assert all(untouched.trace[line["step"]] == line for line in told.trace)  # what is restored is not computed again
    assert all(untouched.metrics[step] == metrics for step, metrics in told.metrics.items())


@pytest.mark.slow
@pytest.mark.parametrize("at", thinned(range(0, 120, 7), 18, 12))
def test_a_worker_may_die_at_any_moment(at: int) -> None:
    """The first one in whose memory the update is made, and another one somewhat later."""
    layout = [Layout(3, "ring"), Layout(4, "tree"), Layout(3, "parameter_server"), Layout(4, "hierarchical", nodes=2)]
    _disturbed(layout[at % 4], [Fault(0, at, "die"), Fault(2, at + 30, "die")])


@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(range(12), 12, 4))
def test_chaos(seed: int) -> None:
    draw = random.Random(seed)
    kinds: list[What] = ["die", "die", "join", "call off", "regroup", "save"]
    faults = [Fault(draw.randrange(6), draw.randrange(110), draw.choice(kinds)) for _ in range(12)]
    _disturbed(Layout(draw.randint(2, 4), draw.choice(["ring", "tree", "peer_to_peer"])), faults)


class _Total(torch.optim.SGD):
    """Looks at the whole of a vector."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sum())


def test_an_optimizer_that_looks_at_more_than_an_element_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    assert "may look at more" in str(by_element.problem(_Total([weight], lr=0.1)))
    monkeypatch.setattr(by_element, "BY_ELEMENT", {_Total})
    assert "other bits than the whole" in str(by_element.problem(_Total([weight], lr=0.1)))
    assert by_element.problem(torch.optim.AdamW([weight])) is not None  # it is not among them now


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_those_of_torch_keep_to_the_law(name: str) -> None:
    kind = {each.__name__.lower(): each for each in by_element.BY_ELEMENT}[name]
    for options in ({}, {"foreach": True}):
        first, second = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(3))
        optimizer = kind([{"params": [first], "lr": 0.1}, {"params": [second]}], **OPTIMIZERS[name], **options)
        assert by_element.problem(optimizer) is None
        assert [group["params"] for group in optimizer.param_groups] == [[first], [second]]
        assert set(optimizer.state) <= {first, second}


def test_the_table_of_optimizers_is_divided_into_two() -> None:
    by_tensor = {name for name, kind in OPTIMIZERS_OF_TABLE.items() if kind not in by_element.BY_ELEMENT}
    assert by_tensor == set(sharded.BY_TENSOR)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"optimizer": {"name": "lamb", "lr": 0.1}}, "optimizer.sharded-by-tensor"),
        ({"sync": {"name": "asp"}}, "optimizer.sharded-sync"),
        ({"reduction": "fast"}, "optimizer.sharded-fast"),
        ({"layout": Layout(2, stages=2)}, "optimizer.sharded-stages"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_does_not_go_with_is_refused(settings: dict[str, Any], code: str) -> None:
    layout = settings.pop("layout", Layout(2))
    with refused(code, "or update.sharded=false"):
        settings_for(p.Mlp, layout, sharded=True, **settings)


def test_an_own_optimizer_of_another_kind_is_refused() -> None:
    with refused("optimizer.not-sharded", "update.sharded"):
        train(p.Langevin, Layout(2), sharded=True, optimizer=None)
