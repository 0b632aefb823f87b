"""The operations that a sample takes are counted once, on one micro-batch, and nothing of that is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from orchestrator.config.resolve import resolve
from orchestrator.numerics import flop_counting
from orchestrator.numerics.digests import model_digest
from orchestrator.worker.admission import proof
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.runs import settings_for


def made(pipeline: type[p.Small]) -> tuple[PipelineAdapter, Replica]:
    plan = resolve(settings_for(pipeline))
    workload = PipelineAdapter(pipeline, plan.run, plan.data)
    return workload, Replica(workload.model)


def test_products_count_forward_and_backward() -> None:
    layer, rows = torch.nn.Linear(8, 4), torch.ones(5, 8)
    found = flop_counting.counted(lambda: layer(rows).sum().backward())
    assert found == 2 * (2 * 5 * 8 * 4)  # no gradient of the rows


def attention() -> torch.Tensor:
    query = torch.ones(2, 3, 5, 4, requires_grad=True)
    return functional.scaled_dot_product_attention(query, query, query).sum()


@pytest.mark.parametrize(
    "compute",
    [
        lambda: attention().backward(),  # type: ignore[no-untyped-call]
        lambda: nn.Bilinear(3, 4, 5)(torch.ones(2, 3), torch.ones(2, 4)).sum().backward(),
        lambda: nn.Conv2d(2, 3, 3)(torch.ones(1, 2, 8, 8)).sum().backward(),
        lambda: nn.LSTM(4, 5)(torch.ones(3, 2, 4))[0].sum().backward(),
        lambda: checkpoint(nn.Linear(3, 4), torch.ones(2, 3, requires_grad=True), use_reentrant=False).sum().backward(),
    ],
)
def test_the_count_is_that_of_torchs_own_counter(compute: Callable[[], object]) -> None:
    with FlopCounterMode(display=False) as counter:
        compute()
    assert flop_counting.counted(compute) == counter.get_total_flops()


def test_what_is_computed_in_inference_mode_counts_too() -> None:
    layer = nn.Linear(8, 4)

    def compute() -> None:
        with torch.inference_mode():
            layer(torch.ones(5, 8))

    assert flop_counting.counted(compute) == 2 * 5 * 8 * 4


def test_counting_does_not_import_torchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take seconds of each start on a GPU."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import raises
    flop_counting.counted(lambda: nn.Linear(8, 4)(torch.ones(5, 8)).sum().backward())


def test_a_sample_of_a_pipeline_is_counted_and_nothing_is_left() -> None:
    workload, replica = made(p.Mlp)
    before = model_digest(workload.model), proof.fingerprint(workload, replica, 0)
    found = proof.flops_per_sample(workload, replica)
    weights = [each for each in workload.model.parameters() if each.dim() == 2]
    assert found is not None
    assert 4 * sum(each.numel() for each in weights) <= found <= 6 * sum(each.numel() for each in weights)
    assert all(each.grad is None for each in workload.model.parameters())
    assert (model_digest(workload.model), proof.fingerprint(workload, replica, 0)) == before


def test_a_micro_batch_that_fails_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, replica = made(p.Mlp)
    monkeypatch.setattr(type(workload.pipeline), "loss", f.RaisesInLoss.loss)
    assert proof.flops_per_sample(workload, replica) is None
