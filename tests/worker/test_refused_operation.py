"""A refused backward pass is named by its line in the user's loss, and one that the loss makes itself is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from orchestrator.common.values import Steps
from orchestrator.config.plan import Compute, Data, Run, Source
from orchestrator.errors import PipelineRaised
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from tests.worker import pipelines as p


class Refused(torch.autograd.Function):
    """Raises in the backward pass as torch does on CUDA. name: by which."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> Any:
        raise RuntimeError(f"{ctx.name} does not have a deterministic implementation, but you set")


class Padded(p.Small):
    refused = "reflection_pad1d_backward_out_cuda"

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        rows = model(batch[0] if isinstance(batch, (list, tuple)) else batch)
        edges = functional.pad(rows.unsqueeze(1), (1, 0), mode="reflect")
        return Refused.apply(edges, self.refused).square().mean()  # type: ignore[no-untyped-call]


class Paired(Padded):
    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        return super().loss(model, batch), 3.0


class Unknown(Padded):
    refused = "odd_cuda"


class Once(Padded):
    """Cannot be computed again."""

    calls = 0

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise ValueError("again")
        return super().loss(model, batch)


class Backward(p.Small):
    """Takes a gradient by itself. Added to that of the whole loss, it would count twice."""

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        loss.backward(retain_graph=True)
        return loss


class Penalised(p.Small):
    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + gradients[0].square().mean()


def adapter(kind: type[p.Small], precision: Any = "float32") -> PipelineAdapter:
    run = Run(Source("p:Padded", {}), Compute("cpu", 1, precision, False), 3, 1, None)
    return PipelineAdapter(kind, run, Data(2, Steps.constant(8), 0))


def refusal(kind: type[p.Small], precision: Any = "float32") -> PipelineRaised:
    made = adapter(kind, precision)
    with pytest.raises(PipelineRaised) as caught:
        made.loss(0, 1)
    assert not torch.is_anomaly_enabled()
    return caught.value


@pytest.mark.parametrize("kind", [Padded, Paired])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_operation_its_line_and_what_to_write_are_named(kind: type[Padded], precision: str) -> None:
    error = refusal(kind, precision)
    assert error.message.startswith("loss() (step 0, shard 1) uses an operation whose bits could not be repeated")
    assert "kernel: padding by reflection, but for images\n" in error.message
    assert error.message.endswith('in loss: edges = functional.pad(rows.unsqueeze(1), (1, 0), mode="reflect")')
    assert error.remedy.startswith("instead: mode='replicate'; of a sequence")
    assert (error.code, error.recurs) == ("pipeline.nondeterministic", True)


def test_an_operation_of_no_table_is_told_by_its_name() -> None:
    assert "kernel: odd_cuda\n" in refusal(Unknown).message


def test_a_loss_that_cannot_be_computed_again_hides_nothing() -> None:
    error = refusal(Once)
    assert "kernel: padding by reflection, but for images\n" in error.message
    assert "again" not in error.message


def test_a_loss_that_takes_gradients_by_itself_is_refused() -> None:
    error = refusal(Backward)
    assert error.message == "loss() (step 0, shard 1) gave the parameter 'weight' a gradient"
    assert error.remedy.startswith("return the sum of all losses, and leave backward() out")
    assert error.code == "pipeline.loss-backward"


def test_a_penalty_on_gradients_is_none() -> None:
    assert adapter(Penalised).loss(0, 1) is not None
