"""The memory that a worker of a stage needs of a GPU: activations count as often as micro-batches are under way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import Steps
from orchestrator.config.plan import Plan, Variant
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import (
    ClusterSettings,
    DataSettings,
    PipelineSettings,
    RunSettings,
    Settings,
    Workers,
)
from orchestrator.worker.pipeline_parallel.needs import under_way


def planned(stages: int, workers: int, shards: int, order: str, *, recompute: bool = False) -> Plan:
    cluster = ClusterSettings(workers=Workers.parse(workers), stages=stages, pipeline=Variant(order))
    settings = Settings(
        run=RunSettings(steps=1, recompute=recompute),
        pipeline=PipelineSettings(target="a:B"),
        data=replace(DataSettings(), shards=shards, batch_size=Steps.parse(shards)),
        cluster=cluster,
    )
    return resolve(settings)


def test_by_the_order_of_the_pipeline() -> None:
    assert under_way(planned(4, 4, 16, "1f1b")) == (4, 3, 2, 1)
    assert under_way(planned(4, 4, 16, "gpipe")) == (16, 16, 16, 16)
    assert under_way(planned(2, 4, 16, "gpipe")) == (8, 8)
    assert under_way(planned(4, 4, 16, "1f1b", recompute=True)) == (1, 1, 1, 1)
    assert under_way(planned(1, 4, 16, "1f1b")) == (1,)


@given(stages=st.integers(2, 6), more=st.integers(0, 6), shards=st.integers(6, 20))
def test_a_stage_keeps_no_more_than_its_workers_host(stages: int, more: int, shards: int) -> None:
    workers = min(stages + more, stages * shards)
    hosted = -(-shards // (workers // stages))
    eager = under_way(planned(stages, workers, shards, "gpipe"))
    frugal = under_way(planned(stages, workers, shards, "1f1b"))
    assert len(eager) == len(frugal) == stages
    assert all(1 <= few <= many <= hosted for few, many in zip(frugal, eager, strict=True))
    assert frugal[-1] == 1
