"""A plan's workers, stages and batches are those that a launch would have; it imports neither Ray nor MLflow for that."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.controller.shard_assignment import assign_columns, assign_stages
from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.dry_run import DryRun, dry_run
from orchestrator.driver.launch.launch import launch
from orchestrator.driver.launch.memory_plan import planned as memory_planned
from orchestrator.driver.launch.memory_plan import refuse_crowded_cards, refuse_what_exceeds
from orchestrator.driver.launch.repeated import Repeated
from orchestrator.driver.preflight import visible_cards
from orchestrator.driver.run.job import Job
from orchestrator.numerics.layout import Layout as SlotLayout
from orchestrator.provenance.environment.cards import Card, CardsUnknown
from orchestrator.provenance.tracking import Store
from orchestrator.provenance.tracking.asking import ask
from orchestrator.worker.model.construction import Rehearsal, rehearse
from orchestrator.worker.pipeline_parallel.rehearsal import CutRehearsal
from tests.refusals import refused
from tests.worker import pipelines
from tests.worker.pipeline_parallel.test_runs import Deep
from tests.worker.runs import Layout, settings_for

RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def cut(plan: Plan) -> dict[str, Any] | None:
    with CutRehearsal() as rehearsal:
        return rehearsal.cut(plan)


def planned(workers: int, stages: int, *, is_cut: bool = False, **settings: Any) -> DryRun:
    plan = resolve(settings_for(Deep, Layout(workers, stages=stages), shards=6, **settings))
    return DryRun(plan, 100, cut(plan) if is_cut else None, [], [], [])


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


@pytest.mark.long
@pytest.mark.slow
def test_the_text_tells_where_the_model_is_cut() -> None:
    text = planned(7, 2, is_cut=True).as_text()
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
    assert cut(resolve(settings_for(PrintsAndFails, Layout(2, stages=2)))) is None


@pytest.mark.slow
@pytest.mark.long
def test_what_cannot_be_cut_is_told_before_anything_is_started() -> None:
    plan = resolve(settings_for(pipelines.Small, Layout(2, stages=2), shards=6))
    with refused("stages.not-cut", "cluster.stages"):
        cut(plan)


@pytest.mark.parametrize(
    ("repeated", "code"),
    [
        (Repeated(replay="none"), "replay.no-rests"),
        (Repeated(segments="none"), "replay.segments"),
        (Repeated(streams="none"), "replay.no-streams"),
        (Repeated(sat_out="none"), "replay.sat-out-unreadable"),
    ],
)
@pytest.mark.slow
def test_a_plan_refuses_records_that_a_launch_refuses(
    repeated: Repeated, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(code, "none"):
        dry_run(settings_for(pipelines.Small, Layout(1)), repeated)
    assert list(tmp_path.iterdir()) == []


def test_a_repetition_waits_for_a_site_that_is_away(tmp_path: Path) -> None:
    """Also if all were there in the run that it repeats; it would differ from it otherwise."""
    (tmp_path / "trace.jsonl").write_text('{"step": 0}\n')
    plan = resolve(settings_for(pipelines.Small, Layout(1)))
    plan = replace(plan, data=replace(plan.data, sits_out=True))
    planned = Repeated(sat_out=str(tmp_path / "trace.jsonl")).planned(plan)
    assert not planned.data.sits_out
    assert planned.data.sat_out == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_a_deleted_experiment_is_told_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None, project_folder(tmp_path))
    settings = settings_for(pipelines.Small, Layout(1))
    store.client.delete_experiment(store.experiment(settings.run.experiment))
    monkeypatch.setattr(Job, "complete", lambda *_: pytest.fail("it was started"))
    for act in (dry_run, partial(launch, origins={})):
        with refused("mlflow.experiment-deleted", store.uri):
            act(settings)


@pytest.mark.slow
def test_a_plan_asks_for_the_store_and_writes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    for uri, code in ((address, "mlflow.unusable"), (f"sqlite:///{tmp_path}/none/mlflow.db", "mlflow.no-folder")):
        with refused(code, uri):
            ask(uri)
    ask(None)
    ask(f"sqlite:///{tmp_path}/mlflow.db")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_asks_a_server_that_is_gone_but_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's client would ask eight times, in four minutes, and say nothing."""
    tries: list[str | None] = []

    def client(*_: str) -> None:
        tries.append(os.environ.get(RETRIES))
        raise ConnectionError("refused")

    monkeypatch.setenv(RETRIES, "")
    monkeypatch.delenv(RETRIES)
    monkeypatch.setattr("mlflow.MlflowClient", client)
    monkeypatch.setattr("orchestrator.provenance.tracking.asking.is_open", lambda _: False)
    with refused("mlflow.unusable", "http://gone.example"):
        ask("http://gone.example")
    assert tries == ["0"]


SCENE = """
import sys
import orchestrator.driver.launch.dry_run
assert "torch" in sys.modules
assert not {"ray", "mlflow", "matplotlib", "requests"} & sys.modules.keys()
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_plan_needs_no_ray() -> None:
    subprocess.run([sys.executable, "-c", SCENE], check=True)


def on_cards(layout: Layout, gpu_gb: float | None, **changed: Any) -> Plan:
    settings = settings_for(Deep, layout, shards=6, optimizer={"name": "adamw"}, **changed)
    cluster = replace(settings.cluster, gpus_per_worker=1.0, gpu_gb=gpu_gb)
    return resolve(replace(settings, run=replace(settings.run, device="cuda"), cluster=cluster))


CUT = {"borders": ["2"], "parameters": [10**9, 10**8], "shares": [0.5, 0.5], "crossing": [1 << 20]}
BUILT = Rehearsal([], 1_100_000_000, {"slots": [], "size": 0})


def test_a_plan_tells_what_each_stage_needs_of_its_card() -> None:
    plan = on_cards(Layout(2, stages=2), 40.0)
    found = DryRun(plan, BUILT.parameters, CUT, [], [], [], memory_planned(plan, BUILT, CUT))
    text = found.as_text()
    assert (
        "1,000,000,000 parameters, about 28 GB of its GPU, of which it may take 40 GB, 50% of the computation" in text
    )
    assert "while it prepares, a worker has 8.8 GB of host memory" in text
    places = 6 << 20
    assert found.as_dict()["memory"] == [
        {"host_bytes": 0, "gpu_bytes": 28 * 10**9 + places},
        {"host_bytes": 0, "gpu_bytes": 28 * 10**8 + places},
    ]


def test_and_what_a_worker_needs_that_has_the_whole_model() -> None:
    plan = resolve(settings_for(Deep, Layout(2)))
    built = rehearse(plan)
    text = DryRun(plan, built.parameters, None, [], [], [], memory_planned(plan, built, None)).as_text()
    assert "memory    each worker needs about " in text
    assert " MB, beside activations" in text
    assert memory_planned(plan, Rehearsal([], None), None) == []
    assert "memory" not in planned_text(plan)


def test_and_what_a_compression_takes_of_a_card() -> None:
    """Levels of a byte are added up there."""
    plans = [on_cards(Layout(2), None, compression={"name": name}) for name in ("quantize", "topk")]
    built = [rehearse(plan) for plan in plans]
    needed = [memory_planned(plan, each, None)[0].card for plan, each in zip(plans, built, strict=True)]
    assert built[0].layout is not None
    assert needed[0] - needed[1] == built[0].layout["size"] > 0


def planned_text(plan: Plan) -> str:
    return DryRun(plan, None, None, [], [], []).as_text()


@pytest.mark.parametrize("stages", [1, 2])
def test_workers_that_do_not_fit_on_the_cards_of_this_machine_are_refused(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stages need 28 and 2.8 GB, and each of two whole models 31. For small ones nobody is asked."""
    there = [(Card(0, "GPU-a", "X", "580", 1 << 36, "9.0", False, None), 30_700_000_000)]
    asked: list[int] = []

    def with_free() -> list[tuple[Card, int]]:
        asked.append(1)
        return there

    monkeypatch.setattr(visible_cards, "with_free", with_free)
    plan, cut = on_cards(Layout(2, stages=stages), None), CUT if stages > 1 else None
    layout = SlotLayout.of([("w", torch.empty(1_100_000_000, device="meta"))])
    built = replace(BUILT, layout=layout.as_dict())
    with refused("gpu.crowded", "2 workers need") as caught:
        refuse_crowded_cards(plan, built, cut)
    assert "30.7 GB are free on GPU 0 (X, GPU-a)" in str(caught.value)
    there[0] = there[0][0], 70_000_000_000
    refuse_crowded_cards(plan, built, cut)
    assert len(asked) == 2
    small = replace(built, parameters=1000, layout=SlotLayout.of([("w", torch.empty(1000))]).as_dict())
    refuse_crowded_cards(plan, small, {**CUT, "parameters": [600, 400]} if cut else None)
    refuse_crowded_cards(plan, Rehearsal([], None), None)
    assert len(asked) == 2


def test_where_nobody_tells_the_memory_of_cards_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Any:
        raise CardsUnknown("of a MIG device")

    monkeypatch.setattr(visible_cards, "with_free", unknown)
    refuse_crowded_cards(on_cards(Layout(2, stages=2), None), BUILT, CUT)


def test_a_card_that_is_too_small_is_refused() -> None:
    plan = on_cards(Layout(2, stages=2), 24.0)
    memory = memory_planned(plan, BUILT, CUT)
    with refused("gpu.limit-too-low", "cluster.gpu_gb: the worker of stage 0 needs 28 GB"):
        refuse_what_exceeds(plan, memory)
    refuse_what_exceeds(plan, memory[1:])
    refuse_what_exceeds(on_cards(Layout(2, stages=2), None), memory)
    with refused("gpu.limit-too-low") as caught:
        refuse_what_exceeds(on_cards(Layout(2), 24.0, sync={"name": "asp"}), memory[:1])
    assert "set sync=bsp" in str(caught.value.remedy)
