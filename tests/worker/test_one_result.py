"""The heart of it: one digest and one trace, however a run is laid out (laws 1 and 2)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import random_split

from orchestrator.config import plan
from orchestrator.config.settings import Every, Steps
from orchestrator.numerics import staging
from orchestrator.numerics.streams import seeded
from orchestrator.optim.optimizers import OPTIMIZERS
from orchestrator.pipeline import Pipeline
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.runs import LAYOUTS, LONELY, ONE, Layout, Run, assert_same_run, rotating, train

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    pipeline: type[Pipeline]
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.pipeline.__name__, *(f"{k}={v}" for k, v in self.settings.items())])


ADAM = {"name": "adamw", "lr": 0.01}
CASES = [
    Case(p.Mlp),
    Case(p.Wide, {"steps": 2}),
    Case(p.Images),
    Case(p.Batchnorm),
    Case(p.CumulativeBatchnorm),
    Case(p.BatchnormWithoutStatistics),
    Case(p.BatchnormWithoutParameters),
    Case(p.FrozenBatchnorm),
    Case(p.BatchnormFrozenByLoss),
    Case(p.Groupnorm),
    Case(p.Instancenorm),
    Case(p.ChannelsLast),
    Case(p.Lstm),
    Case(p.Attention),
    Case(p.MaskedTokens, {"steps": 5, "args": {"rows": 27}}),
    Case(p.Frozen),
    Case(p.LayerDrop, {"steps": 6, "optimizer": ADAM}),
    Case(p.Augmented),
    Case(p.Caching, {"batch_size": 7}),
    Case(p.Packed),
    Case(p.Annealed, {"evaluate_every": Every(steps=2)}),
    Case(p.OwnOptimizer, {"optimizer": None}),
    Case(p.Langevin, {"optimizer": None}),
    Case(p.NumbersOfNumpy, {"optimizer": None, "schedule": {"name": "cosine"}}),
    Case(p.RateInATensor, {"optimizer": None, "schedule": {"name": "cosine"}}),
    Case(p.OfNoClassOfTorchs, {"optimizer": None, "evaluate_every": Every(steps=2)}),
    Case(p.CustomBatches),
    Case(p.AwkwardBuffers),
    Case(p.Spectral, {"evaluate_every": Every(steps=2)}),
    Case(p.Codebook, {"epochs": 2}),
    Case(p.KeyQueue, {"batch_size": 8, "optimizer": ADAM}),
    Case(p.KeyQueue, {"shards": 8, "batch_size": 8, "args": {"rows": 3}}),
    Case(p.Mlp, {"epochs": 2}),
    Case(p.Mlp, {"clip": 0.05}),
    Case(p.Mlp, {"shards": 11, "batch_size": 13}),
    Case(p.Mlp, {"shards": 8, "batch_size": 8, "args": {"rows": 3}}),
    Case(p.Mlp, {"args": {"rows": 1}}),
    Case(p.Mlp, {"args": {"held_out": None}}),
    Case(p.Mlp, {"args": {"held_out": 1}}),
    Case(p.Mlp, {"evaluate_every": Every(steps=2), "args": {"held_out": 23}}),
    Case(p.Batchnorm, {"evaluate_every": Every(steps=1)}),
    Case(p.Mlp, {"digest_every": 0}),
    Case(p.Batchnorm, {"tensors_every": 2}),
    Case(p.Attention, {"precision": "bfloat16"}),
    Case(p.Batchnorm, {"precision": "bfloat16"}),
    Case(p.Lstm, {"precision": "bfloat16"}),
    Case(p.Mlp, {"seed": 2**63 - 1}),
    *(Case(p.Mlp, {"optimizer": {"name": name, "lr": 0.01}}) for name in OPTIMIZERS),
    Case(p.Mlp, {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}}),
    Case(p.Mlp, {"optimizer": {"name": "adamw", "lr": 0.01, "fused": True}}),
    Case(p.Mlp, {"optimizer": {"name": "adam", "lr": 0.01, "foreach": True, "betas": [0.8, 0.9]}}),
]


def _skip_what_torch_lacks(case: Case) -> None:
    if case.pipeline is p.Lstm and "precision" in case.settings and not p.has_lstm_of_bfloat16():
        pytest.skip("torch has no LSTM of bfloat16 for this processor")


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 10, 3), ids=lambda number: str(CASES[number]))
def test_every_layout_gives_the_same_run(number: int) -> None:
    case = CASES[number]
    _skip_what_torch_lacks(case)
    reference = train(case.pipeline, **case.settings)
    for layout in rotating(1, number):
        assert_same_run(train(case.pipeline, layout, **case.settings), reference)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_on_every_layout(case: Case) -> None:
    _skip_what_torch_lacks(case)
    reference = train(case.pipeline, **case.settings)
    for layout in LAYOUTS:
        assert_same_run(train(case.pipeline, layout, **case.settings), reference)


@pytest.mark.parametrize("case", thinned(CASES, len(CASES), 3), ids=str)
def test_computing_beside_host_memory_changes_no_bit(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; the device is the CPU all the same."""
    direct = train(case.pipeline, **case.settings)
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))
    assert_same_run(train(case.pipeline, Layout(2), **case.settings), direct)


@pytest.mark.parametrize("layout", thinned([*LAYOUTS, *LONELY], 12, 5), ids=str)
def test_one_model_on_all_layouts(layout: Layout, wide: Run) -> None:
    assert_same_run(train(p.Wide, layout, steps=2), wide)


@pytest.fixture(scope="module")
def wide() -> Run:
    return train(p.Wide, steps=2)


def test_threads_are_those_of_the_settings_whatever_the_pipeline_sets() -> None:
    """In the proof before the first step too."""
    assert train(p.SetsThreads).trace == train(p.Mlp).trace
    assert p.SetsThreads.seen == {1}


def test_another_seed_is_another_run() -> None:
    runs = [train(p.Mlp, seed=seed) for seed in (1, 2)]
    assert runs[0].digest != runs[1].digest
    assert all(one != other for one, other in zip(runs[0].trace, runs[1].trace, strict=True))


def test_digests_of_single_tensors_come_when_they_are_due() -> None:
    run = train(p.Batchnorm, tensors_every=2)
    assert [line["step"] for line in run.trace if "tensors" in line] == [1, 3]
    first, second = (line["tensors"] for line in run.trace if "tensors" in line)
    assert list(first) == list(second)
    assert all(len(digest) == 16 and digest != second[name] for name, digest in first.items())
    assert [{**line, "tensors": None} for line in run.trace] == [
        {**line, "tensors": None} for line in train(p.Batchnorm).trace
    ]


def test_how_often_is_evaluated_changes_nothing() -> None:
    seldom, often = (train(p.Batchnorm, evaluate_every=every) for every in (None, Every(steps=1)))
    assert len(seldom.metrics) == 1
    assert len(often.metrics) == 4
    assert often.trace == seldom.trace
    assert often.metrics[-1] == seldom.metrics[-1]


def test_evaluation_leaves_frozen_layers_frozen() -> None:
    """Modes are part of what evaluation may not change."""
    quiet, disturbed = (train(p.FrozenBatchnorm, evaluate_every=every) for every in (None, Every(steps=1)))
    assert disturbed.digest == quiet.digest


def test_evaluation_by_the_clock_is_agreed() -> None:
    """Worker 0's watch decides for all; every step is due when the interval is this short."""
    run = train(p.Mlp, Layout(3, "parameter_server"), evaluate_every=Every(seconds=1e-9), shards=3)
    assert len(run.metrics) == 4


def test_a_run_without_validation_set_reports_no_metrics() -> None:
    assert train(p.Mlp, args={"held_out": None}).metrics == []
    assert train(p.Mlp, args={"held_out": 0}).metrics == []


def test_metrics_are_means_over_the_rows() -> None:
    run = train(p.Mlp, args={"held_out": 7}, steps=1)
    labels = _held_out_labels(p.Mlp(held_out=7))
    assert run.metrics[0]["validation/share_of_0"] == pytest.approx((labels == 0).double().mean().item())
    assert set(run.metrics[0]) == {"validation/loss", "validation/accuracy", "validation/share_of_0"}


def _held_out_labels(pipeline: p.Small) -> torch.Tensor:
    with seeded(7, "datasets"):
        _, held_out = pipeline.datasets()
    tensors: tuple[torch.Tensor, ...] = held_out.tensors  # type: ignore[union-attr]
    return tensors[1]


def test_losses_over_zero_weights_are_left_out_of_the_mean() -> None:
    """A batch without a known token has the weight 0 and a mean that is not a number."""
    run = train(p.MaskedTokens, steps=1, args={"held_out": 9}, batch_size=5)
    assert math.isfinite(run.metrics[0]["validation/loss"])


def test_frozen_statistics_keep_their_bits() -> None:
    run = train(p.FrozenBatchnorm, Layout(2))
    with seeded(7, "model"):
        start = p.FrozenBatchnorm().model().state_dict()
    for name in ("1.running_mean", "1.running_var"):
        assert torch.equal(run.parameters[name].view(torch.int32), start[name].view(torch.int32))
    assert not torch.equal(run.parameters["1.weight"], start["1.weight"])


# --- rule A8: statistics


def test_statistics_that_some_shards_leave_alone_are_still_a_mean_over_all() -> None:
    """One of V shards changes the statistics: the others count with the value they started from."""
    run = train(p.RareStatistics, steps=1, shards=4, batch_size=4, args={"rows": 4})
    assert run.parameters["norm.running_mean"].tolist() == pytest.approx([0.1 * 8 / 4], rel=1e-6)
    for layout in rotating(2, 0):
        other = train(p.RareStatistics, layout, steps=1, shards=5, batch_size=5, args={"rows": 5})
        assert other.parameters["norm.running_mean"].tolist() == pytest.approx([0.1 * 8 / 5], rel=1e-6)


def test_statistics_of_a_shard_without_weight_do_not_count() -> None:
    for layout in (ONE, Layout(4, "tree")):
        run = train(p.WeightlessStatistics, layout, steps=2, shards=4, batch_size=4, args={"rows": 4})
        assert run.parameters["norm.running_mean"].tolist() == [0.0]


class Split(p.Small):
    def datasets(self) -> Any:
        return random_split(super().datasets()[0], [0.75, 0.25])


def test_datasets_may_be_what_random_split_returns() -> None:
    assert_same_run(train(Split, Layout(2, "ring")), train(Split))


def test_evaluation_gives_every_module_its_mode_back() -> None:
    source, compute = plan.Source("p:Batchnorm", {}), plan.Compute("cpu", 1, "float32", False)
    run = plan.Run(source, compute, seed=0, steps=1, epochs=None)
    work = PipelineAdapter(p.Batchnorm, run, plan.Data(shards=2, batch_size=Steps.constant(4), loaders=0))
    work.model.get_submodule("1").eval()
    modes = [module.training for module in work.model.modules()]
    evaluation.compute(work, Replica(work.model), [0, 1], work.evaluate, 0, lambda: None)
    assert [module.training for module in work.model.modules()] == modes
    assert len(set(modes)) == 2


# --- rule A3: the grid


JUMPS: dict[str, Any] = {"shards": 8, "batch_size": 8, "epochs": 3, "args": {"rows": 32, "held_out": None}, "clip": 1.0}


@pytest.mark.parametrize(
    "layout",
    thinned([Layout(3, "tree"), Layout(2), Layout(5, "parameter_server"), Layout(8), Layout(7, "peer_to_peer")], 5),
    ids=str,
)
def test_a_gradient_that_jumps_gives_the_same_run(layout: Layout) -> None:
    """Workers with one shard keep their gradient for the second attempt, the others compute again."""
    assert_same_run(train(p.Jump, layout, **JUMPS), train(p.Jump, **JUMPS))


def test_a_kept_gradient_is_not_computed_again() -> None:
    """12 steps of 8 shards; the first is repeated by all, each jump up or down only by workers with several shards. Before them
    each worker computes three micro-batches to prove itself, and one twice in the eighth step."""
    computed, proofs = {}, 3 + 2
    for layout in (ONE, Layout(8)):
        before = p.Jump.losses.tell()
        train(p.Jump, layout, claims=False, **JUMPS)
        computed[layout] = p.Jump.losses.tell() - before
    assert computed[Layout(8)] - 8 * proofs == 13 * 8
    assert computed[ONE] - proofs > 13 * 8


def test_adam_does_not_move_a_parameter_that_no_shard_uses() -> None:
    run = train(p.LayerDrop, Layout(2), optimizer={"name": "adamw", "lr": 0.1, "weight_decay": 0.5})
    with seeded(7, "model"):
        start = p.LayerDrop().model().state_dict()
    assert torch.equal(run.parameters["idle.weight"], start["idle.weight"])
    assert not torch.equal(run.parameters["scale"], start["scale"])


# --- reduction=fast


FAST: dict[str, Any] = {"reduction": "fast", "shards": 6, "batch_size": 12, "steps": 3}


@pytest.mark.parametrize(
    "layout",
    thinned([ONE, Layout(3), Layout(3, "tree"), Layout(3, "peer_to_peer"), Layout(3, "parameter_server")], 5, 3),
    ids=str,
)
def test_fast_is_repeatable_for_one_layout(layout: Layout) -> None:
    assert_same_run(train(p.Wide, layout, **FAST), train(p.Wide, layout, **FAST))


def test_fast_differs_between_layouts() -> None:
    """Were it not so, exact sums would be for nothing, and the tests above would prove nothing."""
    digests = {train(p.Wide, Layout(workers), **FAST).digest for workers in (1, 2, 3)}
    assert len(digests) > 1


def test_fast_stays_close_to_exact() -> None:
    exact = train(p.Wide, **{**FAST, "reduction": "exact"})
    for layout in (ONE, Layout(3), Layout(4, "tree")):
        fast = train(p.Wide, layout, **FAST)
        for name, tensor in exact.parameters.items():
            assert torch.allclose(fast.parameters[name], tensor, rtol=1e-5, atol=1e-6)
        assert fast.losses == pytest.approx(exact.losses, rel=1e-5)


def test_the_table_covers_all_layouts() -> None:
    used = set(itertools.chain.from_iterable(rotating(1, number) for number in range(len(CASES))))
    assert used == set(LAYOUTS)


def test_bfloat16_is_another_result_and_a_near_one() -> None:
    plain, mixed = (train(p.Mlp, precision=precision, steps=2) for precision in ("float32", "bfloat16"))
    assert mixed.digest != plain.digest
    assert mixed.losses == pytest.approx(plain.losses, rel=0.05)
    assert all(value.dtype == torch.float32 for value in mixed.parameters.values())


def plain_gate(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid() + x.tanh()


class Gated(p.Small):
    """Computes by a function, from its third step on. scripts: by one of TorchScript, of which each worker has its own."""

    def __init__(self, scripts: bool) -> None:
        super().__init__()
        script: Any = torch.jit.CompilationUnit
        written = "def gate(x: Tensor):\n    return x * x.sigmoid() + x.tanh()\n"
        self.gate: Any = script(written).gate if scripts else plain_gate

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(p.FEATURES, 16), torch.nn.Linear(16, p.CLASSES))

    def loss(self, model: Any, batch: p.Batch, step: int = 0) -> torch.Tensor:
        inputs, labels = batch
        found = model[0](inputs)
        return torch.nn.functional.cross_entropy(model[1](self.gate(found) if step >= 2 else found), labels)


@pytest.mark.parametrize("layout", [ONE, Layout(3, "tree"), Layout(2, "parameter_server")], ids=str)
def test_a_scripted_function_has_the_bits_of_a_plain_one_in_each_of_its_calls(layout: Layout) -> None:
    settings: dict[str, Any] = {"steps": 6, "batch_size": 20}
    plain = train(Gated, args={"scripts": False}, **settings)
    assert_same_run(train(Gated, layout, args={"scripts": True}, **settings), plain)
