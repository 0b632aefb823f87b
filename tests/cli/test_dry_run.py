"""What a plan says of workers, stages and batches is what a launch would do; it imports neither Ray nor MLflow for that."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest

from orchestrator.config.resolve import resolve
from orchestrator.controller.shard_assignment import assign_columns, assign_stages
from orchestrator.driver.launch.dry_run import DryRun
from orchestrator.worker.pipeline_parallel.rehearsal import rehearse_cuts
from tests.refusals import refused
from tests.worker import pipelines
from tests.worker.pipeline_parallel.test_runs import Deep
from tests.worker.runs import Layout, settings_for


def planned(workers: int, stages: int, *, cut: bool = False, **settings: Any) -> DryRun:
    plan = resolve(settings_for(Deep, Layout(workers, stages=stages), shards=6, **settings))
    return DryRun(plan, 100, rehearse_cuts(plan) if cut else None, [], [], [])


@pytest.mark.parametrize(("workers", "stages"), [(2, 2), (7, 2), (3, 3), (18, 3)])
def test_each_worker_has_a_stage_and_its_share_of_the_shards_of_that(workers: int, stages: int) -> None:
    found = planned(workers, stages).as_dict()
    stage_of = assign_stages([None] * workers, stages)
    assert found["stages"] == stages
    assert [each["stage"] for each in found["workers"]] == list(stage_of)
    assert [tuple(each["shards"]) for each in found["workers"]] == list(assign_columns(6, stage_of))
    for stage in range(stages):
        hosted = [each["shards"] for each in found["workers"] if each["stage"] == stage]
        assert sorted(itertools.chain(*hosted)) == list(range(6))


@pytest.mark.slow
def test_the_text_tells_where_the_model_is_cut() -> None:
    text = planned(7, 2, cut=True).as_text()
    assert "layout    7 workers, 2 stages, pipeline 1f1b" in text
    assert "stage 0   from the first layers, " in text
    assert "4 workers: 6 rounds in a step, in 4 slices" in text
    assert "stage 1   from 2, " in text
    assert "worker 6  stage 0, shard 5" in text


def test_the_text_of_whole_models_tells_of_one_exchange() -> None:
    whole = planned(2, 1).as_text()
    assert "exchange  2 rounds in a step, the model in 2 slices" in whole
    assert "worker 1  shards 3 to 5" in whole


def test_a_batch_that_grows_is_told_as_it_grows() -> None:
    found = planned(2, 1, batch_size={0: 12, 3: 24})
    assert found.as_dict()["batch_size"] == {0: 12, 3: 24}
    assert "of 12, from step 3 on 24 rows in 6 shards" in found.as_text()


class PrintsAndFails(Deep):
    def datasets(self) -> Any:
        print("{")
        raise OSError("no such data")


@pytest.mark.slow
@pytest.mark.long
def test_what_the_pipeline_raises_is_left_to_its_workers() -> None:
    assert rehearse_cuts(resolve(settings_for(PrintsAndFails, Layout(2, stages=2)))) is None


@pytest.mark.slow
def test_what_cannot_be_cut_is_told_before_anything_is_started() -> None:
    plan = resolve(settings_for(pipelines.Small, Layout(2, stages=2), shards=6))
    with refused("stages.not-cut", "cluster.stages"):
        rehearse_cuts(plan)


SCENE = """
import sys
import orchestrator.driver.launch.dry_run
assert "torch" in sys.modules
assert not {"ray", "mlflow", "matplotlib", "requests"} & sys.modules.keys()
"""


@pytest.mark.slow
def test_a_plan_needs_no_ray() -> None:
    subprocess.run([sys.executable, "-c", SCENE], check=True)
