"""Launching the digits: one digest and one trace for all layouts, a true record, calm output."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from orchestrator.tracking import Store
from tests.commands.alone import Alone, alone, assert_as_alone
from tests.projects import Done, Project

pytestmark = pytest.mark.ray

SHORT = ("conf=digits", "run.steps=25", "evaluation.every=10", "output=json")
FIRST = ("topology=parameter_server", "cluster.workers=2", "transport=tcp", "data.loaders=1")
# The README's commands add rings of four and trees; the engine's tests run all layouts, in threads.
OTHERS = (("ring", 4), ("tree", 3), ("peer_to_peer", 5), ("ring", 1))
FIELDS = {
    "run_id", "status", "steps", "digest", "loss", "metrics", "workers", "generations", "recoveries", "launch_s",
    "steps_per_s", "bytes_per_step", "times",
}  # fmt: skip

BESIDE = """
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.numerics import determinism

determinism.prepare_environment()
prepare_environment(None)


from orchestrator.cluster.sessions.local import LocalRay
from orchestrator.commands.launch import launch
from orchestrator.settings import load

SHORT = ["run.steps=25", "evaluation.every=10", "cluster.workers=2"]
LAYOUTS = (["digits"], [*SHORT, "topology=ring"]), (["digits"], [*SHORT, "topology=peer_to_peer"])


def run(shared, confs, overrides):
    run_id, outcome = launch(load(confs, overrides), {}, lambda plan: nullcontext(shared))
    return run_id, outcome.digest


with LocalRay(5, 300.0) as shared, ThreadPoolExecutor(2) as pool:
    ended = list(pool.map(lambda layout: run(shared, *layout), LAYOUTS))
    ended.append(run(shared, [sys.argv[1]], []))
    print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *SHORT[1:])


@pytest.fixture(scope="module")
def launched(digits: Project) -> Done:
    """By the console script: TCP, and processes that fetch ahead."""
    return digits.shell(f"orchestrator {' '.join((*SHORT, *FIRST))}")


@pytest.fixture(scope="module")
def beside(digits: Project, launched: Done) -> list[tuple[str, str]]:
    """(run, digest) of two runs side by side on one Ray that outlives them, and of the settings of the first launch again."""
    settings = digits.folder(launched.report["run_id"]) / "settings.yaml"
    done = digits.shell(f"{sys.executable} - {settings} <<'END'\n{BESIDE}\nEND")
    assert done.code == 0, done.err
    return [(run_id, digest) for run_id, digest in json.loads(done.out)]


def test_every_layout_gives_one_digest_and_one_trace(digits: Project, undisturbed: Alone, launched: Done) -> None:
    """By TCP, with processes that fetch ahead, and without any process."""
    assert_as_alone(digits, launched, undisturbed)
    assert [line["step"] for line in undisturbed.trace] == list(range(25))
    assert undisturbed.trace[-1]["parameters"] == undisturbed.digest


@pytest.mark.long
def test_runs_share_a_ray_side_by_side_and_one_after_the_other(
    digits: Project, undisturbed: Alone, launched: Done, beside: list[tuple[str, str]]
) -> None:
    """By shared memory. Nothing of one run changes another's bits, or stays in the Ray."""
    runs = (launched.report["run_id"], *dict(beside))
    assert len({(digits.folder(run_id) / "trace.jsonl").read_bytes() for run_id in runs}) == 1
    assert [digest for _, digest in beside] == [undisturbed.digest] * 3
    assert [digits.runs()[run_id] for run_id, _ in beside] == ["FINISHED"] * 3


@pytest.mark.long
def test_other_layouts_give_it_too(digits: Project, undisturbed: Alone) -> None:
    for topology, workers in OTHERS:
        done = digits.run(*SHORT, f"topology={topology}", f"cluster.workers={workers}")
        assert_as_alone(digits, done, undisturbed)


def test_the_report_has_the_fields_of_the_contract(launched: Done) -> None:
    report = launched.report
    assert set(report) == FIELDS
    assert (report["status"], report["steps"], report["workers"], report["generations"]) == ("finished", 25, 2, 1)
    assert report["recoveries"] == []
    assert report["launch_s"] > 0
    assert report["steps_per_s"] > 0
    assert set(report["metrics"]) == {"validation/loss", "validation/accuracy"}


def test_the_output_is_calm(launched: Done) -> None:
    assert len(launched.out.splitlines()) == 1
    expected = ("note: ", "starting ", "each worker holds ", "after step ", "step ", "digits: finished ", "  ")
    assert [line for line in launched.err.splitlines() if not line.startswith(expected)] == []


@pytest.mark.long
def test_another_seed_gives_another_digest(digits: Project, undisturbed: Alone) -> None:
    other = digits.run(*SHORT, "run.seed=2", "cluster.workers=2")
    assert other.report["digest"] != undisturbed.digest


@pytest.mark.long
def test_resolved_settings_can_be_launched_again(
    digits: Project, launched: Done, beside: list[tuple[str, str]]
) -> None:
    *_, (again, digest) = beside
    assert digest == launched.report["digest"]
    texts = {(digits.folder(run_id) / "settings.yaml").read_text() for run_id in (launched.report["run_id"], again)}
    assert len(texts) == 1


@pytest.mark.long
def test_fast_sums_are_repeatable_for_one_layout(digits: Project, undisturbed: Alone) -> None:
    first, second = (digits.run(*SHORT, "reduction=fast", "cluster.workers=3").report for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["digest"] != undisturbed.digest
    assert first["loss"] == pytest.approx(float.fromhex(undisturbed.trace[-1]["loss"]), rel=0.05)


@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_mlflow_has_one_complete_run_per_launch(digits: Project, launched: Done) -> None:
    report = launched.report
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
        "Dockerfile code.bundle code.json code.patch data.json environment.json identity.json settings.yaml "
        "settings_from.json"
    )
    assert artifacts == {
        f"run/{name}"
        for name in ("card.md", "card.html", "journal.jsonl", "times.jsonl", "trace.jsonl", *recorded.split())
    }
    assert [file.path for file in store.client.list_artifacts(report["run_id"], "model")] == ["model/model.safetensors"]
    assert [file.path for file in store.client.list_artifacts(report["run_id"], "pictures")] == [
        "pictures/loss.png",
        "pictures/time.png",
        "pictures/topology.svg",
    ]
    assert set(digits.runs().values()) == {"FINISHED"}


def test_workers_see_no_gpu_but_their_own(digits: Project, launched: Done) -> None:
    """What a pipeline computes on another one is not recorded."""
    recorded = digits.folder(launched.report["run_id"]) / "environment.json"
    for node in json.loads(recorded.read_text())["nodes"].values():
        assert node["host"]["variables"]["CUDA_VISIBLE_DEVICES"] == ""


def test_the_journal_tells_who_took_part(digits: Project, launched: Done) -> None:
    path = digits.folder(launched.report["run_id"]) / "journal.jsonl"
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


@pytest.mark.long
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
