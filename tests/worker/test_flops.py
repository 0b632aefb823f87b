"""The operations that a sample takes are counted once, on one micro-batch, and nothing of that is kept."""

from __future__ import annotations

import pytest
import torch

from orchestrator.config.resolve import resolve
from orchestrator.numerics import flops
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
    found = flops.counted(lambda: layer(rows).sum().backward())
    assert found == 2 * (2 * 5 * 8 * 4)  # no gradient of the rows


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
