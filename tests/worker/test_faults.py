"""Every fault of a pipeline becomes one kind of error that names the place, and no member waits for one that has left.

A fault is met by the member that has it; the others withdraw or lose it. Which layouts a fault is tried on rotates.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.comm.transports.base import Received, Tag, Transport
from orchestrator.config.settings import Every
from orchestrator.errors import (
    CardFailed,
    ConfigurationError,
    Inconsistent,
    NonFinite,
    OrchestratorError,
    PipelineRaised,
)
from orchestrator.pipeline import Pipeline
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.training_samples import length_of
from orchestrator.worker.worker import Ended
from tests.comm.transports.memory import Hub, LocalRegions
from tests.products import thinned
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.runs import LAYOUTS, ONE, End, Layout, members_end, rotating, train

pytestmark = pytest.mark.threads


@dataclass(frozen=True)
class Fault:
    pipeline: type[Pipeline]
    kind: type[OrchestratorError]
    words: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.pipeline.__name__


OWN: dict[str, Any] = {"optimizer": None}
OWN_SHARDS: dict[str, Any] = {"claims": False}  # who computes nothing in a step changes nothing in it
CALIBRATING: dict[str, Any] = {"evaluate_every": Every(steps=1), **OWN_SHARDS}
UNSEEN: dict[str, Any] = {"args": {"held_out": None}}
COMPILED = Fault(f.Compiled, PipelineRaised, ("'0'", "torch.compile"))
PREPARING = [
    Fault(f.RaisesInInit, PipelineRaised, ("__init__", "UserError: no such file", "faulty.py")),
    Fault(f.RaisesInDatasets, PipelineRaised, ("datasets()", "UserError: no such file", "faulty.py")),
    Fault(f.RaisesInModel, PipelineRaised, ("model()", "UserError: no such file")),
    Fault(f.RaisesInOptimizer, PipelineRaised, ("optimizer()", "UserError: no such file"), OWN),
    Fault(f.ModelIsNoModule, PipelineRaised, ("model()", "str")),
    Fault(f.OneDataset, PipelineRaised, ("datasets()", "TensorDataset", "(train, None)")),
    Fault(f.ThreeDatasets, PipelineRaised, ("datasets()", "a list of 3", "(train, None)")),
    Fault(f.NoLength, PipelineRaised, ("training", "__len__")),
    Fault(f.TrainingLoader, PipelineRaised, ("training", "DataLoader", "return its dataset")),
    Fault(f.SamplesByNumber, PipelineRaised, ("training", "dict with the key 0", "as a list")),
    Fault(f.RaisingLength, PipelineRaised, ("len() of the training dataset", "not counted yet")),
    Fault(f.EmptyTraining, PipelineRaised, ("training dataset is empty",)),
    Fault(f.ValidationByName, PipelineRaised, ("the validation dataset is a dict of 2 data sets", "ConcatDataset")),
    Fault(f.ListOfTraining, PipelineRaised, ("the training dataset is a list of 2 data sets", "data.mixture")),
    Fault(f.FrameOfTraining, PipelineRaised, ("training", "DataFrame of pandas", "to_dict('records')")),
    Fault(f.StreamedTraining, PipelineRaised, ("training", "Streamed", "__getitem__")),
    Fault(f.StreamedValidation, PipelineRaised, ("validation", "Streamed", "__getitem__")),
    Fault(f.OptimizerOfAnotherKind, PipelineRaised, ("optimizer()", "LBFGS", "calls the model again", "adamw"), OWN),
    Fault(f.SeveralOptimizers, PipelineRaised, ("optimizer()", "tuple", "one"), OWN),
    Fault(f.BuildsASchedule, PipelineRaised, ("optimizer() builds a scheduler, LambdaLR", "rate(self, step)"), OWN),
    Fault(f.BuildsAPlateau, PipelineRaised, ("optimizer() builds a scheduler, ReduceLROnPlateau", "alone"), OWN),
    Fault(f.SchedulesByItself, PipelineRaised, ("a scheduler", "'initial_lr'", "rate(self, step)"), OWN),
    Fault(f.StateOfNobody, PipelineRaised, ("optimizer() keeps state for 'all'", "param_groups"), OWN),
    Fault(f.RateOfSeveralNumbers, PipelineRaised, ("optimizer()", "without a learning rate"), OWN),
    Fault(f.TrainsItself, PipelineRaised, ("train(loader, optimizer) stands in the place of torch's train()", "name")),
    Fault(f.LayerTrainsItself, PipelineRaised, ("the model's 0.train(loader, optimizer) stands in the place",)),
    Fault(f.HoldsItsTrainingData, PipelineRaised, ("the model's train, a list, stands in the place of torch's",)),
    Fault(f.EvaluatesItself, PipelineRaised, ("eval(loader) stands in the place of torch's eval()",)),
    Fault(f.RaisesInTrain, PipelineRaised, ("train() of the model raised UserError: no mode", "faulty.py")),
    Fault(f.RaisesInEval, PipelineRaised, ("eval() of the model raised UserError: no mode", "faulty.py")),
    Fault(f.WithoutSuper, PipelineRaised, ("reading the model's layers raised AttributeError",)),
    Fault(f.NamesNoParameters, PipelineRaised, ("reading the model's parameters", "UserError: no names")),
    Fault(f.RaisesInExtraState, PipelineRaised, ("state_dict() of the model raised UserError: no state",)),
    Fault(f.KeepsAnOddObject, PipelineRaised, ("looking at what the pipeline", "UserError: no attribute")),
    Fault(f.HidesItsLength, PipelineRaised, ("len() of the training dataset raised UserError: no attribute",)),
    Fault(f.MetricNamedByNumber, PipelineRaised, ("metrics()", "named by a int", "text")),
    Fault(f.RaisesInRate, PipelineRaised, ("rate() (step 0) raised UserError: no factor", "faulty.py")),
    Fault(f.RateIsNoNumber, PipelineRaised, ("rate() (step 0) returned None", "a number")),
    Fault(f.RateIsNegative, PipelineRaised, ("rate() (step 0) returned -1", "0 or more")),
    Fault(f.CountsItsRates, Inconsistent, ("rate(0) came out differently", "no state")),
    Fault(f.NoRate, PipelineRaised, ("optimizer()", "Sign", "learning rate", "lr"), OWN),
    Fault(f.NoOptimizer, PipelineRaised, ("optimizer()", "NoneType"), OWN),
    Fault(f.OptimizerOfStrangers, PipelineRaised, ("optimizer()", "(4, 3)", "no parameter of the model"), OWN),
    Fault(f.Numbered, ConfigurationError, ("optimizer", "required"), OWN),
    Fault(f.DoublePrecision, PipelineRaised, ("'1.weight'", "torch.float64", "torch.float32")),
    Fault(f.LazyParameter, PipelineRaised, ("parameter '0.weight'", "no shape")),
    Fault(f.Scripted, PipelineRaised, ("the module '1'", "TorchScript")),
    Fault(f.Exported, PipelineRaised, ("the module '0'", "torch.export", "load_state_dict")),
    Fault(f.LazyBuffer, PipelineRaised, ("buffer '1.running_mean'", "no shape")),
    Fault(f.MetaDevice, PipelineRaised, ("parameter 'weight'", "meta")),
    Fault(f.SharedStorage, PipelineRaised, ("'0.weight' and '1.weight'", "share memory")),
    Fault(f.Expanded, PipelineRaised, ("elements of the parameter 'weight' share memory",)),
    Fault(f.SharedWithBuffer, PipelineRaised, ("the buffer 'view' lies in the memory of the parameter 'weight'",)),
    Fault(f.MarkedParameter, PipelineRaised, ("parameter 'weight'", "faulty.Marked", "in forward()")),
    Fault(f.ScaledParameter, PipelineRaised, ("parameter '0.weight'", "faulty.Scaled", "in forward()")),
    Fault(f.SparseBuffer, PipelineRaised, ("buffer 'adjacency'", "sparse", "plain attribute")),
    Fault(f.NothingToTrain, PipelineRaised, ("no parameter", "gradient")),
    COMPILED,
    Fault(f.CompiledByLoss, PipelineRaised, ("compiled while a batch was computed", "torch.compile")),
    Fault(f.RaisesInMetrics, PipelineRaised, ("evaluation", "before the first step, validation batch 1", "no metric")),
    Fault(
        f.KeepsStateInMetrics,
        Inconsistent,
        ("validation batch 0", "pipeline.rows_so_far", "means over their own batch"),
    ),
    Fault(
        f.DrawsForItselfInValidation,
        Inconsistent,
        ("validation batch 0", "validation.generator", "randomness only from"),
    ),
    Fault(f.CountsForLater, Inconsistent, ("pipeline.schedule['batches'] changed", "step 0, shard 0", "no state")),
    Fault(f.AnnealsUnderAPrivateName, Inconsistent, ("when pipeline._scale was another number",)),
    Fault(f.EndsAPhaseUnderAPrivateName, Inconsistent, ("when pipeline._batches was another number",)),
    Fault(f.CountsUnderAPrivateName, Inconsistent, ("when pipeline._batches was another number", "parameter `step`")),
    Fault(f.CountsInAGlobal, Inconsistent, ("tests.worker.faulty.progress['batches'] changed", "no state")),
    Fault(f.DrawsRarely, Inconsistent, ("train.generator changed", "step 0, shard 0", "no state")),
    Fault(f.AveragesInLoss, Inconsistent, ("pipeline.average.n_averaged", "step 0, shard 0", "frozen copy")),
    Fault(f.CentresItsOutput, Inconsistent, ("differently", "what had changed: model.centre", "no state")),
    Fault(f.NoMetrics, PipelineRaised, ("metrics()", "NoneType", "{}")),
    Fault(f.MetricIsNoScalar, PipelineRaised, ("metrics()", "validation batch 0", "'logits'", "shape (2, 3)")),
    Fault(f.MetricNamedLoss, PipelineRaised, ("metrics()", "'loss'")),
    Fault(f.EvaluationChangesBuffer, PipelineRaised, ("'seen'", "changed")),
]
COMPUTING = [
    Fault(f.BeginsAPhaseOnce, Inconsistent, ("new value of pipeline.factor", "in each call"), OWN_SHARDS),
    Fault(f.OptimizerAnneals, PipelineRaised, ("its pipeline's attribute 'factor'", "frozen parameters"), OWN),
    Fault(f.EvaluationCalibrates, Inconsistent, ("new value of pipeline.factor",), CALIBRATING),
    Fault(f.FreezesALayerOnce, Inconsistent, ("without the new value of model.0.training",), OWN_SHARDS),
    Fault(
        f.FreezesParametersOnce, Inconsistent, ("without the new value of ", "model.0.bias.requires_grad"), OWN_SHARDS
    ),
    Fault(
        f.RemembersAfterAWarmUp, Inconsistent, ("step ", "a buffer of the model with a rule in buffers()"), OWN_SHARDS
    ),
    Fault(f.CopiesAtAStep, Inconsistent, ("step ", "new value of ", "pipeline.earlier", "in each call"), OWN_SHARDS),
    Fault(f.TellsTheLastLoss, Inconsistent, ("after step ", "validation batch", "of pipeline.last"), CALIBRATING),
    Fault(f.TellsAnAverage, Inconsistent, ("after step ", "value of pipeline.average"), CALIBRATING),
    Fault(f.MovesATarget, Inconsistent, ("before step ", "pipeline.target.", "frozen copy"), OWN_SHARDS),
    Fault(f.LeavesAParameterUnwritten, NonFinite, ("loss is nan", "the parameter 'bias' of the model holds NaN")),
    Fault(f.NanLoss, NonFinite, ("loss is nan", "step 1, shard 3 (training samples ")),
    Fault(f.InfiniteLoss, NonFinite, ("loss is inf", "step 1, shard 3 (training samples ")),
    Fault(f.NanGradient, NonFinite, ("gradient of bias", "step 1, shard 3 (training samples ")),
    Fault(f.InfiniteStatistic, NonFinite, ("statistic 2.running_var", "step 0, shard 0")),
    Fault(
        f.RaisesInLoss,
        PipelineRaised,
        ("loss()", "step 1, shard 3", "UserError: cannot read row 3", "faulty.py"),
        UNSEEN,
    ),
    Fault(f.ExitsInLoss, PipelineRaised, ("loss()", "step 0, shard 0", "SystemExit: no licence", "faulty.py"), UNSEEN),
    Fault(f.StopsIteration, PipelineRaised, ("loss()", "step 0, shard 0", "StopIteration")),
    Fault(f.RaisesInCollate, PipelineRaised, ("reading samples", "step 0, shard 0", "different lengths")),
    Fault(f.RaisesInDataset, PipelineRaised, ("reading samples", "step 0, shard", "cannot read row 3")),
    Fault(f.LossPerRow, PipelineRaised, ("loss()", "shape (0,)", "scalar")),
    Fault(f.LossIsNumber, PipelineRaised, ("loss()", "float", "scalar")),
    Fault(f.LossIsInteger, PipelineRaised, ("loss()", "torch.int64", "scalar")),
    Fault(f.LossWithoutGraph, PipelineRaised, ("loss()", "step 0, shard 0", "does not require grad")),
    Fault(f.NegativeWeight, PipelineRaised, ("weight -1.0",)),
    Fault(f.NanWeight, PipelineRaised, ("weight nan",)),
    Fault(f.EnormousWeight, PipelineRaised, ("weight 1e+300",)),
    Fault(f.TwoWeights, PipelineRaised, ("loss()", "step 0, shard 0", "shape (2,)", "no weight")),
    Fault(f.LossWithOutputs, PipelineRaised, ("loss()", "step 0, shard 0", "shape (2, 3)", "no weight")),
    Fault(f.LossWithAPart, PipelineRaised, ("loss()", "step 0, shard 0", "follows from the parameters")),
    Fault(f.ZeroWeights, PipelineRaised, ("step 0", "weights of all shards are zero")),
    Fault(f.ChangesFixedBuffer, PipelineRaised, ("'seen'", "changed")),
    Fault(f.ChangesFixedBufferForNothing, PipelineRaised, ("'seen'", "changed")),
    Fault(f.ReplacesFixedBuffer, PipelineRaised, ("'seen'", "replaced", "in place")),
    Fault(f.ReplacesCounter, PipelineRaised, ("'batches'", "replaced")),
    Fault(f.CountsRows, PipelineRaised, ("'batches'", "different values")),
    Fault(f.ReplacesStatistics, PipelineRaised, ("'1.running_mean'", "replaced")),
    Fault(f.AddsBuffer, PipelineRaised, ("'cache'", "added", "make all buffers in model()")),
    Fault(f.Clamped, PipelineRaised, ("parameter 'weight'", "changed in place")),
    Fault(f.ClampedThroughData, PipelineRaised, ("parameter 'weight'", "changed in place")),
    Fault(f.Flattened, PipelineRaised, ("parameter 'weight'", "changed in place", "flatten_parameters()")),
    Fault(f.Teacher, PipelineRaised, ("parameter 'teacher.", "changed in place")),
    Fault(f.FrozenTeacher, PipelineRaised, ("parameter 'teacher.", "changed in place")),
    Fault(f.ExchangedTeacher, PipelineRaised, ("parameter 'teacher.", "changed in place")),
    Fault(f.Unfreezes, PipelineRaised, ("parameter '0.weight', frozen", "gradient")),
    Fault(f.Grows, PipelineRaised, ("module 'head'", "added", "model()")),
    Fault(f.Reparametrized, PipelineRaised, ("parameter 'weight'", "replaced", "model()")),
    Fault(f.DropsWeight, PipelineRaised, ("parameter 'weight'", "added", ".clone()")),
    Fault(f.MaxNorm, PipelineRaised, ("parameter 'weight'", "max_norm")),
    Fault(f.SparseGradient, PipelineRaised, ("parameter 'weight'", "sparse")),
    Fault(f.ReusesGradient, PipelineRaised, ("gradient of 'weight'", "overwritten", "new tensor")),
    Fault(f.ReusesGradientInHook, PipelineRaised, ("gradient of 'weight'", "overwritten", "new tensor")),
    Fault(f.KeepsState, Inconsistent, ("step 0", "shard 0", "no state")),
    Fault(f.KeepsStateInWeights, Inconsistent, ("step 0", "shard 0", "no state")),
    Fault(f.DrawsForItself, Inconsistent, ("step 0", "shard 0", "no state")),
    Fault(f.RaisesInStep, PipelineRaised, ("optimizer", "step 0", "UserError: no step"), OWN),
    Fault(f.CountsInOptimizer, PipelineRaised, ("optimizer", "'decay'", "step 0", "param_groups"), OWN),
    Fault(f.AveragesInOptimizer, PipelineRaised, ("optimizer", "'slow'", "step 1", "param_groups"), OWN),
    Fault(f.CountsInAHook, PipelineRaised, ("optimizer", "its hooks", "step 0", "param_groups"), OWN),
    Fault(f.KeepsAParameter, PipelineRaised, ("optimizer", "'slow'", "clone()"), OWN),
    Fault(f.RemovesOption, PipelineRaised, ("optimizer", "'steps' in its param_groups", "leave the groups"), OWN),
    Fault(f.ExchangesAFunction, PipelineRaised, ("optimizer", "'filter' in its param_groups"), OWN),
    Fault(f.AveragesBeside, PipelineRaised, ("optimizer", "'average'", "step 0", "frozen parameters"), OWN),
    Fault(f.Anneals, PipelineRaised, ("optimizer", "buffer 'temperature'", "step 0", "frozen one"), OWN),
    Fault(
        f.FreezesAfterAStep,
        PipelineRaised,
        ("optimizer", "froze or thawed the parameter 'weight'", "step 0", "lr=0"),
        OWN,
    ),
    Fault(f.KeepsAFactorOfTheStep, PipelineRaised, ("rate()", "'factor'", "step 1", "step=0)")),
    Fault(f.KeepsAStateForAll, PipelineRaised, ("optimizer", "its state of 'all'", "step 0"), OWN),
    Fault(f.SetsRatesInStep, PipelineRaised, ("changed its learning rate", "step 0", "`schedule`"), OWN),
    Fault(f.ChangesBetasInLoss, PipelineRaised, ("'betas'", "param_groups", "while a batch"), OWN),
    Fault(f.ChangesAListOfGroupsInLoss, PipelineRaised, ("'betas'", "param_groups", "while a batch"), OWN),
    Fault(f.KeepsGradientsInAQueue, PipelineRaised, ("optimizer keeps a collections.deque", "lists, tuples"), OWN),
    Fault(f.KeepsGradientsAsArrays, PipelineRaised, ("optimizer keeps a numpy.ndarray", "tensors"), OWN),
    Fault(f.RaisesInALaterRate, PipelineRaised, ("rate() (step 2) raised IndexError", "faulty.py")),
    Fault(f.ArrayInParamGroups, PipelineRaised, ("param_groups of the optimizer raised ValueError",), OWN),
    Fault(f.WantsAClosure, PipelineRaised, ("optimizer", "step 0", "closure"), OWN),
    Fault(f.RaisesInLaterMetrics, PipelineRaised, ("evaluation", "after step 4, validation batch 2", "no metric")),
    Fault(f.MetricNamesVary, PipelineRaised, ("metrics()", "names", "batch")),
    Fault(f.MetricCountsVary, PipelineRaised, ("metrics()", "names", "batch")),
]


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=pytest.mark.long) if each is COMPILED else each for each in PREPARING], ids=str
)
def test_a_fault_is_found_before_anything_runs(fault: Fault) -> None:
    (end,) = members_end(fault.pipeline, **fault.settings)
    assert isinstance(end, fault.kind)
    _assert_tells(end, fault)


@pytest.mark.parametrize("number", thinned(range(len(COMPUTING)), 12), ids=lambda number: str(COMPUTING[number]))
def test_one_tells_and_all_end(number: int) -> None:
    fault = COMPUTING[number]
    _assert_one_tells(fault, (ONE, *rotating(1, number)))


def test_a_private_number_that_no_bit_follows_from_may_change() -> None:
    assert train(f.TakesTurns, shards=1).digest == train(f.Numbered, shards=1).digest


@pytest.mark.long
@pytest.mark.parametrize("fault", COMPUTING, ids=str)
def test_one_tells_and_all_end_on_every_layout(fault: Fault) -> None:
    _assert_one_tells(fault, LAYOUTS)


@pytest.mark.parametrize("compression", [None, {"name": "topk", "ratio": 0.5}], ids=str)
def test_gradients_in_one_array_are_told_where_they_wait_for_each_other(compression: dict[str, Any] | None) -> None:
    """No version tells: numpy has written there."""
    (end,) = members_end(f.ReusesAnArray, compression=compression)
    assert isinstance(end, PipelineRaised)
    assert "the gradient of 'weight' was overwritten" in str(end)


def _assert_one_tells(fault: Fault, layouts: Sequence[Layout]) -> None:
    for layout in layouts:
        ends = members_end(fault.pipeline, layout, **fault.settings)
        assert all(isinstance(end, fault.kind) or _left(end) in ("withdrew", "peer") for end in ends), (layout, ends)
        told = [end for end in ends if isinstance(end, fault.kind)]
        assert told
        for end in told:
            _assert_tells(end, fault)


def _left(end: End) -> str | None:
    return end.kind if isinstance(end, Ended) else None


def _assert_tells(end: End, fault: Fault) -> None:
    assert isinstance(end, OrchestratorError)
    for word in fault.words:
        assert word in str(end)
    _, *aside = end.remedy.splitlines() or [""]
    assert aside in ([], ["  the full traceback is in the run's folder, in error.txt"])


def test_the_first_failing_shard_tells_on_every_layout() -> None:
    """Several shards fail in one step; the lowest has the word, whoever hosts it."""
    for layout in (ONE, Layout(3), Layout(5, "tree"), Layout(4, "parameter_server", servers=2)):
        ends = members_end(f.StopsIteration, layout)
        told = [str(end) for end in ends if isinstance(end, PipelineRaised)]
        assert len(told) == 1
        assert "shard 0" in told[0]


WHERE = {
    "loss() (step 0, shard 0)": {"victim": None},
    "loss() (step 1, shard 3)": {"held_out": None},
    "evaluation (before the first step, validation batch 1)": {},
}


@pytest.mark.parametrize("where", WHERE)
def test_what_the_gpu_failed_of_is_told_though_it_restores_nothing(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    begin_shard = Replica.begin_shard

    def restore(replica: Replica) -> None:
        if f.FailsOnTheGpu.failed:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        begin_shard(replica)

    monkeypatch.setattr(f.FailsOnTheGpu, "failed", False)
    monkeypatch.setattr(Replica, "begin_shard", restore)
    (left,) = members_end(f.FailsOnTheGpu, args=WHERE[where])
    assert isinstance(left, CardFailed)  # no vote: another worker may compute it
    end = left.error
    assert isinstance(end, PipelineRaised)
    assert f"{where} raised AcceleratorError: CUDA error: device-side assert triggered" in end.message
    assert "faulty.py" in end.message
    assert "look for an index or a label out of range" in end.remedy


def test_the_traceback_is_kept_whole() -> None:
    (end,) = members_end(f.RaisesInLoss)
    assert isinstance(end, PipelineRaised)
    assert end.details.startswith("Traceback")
    assert "UserError: cannot read row 3" in end.details
    assert "site-packages" not in end.message


@pytest.mark.parametrize("topology", thinned(TOPOLOGIES, 2))
def test_nobody_waits_for_one_whose_optimizer_fails(topology: str) -> None:
    f.RaisesInOneStep.turn = threading.Lock()
    ends = members_end(f.RaisesInOneStep, Layout(4, topology), **OWN)
    assert [type(end).__name__ for end in ends if _left(end) != "peer"] == ["PipelineRaised"]
    assert all(end.accuses is None for end in ends if isinstance(end, Ended))  # it is alive and has said farewell


@pytest.mark.parametrize("fatal", thinned([0, 3, 7], 3, 1))
@pytest.mark.parametrize("topology", thinned(TOPOLOGIES, 4))
def test_nobody_waits_for_the_dead(topology: str, fatal: int) -> None:
    """Any member may die at any of its messages, a server too; the others lose it and end."""
    for victim in range(4 if topology == "parameter_server" else 3):

        def wire(hub: Hub, rank: int, regions: LocalRegions, victim: int = victim) -> Transport:
            transport = hub.transport(rank, regions)
            return Mortal(transport, hub, rank, fatal) if rank == victim else transport

        ends = members_end(p.Mlp, Layout(3, topology), wire)
        survivors = [end for rank, end in enumerate(ends) if rank != victim]
        assert all(_left(end) == "peer" for end in survivors), ends
        assert {end.accuses for end in survivors if isinstance(end, Ended)} <= {victim, None}
        assert any(end.accuses == victim for end in survivors if isinstance(end, Ended))


class Mortal:
    """A transport whose member dies instead of sending its message number `fatal`."""

    def __init__(self, inner: Transport, hub: Hub, rank: int, fatal: int) -> None:
        self._hub, self._rank, self._left = hub, rank, fatal
        self._inner = inner
        self.receive, self.poll, self.flush = inner.receive, inner.poll, inner.flush
        self.travels, self.close, self.abort = inner.travels, inner.close, inner.abort

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def send(self, peer: int, tag: Tag, payload: torch.Tensor, note: int = 0, *, done: bool = False) -> None:
        if self._left == 0:
            self._hub.kill(self._rank)
        self._left -= 1
        self._inner.send(peer, tag, payload, note, done=done)


class Dawdling:
    """A transport that gets to a message of member 0 in step 1 only when member 0 is gone."""

    def __init__(self, inner: Transport, hub: Hub) -> None:
        self._hub = hub
        self._inner = inner
        self.send, self.poll, self.flush = inner.send, inner.poll, inner.flush
        self.travels, self.close, self.abort = inner.travels, inner.close, inner.abort

    @property
    def sent_bytes(self) -> int:
        return self._inner.sent_bytes

    def receive(self, peer: int, tag: Tag, timeout_s: float) -> Received:
        if (peer, tag.step) == (0, 1):
            with self._hub.changed:
                assert self._hub.changed.wait_for(lambda: self._hub.states[0].name != "HERE", timeout_s)
        return self._inner.receive(peer, tag, timeout_s)


def test_who_withdraws_takes_nobody_the_story() -> None:
    """In a ring of three, member 0 learns of the fault first and ends, member 1 passes it on late, member 2 has it."""

    def wire(hub: Hub, rank: int, regions: LocalRegions) -> Transport:
        transport = hub.transport(rank, regions)
        return Dawdling(transport, hub) if rank == 1 else transport

    ends = members_end(f.RaisesInLoss, Layout(3), wire, shards=10, claims=False)
    assert [_left(end) for end in ends] == ["withdrew", "withdrew", None]
    assert isinstance(ends[2], PipelineRaised)


class Rows(Mapping[str, torch.Tensor]):
    """Tensors by name that are read by number, as a TensorDict is."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __getitem__(self, key: Any) -> Any:
        return {"x": torch.zeros(2)}

    def __contains__(self, key: object) -> bool:
        raise RuntimeError("key must be a str")


def test_tensors_by_name_that_are_read_by_number_are_one_data_set() -> None:
    assert length_of(Rows(), "training") == 3
