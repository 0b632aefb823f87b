"""Launching the digits: one digest and one trace for all layouts, a true record, calm output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.tracking import Store
from tests.projects import Done, Project

pytestmark = pytest.mark.ray

SHORT = ("conf=digits", "run.steps=25", "evaluation.every=10", "output=json")
# The README's commands add rings of four and trees; the engine's tests run all layouts, in threads.
LAYOUTS = {
    ("ring", 1): (),
    ("parameter_server", 2): (),
    ("peer_to_peer", 2): ("transport=tcp", "data.loaders=1"),
}
OTHERS = {("ring", 4): (), ("tree", 3): (), ("peer_to_peer", 5): ()}
Layout = tuple[str, int]
FIELDS = {
    "run_id", "status", "steps", "digest", "loss", "metrics", "workers", "generations", "recoveries", "launch_s", "steps_per_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def launched(digits: Project) -> dict[Layout, Done]:
    """The same short run on several layouts, one of them by the console script."""
    return _launched(digits, LAYOUTS)


def _launched(digits: Project, layouts: Mapping[Layout, tuple[str, ...]]) -> dict[Layout, Done]:
    launched = {}
    for (topology, workers), more in layouts.items():
        arguments = (*SHORT, f"topology={topology}", f"cluster.workers={workers}", *more)
        by_script = (topology, workers) == ("ring", 1)
        launched[topology, workers] = (
            digits.shell(f"orchestrator {' '.join(arguments)}") if by_script else digits.run(*arguments)
        )
    return launched


def _one_trace(digits: Project, launched: Mapping[Layout, Done]) -> list[dict[str, Any]]:
    """Of all of them."""
    for done in launched.values():
        assert done.code == 0, done.err
    (digest,) = {done.report["digest"] for done in launched.values()}
    (trace,) = {(digits.folder(done.report["run_id"]) / "trace.jsonl").read_bytes() for done in launched.values()}
    lines = [json.loads(line) for line in trace.splitlines()]
    assert lines[-1]["parameters"] == digest
    return lines


def test_every_layout_gives_one_digest_and_one_trace(digits: Project, launched: dict[Layout, Done]) -> None:
    """By shared memory and by TCP, with and without processes that fetch ahead."""
    assert [line["step"] for line in _one_trace(digits, launched)] == list(range(25))


@pytest.mark.long
def test_other_layouts_give_it_too(digits: Project, launched: dict[Layout, Done]) -> None:
    _one_trace(digits, {**launched, **_launched(digits, OTHERS)})


def test_the_report_has_the_fields_of_the_contract(launched: dict[Layout, Done]) -> None:
    report = launched["peer_to_peer", 2].report
    assert set(report) == FIELDS
    assert (report["status"], report["steps"], report["workers"], report["generations"]) == ("finished", 25, 2, 1)
    assert report["recoveries"] == []
    assert report["launch_s"] > 0
    assert report["steps_per_s"] > 0
    assert set(report["metrics"]) == {"validation/loss", "validation/accuracy"}


def test_the_output_is_calm(launched: dict[Layout, Done]) -> None:
    done = launched["ring", 1]  # the first: it has none to be compared with
    assert len(done.out.splitlines()) == 1
    expected = ("note: ", "starting ", "each worker holds ", "after step ", "step ", "digits: finished ", "  ")
    assert [line for line in done.err.splitlines() if not line.startswith(expected)] == []


@pytest.mark.long
def test_another_seed_gives_another_digest(digits: Project, launched: dict[Layout, Done]) -> None:
    other = digits.run(*SHORT, "run.seed=2", "cluster.workers=2")
    assert other.report["digest"] != launched["ring", 1].report["digest"]


def test_resolved_settings_can_be_launched_again(digits: Project, launched: dict[Layout, Done]) -> None:
    first = launched["parameter_server", 2].report
    settings = digits.folder(first["run_id"]) / "settings.yaml"
    again = digits.run(f"conf={settings}")
    assert again.report["digest"] == first["digest"]
    assert (digits.folder(again.report["run_id"]) / "settings.yaml").read_text() == settings.read_text()


@pytest.mark.long
def test_fast_sums_are_repeatable_for_one_layout(digits: Project, launched: dict[Layout, Done]) -> None:
    first, second = (digits.run(*SHORT, "reduction=fast", "cluster.workers=3").report for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["digest"] != launched["ring", 1].report["digest"]
    assert first["loss"] == pytest.approx(launched["ring", 1].report["loss"], rel=0.05)


@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_mlflow_has_one_complete_run_per_launch(digits: Project, launched: dict[Layout, Done]) -> None:
    report = launched["parameter_server", 2].report
    store = Store(None, digits.path / ".orchestrator")
    run = store.client.get_run(report["run_id"])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "digits"
    assert run.data.params["optimizer.lr"] == "0.002"
    assert run.data.params["topology.name"] == "parameter_server"
    assert run.data.tags["digest"] == report["digest"]
    assert len(run.data.tags["git.commit"]) == 40
    assert run.data.tags["git.dirty"] == "false"
    assert run.data.tags["data.data/digits.md5"] == "4e8dbba9f9f44dcd0544dee665a46e9c.dir"
    assert run.data.tags["package.torch"].startswith("2.13.0")
    assert run.data.metrics["validation/accuracy"] == report["metrics"]["validation/accuracy"]
    losses = store.client.get_metric_history(report["run_id"], "train/loss")
    trace = [json.loads(line) for line in (digits.folder(report["run_id"]) / "trace.jsonl").read_text().splitlines()]
    assert [(m.step, m.value) for m in losses] == [(line["step"], float.fromhex(line["loss"])) for line in trace]
    artifacts = {file.path for file in store.client.list_artifacts(report["run_id"], "run")}
    recorded = (
        "code.bundle code.json code.patch data.json environment.json identity.json settings.yaml settings_from.json"
    )
    assert artifacts == {f"run/{name}" for name in ("card.md", "journal.jsonl", "trace.jsonl", *recorded.split())}
    assert [file.path for file in store.client.list_artifacts(report["run_id"], "model")] == ["model/model.safetensors"]
    assert [file.path for file in store.client.list_artifacts(report["run_id"], "pictures")] == [
        "pictures/loss.png",
        "pictures/topology.svg",
    ]
    assert set(digits.runs().values()) == {"FINISHED"}


def test_workers_see_no_gpu_but_their_own(digits: Project, launched: dict[Layout, Done]) -> None:
    """What a pipeline computes on another one is not recorded."""
    recorded = digits.folder(launched["parameter_server", 2].report["run_id"]) / "environment.json"
    for node in json.loads(recorded.read_text())["nodes"].values():
        assert node["host"]["variables"]["CUDA_VISIBLE_DEVICES"] == ""


def test_the_journal_tells_who_took_part(digits: Project, launched: dict[Layout, Done]) -> None:
    path = digits.folder(launched["parameter_server", 2].report["run_id"]) / "journal.jsonl"
    events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    workers = [event for event in events if event["event"] == "worker_started"]
    assert sorted((event["worker"], event["rank"]) for event in workers) == [(0, 0), (1, 1)]
    assert sorted(shard for event in workers for shard in event["shards"]) == list(range(8))
    assert [event["server"] for event in events if event["event"] == "server_started"] == [2]
    assert events[-1]["event"] == "run_ended"
    assert [event["step"] for event in events if event["event"] == "evaluated"] == [9, 19, 24]


@pytest.mark.long
def test_the_characters_have_one_digest_too(digits: Project) -> None:
    short = ("conf=characters", "run.steps=3", "evaluation.every=1000", "output=json")
    ring = digits.run(*short, "topology=ring", "cluster.workers=2")
    tree = digits.run(*short, "topology=tree", "cluster.workers=3", "transport=tcp", "data.loaders=1")
    assert (ring.code, tree.code) == (0, 0), ring.err + tree.err
    assert ring.report["digest"] == tree.report["digest"]
    traces = [(digits.folder(done.report["run_id"]) / "trace.jsonl").read_bytes() for done in (ring, tree)]
    assert traces[0] == traces[1]


def test_dvc_trains_the_characters(characters: Project) -> None:
    """The stage as it stands in dvc.yaml, with fewer steps; DVC knows when nothing has to be done again."""
    conf = characters.path / "conf" / "characters.yaml"
    conf.write_text(conf.read_text().replace("steps: 300", "steps: 3").replace("workers: 4", "workers: 2"))
    first = characters.shell("dvc repro train_characters")
    assert first.code == 0, first.err
    report = json.loads((characters.path / "reports" / "characters.json").read_text())
    assert (report["status"], report["steps"]) == ("finished", 3)
    second = characters.shell("dvc repro train_characters")
    assert "didn't change, skipping" in second.out
    assert list(characters.runs().values()) == ["FINISHED"]
    assert characters.leftovers() == []
