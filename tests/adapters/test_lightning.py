"""The adapter of Lightning: what of a module runs, and what is refused by name. `standin.py` stands for Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from orchestrator.adapters import table
from orchestrator.adapters.adapted import Course
from orchestrator.adapters.lightning import devices, misfits, plateaus, schedules
from orchestrator.adapters.lightning.loaders import Loaders
from orchestrator.adapters.lightning.numbers import states_of, together
from orchestrator.adapters.lightning.reading import Reading, is_frameworks
from orchestrator.adapters.source import Source
from orchestrator.adapters.table import find
from orchestrator.common import once
from orchestrator.common.values import Every
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.data.fetching import fetch
from orchestrator.data.sites import Attendance
from orchestrator.errors import Inconsistent, code_of
from orchestrator.numerics.streams import seeded
from orchestrator.optim.patience import MonitoredMetric, Patience
from orchestrator.optim.schedules import Moment, build
from orchestrator.pipeline import REDUCED, defines, takes_step
from orchestrator.worker.between_steps import serving_trial
from orchestrator.worker.between_steps.evaluation import means_of
from orchestrator.worker.model import construction
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.training_samples import TrainingSamples
from tests.adapters import standin
from tests.adapters.standin import Data, Hits, Lit, Metric
from tests.refusals import refused
from tests.worker.retracing import Retracer, records
from tests.worker.runs import Layout, members_end, settings_for, train

COURSE = Course(steps=8, epoch=4, batch_size=10, schedule="constant")
DATA = "tests.adapters.standin:Data"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(target: str = "tests.adapters.standin:Lit", **args: Any) -> Any:
    """A pipeline whose data are read."""
    kind: Any = find(Source(target, args, DATA))
    pipeline = kind(**args)
    pipeline.datasets()
    return pipeline


def problems(name: str, data: str | None = DATA) -> list[str]:
    with refused(f"lightning.{CODES[name]}") as caught:
        find(Source(f"{__name__}:{name}", {}, data))
    return list(getattr(caught.value, "problems", ()))


def test_the_loss_is_that_of_training_step() -> None:
    pipeline = made(width=5)
    train, held_out = pipeline.datasets()
    model = pipeline.model()
    batch = pipeline.collate([train[index] for index in range(10)])
    assert torch.equal(pipeline.loss(model, batch), nn.functional.cross_entropy(model(batch[0]), batch[1]))
    assert model.layer.out_features == 5
    assert (len(train), len(held_out)) == (40, 23)
    assert model.trainer.datamodule.said == ["prepared", "fit"]


def test_what_validation_step_logs_is_put_together_over_all_samples() -> None:
    pipeline = made()
    _, held_out = pipeline.datasets()
    model = pipeline.model().eval()
    rows, names = [], []
    for start in range(0, 23, 7):
        batch = pipeline.collate([held_out[index] for index in range(start, min(start + 7, 23))])
        with torch.no_grad():
            loss, found = pipeline.loss(model, batch), pipeline.metrics(model, batch)
        names = sorted(found)
        rows.append([float(loss.detach()), len(batch[0]), len(batch[0]), *(float(found[name]) for name in names)])
    inputs, labels = held_out.tensors
    outputs = model(inputs).detach()
    right = float((outputs.argmax(1) == labels).sum())
    metrics = pipeline.summarized(means_of(names, rows))
    assert metrics["validation/hits"] == float(torch.round(torch.tensor(100 * right / 23)))
    assert metrics["validation/seen"] == 23
    assert metrics["validation/widest"] == float(inputs.abs().max())
    mean = float(nn.functional.cross_entropy(outputs, labels))
    assert metrics["validation/loss_there"] == pytest.approx(mean, abs=1e-6)
    assert metrics["validation/loss"] == pytest.approx(mean, abs=1e-6)
    parts = [
        (float(inputs[start : start + 7, 0].mean()), len(inputs[start : start + 7]) // 2) for start in range(0, 23, 7)
    ]
    halved = sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts)
    assert metrics["validation/halved"] == pytest.approx(halved, abs=1e-6)
    assert set(metrics) == {f"validation/{name}" for name in ("loss", "hits", "seen", "widest", "loss_there", "halved")}


def test_no_metric_keeps_anything_from_batch_to_batch() -> None:
    pipeline = made()
    train, _ = pipeline.datasets()
    model = pipeline.model().eval()
    batch = pipeline.collate([train[index] for index in range(10)])
    first = pipeline.metrics(model, batch)
    assert first == pipeline.metrics(model, batch)
    assert float(model.hits.rows) == 0


def test_a_metric_that_keeps_samples_is_refused() -> None:
    metric: Any = Hits()
    metric._reductions = {"rows": lambda values: values}
    with refused("lightning.metric-state", "'hits'"):
        list(states_of("hits", metric))


def test_a_metric_that_arithmetic_has_made_of_others_is_put_together() -> None:
    """It keeps no state itself, and was left out without a word."""
    hits = Hits()
    tenfold = standin.CompositionalMetric(standin.CompositionalMetric(hits, 2), 5)
    hits(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    assert of_one_batch("tenfold", tenfold) == 500
    wrapper = Metric()
    wrapper.metric = hits
    with refused("lightning.metric-wrapper", "'best'"):
        list(states_of("best", wrapper))


class PerOutput(Metric):
    """The mean over the outputs of a model, as of torchmetrics' R2Score: how many there are shows the first batch."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__(total=standin.dim_zero_sum)
        self.reset()

    def compute(self) -> torch.Tensor:
        return self.total.float().mean()


def test_a_state_may_grow_with_the_first_batch() -> None:
    """Only the first output counted."""
    metric = PerOutput()
    metric.total = metric.total + torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert of_one_batch("mean", metric) == 3


def of_one_batch(name: str, metric: Any) -> float:
    """Put together over one batch, after which it was reset."""
    found = {f"validation/{key.partition(REDUCED)[0]}": value for key, value in states_of(name, metric)}
    metric.reset()
    return together(found, {name: metric}, "validation/")[f"validation/{name}"]


class Swa(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=1)]


def test_a_scheduler_of_swa_utils_is_one_of_torch() -> None:
    """Its name is none of torch.optim.lr_scheduler, and the refusal asked for the name that stood there."""
    pipeline = made(f"{__name__}:Swa")
    pipeline.begin(COURSE)
    assert pipeline.optimizer(pipeline.model()).param_groups[0]["lr"] * pipeline.rate(0) == 0.1
    assert pipeline.rate(COURSE.steps - 1) * 0.0625 == pytest.approx(0.01)


class ByPlace(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        by_epoch = lr_scheduler.LambdaLR(optimizer, lambda _: 2.0**-self.trainer.current_epoch)
        by_step = lr_scheduler.LambdaLR(optimizer, lambda _: 2.0**-self.trainer.global_step)
        return [optimizer], [{"scheduler": by_step if self.steps else by_epoch, "interval": "step"}]

    def __init__(self, steps: bool) -> None:
        super().__init__()
        self.steps = steps


@pytest.mark.parametrize("steps", [True, False])
def test_a_scheduler_that_asks_the_module_for_its_place_is_tabulated(steps: bool) -> None:
    """It was told the place of the first step for all of them, and the rate stayed in silence."""
    pipeline = made(f"{__name__}:ByPlace", steps=steps)
    pipeline.begin(COURSE)
    model = pipeline.model()
    pipeline.optimizer(model)
    # Behind an epoch's last step it is stepped in that epoch.
    expected = range(8) if steps else [0, 0, 0, 0, 0, 1, 1, 1]
    assert [pipeline.rate(step) for step in range(8)] == [2.0**-each for each in expected]
    assert (model.trainer.global_step, model.trainer.current_epoch) == (0, 0)


class OfAnEpoch(Lit):
    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self.log("epoch", self.trainer.current_epoch)
        self.log("step", self.trainer.global_step)

    def on_validation_epoch_end(self) -> None:
        self.log("epoch", self.trainer.current_epoch)


def test_an_evaluation_behind_an_epoch_is_of_that_epoch() -> None:
    """It was of the next one, so what follows from the epoch, as the weight of a loss, had another value than in a Trainer."""
    pipeline = made(f"{__name__}:OfAnEpoch")
    pipeline.begin(COURSE)
    train, _ = pipeline.datasets()
    model = pipeline.model()
    batch = pipeline.collate([train[index] for index in range(10)])
    found = []
    for updates in (0, 3, 4, 5, 8):
        pipeline.at(updates)
        in_training = model.trainer.current_epoch
        numbers = pipeline.metrics(model.eval(), batch)
        at_the_end = pipeline.on_evaluation(updates - 1, {}, model)
        found.append((updates, in_training, *(int(numbers[name]) for name in ("step", "epoch")), at_the_end["epoch"]))
        pipeline.loss(model.train(), batch)
    assert found == [(0, 0, 0, 0, 0), (3, 0, 3, 0, 0), (4, 1, 4, 0, 0), (5, 1, 5, 1, 1), (8, 2, 8, 1, 1)]


class CountsLocalSteps(Lit):
    def on_validation_epoch_end(self) -> None:
        self.log("place", self.trainer.global_step)
        self.log("epoch", self.trainer.current_epoch)
        self.log("epochs", self.trainer.max_epochs)


def test_an_evaluation_counts_local_steps_as_validation_step_does() -> None:
    """In on_validation_epoch_end the place was that of the rounds, divided by the local steps of an epoch."""
    pipeline = made(f"{__name__}:CountsLocalSteps")
    job = {"run": {"steps": 6}, "pipeline": {"target": "package:Lit"}, "data": {"batch_size": 10}}
    local = {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}}
    plan = resolve(load([{**job, "optimizer": "sgd", "local": local}], []))
    train, _ = pipeline.datasets()
    pipeline.begin(
        construction.course_of(plan, TrainingSamples(pipeline, train, 0, plan.data, Attendance(plan.data, ())))
    )
    expected = {"place": 15.0, "epoch": 3.0, "epochs": 5.0}  # an epoch has 4 batches
    assert pipeline.on_evaluation(4, {}, pipeline.model()) == expected


@pytest.mark.slow
def test_schedulers_are_tabulated() -> None:
    pipeline = made()
    model = pipeline.model()
    pipeline.begin(COURSE)
    optimizer = pipeline.optimizer(model)
    base = optimizer.param_groups[0]["lr"]
    assert [base * pipeline.rate(step) for step in range(8)] == [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    assert "initial_lr" not in optimizer.param_groups[0]
    assert defines(type(pipeline), "rate")


def sgd(lr: float = 0.3, groups: int = 1) -> torch.optim.SGD:
    each = [{"params": [nn.Parameter(torch.zeros(2))], "lr": lr / (number + 1)} for number in range(groups)]
    return torch.optim.SGD(each, lr=lr, momentum=0.9)


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    course = Course(steps=8, epoch=4, batch_size=1, schedule="constant")
    rate = torch.tensor(0.3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=rate)
    scheduler = {"scheduler": lr_scheduler.StepLR(optimizer, 1), "interval": "epoch"}
    _, found = schedules.optimizer_of({"optimizer": optimizer, "lr_scheduler": scheduler}, course)
    factors = schedules.factors(optimizer, found, course)
    assert optimizer.param_groups[0]["lr"] is rate
    assert factors is not None
    assert [float(torch.tensor(float(rate) * factor)) for factor in (factors[0], factors[-1])] == [
        float(torch.tensor(0.3)),
        float(torch.tensor(0.3) * 0.1),
    ]


def test_a_rate_is_the_schedulers_own_to_the_last_bit() -> None:
    course = Course(steps=80, epoch=10, batch_size=1, schedule="constant")
    for make in (
        lambda optimizer: {"scheduler": lr_scheduler.CosineAnnealingLR(optimizer, 80), "interval": "step"},
        lambda optimizer: {"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.97)},
        lambda optimizer: {
            "scheduler": lr_scheduler.OneCycleLR(optimizer, 0.3, 80, cycle_momentum=False),
            "interval": "step",
        },
        lambda optimizer: {"scheduler": lr_scheduler.StepLR(optimizer, 3), "frequency": 2},
        lambda optimizer: {
            "scheduler": lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 30)),
            "interval": "step",
        },
    ):
        optimizer = sgd()
        _, found = schedules.optimizer_of({"optimizer": optimizer, "lr_scheduler": make(optimizer)}, course)
        factors = schedules.factors(optimizer, found, course)
        assert factors is not None
        base = optimizer.param_groups[0]["lr"]
        expected = list(stepped(make, course))
        assert [base * factor for factor in factors] == expected


def stepped(make: Any, course: Course) -> Iterator[float]:
    """The rates as Lightning's loop would step the scheduler."""
    optimizer = sgd()
    found = make(optimizer)
    for step in range(course.steps):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        if found.get("interval") == "step" or (
            (step + 1) % course.epoch == 0 and ((step + 1) // course.epoch) % found.get("frequency", 1) == 0
        ):
            found["scheduler"].step()


def test_groups_keep_their_own_rates() -> None:
    optimizer = sgd(groups=2)
    _, found = schedules.optimizer_of(([optimizer], [lr_scheduler.ExponentialLR(optimizer, 0.5)]), COURSE)
    factors = schedules.factors(optimizer, found, COURSE)
    assert factors == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5]
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.15]


class OneByOne:
    """A scheduler of somebody's own."""

    def step(self) -> None: ...


@pytest.mark.parametrize(
    ("code", "make"),
    [
        ("plateau-interval", lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=4)),
        ("plateau-least", lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=[0.1, 0.1])),
        ("scheduler-options", lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, 20)),
        ("scheduler", lambda _optimizer: OneByOne()),
        (
            "scheduler-groups",
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, [lambda _: 1.0, lambda step: 1 / (step + 1)]),
        ),
    ],
)
def test_a_scheduler_that_is_more_than_factors_is_refused(code: str, make: Any) -> None:
    optimizer = sgd(groups=2)
    scheduler = make(optimizer)
    _, found = schedules.optimizer_of(
        {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}, COURSE
    )
    with refused(f"lightning.{code}", type(scheduler).__name__):
        schedules.factors(optimizer, found, COURSE)


class ByMetric(lr_scheduler.LambdaLR):
    """A scheduler of somebody's own, which a metric steps."""

    def step(self, metric: Any = None) -> None:
        self.last_metric = metric
        super().step()


def test_a_scheduler_of_ones_own_that_a_metric_steps_is_refused() -> None:
    optimizer = sgd()
    given = {"scheduler": ByMetric(optimizer, lambda _: 1.0), "monitor": "val_loss", "reduce_on_plateau": True}
    _, found = schedules.optimizer_of({"optimizer": optimizer, "lr_scheduler": given}, COURSE)
    with refused("lightning.scheduler-metric", "ByMetric"):
        schedules.factors(optimizer, found, COURSE)
    of_torch = {**given, "scheduler": lr_scheduler.ReduceLROnPlateau(optimizer)}
    _, found = schedules.optimizer_of({"optimizer": optimizer, "lr_scheduler": of_torch}, COURSE)
    assert schedules.factors(optimizer, found, COURSE) is None


def test_a_plateau_of_the_settings_stands_for_that_of_torch() -> None:
    optimizer, course = sgd(), Course(steps=8, epoch=4, batch_size=10, schedule="plateau")
    _, found = schedules.optimizer_of(
        {"optimizer": optimizer, "lr_scheduler": lr_scheduler.ReduceLROnPlateau(optimizer)}, course
    )
    assert schedules.factors(optimizer, found, course) is None


def test_two_optimizers_are_refused() -> None:
    with refused("lightning.optimizers-returned"):
        schedules.optimizer_of([sgd(), sgd()], COURSE)


class Hooked(Lit):
    def on_train_start(self) -> None: ...

    def configure_gradient_clipping(self, *_: Any) -> None: ...


class Manual(Lit):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        self.optimizers().step()  # type: ignore[operator]

    def configure_optimizers(self) -> Any:
        return [sgd(), sgd()], []


class Asking(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        if self.trainer.current_epoch and self.trainer.limit_val_batches:
            self.logger.experiment.add_image(batch)  # type: ignore[operator, union-attr]
        return self._loss(batch)


class Median(Lit):
    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self.log("middle", self._loss(batch), reduce_fx=torch.median)


class AtTheEnd(Lit):
    def on_validation_epoch_end(self) -> None:
        self.log("hits", self.hits.compute())


class MetricAtTheEnd(Lit):
    temperature = 0.5

    def on_validation_epoch_end(self) -> None:
        self.log("hits", self.hits)
        self.log("temperature", self.temperature)


class AsksOfTheLastEvaluation(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        return self._loss(batch) * self._factor()

    def _factor(self) -> Any:
        return self.trainer.callback_metrics.get("hits", 1.0)


class Gathering(Lit):
    """Lightning's own pattern since its version 2, and counts of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.outs: list[Any] = []
        self.right, self.rows, self.seen = 0, {"all": 0}, list[int]()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.outs.append(self._loss(batch))
        self.right += 1
        self.rows["all"] = self.rows["all"] + len(batch)
        self.seen.append(batch_idx)
        self._look(batch)

    def on_validation_epoch_end(self) -> None:
        self._look(self.layer.weight)
        self.log("mean", torch.stack(self.outs).mean())
        self.log("share", self.right / self.rows["all"])
        self.outs.clear()
        self.seen.clear()
        self.right = 0

    def _look(self, what: Any) -> Any:
        self.looked = what
        return self.looked


class NeedsWidth(Lit):
    def __init__(self, width: int) -> None:
        super().__init__(width)


class Nothing(standin.LightningModule):
    """Nothing but the base."""


CODES = {
    "Hooked": "hook",
    "Manual": "manual",
    "Asking": "use",
    "Median": "reduction",
    "AtTheEnd": "metric-at-the-end",
    "MetricAtTheEnd": "metric-at-the-end",
    "AsksOfTheLastEvaluation": "evaluated-use",
    "Gathering": "gathered",
    "NeedsWidth": "args",
    "Nothing": "no-training-step",
}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Hooked", ["on_train_start", "configure_gradient_clipping"]),
        ("Manual", ["automatic_optimization", "several optimizers", "self.optimizers"]),
        ("Asking", ["self.logger", "self.trainer.limit_val_batches"]),
        ("Median", ["'middle'"]),
        ("AtTheEnd", ["self.hits"]),
        ("MetricAtTheEnd", ["self.hits"]),
        ("AsksOfTheLastEvaluation", ["_factor"]),
        ("Gathering", ["self.outs", "self.right", "self.rows"]),
        ("NeedsWidth", ["width"]),
        ("Nothing", ["training_step"]),
    ],
)
def test_what_does_not_fit_is_told_at_once(name: str, named: list[str]) -> None:
    found = problems(name)
    assert len(found) == len(named)
    assert all(any(each in problem for problem in found) for each in named)


class Helped(Lit):
    """Returns what its methods return, of which others return lists and dicts."""

    def _groups(self) -> Any:
        return [{"params": [self.layer.weight]}, {"params": [self.layer.bias]}]

    def configure_optimizers(self) -> Any:
        return self._made(self._groups())

    def _made(self, groups: Any) -> Any:
        return torch.optim.SGD(groups, lr=0.1)

    def _collate(self, rows: Any) -> Any:
        return {"rows": default_collate(rows)}

    def train_dataloader(self) -> Any:
        def collate(rows: Any) -> Any:
            return rows[0], self._collate(rows)

        return DataLoader(TensorDataset(torch.ones(2)), shuffle=True, collate_fn=collate)


class HelpedByTwo(Helped):
    def _made(self, groups: Any) -> Any:  # noqa: ARG002
        return [sgd(), sgd()]

    def train_dataloader(self) -> Any:
        return self._loaders()

    def _loaders(self) -> Any:
        rows = TensorDataset(torch.ones(2))
        return {"one": DataLoader(rows), "other": DataLoader(rows)}


def test_what_a_method_returns_is_told_from_what_it_calls() -> None:
    found = [
        list(misfits.of_module(Reading(kind), kind.__name__, has_data=True))
        + list(misfits.of_loaders(Reading(kind), kind.__name__, COURSE))
        for kind in (Helped, HelpedByTwo)
    ]
    assert found[0] == []
    assert [code_of(each) for each in found[1]] == ["lightning.optimizers", "lightning.loaders"]


def test_the_modules_that_lightning_ships_for_trials_are_a_users() -> None:
    assert not is_frameworks("lightning.pytorch.demos.boring_classes")
    assert is_frameworks("lightning.pytorch.core.module")


class Matching(Lit):
    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        x, others = parts
        return super().forward(x) @ others


@pytest.mark.parametrize("name", ["Matching", "Lit"])
def test_a_launch_tells_of_a_forward_that_takes_more_than_the_first_part_of_a_batch(name: str) -> None:
    pipeline = made(f"{__name__}:{name}")
    rows, _ = pipeline.datasets()
    plan: Any = SimpleNamespace(
        cluster=SimpleNamespace(members=SimpleNamespace(stages=1)),
        run=SimpleNamespace(seed=1),
        data=SimpleNamespace(privacy=None),
    )
    workload: Any = SimpleNamespace(
        pipeline=pipeline,
        model=pipeline.model(),
        first_batch=lambda count: pipeline.collate([rows[index] for index in range(count)]),
        batches=SimpleNamespace(streams=None),
    )
    found = serving_trial.unfit(plan, workload)
    assert (found or {}).get("why") == (serving_trial.UNFIT_MODULE if name == "Matching" else None)
    assert deepcopy(workload.model).trainer is workload.model.trainer  # which has the data


def test_a_module_without_data_is_refused() -> None:
    with refused("lightning.no-data"):
        find(Source("tests.adapters.standin:Lit", {}))


def test_data_that_are_no_data_module_are_refused() -> None:
    with refused("lightning.no-train-loader"):
        find(Source("tests.adapters.standin:Lit", {}, f"{__name__}:OneByOne"))


def test_a_launch_tells_what_is_not_recorded() -> None:
    (note,) = made().notes()
    assert "(train_loss)" in note


class Weighting(Lit):
    mean: Any = None
    scale: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        loss = self._loss(batch)
        self.log("mean", self.mean.compute())
        return loss / self.scale.compute()


def test_a_launch_tells_of_a_metric_that_a_loss_may_follow_from() -> None:
    """Its states are of one batch, and a Trainer's of all batches of the epoch so far: the losses were others in silence."""
    _, note = made(f"{__name__}:Weighting").notes()
    assert note.startswith("self.scale.compute() in training_step of Weighting")


class Augmenting(Lit):
    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self.log("loss_there", self._loss(batch))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        return [2 * batch[0], batch[1]] if self.trainer.training else batch


def test_samples_of_validation_are_not_augmented_for_their_loss() -> None:
    """The loss of validation follows from training_step here, behind a hook that took the batch for one to train on."""
    pipeline = made(f"{__name__}:Augmenting")
    train, _ = pipeline.datasets()
    model = pipeline.model()
    batch = pipeline.collate([train[index] for index in range(10)])
    as_it_is = nn.functional.cross_entropy(model(batch[0]), batch[1])
    assert not torch.equal(pipeline.loss(model, batch), as_it_is)
    model.eval()
    with torch.no_grad():
        assert torch.equal(pipeline.loss(model, batch), as_it_is)
    assert model.trainer.training


class AlreadyThere(Data):
    """Takes the hooks of its base class away; Lightning passes over them."""

    prepare_data = None  # type: ignore[assignment]
    setup = None  # type: ignore[assignment]

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.zeros(20, 2), torch.zeros(20, dtype=torch.long)), 10, shuffle=True)

    def val_dataloader(self) -> Any:
        return None


def test_hooks_of_data_that_are_none_are_passed_over() -> None:
    kind: Any = find(Source("tests.adapters.standin:Lit", {}, f"{__name__}:AlreadyThere"))
    train, held_out = kind().datasets()
    assert (len(train), held_out) == (20, None)


class CountsItsProgress(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"] * (1 - self.trainer.global_step / self.trainer.max_steps)


def test_a_module_that_holds_local_steps_against_rounds_is_pointed_out() -> None:
    """Its progress came to as many times 1 as a round has local steps."""
    pipeline = made(f"{__name__}:CountsItsProgress")
    assert pipeline.begin(COURSE) == made().begin(replace(COURSE, updates=4))
    (note, *_) = pipeline.begin(replace(COURSE, updates=4))
    assert "CountsItsProgress asks for max_steps, which with local steps is a number of rounds" in note
    assert "up to 4 in a round" in note


class Splits(Lit):
    """Has data of its own, of which it draws a part, as random_split does."""

    def prepare_data(self) -> None:
        torch.randn(3)

    def setup(self, stage: str) -> None:  # noqa: ARG002
        self.chosen = torch.randperm(40)[:9]

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.chosen), 3, shuffle=True)

    def on_validation_epoch_end(self) -> None:
        self.log("first", self.chosen[0])


def test_a_module_has_the_split_of_its_loaders_whoever_has_prepared_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of training were among those that on_validation_epoch_end took for held out, and of two workers, one of which
    prepares the data, each had a split of its own."""
    monkeypatch.setenv(once.RUN, "of this test")
    found = []
    for _ in range(2):
        kind: Any = find(Source(f"{__name__}:Splits", {}))
        pipeline = kind()
        with seeded(7, "datasets"):
            train, _ = pipeline.datasets()
        with seeded(7, "model"):
            model = pipeline.model()
            found.append(
                (
                    train.tensors[0].tolist(),
                    model.chosen.tolist(),
                    float(model.layer.weight.sum().detach()),
                    float(torch.rand(())),
                )
            )
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]
    assert kind.looks_at_data


class LogsAtTheEnd(Lit):
    def on_validation_epoch_end(self) -> None:
        self.log("weighted", 0.5, batch_size=8)
        self.log("summed", self.trainer.callback_metrics["hits"], reduce_fx="sum")
        if not self.layer.bias.any():
            metric = self.hits
            self.log("hits", metric)


def test_numbers_of_on_validation_epoch_end_are_recorded_under_their_names() -> None:
    """They were put apart, as those of a batch are, and recorded so: weighted:weight/0, weighted:weight/1."""
    pipeline = made(f"{__name__}:LogsAtTheEnd")
    model = pipeline.model()
    assert pipeline.on_evaluation(4, {"validation/hits": 0.25}, model) == {"weighted": 0.5, "summed": 0.25}
    nn.init.zeros_(model.layer.bias)
    with refused("lightning.metric-logged-at-the-end", "'hits'"):
        pipeline.on_evaluation(4, {"validation/hits": 0.25}, model)


class AsksInDisguise(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        trainer = self.trainer
        return self._loss(batch) * trainer.callback_metrics.get("hits", 1.0)


def test_a_step_has_no_metrics_of_an_evaluation() -> None:
    """There were none, without a word, so that the default was taken for them."""
    pipeline = made(f"{__name__}:AsksInDisguise")
    train, _ = pipeline.datasets()
    with refused("lightning.evaluated"):
        pipeline.loss(pipeline.model(), pipeline.collate([train[0]]))


class NotValidated(Lit):
    validation_step = None  # type: ignore[assignment]


class NotValidatedHere(Lit):
    def __init__(self) -> None:
        super().__init__()
        self.validation_step = None  # type: ignore[assignment,method-assign]


@pytest.mark.parametrize("name", ["NotValidated", "NotValidatedHere"])
def test_a_module_may_set_validation_step_to_none(name: str) -> None:
    """None was called."""
    pipeline = made(f"{__name__}:{name}")
    train, _ = pipeline.datasets()
    batch = pipeline.collate([train[index] for index in range(10)])
    model = pipeline.model().eval()
    with torch.no_grad():
        assert torch.equal(pipeline.loss(model, batch), nn.functional.cross_entropy(model(batch[0]), batch[1]))
    assert pipeline.metrics(model, batch) == {}


class SplitsInInit(Splits):
    def __init__(self) -> None:
        super().__init__()
        seeded_by_itself = torch.Generator().manual_seed(0)
        self.shown = torch.randperm(4, generator=seeded_by_itself)
        self.drawn = random_split(TensorDataset(torch.arange(40)), [9, 31])

    def setup(self, stage: str) -> None:
        pass


def test_a_launch_tells_of_a_split_that_the_model_draws_for_itself() -> None:
    """Its loaders are those of another module of the class, whose __init__ drew other samples."""
    kinds: list[Any] = [
        find(Source(f"{__name__}:{name}", {}, data))
        for name, data in (("SplitsInInit", None), ("SplitsInInit", DATA), ("Splits", None))
    ]
    notes = [[note for note in kind().notes() if "draws a split" in note] for kind in kinds]
    assert notes[0][0].startswith("__init__ of SplitsInInit draws a split (random_split), and")
    assert notes[1:] == [[], []]


class AsksForData(Lit):
    def on_validation_epoch_end(self) -> None:
        self.log("rows", self.trainer.datamodule.rows)


def test_the_data_are_read_for_an_evaluation_where_the_module_may_ask_for_them() -> None:
    assert made(f"{__name__}:AsksForData").looks_at_data
    assert not made(f"{__name__}:OfAnEpoch").looks_at_data
    assert not made().looks_at_data


class Frozen(Lit):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


def test_a_layer_that_is_built_in_evaluation_mode_stays_in_it_and_is_named() -> None:
    pipeline = made(f"{__name__}:Frozen")
    model: Any = construction.make_model(pipeline, 0)
    assert [model.training, model.norm.training] == [True, False]
    assert any("norm" in each for each in pipeline.notes())


class Still(Lit):
    """Puts itself in evaluation mode, for the sake of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()
        self.taken: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.taken.append("training_step")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        self.taken.append("validation_step")
        return self._loss(batch)


def test_a_module_that_is_built_in_evaluation_mode_learns_by_its_training_step() -> None:
    pipeline = made(f"{__name__}:Still")
    train, _ = pipeline.datasets()
    model: Any = construction.make_model(pipeline, 0)
    batch = pipeline.collate([train[index] for index in range(4)])
    assert not model.training
    pipeline.loss(model, batch)
    with torch.no_grad():
        pipeline.loss(model, batch)
    assert model.taken == ["training_step", "validation_step"]


class Returning(Lit):
    """Returns from validation_step what a Trainer ignores."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def validation_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        return self.returned


@pytest.mark.parametrize(
    "returned",
    [(torch.tensor(3.0), torch.tensor(0.5)), torch.zeros(4, 3), torch.tensor(3), {"preds": torch.tensor(3.0)}, 3.0],
    ids=["loss and accuracy", "predictions", "count", "no loss", "number"],
)
def test_the_loss_of_validation_is_that_of_training_step_where_validation_step_returns_none(returned: Any) -> None:
    """A pair was taken for a loss with its weight, so that the accuracy of each batch weighted its loss."""
    pipeline = made(f"{__name__}:Returning", returned=returned)
    train, _ = pipeline.datasets()
    model = pipeline.model().eval()
    batch = pipeline.collate([train[index] for index in range(10)])
    with torch.no_grad():
        assert torch.equal(pipeline.loss(model, batch), nn.functional.cross_entropy(model(batch[0]), batch[1]))


class Twice(Lit):
    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        for factor in self.factors:
            self.log("mean", factor * batch[0].mean())
            self.log("sum", 2.0, reduce_fx="sum", batch_size=3)
            self.log("weighted", batch[0].mean(), batch_size=3)

    def __init__(self, factors: Any) -> None:
        super().__init__()
        self.factors = factors


def test_one_name_for_two_numbers_of_a_batch_is_refused() -> None:
    """The second one alone was recorded, and a Trainer has the mean of both."""
    pipeline = made(f"{__name__}:Twice", factors=[1, 1])
    train, _ = pipeline.datasets()
    batch = pipeline.collate([train[index] for index in range(10)])
    assert len(pipeline.metrics(pipeline.model().eval(), batch)) == 4
    pipeline = made(f"{__name__}:Twice", factors=[1, 2])
    pipeline.datasets()
    with refused("lightning.logged-twice", "'mean'"):
        pipeline.metrics(pipeline.model().eval(), batch)


class Backwards(Sampler[int]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.rows))[::-1])


class Sorted(RandomSampler):
    """An order of the user's, by a class that is derived from one of torch."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


class Loading(Data):
    """A data module with another training loader."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, **self.options)


def test_what_the_run_does_otherwise_than_the_loader_is_told() -> None:
    loaders = Loaders(Loading(batch_size=7, shuffle=True, drop_last=True))
    batch, last = loaders.notes(Course(8, 4, 12, "constant"))
    assert "batch_size=7" in batch
    assert "last batch" in last
    assert list(Loaders(Loading(batch_size=10, shuffle=True)).notes(COURSE)) == []
    given = BatchSampler(RandomSampler(range(40)), 7, drop_last=True)
    assert list(Loaders(Loading(batch_sampler=given)).notes(Course(8, 4, 12, "constant"))) == [batch, last]
    [opens] = Loaders(Loading(batch_size=10, shuffle=True, worker_init_fn=doubled)).notes(COURSE)
    assert "the training loader has a worker_init_fn, which is not called" in opens


@pytest.mark.parametrize("held_out", [None, [], ()])
def test_a_module_may_have_no_validation_loader(held_out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loading, "val_dataloader", lambda _: held_out)
    assert Loaders(Loading(batch_size=10, shuffle=True)).datasets()[1] is None


ROWS = TensorDataset(torch.zeros(40, 1))
SEQUENTIAL = replace(COURSE, order="sequential")


def doubled(items: Any) -> Any:
    inputs, labels = default_collate(items)
    return 2 * inputs, labels


class Split(Lit):
    """Both loaders draw from one data set; the training batches are augmented."""

    def train_dataloader(self) -> Any:
        return DataLoader(ROWS_BY_NUMBER, 10, sampler=SubsetRandomSampler(range(30)), collate_fn=doubled)

    def val_dataloader(self) -> Any:
        return DataLoader(ROWS_BY_NUMBER, 10, sampler=SubsetRandomSampler([39, 31]))


ROWS_BY_NUMBER = TensorDataset(torch.arange(40.0).reshape(40, 1), torch.arange(40))


def test_each_loader_has_its_samples_and_puts_its_batches_together() -> None:
    pipeline: Any = find(Source(f"{__name__}:Split", {}, None))()
    train, held_out = pipeline.datasets()
    assert [len(train), len(held_out)] == [30, 2]
    for dataset, inputs, labels in ((train, [0, 2], [0, 1]), (held_out, [39, 31], [39, 31])):
        batch = fetch(dataset, [0, 1], pipeline.collate)
        assert [each.flatten().tolist() for each in batch] == [inputs, labels]
    assert pipeline.begin(COURSE) == []


def test_a_batch_sampler_of_torch_visits_what_its_own_sampler_does() -> None:
    """`loader.sampler` is the default one then, which visits all in their order."""
    held_out = Evaluating(batch_sampler=BatchSampler(SubsetRandomSampler([39, 31]), 2, False))
    assert len(Loaders(held_out).datasets()[1]) == 2
    weighted = Loading(batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 39 + [5.0], 40), 2, False))
    assert Loaders(weighted).weights.tolist() == [1.0] * 39 + [5.0]


class Evaluating(Data):
    """A data module with another validation loader."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def val_dataloader(self) -> Any:
        return DataLoader(ROWS, **self.options)


@pytest.mark.parametrize(
    ("options", "misfit", "told"),
    [
        ({"batch_size": 7, "shuffle": True}, None, None),
        ({"batch_size": 7, "drop_last": True}, None, "drops the last batch"),
        ({"batch_sampler": [[1, 2], [3, 4]]}, None, "batch_sampler, list"),
        ({"batch_sampler": BatchSampler(SequentialSampler(ROWS), 7, True)}, None, "drops the last batch"),
        ({"batch_sampler": BatchSampler(Backwards(ROWS), 7, False)}, "sampler Backwards", None),
        ({"sampler": Backwards(ROWS)}, "sampler Backwards", None),
        ({"sampler": RandomSampler(ROWS, num_samples=9)}, "sampler RandomSampler", None),
        ({"batch_size": None}, "batch_size=None", None),
    ],
)
def test_a_validation_loader_counts_as_it_is_or_is_told(
    options: dict[str, Any], misfit: str | None, told: str | None
) -> None:
    loaders = Loaders(Evaluating(**options))
    for found, named in ((loaders.misfits(COURSE), misfit), (loaders.notes(COURSE), told)):
        assert [named is not None and named in each for each in found] == ([] if named is None else [True])


@pytest.mark.parametrize(
    ("options", "course", "named"),
    [
        ({"shuffle": True}, COURSE, None),
        ({}, COURSE, "data.order=sequential"),
        ({"sampler": SequentialSampler(ROWS)}, SEQUENTIAL, None),
        ({"sampler": WeightedRandomSampler([1.0] * 40, 40)}, COURSE, "data.sampling=weighted"),
        ({"sampler": WeightedRandomSampler([1.0] * 40, 40)}, Course(8, 4, 10, "constant", sampling="weighted"), None),
        (
            {"sampler": WeightedRandomSampler([1.0] * 40, 9, False)},
            replace(COURSE, sampling="weighted"),
            "replacement=False",
        ),
        ({"sampler": SubsetRandomSampler(range(9))}, COURSE, None),
        ({"sampler": SubsetRandomSampler(range(9))}, SEQUENTIAL, "data.order=sequential"),
        ({"sampler": Backwards(ROWS)}, COURSE, "Backwards"),
        ({"batch_size": None, "shuffle": True}, COURSE, "batch_size=None"),
        ({"sampler": Sorted(ROWS)}, COURSE, "Sorted"),
        ({"batch_sampler": [[1, 2], [3, 4]]}, COURSE, "batch_sampler"),
        ({"batch_sampler": BatchSampler(RandomSampler(ROWS), 8, False)}, COURSE, None),
        ({"batch_sampler": BatchSampler(RandomSampler(ROWS), 8, False)}, SEQUENTIAL, "leave data.order=sequential out"),
        ({"batch_sampler": BatchSampler(SequentialSampler(ROWS), 8, False)}, SEQUENTIAL, None),
        (
            {"batch_sampler": BatchSampler(WeightedRandomSampler([1.0] * 40, 40), 8, False)},
            COURSE,
            "data.sampling=weighted",
        ),
        ({"batch_sampler": BatchSampler(Backwards(ROWS), 8, False)}, COURSE, "Backwards"),
    ],
)
def test_a_sampler_is_one_of_ours_or_refused(options: dict[str, Any], course: Course, named: str | None) -> None:
    found = list(Loaders(Loading(**options)).misfits(course))
    assert [named in each for each in found] == [True] if named else found == []


class Amiss(Lit):
    """Something of every kind that does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def on_train_start(self) -> None: ...

    def configure_optimizers(self) -> Any:
        return [self._sgd(), self._sgd()], [OneByOne(), lr_scheduler.ReduceLROnPlateau(self._sgd())]

    def _sgd(self) -> torch.optim.SGD:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Unshuffled(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(self.train, 10)

    def val_dataloader(self) -> Any:
        return [DataLoader(self.held_out, 10), DataLoader(self.train, 10)]


def test_hooks_loaders_samplers_optimizers_and_schedulers_are_told_in_one_message() -> None:
    source = Source(f"{__name__}:Amiss", {}, f"{__name__}:Unshuffled")
    told = table.problems(source, replace(COURSE, evaluates_in_steps=False))
    assert [code_of(each).partition(".")[2] for each in told] == [
        *("hook", "manual", "optimizers", "loaders", "loader-misfit"),
        *("scheduler", "plateau-beside", "plateau-evaluation", "plateau-monitor"),
    ]


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        ("DataLoader(self.train, 10, shuffle=True)", None),
        ("DataLoader(self.train, 10, True)", None),
        ("DataLoader(self.train, 10, **self.options)", None),
        ("DataLoader(self.train, 10, shuffle=self.shuffles)", None),
        ("DataLoader(self.train, sampler=self.sampler)", None),
        ("DataLoader(self.train, 10, shuffle=False)", "data.order=sequential"),
        ("data.DataLoader(self.train, sampler=data.WeightedRandomSampler(self.w, 9))", "data.sampling=weighted"),
        ("DataLoader(self.train, sampler=DistributedSampler(self.train))", "DistributedSampler"),
        ("DataLoader(self.train, batch_sampler=ByLength(self.train))", "ByLength"),
        ("DataLoader(self.train, batch_sampler=BatchSampler(RandomSampler(self.train), 8, False))", None),
        ("DataLoader(self.train, batch_sampler=BatchSampler(sampler=ByAge(self.train)))", "ByAge"),
    ],
)
def test_a_sampler_is_told_from_the_source_where_that_shows_it(
    loader: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"loading_{abs(hash(loader))}"
    (tmp_path / f"{name}.py").write_text(f"class Data:\n    def train_dataloader(self):\n        return {loader}\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = table.problems(Source("tests.adapters.standin:Lit", {}, f"{name}:Data"), COURSE)
    assert [named in each for each in told] == [True] if named else told == []


class Watching(Lit):
    """The rate falls where the hits do not become more."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0, min_lr=0.02)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "hits"}


def test_a_plateau_of_torch_becomes_ours() -> None:
    settings = settings_for(
        Watching,  # type: ignore[arg-type]
        optimizer=None,
        shards=2,
        data_module=DATA,
        evaluate_every=Every(steps=2),
    )
    built = construction.rehearse(resolve(settings))
    assert built.plateau == {
        "gamma": 0.5,
        "patience": 1,
        "metric": "validation/hits",
        "mode": "max",
        "min_change": 1e-4,
        "relative": True,
        "least": pytest.approx(0.2),
    }
    assert any("name: plateau, gamma: 0.5" in note for note in built.notes)


def test_a_plateau_that_watches_what_is_not_recorded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = sgd()
    returned = {
        "optimizer": optimizer,
        "lr_scheduler": lr_scheduler.ReduceLROnPlateau(optimizer),
        "monitor": "train_loss",
    }
    monkeypatch.setattr(Watching, "configure_optimizers", lambda _: returned)
    kind: Any = find(Source(f"{__name__}:Watching", {}, DATA))
    pipeline = kind()
    pipeline.begin(COURSE)
    with refused("lightning.plateau-metric", "train_loss"):
        pipeline.optimizer(Watching())


@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(("cooldown", "least", "eps"), [(0, 0.0, 1e-8), (2, 0.003, 1e-8), (1, 0.0, 0.01)])
def test_our_plateau_lowers_the_rate_when_that_of_torch_does(
    mode: Any, threshold_mode: Any, cooldown: int, least: float, eps: float
) -> None:
    optimizer = sgd(lr=0.5)
    theirs = lr_scheduler.ReduceLROnPlateau(
        optimizer, mode, 0.5, 1, 0.01, threshold_mode, cooldown=cooldown, min_lr=least, eps=eps
    )
    options = plateaus.options(theirs, "x", [0.5])
    monitored = {each.name: options[each.name] for each in fields(MonitoredMetric) if each.name in options}
    patience, factor = Patience(MonitoredMetric(**monitored)), build("plateau", options)
    for step, value in enumerate(torch.randn(120, generator=torch.Generator().manual_seed(3)).tolist()):
        theirs.step(value)
        patience = patience.after(value)
        rate = 0.5 * factor(Moment(step, 120, reductions=patience.exhausted))
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


class Counting(Lit):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("batches", batch_idx, reduce_fx="max")


def test_servers_watch_a_metric_that_only_workers_can_make() -> None:
    run = train(
        Counting,  # type: ignore[arg-type]
        Layout(2, "parameter_server"),
        optimizer=None,
        data_module=DATA,
        shards=2,
        steps=6,
        evaluate_every=Every(steps=1),
        early_stopping={"metric": "validation/hits", "mode": "max", "patience": 2, "min_change": 1000},
    )
    assert len(run.trace) == 3
    assert run.metrics[-1]["validation/batches"] == 4  # of 23 rows, 5 at a time


class FreezingOnce(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 2:
            self.layer.weight.requires_grad_(False)
        return super().training_step(batch, batch_idx)


def test_a_layer_that_is_frozen_once_is_told() -> None:
    """A worker that joins later would train it on."""
    (end,) = members_end(FreezingOnce, optimizer=None, data_module=DATA, shards=1, steps=6)  # type: ignore[arg-type]
    assert isinstance(end, Inconsistent)
    assert "new value of model.layer.weight.requires_grad" in str(end)


class _DeviceDtypeModuleMixin(nn.Module):
    """A double of the base of Lightning's modules."""

    def __init__(self) -> None:
        super().__init__()
        self._device = torch.device("cpu")

    @property
    def device(self) -> torch.device:
        return self._device


class Placed(standin.Metric):
    def __init__(self) -> None:
        super().__init__()
        self.device, self.moves = torch.device("cpu"), 0

    def to(self, device: Any) -> Any:  # type: ignore[override]
        self.device, self.moves = device, self.moves + 1
        return self


def test_what_knows_its_device_is_told_another_one_once() -> None:
    model, metric, there = _DeviceDtypeModuleMixin(), Placed(), torch.device("meta")
    model.metric, model.layer = metric, nn.Linear(1, 1)
    devices.follow(model)
    assert (model.device.type, metric.moves) == ("cpu", 0)
    for _ in range(2):
        devices.tell(model, there)
    assert (model.device, metric.device, metric.moves) == (there, there, 1)
    assert model.layer.weight.device.type == "cpu"


def steps_taken(module: Any) -> float:
    return float(module.trainer.global_step)


class ByIndex(Lit):
    def training_step(self, batch: Any, number: int) -> Any:
        return 0 * self._loss(batch) + number


class ByAll(Lit):
    def training_step(self, *args: Any) -> Any:
        batch, number = args
        return 0 * self._loss(batch) + number


class ByFunction(Lit):
    def training_step(self, batch: Any, _: int) -> Any:
        return 0 * self._loss(batch) + steps_taken(self)


class ByProperty(Lit):
    @property
    def weight(self) -> float:
        return float(self.trainer.global_step)

    def training_step(self, batch: Any, _: int) -> Any:
        return 0 * self._loss(batch) + self.weight


class Part(_DeviceDtypeModuleMixin):
    trainer: Any = None

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return 0 * loss + float(self.trainer.global_step)


class ByBase(ByFunction):
    def training_step(self, batch: Any, _: int) -> Any:
        return super().training_step(batch, 0)


class ByPart(Part, Lit):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "trainer":  # as Lightning's own property hands it on
            self.part.trainer = value
        super().__setattr__(name, value)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Lit.forward(self, inputs)

    def training_step(self, batch: Any, _: int) -> Any:
        found: torch.Tensor = self.part(self._loss(batch))
        return found


@pytest.mark.parametrize("kind", [ByIndex, ByAll, ByFunction, ByProperty, ByBase, ByPart])
def test_steps_are_counted_however_a_module_asks(kind: Any) -> None:
    run = train(kind, optimizer=None, data_module=DATA, shards=1, steps=6)
    in_epoch = kind in (ByIndex, ByAll)
    assert run.losses == [step % 4 if in_epoch else step for step in range(6)]
    plan = resolve(settings_for(kind, optimizer=None, data_module=DATA))
    adapter = PipelineAdapter(find(plan.run.pipeline), plan.run, plan.data)
    assert adapter.takes_step
    assert adapter.why_not_recorded(asks_step=False) == "loss() takes the step"


class InTurn(ByPart):
    """The part takes turns, and the module itself has other weights in its second epoch."""

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self._loss(batch)
        if self.part.trainer.global_step % 2:
            loss = 2 * loss
        return loss * (3 if self.trainer.current_epoch == 1 and index < 3 else 1)


def test_a_module_that_asks_for_the_step_is_replayed_in_steps_that_give_the_same_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records(monkeypatch, retracer := Retracer())
    settings: dict[str, Any] = {"optimizer": None, "data_module": DATA, "shards": 3, "steps": 16}
    recorded = train(InTurn, **settings)  # type: ignore[arg-type]
    assert retracer.replays > 2 * retracer.recorded > 0
    monkeypatch.undo()
    eager = train(InTurn, **settings)  # type: ignore[arg-type]
    assert (recorded.trace, recorded.digest) == (eager.trace, eager.digest)


class Plain(Lit):
    def training_step(self, batch: Any, _: int) -> Any:
        return self._loss(batch)


def test_one_that_does_not_ask_is_recorded() -> None:
    pipeline = made(f"{__name__}:Plain")
    assert not takes_step(pipeline)
    assert not pipeline.asks_step


class Remembering(Plain):
    """Its loss follows from the batches before."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def training_step(self, batch: Any, _: int) -> Any:
        self.mean.mul_(0.9).add_(0.1 * batch[0].mean(0))
        return self._loss(batch) + (self.layer.weight @ self.mean).sum()


class Sharing(Remembering):
    buffer_rules: ClassVar = {"mean": "mean"}


def test_a_module_says_how_shards_share_a_buffer_where_torch_has_buffers() -> None:
    (end,) = members_end(Remembering, optimizer=None, data_module=DATA, shards=2)  # type: ignore[arg-type]
    assert 'in a LightningModule: buffer_rules = {"mean": "mean"}' in str(end)
    options: Any = {"optimizer": None, "data_module": DATA, "shards": 2, "steps": 6}
    runs: Any = [train(Sharing, layout, **options) for layout in (Layout(), Layout(2))]  # type: ignore[arg-type]
    assert runs[0].digest == runs[1].digest
    assert runs[0].parameters["mean"].abs().min() > 0
