"""Data sets that are computed may have more samples than any memory has bytes: nothing of a worker grows with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.common.values import Steps
from orchestrator.config.plan import Compute, Data, Run, Source, Variant
from orchestrator.errors import ConfigurationError
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from tests.refusals import refused
from tests.worker import pipelines as p

SAMPLES = 10**15
SOURCE, COMPUTE = Source("p:Virtual", {}), Compute("cpu", 1, "float32", False)


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index % 97))


class Virtual(p.Small):
    def datasets(self) -> Any:
        return Numbers(), Numbers()


class Two(p.Small):
    def datasets(self) -> Any:
        return {"a": Numbers(), "b": Numbers()}, None


def work(kind: type[p.Small] = Virtual, **data: Any) -> PipelineAdapter:
    return PipelineAdapter(kind, Run(SOURCE, COMPUTE, 3, 1, None), Data(4, Steps.constant(32), 0, **data))


def test_in_blocks_micro_batches_are_computed() -> None:
    for made in (work(order=Variant("blocks")), work(Two, order=Variant("blocks"), mixture={"a": 1, "b": 3})):
        made.batches.plan([10**6], range(4))
        samples = {index for shard in range(4) for index in made.batches.at(10**6, shard).key.indices}
        assert len(samples) == 32
        assert max(samples) > SAMPLES // 10


@pytest.mark.parametrize("kind", [Virtual, Two])
def test_an_order_that_memory_does_not_hold_is_refused_with_the_one_that_is_computed(kind: type[p.Small]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        work(kind, mixture={"a": 1, "b": 3} if kind is Two else {})
    assert "data.order: shuffled holds" in refused.value.message
    assert "set data.order=blocks" in (refused.value.remedy or "")


@pytest.mark.parametrize(
    ("data", "code", "remedy"),
    [
        ({"partition": Variant("iid")}, "data.division-memory", "set data.order=blocks"),
        ({"sampling": Variant("weighted")}, "data.division-memory", "set data.order=blocks"),
        ({"subset": Variant("bagging", {"member": 0})}, "data.subset-memory", "give the run fewer samples"),
    ],
    ids=str,
)
def test_what_holds_a_number_for_each_sample_says_so(data: dict[str, Any], code: str, remedy: str) -> None:
    with refused(code, remedy):
        work(**data)
