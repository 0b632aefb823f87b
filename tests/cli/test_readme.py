"""The commands of the README run, in the order in which a reader types them, and do what the README says: one digest and one
trace for all layouts, a true record, calm output. `make demo` stands in a file of its own (`test_demo.py`), beside this one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store
from tests.portable.golden import GOLDEN
from tests.projects import REPOSITORY, Done, Project, make_clone

BLOCKS = re.findall(r"```bash\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
COMMANDS = [
    line
    for block in BLOCKS
    for line in block.splitlines()
    if line not in ("make test", "source .venv/bin/activate")  # what runs this test, and what `shell` does
]
DEMO, LAUNCH, RERUN = COMMANDS
STEPS = 60
FIELDS = {
    "run_id", "status", "steps", "digest", "loss", "metrics", "workers", "generations", "recoveries", "launch_s",
    "steps_per_s", "bytes_per_step", "times", "shards", "samples_per_s",
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """What each command came to, and the run that it made."""

    done: dict[str, Done]
    runs: dict[str, str]

    @property
    def launched(self) -> Done:
        """By three workers in a tree."""
        return self.done[LAUNCH]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With the data that `make demo` makes first."""
    clone = make_clone(tmp_path_factory.mktemp("clone"), STEPS)
    made = clone.shell("dvc repro --quiet prepare_digits")
    assert made.code == 0, made.err
    return clone


@pytest.fixture(scope="module")
def read(clone: Project) -> Read:
    found = Read({}, {})
    for command in (LAUNCH, RERUN):
        before = set(clone.runs())
        found.done[command] = done = clone.shell(command)
        assert done.code == 0, (command, done.err)
        (found.runs[command],) = set(clone.runs()) - before
    return found


@pytest.mark.ray
def test_the_commands_of_the_readme(clone: Project, read: Read) -> None:
    told = {command: done.err for command, done in read.done.items()}
    assert [digest_in(told[command]) for command in (LAUNCH, RERUN)] == [GOLDEN["digits"][str(STEPS)]] * 2
    launched, rerun = ((clone.folder(run_id) / "trace.jsonl").read_text() for run_id in read.runs.values())
    assert launched == rerun
    assert len(launched.splitlines()) == STEPS
    assert told[RERUN].splitlines()[-1] == f"exact: all {STEPS} steps and the final parameters agree to the last bit"
    assert clone.leftovers() == []


@pytest.mark.ray
def test_the_report_has_the_fields_of_the_contract(read: Read) -> None:
    report = read.launched.report
    assert set(report) == FIELDS
    assert (report["status"], report["steps"], report["workers"], report["generations"]) == ("finished", 60, 3, 1)
    assert report["recoveries"] == []
    assert report["launch_s"] > 0
    assert report["steps_per_s"] > 0
    assert set(report["metrics"]) == {"validation/loss", "validation/accuracy"}


@pytest.mark.ray
def test_the_output_is_calm(read: Read) -> None:
    assert len(read.launched.out.splitlines()) == 1
    expected = ("note: ", "starting ", "each worker holds ", "after step ", "step ", "digits: finished ", "  ")
    assert [line for line in read.launched.err.splitlines() if not line.startswith(expected)] == []


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_mlflow_has_one_complete_run_per_launch(clone: Project, read: Read) -> None:
    report = read.launched.report
    store = Store(None, clone.path / ".orchestrator")
    run = store.client.get_run(report["run_id"])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "digits"
    assert run.data.params["optimizer.lr"] == "0.002"
    assert run.data.params["topology.name"] == "tree"
    assert run.data.tags["digest"] == report["digest"]
    assert len(run.data.tags["git.commit"]) == 40
    assert run.data.tags["git.dirty"] == "false"
    assert run.data.tags["data.data/digits.md5"] == "4e8dbba9f9f44dcd0544dee665a46e9c.dir"
    assert run.data.tags["package.torch"].startswith("2.13.0")
    assert run.data.metrics["validation/accuracy"] == report["metrics"]["validation/accuracy"]
    losses = store.client.get_metric_history(report["run_id"], "train/loss")
    trace = [json.loads(line) for line in (clone.folder(report["run_id"]) / "trace.jsonl").read_text().splitlines()]
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
    assert set(clone.runs().values()) == {"FINISHED"}


@pytest.mark.ray
def test_workers_see_no_gpu_but_their_own(clone: Project, read: Read) -> None:
    """What a pipeline computes on another one is not recorded."""
    recorded = clone.folder(read.launched.report["run_id"]) / "environment.json"
    for node in json.loads(recorded.read_text())["nodes"].values():
        assert node["host"]["variables"]["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.ray
def test_the_journal_tells_who_took_part(clone: Project, read: Read) -> None:
    """Three workers of a tree; two workers and a server of the repetition."""
    for command, members in ((LAUNCH, (3, [])), (RERUN, (2, [2]))):
        path = clone.folder(read.runs[command]) / "journal.jsonl"
        events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        workers = [event for event in events if event["event"] == "worker_started"]
        assert sorted((event["worker"], event["rank"]) for event in workers) == [(n, n) for n in range(members[0])]
        assert sorted(shard for event in workers for shard in event["shards"]) == list(range(8))
        assert [event["server"] for event in events if event["event"] == "server_started"] == members[1]
        assert events[-1]["event"] == "run_ended"
        assert [event["step"] for event in events if event["event"] == "evaluated"] == [STEPS - 1]


def test_the_pages_that_the_readme_names_are_there() -> None:
    links = re.findall(r"\]\(([\w/.-]+)\)", (REPOSITORY / "README.md").read_text())
    assert links
    assert [link for link in links if not Path(REPOSITORY / link).exists()] == []


def digest_in(told: str) -> str:
    match = re.search(r"digest +([0-9a-f]{64})", told)
    assert match is not None, told
    return match.group(1)
