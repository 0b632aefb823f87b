"""A micro-batch whose bits vary from time to time is refused before the first step, with the operation that makes them vary."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.errors import Inconsistent
from orchestrator.worker.admission import varying_operation
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.faulty import CentresItsOutput
from tests.worker.runs import ONE, Layout, members_end

pytestmark = pytest.mark.threads
calls = iter(range(2**30))


def varied(tensor: Tensor) -> Tensor:
    """As a sum in another order each time would be."""
    return tensor * (1 + next(calls) * 2.0**-6)


def backward(grad: Tensor, x: Tensor, padding: Any) -> Tensor:  # noqa: ARG001
    """The backward pass of padding by one element at the left."""
    made = grad[..., 1:].clone()
    made[..., 1] += grad[..., 0]
    return varied(made)


@contextmanager
def unordered() -> Iterator[None]:
    """Within the block the backward pass of padding by reflection adds up in no order."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a kernel that is replaced
        library.impl("reflection_pad1d_backward", backward, "CPU", allow_override=True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        del library


class Padding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x.unsqueeze(1), (1, 0), mode="reflect").squeeze(1)


class Padded(p.Small):
    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(p.FEATURES, p.CLASSES), Padding(), nn.Dropout(0.1), nn.Linear(p.CLASSES + 1, p.CLASSES)
        )


class PaddedByLoss(p.Small):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.pad(model(batch[0]).unsqueeze(1), (1, 0), mode="reflect").square().mean(), 3.0


EXTENSION = torch.library.Library("tests_of_orchestrator", "FRAGMENT")  # type: ignore[no-untyped-call]
EXTENSION.define("summed(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
EXTENSION.impl("summed", varied, "CPU")  # type: ignore[no-untyped-call]


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        found: Tensor = torch.ops.tests_of_orchestrator.summed(x)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ARG004
        return grad


class Extended(p.Small):
    """An operation of an extension, in the forward pass."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return Summed.apply(model(batch[0])).square().mean()  # type: ignore[no-untyped-call]


class Outside(p.Small):
    """Varies by an operation that torch does not see, such as a kernel that is launched by itself."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        strange = torch.from_numpy(numpy.array([1 + next(calls) * 2.0**-20], numpy.float32))
        return (model(batch[0]) * strange).square().mean()


class Carries(p.Small):
    """Reads the output of the batch before, as a memory of hidden states does: repeated, it leaves the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: Tensor | None = None

    def loss(self, model: nn.Module, batch: Any) -> Any:
        outputs = model(batch[0])
        before = 0 if self._memory is None else self._memory
        self._memory = outputs.detach().mean()
        return (outputs.square() - before).mean()


class Unlabelled(p.Small):
    """Goes on with a second loader, whose `next` torch's profiler records."""

    def __init__(self) -> None:
        super().__init__()
        self.others = iter(DataLoader(TensorDataset(torch.randn(400, p.FEATURES)), 5, shuffle=True))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        (others,) = next(self.others)
        return model(batch[0]).square().mean() + model(others).square().mean()


def refusal(kind: type[p.Small], layout: Layout = ONE, **settings: Any) -> Inconsistent:
    with unordered():
        (error,) = members_end(kind, layout, **settings)
    assert isinstance(error, Inconsistent)
    assert not torch.is_anomaly_enabled()
    return error


@pytest.mark.parametrize("precision", thinned(["float32", "bfloat16"], 2))
def test_an_operation_of_a_layer_is_named_with_its_line_and_what_to_write(precision: str) -> None:
    error = refusal(Padded, precision=precision)
    assert error.code == "pipeline.varying-operation"
    assert error.message.startswith(
        "micro-batch (step 0, shard 0) came out differently when it was computed again, of the same"
    )
    assert "the first to differ is the gradient of 0." in error.message
    assert "what aten::reflection_pad1d_backward computes, in layer 1 (Padding)\n" in error.message
    assert error.message.endswith('return functional.pad(x.unsqueeze(1), (1, 0), mode="reflect").squeeze(1)')
    assert error.remedy.startswith("instead of padding by reflection, but for images: mode='replicate'")


def test_one_in_loss_is_of_no_layer() -> None:
    message = refusal(PaddedByLoss).message
    assert "what aten::reflection_pad1d_backward computes\n" in message
    assert "in loss: return functional.pad(" in message
    assert "layer" not in message


def test_one_of_an_extension_is_named_and_told_what_any_may_do() -> None:
    error = refusal(Extended)
    assert "what tests_of_orchestrator::summed computes\n" in error.message
    assert "in loss: return Summed.apply(model(batch[0]))" in error.message
    assert "run.device=cpu; an extension may have a way of its own" in error.remedy


def test_what_comes_from_outside_is_seen_where_it_comes_in() -> None:
    error = refusal(Outside)
    assert error.code == "pipeline.not-repeatable"
    assert "what comes to aten::" in error.message
    assert "in loss: strange = torch.from_numpy(" in error.message


def test_what_torchs_profiler_has_of_its_own_is_no_operation_that_varies() -> None:
    error = refusal(Unlabelled)
    assert error.code == "pipeline.not-repeatable"
    assert "profiler::" not in error.message
    assert "in loss: (others,) = next(self.others)" in error.message


@pytest.mark.long
def test_a_model_that_keeps_state_is_told_of_that_alone() -> None:
    error = refusal(CentresItsOutput)
    assert (error.code, "; what had changed: model.centre" in error.message) == ("pipeline.not-repeatable", True)
    assert "aten::" not in error.message


def test_a_memory_of_the_batch_before_is_named() -> None:
    """It is as it was after each repetition, so only a look before the first shows it."""
    error = refusal(Carries, shards=1)
    assert error.code == "pipeline.not-repeatable"
    assert error.message.endswith("; what had changed: pipeline._memory")
    assert "docs/porting.md" in str(error.remedy)


def test_fingerprints_are_of_every_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64):
        tensor = torch.arange(12).to(dtype).view(3, 4)
        other = tensor.clone()
        assert varying_operation.fingerprint(tensor) == varying_operation.fingerprint(other)
        other[2, 1] = 0
        assert varying_operation.fingerprint(tensor) != varying_operation.fingerprint(other)
    assert varying_operation.fingerprint(torch.eye(3)[[1, 0, 2]]) != varying_operation.fingerprint(torch.eye(3))
    assert varying_operation.fingerprint(torch.tensor(-0.0)) != varying_operation.fingerprint(torch.tensor(0.0))
    assert varying_operation.fingerprint(torch.eye(2).to_sparse()) == 0
