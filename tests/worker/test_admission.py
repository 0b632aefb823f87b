"""The checks of admission on a micro-batch before the first step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.overrides import _get_current_function_mode_stack

from orchestrator.config.resolve import resolve
from orchestrator.errors import Inconsistent, PipelineRaised
from orchestrator.numerics.determinism import FILL, left_as_it_was, prepare_thread
from orchestrator.optim.optimizers import OPTIMIZERS, build
from orchestrator.worker.admission import portability, proof
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.worker import Worker
from tests.comm.transports.memory import LocalRegions
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.runs import settings_for

cudnn: Any = torch.backends.cudnn
deterministic: Any = torch.utils.deterministic
WORKLOAD: Any = SimpleNamespace(user_objects=dict, model=torch.nn.Linear(1, 1), pipeline=None)


def test_memory_that_nobody_has_written_is_filled_the_first_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an operation that reads it gives other bits, and is found."""
    with monkeypatch.context() as loop:
        loop.delenv(FILL)
        prepare_thread(1)
    try:
        with pytest.raises(Inconsistent) as caught:
            proof._verify(
                WORKLOAD, "micro-batch", [0, 1], lambda _: str(deterministic.fill_uninitialized_memory), fills=True
            )
        assert caught.value.code == "pipeline.not-repeatable"
        assert not deterministic.fill_uninitialized_memory
    finally:
        prepare_thread(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "torch.set_num_threads (1, then 2)"),
        (lambda: torch.set_default_dtype(torch.float64), "torch.set_default_dtype (torch.float32, then torch.float64)"),
        (lambda: torch.set_default_device("cpu:0"), "torch.set_default_device (cpu, then cpu:0)"),
        (
            lambda: torch.use_deterministic_algorithms(mode=False),
            "torch.use_deterministic_algorithms (True, then False)",
        ),
        (
            lambda: torch.use_deterministic_algorithms(mode=True, warn_only=True),
            "torch.use_deterministic_algorithms (True, then with warn_only)",
        ),
        (
            lambda: torch.set_float32_matmul_precision("medium"),
            "torch.backends.cuda.matmul.fp32_precision (ieee, then tf32)",
        ),
        (lambda: torch.set_flush_denormal(True), "torch.set_flush_denormal (False, then True)"),
        (
            lambda: torch.set_autocast_enabled("cuda", True),
            "torch.set_autocast_enabled ([False, False], then [False, True])",
        ),
        (lambda: setattr(cudnn, "benchmark", True), "torch.backends.cudnn.benchmark (False, then True)"),
        (lambda: torch.set_grad_enabled(False), "torch.set_grad_enabled (True, then False)"),
    ],
)
def test_settings_of_torch_that_change_while_a_batch_is_computed_are_named(
    change: Callable[[], object], named: str
) -> None:
    def computed(_: int) -> str:
        change()
        return "the same"

    with left_as_it_was():
        prepare_thread(1)
        with refused("pipeline.changes-torch", named):
            proof._verify(WORKLOAD, "micro-batch", [0, 1], computed, fills=True)
        torch.set_autocast_enabled("cuda", False)
        torch.set_grad_enabled(True)
        prepare_thread(1)
    assert not _get_current_function_mode_stack()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("enabled", "wrong"), [(True, "pipeline.grad-scaler"), (False, None)])
def test_a_loss_that_a_scaler_of_torch_scales_is_refused(enabled: bool, wrong: str | None) -> None:
    usual = torch.amp.GradScaler.scale
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)

    def computed(_: int) -> str:
        return str(scaler.scale(torch.tensor(1.0)))

    with refused(wrong, "micro-batch") if wrong else nullcontext():
        proof._verify(WORKLOAD, "micro-batch", [0, 1], computed, fills=True)
    assert torch.amp.GradScaler.scale is usual


class Kept(p.Noisy):
    """Keeps what it has drawn, under a name that nobody looks at."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self._kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self._kept.setdefault(index, super().__getitem__(index))


class Keeping(p.Augmented):
    def datasets(self) -> tuple[Any, Any]:
        return Kept(self.rows), p.Noisy(7)


@pytest.mark.parametrize(("pipeline", "alike"), [(p.Augmented, True), (Keeping, False)])
def test_samples_that_depend_on_who_reads_them_first_are_found_by_the_second_worker(
    pipeline: type[p.Small], alike: bool
) -> None:
    plan = resolve(settings_for(pipeline))
    first, *others = (
        Worker(plan, LocalRegions(), ProcessServices(is_first=is_first)).prepare()["reference"]
        for is_first in (True, True, False)
    )
    assert [each == first for each in others] == [True, alike]


class Listing(p.Small):
    """A criterion with parameters, layers in a list, and what needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.criterion = torch.nn.Linear(p.CLASSES, p.CLASSES)
        self.frozen = torch.nn.Linear(p.CLASSES, p.CLASSES).requires_grad_(False)
        self.teacher = torch.nn.Linear(p.FEATURES, p.CLASSES)

    def model(self) -> Any:
        model: Any = super().model()
        model.layers = [torch.nn.Linear(p.CLASSES, p.CLASSES)]
        return model

    def loss(self, model: Any, batch: p.Batch) -> Any:
        with torch.no_grad():
            taught = self.teacher(batch[0])
        return (self.criterion(self.frozen(model.layers[0](model(batch[0])))) - taught).square().mean()


@pytest.mark.parametrize(("pipeline", "told"), [(p.Small, 0), (p.Spectral, 0), (Listing, 1)])
def test_parameters_that_nothing_trains_are_told(pipeline: type[p.Small], told: int) -> None:
    said: list[Any] = []
    Worker(resolve(settings_for(pipeline)), LocalRegions(), ProcessServices(emit=said.append)).prepare()
    why = [each["why"] for each in said if each.get("event") == "device"]
    assert len(why) == told
    assert all("(pipeline.criterion.weight and 3 more), so nothing trains them" in each for each in why)


class Attacking(p.Small):
    """Its loss is in training mode again behind an attack. minds: whether only where it was in it before."""

    def __init__(self, minds: bool) -> None:
        super().__init__()
        self.minds = minds

    def loss(self, model: Any, batch: p.Batch) -> Any:
        was = model.training
        model.eval()
        model.train(was if self.minds else True)
        return super().loss(model, batch)


@pytest.mark.parametrize(("minds", "told"), [(True, 0), (False, 1)])
def test_a_loss_that_evaluates_in_training_mode_is_told(minds: bool, told: int) -> None:
    said: list[Any] = []
    settings = settings_for(Attacking, args={"minds": minds})
    Worker(resolve(settings), LocalRegions(), ProcessServices(emit=said.append)).prepare()
    why = [each["why"] for each in said if each.get("event") == "device"]
    assert [each.partition(",")[0] for each in why] == ["loss() calls train() in an evaluation"] * told


class Paired(p.Small):
    """Its loss returns a pair: with the rows, or with how sure the model is."""

    def __init__(self, rows_count: bool) -> None:
        super().__init__()
        self.rows_count = rows_count

    def loss(self, model: Any, batch: p.Batch) -> Any:
        sure = model(batch[0]).softmax(1).amax(1).mean().detach()
        return super().loss(model, batch), len(batch[0]) if self.rows_count else sure


@pytest.mark.parametrize(("rows_count", "told"), [(True, 0), (False, 1)])
def test_a_metric_that_counts_as_the_weight_is_told(rows_count: bool, told: int) -> None:
    said: list[Any] = []
    settings = settings_for(Paired, args={"rows_count": rows_count})
    Worker(resolve(settings), LocalRegions(), ProcessServices(emit=said.append)).prepare()
    why = [each["why"] for each in said if each.get("event") == "device"]
    assert [each.partition(",")[0] for each in why] == ["loss() returns a pair"] * told


class NormalisedRows(p.Small):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(p.FEATURES), super().model())


def _prepared(steps: int) -> None:
    Worker(resolve(settings_for(NormalisedRows, steps=steps)), LocalRegions(), ProcessServices()).prepare()


def test_a_single_row_at_the_end_of_an_epoch_is_tried_before_the_first_step() -> None:
    """The third step has 2 of 22 rows for 5 shards. The first epoch may take hours."""
    _prepared(steps=2)
    with pytest.raises(PipelineRaised, match=r"\(step 2, shard 2\)") as found:
        _prepared(steps=3)
    assert found.value.remedy.startswith("batch normalisation needs two rows")


class Viewing(p.Small):
    """Has a view of a parameter from model(). reads: what computes with it."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads = reads

    def model(self) -> torch.nn.Module:
        model: Any = super().model()
        model.views = {"transposed": [model.weight.t()]}
        return torch.nn.Sequential(model, torch.nn.utils.spectral_norm(torch.nn.Linear(p.CLASSES, p.CLASSES)))

    def loss(self, model: Any, batch: p.Batch) -> Any:
        return super().loss(model, batch) + self.read("loss", model)

    def metrics(self, model: Any, batch: p.Batch) -> dict[str, Any]:  # noqa: ARG002
        return {"read": self.read("metrics", model)}

    def read(self, where: str, model: Any) -> Any:
        return model[0].views["transposed"][0].sum() if where == self.reads else torch.zeros(())


@pytest.mark.parametrize(
    ("reads", "what"), [("loss", "micro-batch (step 0, shard 0)"), ("metrics", "validation batch 0"), ("nothing", None)]
)
def test_a_view_of_a_parameter_from_before_it_was_moved_is_refused_where_it_is_used(
    reads: str, what: str | None
) -> None:
    settings = settings_for(Viewing)
    plan = resolve(replace(settings, pipeline=replace(settings.pipeline, args={"reads": reads})))
    with (
        refused("model.former-memory", f"'0.weight', such as a view of it, is used while {what}")
        if what
        else nullcontext()
    ):
        Worker(plan, LocalRegions(), ProcessServices()).prepare()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_every_optimizer_is_tried_with_small_parameters(name: str) -> None:
    """The model has more rows than a trial takes. adagrad has a state of all of them before its first step."""
    model = torch.nn.Conv1d(20, 30, 3)
    found = portability.operators_of_step(build(name, {"lr": 0.1}, model), model)
    assert found


class Averaging(torch.optim.AdamW):
    """Moves an average that is frozen, with what torch's own way to copy an optimizer drops. sized: knows how large it is;
    closed: moves it by a function that holds the model's own tensors."""

    def __init__(self, model: Any, *, sized: bool, closed: bool) -> None:
        super().__init__(model.net.parameters(), lr=0.1)
        self.average, self.trained = list(model.average), list(model.net.parameters())
        self.sizes = [each.shape for each in self.average] if sized else []
        self.lock, self.moved = threading.Lock(), 0
        average, trained = self.average, self.trained
        moving: Any = get_ema_multi_avg_fn
        move = self.move = moving(0.9)
        self.closed = (lambda: move(average, trained, None)) if closed else None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.moved += 1
        for each, size in zip(self.average, self.sizes, strict=False):
            each.view(size)
        with self.lock:
            (self.closed or (lambda: self.move(self.average, self.trained, None)))()


@pytest.mark.parametrize(("sized", "closed"), [(False, False), (True, False), (False, True)])
def test_a_step_is_tried_with_what_an_optimizer_holds_itself_and_nothing_changes(*, sized: bool, closed: bool) -> None:
    model: Any = torch.nn.Module()
    model.net = torch.nn.Conv1d(20, 30, 3)
    model.average = torch.nn.ParameterList(
        torch.nn.Parameter(torch.rand_like(each), requires_grad=False) for each in model.net.parameters()
    )
    optimizer = Averaging(model, sized=sized, closed=closed)
    attributes = dict(vars(optimizer))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = portability.operators_of_step(optimizer, model)
    assert "_foreach_lerp" in found  # of the average, beside those of AdamW
    assert vars(optimizer) == attributes
    assert (optimizer.moved, optimizer.state) == (0, {})
    assert all(each.grad is None for each in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
