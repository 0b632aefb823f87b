"""Every command of the README runs, in the order in which a reader types them, and does what the README says: one digest and
one trace for all layouts, a true record, calm output.

All four hundred steps are for `make demo` alone; then the configuration asks for fewer, and what is trained is the beginning.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store
from tests.portable.golden import GOLDEN
from tests.projects import REPOSITORY, Done, Project, make_project

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
    """What a clone of this tree holds, with this environment as its `.venv`."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    files = [name for name in listing.stdout.splitlines() if (REPOSITORY / name).exists()]
    project = make_project(tmp_path_factory.mktemp("clone"), files)
    (project.path / ".venv").symlink_to(sys.prefix)
    (Path(sys.prefix) / ".installed").touch()
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(project.path / name, (0, 0))  # older than the stamp of the environment, so that it is not made again
    project.variables["PYTHONDONTWRITEBYTECODE"] = ""  # as a reader's: what is compiled once need not be again
    project.commit()
    return project


@pytest.fixture(scope="module")
def read(clone: Project) -> Read:
    found = Read({}, {})
    for command in COMMANDS:
        before = set(clone.runs())
        found.done[command] = done = clone.shell(command)
        assert done.code == 0, (command, done.err)
        (found.runs[command],) = set(clone.runs()) - before
        if command == DEMO:
            conf = clone.path / "conf" / "digits.yaml"
            conf.write_text(conf.read_text().replace("steps: 400", f"steps: {STEPS}"))
            clone.commit()
    return found


@pytest.mark.ray
def test_the_commands_of_the_readme(clone: Project, read: Read) -> None:
    told = {command: done.err for command, done in read.done.items()}
    digests = [_found(r"digest +([0-9a-f]{64})", told[command]) for command in COMMANDS]
    assert digests == [GOLDEN["digits"][str(steps)] for steps in (400, STEPS, STEPS)]
    whole, launched, rerun = ((clone.folder(run_id) / "trace.jsonl").read_text() for run_id in read.runs.values())
    assert launched == rerun
    assert (len(whole.splitlines()), len(launched.splitlines())) == (400, STEPS)
    assert whole.splitlines()[: STEPS - 1] == launched.splitlines()[:-1]
    assert told[RERUN].splitlines()[-1] == f"exact: all {STEPS} steps and the final parameters agree to the last bit"
    assert float(_found(r"results .*validation/accuracy ([\d.]+)", told[DEMO])) >= 0.97
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
    assert "note: " not in read.done[DEMO].err


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


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, (pattern, text)
    return match.group(1)
