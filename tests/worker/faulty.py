"""Pipelines with one fault each. Training row r has the number r in its first column, so that a fault can choose its victim."""

from __future__ import annotations

import copy
import itertools
import math
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, IterableDataset, random_split

from tests.worker.pipelines import CLASSES, FEATURES, Batch, Sign, Small

VICTIM = 3.0  # which is in step 1, shard 3 of `runs.settings_for`, and in validation batch 1


class Numbered(Small):
    def inputs(self, rows: int) -> Tensor:
        inputs = torch.randn(rows, FEATURES)
        inputs[:, 0] = torch.arange(rows)
        return inputs


class Optimizing(Numbered):
    """Trains with its own `Optimizer`."""

    Optimizer: ClassVar[type[torch.optim.SGD]]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.Optimizer(model.parameters(), lr=0.1)


class Networked(Numbered):
    """Trains its own `Network`."""

    Network: ClassVar[type[nn.Module]]

    def model(self) -> nn.Module:
        return self.Network()


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)


def _has_victim(batch: Batch) -> bool:
    return bool((batch[0][:, 0] == VICTIM).any())


class UserError(Exception):
    pass


# --- while a run is prepared


class RaisesInInit(Numbered):
    def __init__(self) -> None:
        raise UserError("no such file")


class RaisesInDatasets(Numbered):
    def datasets(self) -> Any:
        raise UserError("no such file")


class RaisesInModel(Numbered):
    def model(self) -> nn.Module:
        raise UserError("no such file")


class RaisesInOptimizer(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:  # noqa: ARG002
        raise UserError("no such file")


class ModelIsNoModule(Numbered):
    def model(self) -> nn.Module:
        return "a model"  # type: ignore[return-value]


class OneDataset(Numbered):
    def datasets(self) -> Any:
        return super().datasets()[0]


class ThreeDatasets(Numbered):
    def datasets(self) -> Any:
        return random_split(super().datasets()[0], [0.5, 0.25, 0.25])


class NoLength(Numbered):
    def datasets(self) -> Any:
        return iter([1, 2, 3]), None


class TrainingLoader(Numbered):
    def datasets(self) -> Any:
        return DataLoader(super().datasets()[0]), None


class SamplesByNumber(Numbered):
    def datasets(self) -> Any:
        samples: Any = super().datasets()[0]
        return {number: samples[number] for number in range(len(samples))}, None


class RaisingLength(Numbered):
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            raise UserError("not counted yet")

        def __getitem__(self, index: int) -> Any:
            raise AssertionError(index)

    def datasets(self) -> Any:
        return self.Broken(), None


class EmptyTraining(Numbered):
    def datasets(self) -> Any:
        return [], None


class ValidationByName(Numbered):
    def datasets(self) -> Any:
        train, validation = super().datasets()
        return train, {"easy": validation, "hard": validation}


class ListOfTraining(Numbered):
    def datasets(self) -> Any:
        train, validation = super().datasets()
        return [train, train], validation


class DataFrame:
    """It stands for that of pandas, as far as a run asks."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, column: object) -> Any:
        raise KeyError(column)


DataFrame.__module__ = "pandas.core.frame"


class FrameOfTraining(Numbered):
    def datasets(self) -> Any:
        return DataFrame(), None


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class StreamedTraining(Numbered):
    def datasets(self) -> Any:
        return Streamed(), None


class StreamedValidation(Numbered):
    def datasets(self) -> Any:
        return super().datasets()[0], Streamed()


class OptimizerOfAnotherKind(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters())


class OptimizerWithClosure(Optimizing):
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            super().step()


class Sharpness(Optimizing):
    """As SAM: without a closure it says that it wants one."""

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if closure is None:
                raise UserError("no closure")
            return super().step(closure)


class ObjectInGroups(Optimizing):
    class Optimizer(torch.optim.SGD):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.param_groups[0]["filter"] = object()


class NoOptimizer(Numbered):
    def optimizer(self, model: nn.Module) -> Any:  # noqa: ARG002
        return None


class OptimizerOfStrangers(Numbered):
    """A learnable centre beside the model: its gradient would be each worker's own."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(4, 3))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters(), self.centre], lr=0.1)


class DoublePrecision(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES).double())


class LazyParameter(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(CLASSES))


class Scripted(Numbered):
    def model(self) -> nn.Module:
        script: Any = torch.jit.script
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # models have it
            return nn.Sequential(nn.Linear(FEATURES, CLASSES), script(nn.Identity()))


class Exported(Numbered):
    def model(self) -> nn.Module:
        program = torch.export.export(nn.Linear(FEATURES, CLASSES), (torch.ones(2, FEATURES),))
        return nn.Sequential(program.module())


class LazyBuffer(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.LazyBatchNorm1d(affine=False))


class MetaDevice(Numbered):
    def model(self) -> nn.Module:
        return nn.Linear(FEATURES, CLASSES, device="meta")


class SharedStorage(Numbered):
    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
        first, second = (model.get_submodule(name) for name in "01")
        second.weight = nn.Parameter(first.get_parameter("weight").data)
        return model


class Expanded(Numbered):
    def model(self) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        model.weight = nn.Parameter(model.weight.data[:1].expand(CLASSES, FEATURES))
        return model


class SharedWithBuffer(Numbered):
    def model(self) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        model.register_buffer("view", model.weight.data[0])
        return model


class SparseBuffer(Numbered):
    def model(self) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        model.register_buffer("adjacency", torch.eye(3).to_sparse())
        return model


class Marked(torch.Tensor):
    """Its results are of this class, too."""


class MarkedParameter(Numbered):
    def model(self) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        model.weight = nn.Parameter(model.weight.detach().as_subclass(Marked))
        return model


class Scaled(torch.Tensor):
    """Made of two tensors, as the weights of torchao are."""

    parts: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def __new__(cls, whole: torch.Tensor, scale: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=scale.dtype)
        made.parts = whole, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, *call: Any, **_: Any) -> Any:
        assert call[0] is torch.ops.aten.detach.default  # nothing else is asked before it is refused
        return cls(*call[2][0].parts)


class ScaledParameter(Numbered):
    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES))
        scaled = Scaled(torch.ones(4, FEATURES, dtype=torch.int8), torch.tensor(0.1))
        model.get_submodule("0").weight = nn.Parameter(scaled, requires_grad=False)
        return model


class NothingToTrain(Numbered):
    def model(self) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
        model.register_parameter("empty", nn.Parameter(torch.empty(0)))
        return model


class Compiled(Numbered):
    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(FEATURES, CLASSES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, from importing its compiler
            model.get_submodule("0").compile()
        return model


# --- while a shard is computed


class RemembersAfterAWarmUp(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.memory: list[torch.Tensor] = []

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        loss = super().loss(model, batch)
        if step < 2:
            return loss
        self.memory.append(loss.detach())
        return loss * len(self.memory)


class BeginsAPhaseOnce(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step == 1:
            self.factor = 2.0
        return super().loss(model, batch) * self.factor


class FreezesALayerOnce(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(), nn.Linear(FEATURES, CLASSES))

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step == 1:
            model.get_submodule("0").eval()
        return super().loss(model, batch)


class OptimizerAnneals(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        outer = self

        class Annealing(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                super().step(closure)
                outer.factor *= 0.5

        return Annealing(model.parameters(), lr=0.1)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch) * self.factor


class EvaluationCalibrates(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        if model.training:
            return loss * self.factor
        self.factor = 1 + float(loss)
        return loss


class FreezesParametersOnce(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Linear(CLASSES, CLASSES))

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step == 1:
            model.get_submodule("0").requires_grad_(False)
        return super().loss(model, batch)


class CopiesAtAStep(Numbered):
    """Draws the model to what it was at step 2."""

    def __init__(self) -> None:
        super().__init__()
        self.earlier: nn.Module | None = None
        self.last = torch.zeros(())

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        loss = super().loss(model, batch)
        self.last = loss.detach()
        if step < 2:
            return loss
        if self.earlier is None:
            self.earlier = copy.deepcopy(model).requires_grad_(False)
        return loss + (model(batch[0]) - self.earlier(batch[0])).square().mean()


class MovesATarget(Numbered):
    """Draws the model to a target, which becomes the model every third step."""

    def model(self) -> nn.Module:
        model = super().model()
        self.target = copy.deepcopy(model).requires_grad_(False)
        return model

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step % 3 == 2:
            self.target.load_state_dict(model.state_dict())
        return super().loss(model, batch) + (model(batch[0]) - self.target(batch[0])).square().mean()


class TellsAnAverage(Numbered):
    """Among the metrics, of the outputs that this worker has seen from step 2 on."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(())

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        if step >= 2 and model.training:
            self.average.lerp_(model(batch[0]).detach().mean(), 0.1)
        return super().loss(model, batch)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {"average": self.average}


class TellsTheLastLoss(Numbered):
    """Among the metrics, of whatever this worker has computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(())

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        if model.training:
            self.last = loss.detach()
        return loss

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {"training": self.last}


class LeavesAParameterUnwritten(Numbered):
    def model(self) -> nn.Module:
        model = nn.Linear(FEATURES, CLASSES)
        model.bias = nn.Parameter(torch.empty(CLASSES))
        return model


class NanLoss(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        return loss * float("nan") if _has_victim(batch) else loss


class InfiniteLoss(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        return loss + float("inf") if _has_victim(batch) else loss


class NanGradient(Numbered):
    """The loss stays finite: the derivative of a root at 0 is infinite, and 0 times that is not a number."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        bias = model.get_parameter("bias")
        return loss + ((bias - bias.detach()) * 0).sum().sqrt() if _has_victim(batch) else loss


class InfiniteStatistic(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, 1), nn.Unflatten(1, (1, 1)), Overflowing(), nn.Flatten(), nn.Linear(1, CLASSES)
        )


class Overflowing(nn.InstanceNorm1d):
    def __init__(self) -> None:
        super().__init__(1, track_running_stats=True)

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.running_var is not None
        self.running_var.fill_(float("inf"))
        return inputs


class FailsOnTheGpu(Numbered):
    """victim: a row; None: any."""

    failed = False

    def __init__(self, victim: float | None = VICTIM, **args: Any) -> None:
        super().__init__(**args)
        self.victim = victim

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if self.victim is None or _has_victim(batch):
            FailsOnTheGpu.failed = True
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return super().loss(model, batch)


class RaisesInLoss(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if _has_victim(batch):
            raise UserError("cannot read row 3")
        return super().loss(model, batch)


class ExitsInLoss(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:  # noqa: ARG002
        sys.exit("no licence")


class StopsIteration(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:  # noqa: ARG002
        return next(iter(()))


class RaisesInCollate(Numbered):
    def collate(self, items: Sequence[Any]) -> Any:  # noqa: ARG002
        raise UserError("rows of different lengths")


class RaisesInDataset(Numbered):
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            if index == VICTIM:
                raise UserError("cannot read row 3")
            return torch.ones(FEATURES), torch.tensor(1)

    def datasets(self) -> Any:
        return self.Broken(), None


class EndsItsReader(RaisesInDataset):
    class Broken(RaisesInDataset.Broken):
        def __getitem__(self, index: int) -> Any:
            if index == VICTIM:
                os._exit(7)
            return super().__getitem__(index)


class InterruptsItsReader(RaisesInDataset):
    class Broken(RaisesInDataset.Broken):
        def __getitem__(self, index: int) -> Any:
            if index == VICTIM:
                raise KeyboardInterrupt
            return super().__getitem__(index)


class LossPerRow(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch[0]).sum(1)[:0]


class LossIsNumber(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return float(super().loss(model, batch).detach())


class LossIsInteger(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:  # noqa: ARG002
        return batch[1].sum()


class LossWithoutGraph(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch).detach()


class Weighted(Numbered):
    weight: Any = 1.0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch), self.weight


class NegativeWeight(Weighted):
    weight = -1.0


class NanWeight(Weighted):
    weight = float("nan")


class EnormousWeight(Weighted):
    """Finite, and every sum with it would overflow."""

    weight = 1e300


class TwoWeights(Weighted):
    weight = torch.ones(2)


class ZeroWeights(Weighted):
    weight = torch.tensor(0)


class ChangesFixedBuffer(Numbered):
    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("seen", torch.zeros(2))
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.get_buffer("seen").add_(1)
        return super().loss(model, batch)


class ChangesFixedBufferForNothing(ChangesFixedBuffer):
    """Also where the shard's weight is zero."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch), 0


class ReplacesFixedBuffer(ChangesFixedBuffer):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.seen = torch.zeros(2)
        return Numbered.loss(self, model, batch)


class Counting(Numbered):
    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("batches", torch.tensor(0))
        return model


class ReplacesCounter(Counting):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.batches = model.get_buffer("batches") + 1
        return super().loss(model, batch)


class CountsRows(Counting):
    """Shards disagree: the sum of a shard's row numbers."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.get_buffer("batches").add_(int(batch[0][:, 0].sum()))
        return super().loss(model, batch)


class ReplacesStatistics(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES, affine=False))

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        norm = model.get_submodule("1").eval()
        norm.running_mean = norm.get_buffer("running_mean") * 0.9
        return super().loss(model, batch)


class AddsBuffer(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.register_buffer("cache", torch.zeros(len(batch[0])))
        return super().loss(model, batch)


class CompiledByLoss(Numbered):
    def model(self) -> nn.Module:
        model = super().model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fast = torch.compile(model, backend="eager")
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Any:  # noqa: ARG002
        return functional.cross_entropy(self.fast(batch[0]), batch[1])


class LossWithAPart(Numbered):
    """Returns a part of the loss beside the whole."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch)
        return loss, loss / 2


class LossWithOutputs(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch), model(batch[0])


class Clamped(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        with torch.no_grad():
            model.get_parameter("weight").clamp_(-1, 1)
        return super().loss(model, batch)


class ClampedThroughData(Numbered):
    """As the clipping of a Wasserstein critic is often written; raises no version."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.get_parameter("weight").data.clamp_(-0.1, 0.1)
        return super().loss(model, batch)


class Flattened(Numbered):
    """Moves a parameter as flatten_parameters() of recurrent layers does on a GPU, and as the warning of cuDNN advises."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        weight = model.get_parameter("weight")
        weight.data = weight.data.clone()
        return super().loss(model, batch)


class Teacher(Numbered):
    """A moving average of the student, which it equals until the first step is applied."""

    def model(self) -> nn.Module:
        model = nn.ModuleDict({"student": nn.Linear(FEATURES, CLASSES), "teacher": nn.Linear(FEATURES, CLASSES)})
        model["teacher"].load_state_dict(model["student"].state_dict())
        return model.requires_grad_(True)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        student, teacher = (model.get_submodule(name) for name in ("student", "teacher"))
        teacher.requires_grad_(False)
        for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
            self.follow(ours, theirs)
        distance = functional.mse_loss(student(batch[0]), teacher(batch[0]))
        return functional.cross_entropy(student(batch[0]), batch[1]) + distance

    def follow(self, ours: Tensor, theirs: Tensor) -> None:
        ours.data.mul_(0.5).add_(theirs.data, alpha=0.5)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


class FrozenTeacher(Teacher):
    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("teacher").requires_grad_(False)
        return model


class ExchangedTeacher(FrozenTeacher):
    def follow(self, ours: Tensor, theirs: Tensor) -> None:
        ours.data = (ours + theirs.detach()) / 2


class Unfreezes(Numbered):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES).requires_grad_(False), nn.Linear(CLASSES, CLASSES))

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.requires_grad_(True)
        return super().loss(model, batch)


class Grows(Numbered):
    """Its head is made for the first batch, and so is in no optimizer."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES))

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if not hasattr(model, "head"):
            model.add_module("head", nn.Linear(CLASSES, CLASSES))
        return super().loss(model, batch)


class Reparametrized(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.weight = nn.Parameter(model.get_parameter("weight").detach().clone())
        return super().loss(model, batch)


class DropsWeight(Numbered):
    """As WeightDrop does, of which dropout in evaluation gives the parameter itself."""

    def model(self) -> nn.Module:
        layer = nn.Linear(FEATURES, CLASSES)
        layer.raw = nn.Parameter(layer.weight.detach().clone())
        del layer.weight
        return layer

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.weight = functional.dropout(model.get_parameter("raw"), training=False)
        return super().loss(model, batch)


class MaxNorm(Small):
    def inputs(self, rows: int) -> Tensor:
        return torch.randint(4, (rows,))

    def model(self) -> nn.Module:
        return nn.Embedding(4, CLASSES, max_norm=0.01)


class SparseGradient(Small):
    def inputs(self, rows: int) -> Tensor:
        return torch.randint(4, (rows,))

    def model(self) -> nn.Module:
        return nn.Embedding(4, CLASSES, sparse=True)


class Workspace(torch.autograd.Function):
    """Writes its gradients into one and the same memory each time."""

    memory: ClassVar[dict[int, Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.owner = weight.data_ptr()
        return weight * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        memory = Workspace.memory.setdefault(ctx.owner, torch.empty(CLASSES, FEATURES))
        torch.mul(gradients[0], 2, out=memory)
        return memory.view(CLASSES, FEATURES)


class ReusesGradient(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        weight: Tensor = Workspace.apply(model.get_parameter("weight"))  # type: ignore[no-untyped-call]
        return functional.cross_entropy(functional.linear(batch[0], weight), batch[1])


class ReusesGradientInHook(Numbered):
    """Gradients that are always the same object."""

    def model(self) -> nn.Module:
        model = super().model()
        memory = torch.zeros_like(model.get_parameter("weight"))

        def replace(parameter: Tensor) -> None:
            assert parameter.grad is not None
            memory.copy_(parameter.grad)
            parameter.grad = memory

        model.get_parameter("weight").register_post_accumulate_grad_hook(replace)  # type: ignore[no-untyped-call]
        return model


class Arrays(Workspace):
    """The same by numpy, which raises no version."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        memory = Workspace.memory.setdefault(ctx.owner, torch.empty(CLASSES, FEATURES)).numpy()
        numpy.multiply(gradients[0].numpy(), 2, out=memory)
        return torch.from_numpy(memory)


class ReusesAnArray(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        weight: Tensor = Arrays.apply(model.get_parameter("weight"))  # type: ignore[no-untyped-call]
        return functional.cross_entropy(functional.linear(batch[0], weight), batch[1])


class KeepsState(Numbered):
    """A curriculum that counts batches in the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = itertools.count(1)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch) * next(self.batches)


class KeepsStateInWeights(Numbered):
    """Some shards weigh nothing until they are computed again; no loss that was seen before comes out differently."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        row = int(batch[0][0, 0])
        known = row in self.seen
        self.seen.add(row)
        return super().loss(model, batch), int(known or row % 2 == 0)


class DrawsForItself(Numbered):
    """A generator of the pipeline's own, which nobody seeds for a shard."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch) * torch.rand((), generator=self.generator)


# --- while a step is applied or evaluated


class RaisesInStep(Optimizing):
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # noqa: ARG002
            raise UserError("no step")


class CountsInOptimizer(Optimizing):
    """A decay of the optimizer's own, by a count that nobody saves."""

    class Optimizer(torch.optim.SGD):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.decay: dict[str, int] = {"steps": 0}

        def step(self, closure: Any = None) -> Any:
            self.decay["steps"] += 1
            for group in self.param_groups:
                group["lr"] /= self.decay["steps"]
            return super().step(closure)


class ExchangesAFunction(Optimizing):
    """A function among the options, which another worker would have as it was."""

    class Optimizer(torch.optim.SGD):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.param_groups[0]["filter"] = min

        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["filter"] = max
            return super().step(closure)


class AveragesInOptimizer(Optimizing):
    """Slow weights beside the fast ones, brought up to date in place every second step."""

    class Optimizer(torch.optim.SGD):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.fast = [parameter for group in self.param_groups for parameter in group["params"]]
            self.slow = [parameter.detach().clone() for parameter in self.fast]
            self.param_groups[0]["steps"] = 0

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            group = self.param_groups[0]
            group["steps"] += 1
            if group["steps"] % 2 == 0:
                for slow, fast in zip(self.slow, self.fast, strict=True):
                    fast.copy_(slow.lerp_(fast, 0.5))


class AveragesBeside(Numbered):
    """A whole averaged model, in the hands of the optimizer alone, and a local function, which no pickle takes."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return AveragingBeside(model)


class AveragingBeside(torch.optim.SGD):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.model = model
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.average.update_parameters(self.model)


class Anneals(Numbered):
    """A buffer that the optimizer lowers."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("temperature", torch.tensor(2.0))
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Annealing(model)


class Annealing(torch.optim.SGD):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.model = model

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.model.get_buffer("temperature").mul_(0.9)
        return super().step(closure)


class FreezesAfterAStep(Numbered):
    """By a hook of one of torch's optimizers."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        def freeze(*_: Any) -> None:
            next(model.parameters()).requires_grad_(False)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(freeze)
        return optimizer


class KeepsAFactorOfTheStep(Numbered):
    factor = 1.0

    def rate(self, step: int) -> float:
        self.factor = 1.0 / (1 + step)
        return 1.0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = super().loss(model, batch)
        return loss * self.factor


class KeepsAStateForAll(Optimizing):
    """Under a key that is no parameter."""

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.state["all"]["steps"] = 1  # type: ignore[index]
            return super().step(closure)


class BuildsASchedule(Numbered):
    """As scripts do. Nobody would step it, and its first factor would stay."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 11)
        return optimizer


class BuildsAPlateau(Numbered):
    """It leaves nothing behind in its optimizer."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return optimizer


class SchedulesByItself(Numbered):
    """As schedulers that are not torch's do."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) / 11
        return optimizer


class SetsRatesInStep(Numbered):
    """Sets a rate that the run's schedule would replace."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: optimizer.param_groups[0].update(lr=0.09))
        return optimizer


class ChangesBetasInLoss(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        self.chosen = optimizer
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        group = self.chosen.param_groups[0] if hasattr(self, "chosen") else {"betas": (0.9, 0.9)}
        group["betas"] = (group["betas"][0] / 2, group["betas"][1])
        return super().loss(model, batch)


class ChangesAListOfGroupsInLoss(ChangesBetasInLoss):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().optimizer(model)
        optimizer.param_groups[0]["betas"] = [0.9, 0.99]
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        if hasattr(self, "chosen"):
            self.chosen.param_groups[0]["betas"][0] /= 2
        return Numbered.loss(self, model, batch)


class KeepsGradientsInAQueue(Optimizing):
    """The last gradients, which a state may hold in tensors, lists, tuples and dicts alone."""

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.state[parameter].setdefault("last", deque(maxlen=2)).append(parameter.grad)
            return super().step(closure)


class KeepsGradientsAsArrays(Optimizing):
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.state[parameter]["last"] = [parameter.grad.numpy()]
            return super().step(closure)


class ArrayInParamGroups(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["weights"] = numpy.ones(2)
        return optimizer


class StateOfNobody(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.state["all"] = {"beta": 0.9}  # type: ignore[index]
        return optimizer


class RateOfSeveralNumbers(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Sign(model.parameters(), {"lr": torch.ones(2)})


class TrainsItself(Networked):
    """The model of a script, with its loop as a method."""

    class Network(Linear):
        def train(self, loader: Any, optimizer: Any) -> Any:  # type: ignore[override]
            raise AssertionError(loader, optimizer)


class LayerTrainsItself(TrainsItself):
    def model(self) -> nn.Module:
        return nn.Sequential(super().model())


class HoldsItsTrainingData(Numbered):
    def model(self) -> nn.Module:
        model = Linear()
        model.train = [1, 2]  # type: ignore[assignment]
        return model


class EvaluatesItself(Networked):
    class Network(Linear):
        def eval(self, loader: Any) -> Any:  # type: ignore[override]
            raise AssertionError(loader)


class RaisesInTrain(Networked):
    class Network(Linear):
        def train(self, mode: bool = True) -> Any:
            if mode:
                raise UserError("no mode")
            return super().train(mode)


class RaisesInEval(Networked):
    class Network(Linear):
        def train(self, mode: bool = True) -> Any:
            if not mode:
                raise UserError("no mode")
            return super().train(mode)


class WithoutSuper(Networked):
    class Network(nn.Module):
        def __init__(self) -> None:
            self.width = FEATURES


class NamesNoParameters(Networked):
    class Network(Linear):
        def named_parameters(self, *_: Any, **__: Any) -> Any:
            raise UserError("no names")


class RaisesInExtraState(Networked):
    class Network(Linear):
        def get_extra_state(self) -> Any:
            raise UserError("no state")


class Odd:
    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise UserError("no attribute")


class KeepsAnOddObject(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.odd = Odd()


class HidesItsLength(Numbered):
    def datasets(self) -> Any:
        return Odd(), None


class MetricNamedByNumber(Numbered):
    def metrics(self, model: nn.Module, batch: Batch) -> Any:  # noqa: ARG002
        return {1: torch.tensor(0.5)}


class RaisesInRate(Numbered):
    def rate(self, step: int) -> float:  # noqa: ARG002
        raise UserError("no factor")


class RaisesInALaterRate(Numbered):
    def rate(self, step: int) -> float:
        return (1.0, 0.5)[step]


class RateIsNoNumber(Numbered):
    def rate(self, step: int) -> Any:
        pass


class RateIsNegative(Numbered):
    def rate(self, step: int) -> float:
        return step - 1


class CountsItsRates(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def rate(self, step: int) -> float:  # noqa: ARG002
        self._asked += 1
        return 1 / self._asked


class WantsAClosure(Optimizing):
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            assert closure is not None, "wants a closure"
            return super().step(closure)


class SeveralOptimizers(Numbered):
    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)


class NoRate(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Sign(model.parameters(), {"lr": None})


class CountsInAHook(Numbered):
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = itertools.count(1)

        def shrink(*_: Any) -> None:
            for parameter in model.parameters():
                parameter.data.mul_(1 - 0.1 / next(steps))

        optimizer.register_step_post_hook(shrink)
        return optimizer


class KeepsAParameter(Optimizing):
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["slow"] = parameter.detach()
            return super().step(closure)


class RemovesOption(Optimizing):
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.param_groups[0].pop("steps", None)
            return super().step(closure)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.Optimizer([{"params": list(model.parameters()), "steps": 0}], lr=0.1)


class RaisesInMetrics(Numbered):
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if _has_victim(batch):
            raise UserError("no metric")
        return super().metrics(model, batch)


class RaisesInLaterMetrics(Numbered):
    """Fails on a batch that nobody has looked at before the first step."""

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if (batch[0][:, 0] == VICTIM + 2).any():
            raise UserError("no metric")
        return super().metrics(model, batch)


class KeepsStateInMetrics(Numbered):
    """The share of all rows so far, as a metric that is updated and then computed gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.right = self.rows_so_far = 0

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        self.right += int((model(batch[0]).argmax(1) == batch[1]).sum())
        self.rows_so_far += len(batch[1])
        return {"accuracy": torch.tensor(self.right / self.rows_so_far)}


class DrawsForItselfInValidation(Numbered):
    class Noisy(Dataset[Any]):
        def __init__(self, rows: int) -> None:
            self.rows = rows
            self.generator = numpy.random.default_rng(3)

        def __len__(self) -> int:
            return self.rows

        def __getitem__(self, index: int) -> Any:
            return torch.full((FEATURES,), self.generator.random(), dtype=torch.float32), torch.tensor(index % CLASSES)

    def datasets(self) -> Any:
        return super().datasets()[0], self.Noisy(self.held_out or 0)


class CountsForLater(Numbered):
    """A warm-up of the loss that no bit of the first batches tells."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = {"batches": 0}

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self.schedule["batches"] += 1
        return super().loss(model, batch) * (1 if self.schedule["batches"] < 1000 else 2)


class CountsUnderAPrivateName(Numbered):
    """The same, where a number that nothing follows from changes, too."""

    def __init__(self) -> None:
        super().__init__()
        self._batches, self._told = 0, 0.0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self._batches += 1
        self._told += 0.5
        return super().loss(model, batch) * (1 if self._batches < 1000 else 2)


class EndsAPhaseUnderAPrivateName(Numbered):
    """The next batch is the first that tells the end of the phase."""

    def __init__(self) -> None:
        super().__init__()
        self._batches, self.scale = 0, 1

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        loss = super().loss(model, batch) * self.scale
        self._batches += 1
        if self._batches > 1000:
            self.scale = 2
        return loss


class AnnealsUnderAPrivateName(Numbered):
    """No loss is a number where this one is far away."""

    def __init__(self) -> None:
        super().__init__()
        self._scale = 1.0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self._scale *= 1.1
        return super().loss(model, batch) * (1.0 if self._scale < 2 else math.exp(self._scale))


class TakesTurns(Numbered):
    """Which of two places a batch is computed in changes no bit."""

    def __init__(self) -> None:
        super().__init__()
        self._places, self._turn = [torch.zeros(0), torch.zeros(0)], 0

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self._places[self._turn] = batch[0]
        batch = self._places[self._turn], batch[1]
        self._turn = 1 - self._turn
        return super().loss(model, batch)


progress = {"batches": 0}


class CountsInAGlobal(Numbered):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        progress["batches"] += 1
        return super().loss(model, batch)


class DrawsRarely(Numbered):
    class Flipped(Dataset[Any]):
        def __init__(self, rows: int) -> None:
            self.rows = rows
            self.generator = numpy.random.default_rng(3)

        def __len__(self) -> int:
            return self.rows

        def __getitem__(self, index: int) -> Any:
            flipped = self.generator.random() < 1e-9
            return torch.full((FEATURES,), float(index - 2 * index * flipped)), torch.tensor(index % CLASSES)

    def datasets(self) -> Any:
        return self.Flipped(self.rows), None


class AveragesInLoss(Numbered):
    """An average of the weights that each worker would have of its own; it changes no loss, only metrics."""

    def model(self) -> nn.Module:
        model = super().model()
        self.average = AveragedModel(model)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self.average.update_parameters(model)
        return super().loss(model, batch)


class Centred(nn.Linear):
    """Less the mean of what it has put out so far, in a plain attribute."""

    centre: Any = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        centred: Tensor = outputs - self.centre
        return centred


class CentresItsOutput(Numbered):
    def model(self) -> nn.Module:
        return Centred(FEATURES, CLASSES)


class ReadsOtherSamplesInEachProcess(Numbered):
    def inputs(self, rows: int) -> Tensor:
        return torch.from_numpy(numpy.random.default_rng().normal(size=(rows, FEATURES))).float()


class MovesSamplesByItsModel(Numbered):
    """A loader has the first weights for good."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Linear()

    def model(self) -> nn.Module:
        return self.net

    def datasets(self) -> tuple[Dataset[Any], Dataset[Any] | None]:
        train, held_out = super().datasets()
        return _Moved(train, self.net), held_out


class _Moved(Dataset[Any]):
    def __init__(self, samples: Any, net: nn.Linear) -> None:
        self._samples = samples
        self._net = net

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Batch:
        inputs, label = self._samples[index]
        return inputs + self._net.weight[label].detach(), label


class NoMetrics(Numbered):
    def metrics(self, model: nn.Module, batch: Batch) -> Any:  # noqa: ARG002
        return None


class MetricNamesVary(Numbered):
    """As many everywhere, only the names differ."""

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {"with_victim" if _has_victim(batch) else "without": torch.tensor(1.0)}


class MetricCountsVary(Numbered):
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {str(i): torch.tensor(1.0) for i in range(2 if _has_victim(batch) else 1)}


class MetricIsNoScalar(Numbered):
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"logits": model(batch[0])}


class MetricNamedLoss(Numbered):
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": model(batch[0]).mean()}


class EvaluationChangesBuffer(ChangesFixedBuffer):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return Numbered.loss(self, model, batch)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        model.get_buffer("seen").add_(1)
        return super().metrics(model, batch)


class RaisesInOneStep(Optimizing):
    """Only the first optimizer of a run that comes to step 1 fails: what no vote can tell the others."""

    turn: ClassVar[Any] = threading.Lock()  # the threads share it, and no second computation of one puts it back

    class Optimizer(torch.optim.SGD):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.param_groups[0]["steps"] = 0

        def step(self, closure: Any = None) -> Any:
            group = self.param_groups[0]
            group["steps"] += 1
            if group["steps"] == 2 and RaisesInOneStep.turn.acquire(blocking=False):
                raise UserError("no step here")
            return super().step(closure)
