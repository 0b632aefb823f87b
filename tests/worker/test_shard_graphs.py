"""Recordings of a shard's passes: the bits of eager ones, and eager ones wherever a recording would give others."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from orchestrator.config.plan import Variant
from orchestrator.config.settings import Every
from orchestrator.numerics.batches import rebuilt, taken_apart
from orchestrator.numerics.device import kernels
from orchestrator.optim.transforms import Gradients, State
from orchestrator.pipeline import Pipeline
from orchestrator.worker.model import shard_graphs
from tests.products import thinned
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.retracing import Retracer
from tests.worker.runs import SGD, Layout, members_end, train
from tests.worker.test_on_device import trained
from tests.worker.toys import DELAYED

pytestmark = pytest.mark.slow

Batch = tuple[torch.Tensor, ...]
MARK = 77.0


class Branching(p.Mlp):
    """A loss whose operations depend on a value."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        return loss * 2 if loss.item() > 0 else loss


class Counting(p.Mlp):
    """A loss that depends on the step, in a way that is rounded otherwise where the number is read from memory."""

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Any:  # type: ignore[override]
        return super().loss(model, batch) / (1.0 + 0.1 * step)


class Annealed(p.Mlp):
    """Three numbers follow from the step, one of them twice, and a weight does."""

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Any:  # type: ignore[override]
        part = min(1.0, step / 100)
        decay = sum(part * each.square().sum() for each in model.parameters())
        outputs = model(batch[0]) * (1.0 + 0.1 * step)
        return nn.functional.cross_entropy(outputs, batch[1]) * (1 - part) + decay, 1 + step % 2


class Turns(p.Mlp):
    """Two losses that take turns, each of which trains layers of its own."""

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Any:  # type: ignore[override]
        turn = "0." if step % 2 else "3."
        still = {name: each.detach() for name, each in model.named_parameters() if name.startswith(turn)}
        outputs = torch.func.functional_call(model, still, (batch[0],))
        loss = nn.functional.cross_entropy(outputs, batch[1])
        return loss * (2 - step % 3), 1 + step % 2


class Settling(p.Mlp):
    """A part of the loss rises for some steps, and stays."""

    rises = 4

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Any:  # type: ignore[override]
        decay = sum(each.square().sum() for each in model.parameters())
        return super().loss(model, batch) + min(1.0, step / self.rises) * 0.01 * decay


class Exchanging(p.Mlp):
    """In some steps alone the loss exchanges a tensor that it reads in all for another one like it."""

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Any:  # type: ignore[override]
        if step % 3 == 0:
            self.scale = torch.tensor(1.5)
        return super().loss(model, batch) * self.scale


class Noting(p.Mlp):
    """The loss leaves the step to metrics."""

    step = 0

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        self.step = step
        return super().loss(model, batch) * (1 + step % 2)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Any]:  # noqa: ARG002
        return {"step": self.step + 0.0}


class Beyond(p.Mlp):
    """One of its samples is not there."""

    def datasets(self) -> Any:
        train, held_out = super().datasets()
        return Subset(train, [*range(self.rows - 1), self.rows]), held_out


class WithMask(p.Batchnorm):
    """Two of its buffers have to stay as they are."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        model.register_buffer("scale", torch.tensor([1.0, float("nan")]))
        return model


class Masked(p.Batchnorm):
    """Rows of the first class do not count; a micro-batch of them alone has a loss and gradients that are no numbers."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        inputs, labels = batch
        counts = labels != 0
        losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        return (losses * counts).sum() / counts.sum(), counts.sum()


class WithWeight(WithMask):
    """The device computes the weights."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch), (batch[1] >= 0).sum()


class MaskedLater(Masked):
    """A weight is none in the step behind those that compare recordings."""

    bad = -1.0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss, weight = super().loss(model, batch)
        return loss, torch.where(batch[0][0, 0, 0, 0] == MARK, self.bad, weight)

    def inputs(self, rows: int) -> torch.Tensor:
        found = super().inputs(rows)
        found[rows // 2, 0, 0, 0] = MARK
        return found


class MaskedByInfinity(MaskedLater):
    bad = float("inf")


class Spoiled(p.Mlp):
    """A sample is no number, and is met when recordings are done again."""

    def inputs(self, rows: int) -> torch.Tensor:
        found = super().inputs(rows)
        found[rows // 2, 0] = float("nan")
        return found


class Writing(p.Mlp):
    """It writes a buffer that has to stay as it is, with the same value."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("top", torch.tensor(MARK / 2))
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if model.training:
            top = model.get_buffer("top")
            top.copy_(torch.maximum(top, batch[0].max()))
        return super().loss(model, batch)


class Rising(Writing):
    """The same, with another value in one micro-batch."""

    def inputs(self, rows: int) -> torch.Tensor:
        found = super().inputs(rows)
        found[rows // 2, 0] = MARK
        return found


class Rolling(p.Mlp):
    """A loss that depends on numbers of Python."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch) * (1.0 + random.random())


class Peeking(p.Mlp):
    """A loss that depends on a value behind the back of torch: the second micro-batch shows it."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch) * float(batch[0].numpy().sum())


class Centring(p.Mlp):
    """A loss that writes into its batch."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        batch[0].sub_(0.5)
        return super().loss(model, batch)


class Reusing(p.Mlp):
    """A loss in memory that the next micro-batch writes again."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.total = torch.zeros(())

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        total = self.total.detach().zero_()
        total += super().loss(model, batch)
        return total


class ReusingInSteps(Reusing):
    """The same, and never recorded."""

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Any:  # type: ignore[override] # noqa: ARG002
        return super().loss(model, batch)


class Seeded(p.Mlp):
    """A loss that follows from the seed of its micro-batch, of which many have one that gives the same."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch) * (2.0 if torch.initial_seed() % 4 else 1.0)


class Refilling(p.Mlp):
    """A number that is kept, and filled anew where it is for another mode. A replay does not fill it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._scale, self._of = torch.ones(()), 1.0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        wanted = 1.0 if model.training else 2.0
        if self._of != wanted:
            self._of = wanted
            self._scale.fill_(wanted)
        return super().loss(model, batch) * self._scale


class Named(p.Mlp):
    """Batches with texts."""

    def collate(self, items: Any) -> Any:
        return (*super().collate(items), f"{float(items[0][0].sum())}")

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch[:2])

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        return super().metrics(model, batch[:2])


class Ragged(Named):
    """Batches of many shapes."""

    def collate(self, items: Any) -> Any:
        *parts, text = super().collate(items)
        return (*parts, torch.zeros(sum(map(ord, text)) % 9))


class Rated(p.Mlp):
    """A loss that follows from the learning rate."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.made = torch.optim.SGD(model.parameters(), lr=0.1)
        return self.made

    def rate(self, step: int) -> float:
        return 1.0 if step < 4 else 0.5

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        rate = self.made.param_groups[0]["lr"] if hasattr(self, "made") else 0.1
        return super().loss(model, batch) * (1.0 + rate)


CASES: list[tuple[type[Pipeline], dict[str, Any]]] = [
    (p.Mlp, {"clip": 0.05, "optimizer": {"name": "adamw", "lr": 0.01}}),
    (Centring, {}),
    (p.Batchnorm, {}),
    (p.Images, {}),
    (p.Attention, {"precision": "bfloat16"}),
    (p.Frozen, {}),
    (p.Mlp, {"check_every": 2, "shards": 2}),
    (Masked, {"batch_size": 4, "args": {"rows": 40}}),
    (Masked, {"batch_size": 4, "contribution": DELAYED}),
    (p.AwkwardBuffers, {}),
    (p.Batchnorm, {"local": {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.05}, "clip": 0.5}}),
    (p.FromOne, {}),
]


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 5, 3), ids=lambda number: CASES[number][0].__name__)
def test_a_recording_gives_the_bits_of_eager_passes(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    pipeline, settings = CASES[number]
    recorded = trained(pipeline, Layout(2), **{"steps": 8, "shards": 4, **settings})
    assert retracer.recorded
    assert retracer.replays > 4 * retracer.recorded
    assert 0 < retracer.given_back <= retracer.recorded  # once each, unless a shape came only once
    monkeypatch.undo()
    eager = train(pipeline, **{"steps": 8, "shards": 4, **settings})
    assert (recorded.trace, recorded.digest) == (eager.trace, eager.digest)


@pytest.mark.parametrize("pipeline", [Reusing, ReusingInSteps])
@pytest.mark.usefixtures("retracer")
def test_a_loss_at_which_nobody_has_looked_keeps_its_value(
    monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]
) -> None:
    read_late = train(pipeline, steps=4, shards=4)
    monkeypatch.undo()
    at_once = train(pipeline, steps=4, shards=4)
    assert (read_late.trace, read_late.digest) == (at_once.trace, at_once.digest)


class Holding(torch.optim.Optimizer):
    """Steps by the gradient and the one before, which it keeps itself."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                before = self.state[parameter].get("before", parameter.grad)
                parameter.sub_(parameter.grad + before, alpha=group["lr"])
                self.state[parameter]["before"] = parameter.grad
        return closure


class Drawing:
    """Scales by numbers of Python and numpy what it finds at the parameters."""

    def init(self, parameters: Sequence[torch.Tensor]) -> State:
        self.parameters = parameters
        return {}

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        factor = random.random() + float(numpy.random.random())
        found = [parameter.grad for parameter in self.parameters]
        assert [each is None for each in found] == [each is None for each in gradients]
        return [None if each is None else each * factor for each in found], state


def test_code_behind_a_repetition_finds_what_it_finds_behind_a_backward_pass(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"steps": 4, "shards": 2, "contribution": Variant(f"{__name__}:Drawing")}
    recorded = train(p.Mlp, **settings)
    assert retracer.replays > 2 * retracer.recorded > 0
    monkeypatch.undo()
    eager = train(p.Mlp, **settings)
    assert (recorded.trace, recorded.digest) == (eager.trace, eager.digest)


@pytest.mark.parametrize("pipeline", [Turns, Settling, Annealed])
def test_a_loss_that_takes_the_step_is_replayed_in_steps_that_give_the_same_answers(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]
) -> None:
    monkeypatch.setattr(shard_graphs, "_PAUSE", 4)
    settings: dict[str, Any] = {"steps": 14, "shards": 4}
    recorded = train(pipeline, **settings)
    assert retracer.recorded >= 1
    assert retracer.replays > 3 * retracer.recorded
    assert retracer.steps
    three = trained(pipeline, Layout(3), **settings)
    monkeypatch.undo()
    eager = train(pipeline, **settings)
    for each in (recorded, three):
        assert (each.trace, each.digest) == (eager.trace, eager.digest)


@pytest.mark.usefixtures("retracer")
@pytest.mark.parametrize("pipeline", [Exchanging, Noting])
def test_objects_that_a_loss_changes_in_some_steps_alone_are_read_as_they_are(
    monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]
) -> None:
    settings: dict[str, Any] = {"steps": 9, "shards": 3, "evaluate_every": Every(steps=4)}
    recorded = train(pipeline, **settings)
    monkeypatch.undo()
    eager = train(pipeline, **settings)
    assert (recorded.trace, recorded.digest, recorded.metrics) == (eager.trace, eager.digest, eager.metrics)


HOLDING: list[dict[str, Any]] = [
    {"contribution": DELAYED},
    {"local": {"steps": 3, "optimizer": {"name": f"{__name__}:Holding", "lr": 0.05}}},
]


@pytest.mark.parametrize("settings", HOLDING, ids=["contribution", "local optimizer"])
def test_what_keeps_a_gradient_itself_keeps_its_bits(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    given = {"steps": 3, "shards": 2, "batch_size": 4, **settings}
    recorded = train(p.Mlp, **given)
    assert retracer.replays > 2 * retracer.recorded > 0
    monkeypatch.undo()
    eager = train(p.Mlp, **given)
    assert (recorded.trace, recorded.digest) == (eager.trace, eager.digest)


def test_so_are_updates_of_replicas_that_run_free(retracer: Retracer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"steps": 6, "shards": 2, "sync": {"name": "ssp", "staleness": 1, "rest_every": 3}}
    recorded = train(p.Batchnorm, **settings)
    assert retracer.replays > 4 * retracer.recorded > 0
    monkeypatch.undo()
    eager = train(p.Batchnorm, **settings)
    assert (recorded.trace, recorded.digest, recorded.rests) == (eager.trace, eager.digest, eager.rests)


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (Branching, "test_shard_graphs.py:"),
        (Counting, "as long as loss() computes with the number of the step ("),
        (Rolling, "random numbers in host memory"),
        (Peeking, "gives other bits"),
        (Seeded, "gives other bits"),
        (Named, "texts or numbers beside their tensors"),
        (Ragged, "other shapes than the first 4"),
        (Rated, "pipeline.made is of the optimizer"),
        (Writing, "writes the buffer 'top'"),
        (Refilling, "model keeps (one number) was filled anew meanwhile"),
    ],
)
@pytest.mark.usefixtures("retracer")
def test_what_cannot_be_recorded_is_computed_eagerly_and_told_once(
    monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline], told: str
) -> None:
    lines: list[str] = []
    plain = shard_graphs.ShardGraphs.__init__

    def noted(graphs: Any, *given: Any) -> None:
        recorder, replica, staging, _, *more = given
        plain(graphs, recorder, replica, staging, lines.append, *more)

    monkeypatch.setattr(shard_graphs.ShardGraphs, "__init__", noted)
    settings: dict[str, Any] = {
        "steps": 8,
        "optimizer": None if pipeline is Rated else SGD,
        "evaluate_every": Every(steps=4) if pipeline is Refilling else None,
    }
    run = train(pipeline, **settings)
    assert len(lines) == 1
    assert told in lines[0]
    monkeypatch.undo()
    assert run.trace == train(pipeline, **settings).trace


@pytest.mark.parametrize("name", ["BatchPlace", "same_bits"])
def test_a_card_without_memory_for_a_recording_or_its_comparison_computes_eagerly(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 16 GiB")

    lines: list[str] = []
    plain = shard_graphs.ShardGraphs._give_up

    def told(graphs: shard_graphs.ShardGraphs, why: str) -> None:
        lines.append(why)
        plain(graphs, why)

    monkeypatch.setattr(shard_graphs.ShardGraphs, "_give_up", told)
    monkeypatch.setattr(shard_graphs, name, full)
    found = train(p.Batchnorm, steps=4)
    assert retracer.replays <= 1
    assert lines[0].startswith("the GPU has no memory for a recording")
    monkeypatch.undo()
    eager = train(p.Batchnorm, steps=4)
    assert (found.trace, found.digest) == (eager.trace, eager.digest)


LOOKS = ("tolist", "item", "cpu", "__bool__", "__int__", "__float__")
IN_HOST_MEMORY = ("orders.py", "step_report.py", "digests.py", "beginning.py")  # or not in each step of a run


@pytest.mark.usefixtures("retracer")
def test_a_step_waits_for_its_device_as_often_however_many_shards_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(look: Any) -> Any:
        def counting(*given: Any) -> Any:
            nonlocal looks
            callers = sys._getframe(1), sys._getframe(2)
            looks += not any(each.f_code.co_filename.endswith(IN_HOST_MEMORY) for each in callers)
            return look(*given)

        return counting

    for name in LOOKS:
        monkeypatch.setattr(torch.Tensor, name, counted(getattr(torch.Tensor, name)))
    monkeypatch.setattr(torch, "equal", counted(torch.equal))
    # On a card the thread waits for the magnitudes at a mark, and reads them where they have come.
    marked = SimpleNamespace(synchronize=counted(lambda: None))
    monkeypatch.setattr(kernels, "mark_of", lambda _: marked)

    def of_two_steps(shards: int) -> int:
        """With a buffer that has to stay, statistics and counters, and behind those steps that compare recordings."""
        found = []
        for steps in (4, 6):
            before = looks
            train(pipeline, steps=steps, shards=shards, batch_size=4 * shards, args={"rows": 80})
            found.append(looks - before)
        return found[1] - found[0]

    # Magnitudes; statistics and counters; losses; what may not change; the fingerprint.
    pipeline: type[Pipeline] = WithMask
    assert of_two_steps(1) == of_two_steps(4) == 2 * 5
    pipeline = WithWeight  # the weights of all shards
    assert of_two_steps(1) == of_two_steps(4) == 2 * 6


def test_shapes_have_recordings_of_their_own_and_at_most_a_few(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"steps": 6, "shards": 3, "batch_size": 7, "args": {"rows": 23}}
    run = train(p.Mlp, **settings)
    assert 1 < retracer.recorded <= 4
    monkeypatch.undo()
    assert run.trace == train(p.Mlp, **settings).trace


FAULTS = [f.NanLoss, f.NanGradient, f.InfiniteStatistic, f.CentresItsOutput, MaskedLater, MaskedByInfinity]


def told_twice(monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]) -> tuple[str, str]:
    """The error of a run with recordings, and of one without."""
    (recorded,) = members_end(pipeline)
    monkeypatch.undo()
    (plain,) = members_end(pipeline)
    assert isinstance(plain, Exception)
    return str(recorded), str(plain)


@pytest.mark.parametrize("pipeline", thinned(FAULTS, 6, 2))
@pytest.mark.usefixtures("retracer")
def test_faults_are_told_alike(monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]) -> None:
    recorded, plain = told_twice(monkeypatch, pipeline)
    assert recorded == plain


@pytest.mark.usefixtures("retracer")
def test_a_sparse_gradient_is_told_before_recordings_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, plain = told_twice(monkeypatch, f.SparseGradient)
    assert "sparse gradient" in plain
    assert recorded == plain


@pytest.mark.usefixtures("retracer")
def test_a_loss_that_is_read_late_names_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, plain = told_twice(monkeypatch, Spoiled)
    assert "not finite itself" in plain
    assert recorded == plain


@pytest.mark.usefixtures("retracer")
def test_a_buffer_that_has_to_stay_and_changes_late_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, plain = told_twice(monkeypatch, Rising)
    assert "'top'" in plain
    assert recorded == plain


@pytest.mark.usefixtures("retracer")
def test_a_sample_that_is_not_there_is_told_when_its_shard_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    together, plain = told_twice(monkeypatch, Beyond)
    assert "reading samples (step" in plain
    assert together == plain


def test_a_batch_is_taken_apart_and_built_again() -> None:
    batch = {"x": [torch.ones(2), (torch.zeros(3), "text")], "n": 3}
    apart = taken_apart(batch)
    assert apart is not None
    tensors, shape = apart
    assert [tensor.numel() for tensor in tensors] == [2, 3]
    other = taken_apart({"x": [torch.zeros(2), (torch.ones(3), "text")], "n": 3})
    assert other is not None
    assert other[1] == shape
    assert taken_apart({**batch, "n": 4})[1] != shape  # type: ignore[index]
    assert str(rebuilt(batch, other[0])) == str({"x": [torch.zeros(2), (torch.ones(3), "text")], "n": 3})
    assert taken_apart([0.0]) != taken_apart([-0.0])
    assert taken_apart([math.nan]) == taken_apart([float("nan")])
    assert taken_apart([torch.ones(1), object()]) is None
    assert shard_graphs.tensors_in(shape) == shard_graphs.tensors_in(taken_apart({**batch, "n": 4})[1])  # type: ignore[index]
    assert shard_graphs.tensors_in(shape) != shard_graphs.tensors_in(taken_apart({**batch, "n": torch.ones(1)})[1])  # type: ignore[index]
