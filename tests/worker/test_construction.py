"""The driver builds everything before anything is started: it refuses what a worker would, and nothing of it stays."""

from __future__ import annotations

import os
import random
import sys
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy
import pytest
import torch
from torch import nn

from orchestrator.config.plan import Variant
from orchestrator.config.resolve import resolve
from orchestrator.errors import ConfigurationError
from orchestrator.numerics.determinism import left_as_it_was, prepare_thread
from orchestrator.pipeline import Pipeline
from orchestrator.worker.model import construction
from tests.refusals import refused
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.runs import settings_for

REFUSED = [
    (f.DoublePrecision, "torch.float64"),
    (f.OptimizerOfAnotherKind, "LBFGS"),
    (f.OptimizerWithClosure, "calls the model again within its step"),
    (f.SeveralOptimizers, "optimizer() returned a tuple"),
    (f.Sharpness, "calls the model again within its step"),
    (f.ObjectInGroups, "filter is a builtins.object, which a checkpoint cannot hold"),
    (f.CountsInOptimizer, "changed its attribute 'decay'"),
    (f.AveragesInOptimizer, "changed its attribute 'slow' (step 1)"),
    (f.BuildsASchedule, "LambdaLR"),
    (f.BuildsAPlateau, "ReduceLROnPlateau"),
    (f.TrainsItself, "train(loader, optimizer)"),
    (f.ModelIsNoModule, "model() returned str"),
    (f.SharedStorage, "share memory"),
    pytest.param(f.Compiled, "is compiled", marks=pytest.mark.long),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "words"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_what_every_worker_would_refuse_is_refused(pipeline: type[p.Small], words: str) -> None:
    own = pipeline.optimizer is not Pipeline.optimizer
    with pytest.raises(ConfigurationError) as caught:
        construction.rehearse(resolve(settings_for(pipeline, optimizer=None) if own else settings_for(pipeline)))
    assert caught.value.message.startswith("the configuration is wrong: pipeline.target: ")
    assert words in caught.value.message
    assert caught.value.remedy


class Named(p.Small):
    """Attributes that have the names of methods."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        setattr(self, name, value)


HIDDEN = {"model": nn.Linear(1, 1), "loss": nn.MSELoss(), "datasets": (), "metrics": ["accuracy"], "collate": None}
IGNORED = {"rate": lambda _: 0.5, "optimizer": torch.optim.SGD, "save": print, "on_evaluation": print}


@pytest.mark.parametrize(("name", "value"), [*HIDDEN.items(), *IGNORED.items()], ids=[*HIDDEN, *IGNORED])
def test_an_attribute_in_place_of_a_method_is_refused(name: str, value: object) -> None:
    """It failed at its call, with "forward() missing 1 required positional argument", or nobody called it."""
    with refused(
        "pipeline.hidden-method", f"sets self.{name}, a {type(value).__name__}, in place of the method {name}()"
    ):
        construction.make_pipeline(Named, {"name": name, "value": value}, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rate", 0.5), ("optimizer", "adam"), ("weights", [1.0]), ("collate", list), ("loss", min), ("rows", 3)],
)
def test_other_attributes_may_have_any_name(name: str, value: object) -> None:
    assert vars(construction.make_pipeline(Named, {"name": name, "value": value}, 0))[name] is value


def test_a_model_finds_no_chance_values_in_memory_that_nobody_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker and each run would find others; NaN is told at the first loss."""
    prepare_thread(1)
    deterministic: Any = torch.utils.deterministic
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
    model = construction.make_model(f.LeavesAParameterUnwritten(), seed=1)
    assert model.get_parameter("bias").isnan().all()
    assert not deterministic.fill_uninitialized_memory


def test_numbers_of_numpy_in_an_optimizers_groups_are_those_of_python() -> None:
    """They become numbers of the same values, however deep they lie; also a rate that would be refused as no number."""
    plan = resolve(settings_for(p.NumbersOfNumpy, optimizer=None))
    pipeline = p.NumbersOfNumpy()
    optimizer = construction.make_optimizer(pipeline, pipeline.model(), plan)
    for group, rate in zip(optimizer.param_groups, numpy.linspace(0.01, 0.3, 2, dtype=numpy.float32), strict=True):
        assert (type(group["lr"]), group["lr"]) == (float, float(rate))
        assert (type(group["decay"]), group["decay"]) == (float, float(numpy.float16(0.9)))
        assert group["factors"] == (float(numpy.float32(0.1)), [2])
        assert (type(group["factors"][0]), type(group["factors"][1][0])) == (float, int)


IDLE = [{"rank": 4}, {"rank": 1, "saving": 100.0}]


@pytest.mark.parametrize("options", IDLE, ids=str)
def test_a_compression_that_makes_nothing_smaller_is_refused(options: dict[str, Any]) -> None:
    settings = settings_for(p.Batchnorm, compression={"name": "powersgd", **options})
    with refused("compression.idle", "compression"):
        construction.rehearse(resolve(settings))


@pytest.mark.parametrize("name", ["none", "quantize", "topk", "powersgd"])
def test_and_others_are_not(name: str) -> None:
    options = {"rank": 2} if name == "powersgd" else {}
    construction.rehearse(resolve(settings_for(p.Batchnorm, compression={"name": name, **options})))


class ExitsInModel(p.Small):
    def model(self) -> nn.Module:
        sys.exit(3)


@pytest.mark.parametrize(
    "pipeline", [f.RaisesInInit, f.RaisesInModel, f.RaisesInTrain, f.RaisesInDatasets, ExitsInModel]
)
def test_what_the_pipeline_raises_is_left_to_the_workers(pipeline: type[p.Small]) -> None:
    """Its model may want what datasets() finds, and that is not called."""
    assert construction.rehearse(resolve(settings_for(pipeline))).notes == []


def test_what_an_optimizer_raises_in_its_step_is_left_to_them_too() -> None:
    """All else is known of the run."""
    found = construction.rehearse(resolve(settings_for(f.RaisesInStep, optimizer=None)))
    assert found.parameters == sum(each.numel() for each in f.RaisesInStep().model().parameters())


class Careless(p.Small):
    """Changes what scripts change, in whatever process it is made."""

    made: ClassVar[list[weakref.ref[nn.Module]]] = []

    def model(self) -> nn.Module:
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.benchmark = True
        os.environ["MADE_UP"] = "1"
        os.environ.pop("HOME")
        os.chdir("/")
        sys.path.append("/made/up")
        numpy.random.rand(random.randrange(1, 5))
        print("made")
        model = super().model().to(torch.float32)
        model.extra = [model]  # type: ignore[assignment]
        self.made.append(weakref.ref(model))
        return model


def _surroundings() -> list[Any]:
    return [
        *(torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())),
        *(torch.get_num_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()),
        *(torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark),
        *(dict(os.environ), Path.cwd(), list(sys.path)),
    ]


def test_nothing_of_it_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = _surroundings()
    (note,) = construction.rehearse(resolve(settings_for(Careless))).notes
    assert note.startswith("products of float32 are computed as such: torch.backends.")
    assert _surroundings() == before
    assert capsys.readouterr().out == ""
    (made,) = Careless.made
    assert made() is None


def test_what_fails_leaves_nothing_either() -> None:
    before = _surroundings()
    with suppress(ZeroDivisionError), left_as_it_was():
        Careless().model()
        raise ZeroDivisionError
    assert _surroundings() == before


class Unsaved(p.Mlp):
    """Its centre moves, and only checkpoints hold it."""

    def __init__(self, persistent: bool = False) -> None:
        super().__init__()
        self.persistent = persistent

    def model(self) -> torch.nn.Module:
        model = super().model()
        model.register_buffer("centre", torch.zeros(p.FEATURES), persistent=self.persistent)
        return model

    def buffers(self) -> dict[str, str]:
        return {"centre": "mean"}


@pytest.mark.parametrize("persistent", [False, True])
def test_buffers_that_move_and_are_not_saved_are_pointed_out(persistent: bool) -> None:
    notes = construction.rehearse(resolve(settings_for(Unsaved, args={"persistent": persistent}))).notes
    assert ["buffers() has a rule for 'centre', which no state_dict() holds" in note for note in notes] == [True] * (
        not persistent
    )


@pytest.mark.parametrize(
    ("pipeline", "rows", "said"), [(p.Batchnorm, 15, 1), (p.Batchnorm, 16, 0), (p.FrozenBatchnorm, 2, 0), (p.Mlp, 2, 0)]
)
def test_few_rows_for_batch_normalisation_are_pointed_out(pipeline: type[p.Small], rows: int, said: int) -> None:
    notes = construction.rehearse(resolve(settings_for(pipeline, shards=4, batch_size=4 * rows))).notes
    assert [f"data.batch_size / data.shards = {rows} rows" in note for note in notes] == [True] * said


class ForgetsALayer(p.Mlp):
    freezes = False

    def model(self) -> nn.Module:
        model = super().model()
        if self.freezes:
            next(model.parameters()).requires_grad_(False)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters()][1:], lr=0.1)


class FreezesTheLayer(ForgetsALayer):
    freezes = True


def test_a_parameter_that_the_optimizer_was_not_given_is_pointed_out() -> None:
    """Nothing fails, and it is never trained."""
    (note,) = construction.rehearse(resolve(settings_for(ForgetsALayer, optimizer=None))).notes
    count = len([*ForgetsALayer().model().parameters()])
    name = next(name for name, _ in ForgetsALayer().model().named_parameters())
    assert f"optimizer() has {count - 1} of {count} trainable parameters; the others stay as they are: {name};" in note
    assert construction.rehearse(resolve(settings_for(FreezesTheLayer, optimizer=None))).notes == []


class ScalesRates(p.Mlp):
    """By keys of groups, as RWKV does for its loop."""

    def __init__(self, kind: str = "AdamW", **options: Any) -> None:
        super().__init__(**options)
        self.kind = kind

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        first, *others = model.parameters()
        groups: list[dict[str, Any]] = [
            {"params": [first], "my_lr_scale": 2.0, "layer": "first"},
            {"params": others, "weigth_decay": 0.0, "weight_decay": 0.1, "lr_scale": 1.0},
        ]
        kinds = {"AdamW": torch.optim.AdamW, "Own": ReadsItsGroups}
        return kinds[self.kind](groups, lr=0.1)


class ReadsItsGroups(torch.optim.AdamW):
    pass


def test_a_number_of_a_group_that_torch_does_not_read_is_pointed_out() -> None:
    """Nothing fails, and what a loop would do with it is not done. A class of one's own may read it."""
    (note,) = construction.rehearse(resolve(settings_for(ScalesRates, optimizer=None))).notes
    assert "groups have my_lr_scale, weigth_decay, which AdamW does not read" in note
    assert construction.rehearse(resolve(settings_for(ScalesRates, args={"kind": "Own"}, optimizer=None))).notes == []


class MovesRanks(p.Mlp):
    def model(self) -> nn.Module:
        class Ranks(nn.Sequential):
            def update_and_allocate(self, step: int) -> None: ...

        return Ranks(super().model())


def test_ranks_that_a_loop_would_move_are_pointed_out() -> None:
    """Nothing fails, and AdaLoRA stays as it begins."""
    (note,) = construction.rehearse(resolve(settings_for(MovesRanks))).notes
    assert note.startswith("the model has an update_and_allocate(), which nobody calls")


class Still(nn.Sequential):
    def train(self, mode: bool = True) -> Still:  # noqa: ARG002
        return super().train(False)


class Distilled(p.Mlp):
    def __init__(self, teacher: str = "frozen", **options: Any) -> None:
        super().__init__(**options)
        self.teacher = teacher

    def model(self) -> nn.Module:
        student = super().model()
        kind = Still if self.teacher == "still" else nn.Sequential
        teacher = kind(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
        teacher.requires_grad_(self.teacher == "trained").train(self.teacher == "in training mode")
        whole = nn.ModuleDict({"student": student, "teacher": teacher})
        return whole.eval() if self.teacher == "of a model that is loaded" else whole


@pytest.mark.parametrize(
    ("teacher", "said"),
    [
        ("frozen", True),
        ("still", False),
        ("trained", False),
        ("in training mode", False),
        ("of a model that is loaded", False),
    ],
)
def test_a_frozen_part_that_was_set_to_evaluation_mode_is_pointed_out(teacher: str, said: bool) -> None:
    """A run sets it to training, with its dropout, and nothing fails."""
    notes = construction.rehearse(resolve(settings_for(Distilled, args={"teacher": teacher}))).notes
    assert ["model() freezes teacher in evaluation mode" in note for note in notes] == [True] * said


class Synchronised(p.Batchnorm):
    def model(self) -> torch.nn.Module:
        synchronised: Any = torch.nn.SyncBatchNorm
        return cast(torch.nn.Module, synchronised.convert_sync_batchnorm(super().model()))


def test_statistics_that_no_worker_shares_are_pointed_out() -> None:
    (note,) = construction.rehearse(resolve(settings_for(Synchronised, shards=4, batch_size=80))).notes
    assert note.startswith("SyncBatchNorm normalises each shard's 20 rows by themselves")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tests.worker.toys", {}, "is not on offer"),
        ("tests.worker.nowhere:A", {}, "contribution: there is no module 'tests.worker.nowhere'"),
        ("tests.worker.toys:Nothing", {}, "tests.worker.toys has no contribution 'Nothing'"),
        ("tests.worker.toys:ErrorFeedback", {"space": 1}, "has no space; did you mean spacing?"),
    ],
)
def test_a_contribution_that_cannot_be_built_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    plan = resolve(settings_for(p.Mlp))
    wrong = replace(plan, update=replace(plan.update, contribution=Variant(name, options)))
    with pytest.raises(ConfigurationError) as caught:
        construction.rehearse(wrong)
    assert words in caught.value.message
