"""Whole runs of models in stages, each member a thread: one trace and one digest, on every mesh, with faults too."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from orchestrator.config.resolve import INITIAL_FOLDER
from orchestrator.config.settings import Every
from orchestrator.errors import ConfigurationError, NonFinite, OrchestratorError, PipelineRaised
from orchestrator.worker.hooks import WorkerHooks
from orchestrator.worker.pipeline_parallel.flight import Flight
from orchestrator.worker.pipeline_parallel.trainer import StageTrainer
from orchestrator.worker.worker import Ended, Worker
from pipelines.characters import Characters
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines
from tests.worker.elastic import EVERYTHING, Fault, Writes, survive
from tests.worker.pipeline_parallel import models
from tests.worker.runs import ONE, Layout, _Members, members_end, settings_for, train

ADAM = {"name": "adam", "lr": 0.02}
MESHES = [Layout(2, stages=2), Layout(3, "tree", stages=2), Layout(4, "peer_to_peer", stages=2)]
KINDS = [
    *(pipelines.Mlp, pipelines.Batchnorm, pipelines.CumulativeBatchnorm, pipelines.ChannelsLast, pipelines.Lstm),
    *(pipelines.Attention, pipelines.LayerDrop, pipelines.Annealed, pipelines.AwkwardBuffers),
    *(pipelines.Spectral, pipelines.Codebook, pipelines.KeyQueue),
]


def _same(kind: Any, layout: Layout, **settings: Any) -> None:
    unsplit, split = train(kind, ONE, **settings), train(kind, layout, **settings)
    assert split.trace == unsplit.trace
    assert split.digest == unsplit.digest
    assert str(split.metrics) == str(unsplit.metrics)


@pytest.mark.slow
def test_a_model_in_stages_gives_the_trace_and_the_digest_of_the_unsplit_one() -> None:
    """Clipped, with empty shards, running statistics and digests of single tensors."""
    _same(pipelines.Batchnorm, MESHES[1], clip=0.05, optimizer=ADAM, tensors_every=2)


class Scaled(nn.Linear):
    """Divides by a moving average, which each batch moves before."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        assert isinstance(self.scale, Tensor)
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.9).add_(out.abs().mean(0), alpha=0.1)
        return out / self.scale


class ScaledByAnAverage(pipelines.Small):
    def model(self) -> nn.Module:
        first, last = nn.Linear(pipelines.FEATURES, 8), nn.Linear(8, pipelines.CLASSES)
        return nn.Sequential(first, Scaled(), nn.Linear(8, 8), Scaled(), last)

    def buffers(self) -> dict[str, str]:
        return {"*.scale": "mean"}


class FreezingInLoss(pipelines.Mlp):
    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> Any:
        model[0].requires_grad_(step > 0)  # type: ignore[index]
        return super().loss(model, batch)


def test_a_loss_that_freezes_a_parameter_is_named() -> None:
    """Without stages it trains."""
    train(FreezingInLoss)
    with refused("stages.loss-freezes", "the parameter '0.weight'"):
        train(FreezingInLoss, MESHES[0])


class FreezingLater(pipelines.Mlp):
    layer = -1

    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> Any:
        if step > 1:
            model[self.layer].requires_grad_(False)  # type: ignore[index]
        return super().loss(model, batch)


class FreezingByTurns(FreezingLater):
    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> Any:
        for parameter in model[self.layer].parameters():  # type: ignore[index]
            parameter.requires_grad = step < 2
        return pipelines.Mlp.loss(self, model, batch)


class FreezingTheFirst(FreezingLater):
    layer = 0


@pytest.mark.parametrize("pipeline", [FreezingLater, FreezingByTurns])
def test_so_is_one_that_freezes_it_in_a_later_step(pipeline: type[FreezingLater]) -> None:
    """torch told that an element of tensors does not require grad, or we that the code uses the parameter."""
    with refused("stages.loss-freezes", "the parameter '3."):
        train(pipeline, MESHES[0])


def test_a_layer_may_be_frozen_where_all_stages_behind_it_can_do_without() -> None:
    assert train(FreezingTheFirst, MESHES[0]).digest == train(FreezingTheFirst).digest


class ForwardMode(pipelines.Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, _ = batch
        outputs, along, *_ = torch.func.jvp(model, (inputs,), (torch.ones_like(inputs),))
        return (outputs + along).square().mean()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_derivatives_in_forward_mode_are_told_to_need_the_whole_model() -> None:
    train(ForwardMode)
    (end, *_) = members_end(ForwardMode, MESHES[0])
    assert isinstance(end, PipelineRaised)
    assert "set cluster.stages=1" in str(end.remedy)


class Refilling(pipelines.Mlp):
    """Batches in memory that the next one fills again, which torch does not see."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.memory = numpy.zeros((pipelines.FEATURES * 32,), numpy.float32)

    def collate(self, samples: Any) -> Any:
        inputs, labels = super().collate(samples)
        rows = self.memory[: inputs.numel()].reshape(inputs.shape)
        rows[:] = inputs.numpy()
        return torch.from_numpy(rows), labels


class Overwriting(pipelines.Mlp):
    """Metrics in the memory of the loss."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.memory = torch.zeros(())

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        return loss if model.training else self.memory.copy_(loss)

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        return {"mean": self.memory.copy_(model(batch[0]).mean())}


def test_a_pass_that_is_computed_anew_has_the_batch_as_it_was() -> None:
    _same(pipelines.FromOne, MESHES[0], recompute=True, pipeline_order="gpipe", steps=2, shards=4, batch_size=8)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_batch_that_the_pipeline_writes_again_is_the_same_in_its_backward_pass(recompute: bool) -> None:
    settings: dict[str, Any] = {"optimizer": ADAM, "evaluate_every": Every(steps=2), "steps": 3, "shards": 4}
    unsplit = train(Refilling, ONE, **settings)
    for order in ("1f1b", "gpipe"):
        split = train(Refilling, MESHES[0], recompute=recompute, pipeline_order=order, **settings)
        assert (split.trace, split.digest) == (unsplit.trace, unsplit.digest)
        assert str(split.metrics) == str(unsplit.metrics)


@pytest.mark.parametrize("layout", [ONE, MESHES[0]], ids=str)
def test_metrics_leave_the_loss_of_the_evaluation_as_it_was(layout: Layout) -> None:
    settings: dict[str, Any] = {"evaluate_every": Every(steps=2), "steps": 2}
    found, expected = (train(kind, layout, **settings).metrics for kind in (Overwriting, pipelines.Mlp))
    assert [each["validation/loss"] for each in found] == [each["validation/loss"] for each in expected] != []


class Transforming(pipelines.Mlp):
    """In evaluation torch would compute the layer by a kernel of its own, unless a module in it has a hook."""

    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        first, last = nn.Linear(pipelines.FEATURES, 16), nn.Linear(16, pipelines.CLASSES)
        return nn.Sequential(first, nn.Unflatten(1, (2, 8)), layer, nn.Flatten(), last)


@pytest.mark.slow
def test_layers_of_transformers_are_evaluated_in_stages_as_unsplit() -> None:
    _same(Transforming, Layout(2, stages=2), steps=1, precision="bfloat16")


class Dropping(nn.Module):
    """Stochastic depth, with a mask of the type of what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.rand(len(x), 1) < 0.8).to(x.dtype)
        added: Tensor = x + self.inner(x) * kept / 0.8
        return added


class Drops(pipelines.Mlp):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(pipelines.FEATURES, 8), Dropping(), nn.Linear(8, pipelines.CLASSES))

    def stages(self, model: nn.Module) -> list[str]:  # noqa: ARG002
        return ["1.inner"]


@pytest.mark.slow
def test_code_before_a_border_sees_the_types_that_autocast_gives() -> None:
    """It computes with them. The mask was float32, so rounding was another one, and the cut was refused."""
    _same(Drops, Layout(2, stages=2), steps=1, precision="bfloat16")


class Graph(pipelines.Mlp):
    """A layer multiplies with a sparse matrix: a constant, in one of the two layouts."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.matrix = self.sparse(torch.eye(16).roll(1, 0))

    def sparse(self, matrix: Tensor) -> Tensor:
        return matrix.to_sparse()

    def loss(self, model: Any, batch: Any) -> Any:
        first, *others = model
        hidden = torch.sparse.mm(self.matrix, first(batch[0]).T).T
        return nn.functional.cross_entropy(nn.Sequential(*others)(hidden), batch[1])


class Rows(Graph):
    def sparse(self, matrix: Tensor) -> Tensor:
        return matrix.to_sparse_csr()


class Passing(pipelines.Mlp):
    """A module is called with a sparse matrix that the code before it has made."""

    def model(self) -> nn.Module:
        class Mixing(nn.Linear):
            def forward(self, x: Tensor, matrix: Tensor) -> Tensor:  # type: ignore[override]
                return super().forward(torch.sparse.mm(matrix, x.T).T)

        return nn.ModuleList([nn.Linear(pipelines.FEATURES, 16), Mixing(16, pipelines.CLASSES)])

    def loss(self, model: Any, batch: Any) -> Any:
        matrix = torch.eye(16).to_sparse()
        return nn.functional.cross_entropy(model[1](model[0](batch[0]), matrix), batch[1])

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", [Graph, Rows])
def test_a_stage_multiplies_with_a_sparse_matrix(kind: Any) -> None:
    _same(kind, MESHES[0], steps=2)


def test_a_sparse_tensor_that_would_cross_a_border_is_refused_by_its_layout() -> None:
    (end,) = {str(end) for end in members_end(Passing, MESHES[0], steps=1)}
    assert "stage 0: a tensor of layout torch.sparse_coo would cross the border behind it" in end
    assert "keep it as an attribute" in end


@pytest.mark.long
@pytest.mark.parametrize("layout", MESHES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_mesh_gives_the_same(kind: Any, layout: Layout) -> None:
    _same(kind, layout, clip=0.5, optimizer=ADAM)


@pytest.mark.long
@pytest.mark.parametrize("layout", [Layout(2, stages=2), Layout(3, "tree", stages=2), Layout(4, stages=4)], ids=str)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_tied_embedding(layout: Layout, precision: str) -> None:
    args = {"width": 16, "layers": 3, "heads": 2, "window": 128}
    _same(Characters, layout, args=args, clip=0.5, optimizer=ADAM, shards=4, batch_size=8, steps=3, precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_buffer_that_moves_is_used_behind_while_others_are_under_way(order: str, recompute: bool) -> None:
    """Torch tells by its version whether it is what the forward pass had."""
    expected = train(ScaledByAnAverage, shards=4, steps=3)
    given = {"shards": 4, "steps": 3, "pipeline_order": order, "recompute": recompute}
    found = train(ScaledByAnAverage, Layout(2, stages=2), **given)
    assert found.trace == expected.trace
    assert found.digest == expected.digest


@pytest.mark.slow
@pytest.mark.parametrize("order", thinned(["1f1b", "gpipe"], 2))
def test_forward_passes_that_are_computed_anew_leave_the_same_bits(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, running statistics and counters; and where activations are kept, none is computed anew."""
    settings: dict[str, Any] = {"clip": 0.05, "optimizer": ADAM, "steps": 2}
    unsplit = train(pipelines.Batchnorm, ONE, **settings)
    anew: list[int] = []
    whole = Flight.whole

    def counted(flight: Flight, stage: Any, *others: Any) -> Flight:
        if flight.record is None:
            anew.append(stage.index)
        return whole(flight, stage, *others)

    monkeypatch.setattr(Flight, "whole", counted)
    for recompute in (False, True):
        told = train(pipelines.Batchnorm, MESHES[1], recompute=recompute, pipeline_order=order, **settings)
        assert (told.trace, told.digest) == (unsplit.trace, unsplit.digest)
        assert bool(anew) == recompute
    assert set(anew) == ({0} if order == "1f1b" else {0, 1}), "of the last stage backward follows at once"


@pytest.mark.slow
def test_activations_are_not_kept_where_they_are_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    backward = StageTrainer._backward

    def counted(trainer: StageTrainer, task: Any, when: Any, tally: Any, flights: dict[int, Flight], grid: Any) -> None:
        held.append(sum(flight.record is not None for flight in flights.values()))
        backward(trainer, task, when, tally, flights, grid)

    monkeypatch.setattr(StageTrainer, "_backward", counted)
    most = []
    for recompute in (False, True):
        held.clear()
        train(pipelines.Mlp, Layout(2, stages=2), recompute=recompute, pipeline_order="gpipe", steps=1)
        most.append(max(held))
    assert most[0] == 5
    assert most[1] <= 1, "only of a shard whose backward pass comes next"


@pytest.mark.long
@pytest.mark.parametrize("member", range(4))
@pytest.mark.parametrize("what", ["die", "call off", "regroup", "join"])
def test_faults_in_each_place_of_a_mesh(member: int, what: Any) -> None:
    unsplit = survive(pipelines.Batchnorm, ONE, checkpoint_every=2, **EVERYTHING)
    for at in range(5 + 7 * member, 240, 60):
        told = survive(pipelines.Batchnorm, Layout(4, stages=2), [Fault(member, at, what)], 2, **EVERYTHING)
        assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics), at


@pytest.mark.long
@pytest.mark.slow
def test_a_call_off_while_digests_are_taken_loses_nothing() -> None:
    unsplit = survive(pipelines.Batchnorm, ONE, checkpoint_every=2, **EVERYTHING)
    told = survive(
        pipelines.Batchnorm, Layout(2, stages=2), [Fault(0, 100, "die"), Fault(2, 60, "call off")], 2, **EVERYTHING
    )
    assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics)


@pytest.mark.slow
def test_what_a_stage_reserves_for_its_checkpoints_is_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose memory for copies takes long to be had, so that it is asked for before the first checkpoint."""
    reserved: list[list[str]] = []
    written: list[list[str]] = []
    running, begin = WorkerHooks.running, Writes.begin

    def on_card(hooks: WorkerHooks) -> None:
        plan = hooks._state.plan
        there = replace(plan, run=replace(plan.run, compute=replace(plan.run.compute, device="cuda")))
        monkeypatch.setattr(hooks._state, "plan", there)
        running(hooks)
        monkeypatch.setattr(hooks._state, "plan", plan)

    def begun(writer: Writes, state: Any, **others: Any) -> None:
        written.append(sorted(state.tensors))
        begin(writer, state, **others)

    monkeypatch.setattr(WorkerHooks, "running", on_card)
    monkeypatch.setattr(Writes, "begin", begun)
    monkeypatch.setattr(Writes, "reserve", lambda _, state, **__: reserved.append(sorted(state.tensors)))
    survive(pipelines.Batchnorm, Layout(3, "tree", stages=2), [], 2, **EVERYTHING)
    assert len(reserved) == 3, "one of each member"
    assert sorted(reserved) == sorted(written[:3])


class Remade(pipelines.Batchnorm):
    """Its model is made anew where a run goes back to its first values. drifts: then they are others."""

    most: ClassVar[list[int]] = []

    def __init__(self, rows: int = 22, held_out: int | None = 7, drifts: bool = False) -> None:
        super().__init__(rows, held_out)
        self.drifts = drifts
        self._made = 0

    def model(self) -> nn.Module:
        model = super().model()
        self._made += 1
        self.most.append(self._made)
        if self.drifts and self._made > 2:
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), 1.0)
        return model


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", thinned(["adam", "adagrad"], 2))
def test_before_the_first_checkpoint_a_loss_sends_all_back_to_values_that_are_made_anew(optimizer: str) -> None:
    """adagrad has a state before the first step."""
    settings = {**EVERYTHING, "optimizer": {"name": optimizer, "lr": 0.02}}
    Remade.most.clear()
    unsplit = survive(Remade, ONE, **settings)
    assert max(Remade.most) == 1
    told = survive(Remade, Layout(2, stages=2), [Fault(1, 60, "die")], **settings)
    assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics)
    assert max(Remade.most) == 3, "when it gets its stage, and to go back"


@pytest.mark.long
@pytest.mark.slow
def test_values_of_another_model_are_made_anew_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If training begins with them: for all that go back, and for the one that comes and stands by."""
    before = train(pipelines.Batchnorm, steps=3, args=EVERYTHING["args"])
    file = tmp_path / INITIAL_FOLDER / f"{before.digest}.safetensors"
    file.parent.mkdir(parents=True)
    save_file(before.parameters, file)
    monkeypatch.chdir(tmp_path)
    settings = {**EVERYTHING, "initial": {"name": "models:/m/1", "digest": before.digest}}
    unsplit = survive(pipelines.Batchnorm, ONE, **settings)
    told = survive(pipelines.Batchnorm, Layout(2, stages=2), [Fault(1, 60, "die")], **settings)
    assert told.went_back == 1
    assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics)


@pytest.mark.long
@pytest.mark.slow
def test_first_values_that_come_out_otherwise_are_told() -> None:
    settings = {**EVERYTHING, "args": {**EVERYTHING["args"], "drifts": True}}
    with refused("stages.other-first-value"):
        survive(Remade, Layout(2, stages=2), [Fault(1, 60, "die")], **settings)


@pytest.mark.slow
def test_a_member_holds_its_stage_only() -> None:
    members = _Members(settings_for(pipelines.Mlp, Layout(2, stages=2), optimizer=ADAM, clip=0.5))
    workers = [member for member in members.members if isinstance(member, Worker)]
    before = [
        {name: weakref.ref(each) for name, each in worker._workload.model.named_parameters()} for worker in workers
    ]
    ends = members.run()
    assert not any(isinstance(end, BaseException) for end in ends)
    gc.collect()
    alive = [{name for name, each in known.items() if each() is not None} for known in before]
    assert alive[0] | alive[1] == set(before[0])
    assert not alive[0] & alive[1]
    for worker, names in zip(workers, alive, strict=True):
        assert worker.state().keys() == names
        state = worker._strategy.model_state.capture({})
        assert {name.removeprefix("model/") for name in state.tensors if name.startswith("model/")} == names
        assert {name.split("/")[2] for name in state.tensors if name.startswith("optimizer/")} == names


class Deep(pipelines.Mlp):
    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(pipelines.FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, pipelines.CLASSES)
        )


class SparesExperts(pipelines.Small):
    """A micro-batch of two rows uses two of 12 experts at most, and others later."""

    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, 16)

    def model(self) -> nn.Module:
        return models.Experts(12, spares=True)


class HookedResult(Deep):
    """A hook on the gradient of a layer's result, set in the code that all stages run."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        hidden = model.get_submodule("0")(batch[0])
        if hidden.requires_grad:
            hidden.retain_grad()
            hidden.register_hook(lambda gradient: gradient / 2).remove()
            hidden.register_hook(lambda gradient: gradient * 2)
        return nn.functional.cross_entropy(model[1:](hidden), batch[1])  # type: ignore[index]

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"spread": model[1:](model.get_submodule("0")(batch[0])).std()}  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SparesExperts, HookedResult], ids=lambda kind: kind.__name__)
def test_what_only_some_stages_or_steps_do_gives_the_bits_of_the_unsplit_run(kind: Any) -> None:
    _same(kind, MESHES[0], optimizer=ADAM, steps=6, evaluate_every=Every(steps=3))


class DrawsInEvaluation(Deep):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, labels = batch
        return nn.functional.cross_entropy(nn.functional.dropout(model(inputs), 0.2), labels)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"drawn": torch.rand(()), "spread": (model(batch[0]) * torch.rand(())).std()}


class DrawsInSomeEvaluations(DrawsInEvaluation):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, labels = batch
        if not model.training:
            self.first = getattr(self, "first", inputs)
        draws = not model.training and not torch.equal(self.first, inputs)
        return super().loss(model, batch) if draws else nn.functional.cross_entropy(model(inputs), labels)


class ReadsTheModelNowhere(Deep):
    """In its metrics, for which the loss has kept something."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.kept = model(batch[0])
        return nn.functional.cross_entropy(self.kept, batch[1])

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {"drawn": torch.rand(()), "accuracy": (self.kept.argmax(1) == batch[1]).float().mean()}


class Named(Deep):
    def stages(self, model: nn.Module) -> list[str]:  # noqa: ARG002
        return ["2"]


class NamesTooMany(Deep):
    def stages(self, model: nn.Module) -> list[str]:  # noqa: ARG002
        return ["2", "3"]


class SharedNorm(Deep):
    def model(self) -> nn.Module:
        norm = nn.BatchNorm1d(8)
        return nn.Sequential(
            nn.Linear(pipelines.FEATURES, 8), norm, nn.Linear(8, 8), norm, nn.Linear(8, pipelines.CLASSES)
        )


class SharedNormDivided(SharedNorm):
    def stages(self, model: nn.Module) -> list[str]:  # noqa: ARG002
        return ["2"]


class HookedTied(Deep):
    def model(self) -> nn.Module:
        first, last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        last.weight = first.weight
        first.weight.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
        return nn.Sequential(first, nn.Tanh(), nn.Linear(6, 6), last)

    def stages(self, model: nn.Module) -> list[str]:  # noqa: ARG002
        return ["2"]


class ScalesItsBatch(Deep):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        batch[0].mul_(1.5)
        return super().loss(model, batch)


class TakesFromItsBatch(Deep):
    def collate(self, items: Any) -> list[Any]:
        return [*super().collate(items)]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, (batch[0], batch.pop() if model.training else batch[1]))


class HookedBackward(Deep):
    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("1").register_full_backward_hook(lambda _module, inputs, _outputs: inputs)
        return model


REFUSED = {
    ScalesItsBatch: ("stages.batch-changed", "step 0, shard 0"),
    TakesFromItsBatch: ("stages.batch-changed", "step 0, shard 0"),
    HookedBackward: ("stages.backward-hook", "'1'"),
    pipelines.Small: ("stages.not-cut", ""),
    pipelines.Packed: ("stages.output-needed", "gru"),
    NamesTooMany: ("stages.returned", "['2', '3']"),
    SharedNormDivided: ("stages.buffer-shared", "'1.num_batches_tracked'"),
    HookedTied: ("stages.hook", "'0.weight'"),
    pipelines.Frozen: ("stages.no-parameters", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_cut_is_refused_before_the_first_step(kind: Any) -> None:
    (end, *_) = members_end(kind, Layout(2, stages=2), optimizer=ADAM)
    assert isinstance(end, PipelineRaised)
    code, named = REFUSED[kind]
    assert end.code == code
    assert named in end.message
    assert end.remedy


def test_an_optimizer_of_the_pipelines_own_is_refused() -> None:
    (end, *_) = members_end(pipelines.OwnOptimizer, Layout(2, stages=2), optimizer=None)
    assert isinstance(end, ConfigurationError)


@pytest.mark.slow
@pytest.mark.parametrize("layout", thinned([Layout(4, stages=2), Layout(3, "tree", stages=3)], 2, 1), ids=str)
@pytest.mark.parametrize("kind", thinned([DrawsInEvaluation, ReadsTheModelNowhere], 2), ids=lambda kind: kind.__name__)
def test_metrics_go_on_with_what_the_loss_has_left_in_evaluation(kind: Any, layout: Layout) -> None:
    _same(kind, layout, optimizer=ADAM, evaluate_every=Every(steps=1), steps=2)


@pytest.mark.slow
def test_a_loss_that_draws_in_the_evaluation_of_some_batches_only_is_told() -> None:
    ends = members_end(DrawsInSomeEvaluations, Layout(2, stages=2), optimizer=ADAM, evaluate_every=Every(steps=1))
    told = [end for end in ends if isinstance(end, PipelineRaised)]
    assert told
    assert all("draws random numbers in the evaluation of some batches only" in str(end) for end in told)


@pytest.mark.slow
def test_a_stage_does_not_begin_between_two_calls_of_a_norm() -> None:
    _same(SharedNorm, MESHES[0], optimizer=ADAM, shards=2, args={"rows": 20})


@pytest.mark.slow
def test_stages_that_the_pipeline_names() -> None:
    _same(Named, Layout(2, stages=2), optimizer=ADAM)


class Failing(Deep):
    """In the layer of a stage, on one micro-batch."""

    def model(self) -> nn.Module:
        class Fragile(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                if self.training and len(x) == 1 and torch.is_grad_enabled():
                    raise ValueError("a single row")
                return super().forward(x)

        return nn.Sequential(
            nn.Linear(pipelines.FEATURES, 8), nn.Tanh(), Fragile(8, 8), nn.Linear(8, pipelines.CLASSES)
        )


class Infinite(Deep):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss: Tensor = super().loss(model, batch)
        return loss * float("inf") if len(batch[0]) == 1 and model.training else loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"), [(Failing, PipelineRaised), pytest.param(Infinite, NonFinite, marks=pytest.mark.long)]
)
def test_a_fault_in_a_stage_is_told_as_unsplit(kind: Any, error: type[OrchestratorError]) -> None:
    """Everybody's program comes to its end; the member whose shard it is tells it, the others withdraw."""
    expected = [end for end in members_end(kind, ONE, optimizer=ADAM, steps=4) if isinstance(end, Exception)]
    ends = members_end(kind, Layout(3, "tree", stages=2), optimizer=ADAM, steps=4)
    told = [end for end in ends if isinstance(end, Exception)]
    assert len(told) == len(expected) == 1
    assert isinstance(told[0], error)
    assert str(told[0]).splitlines()[0] == str(expected[0]).splitlines()[0]
    assert {end.kind for end in ends if isinstance(end, Ended)} == {"withdrew"}
