"""The commands of the README run, in the order in which a reader types them, and do what the README says: one digest and one
trace for all layouts, a true record, calm output.

They are also what `make test` sees of misfortune: the second is disturbed and resumed, and the third repeats it after its code
and data are gone. Undisturbed, and with more of either: the tests that are `long`, here, in test_elastic.py and test_rerun.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store
from tests.cli.checkpoints import spoil
from tests.cli.test_rerun import OTHER_PLACE, other, tags_of, tampered, untouchable
from tests.cli.watching import WatchedRun
from tests.portable.golden import GOLDEN
from tests.projects import REPOSITORY, Done, Project, make_clone, with_steps

pytestmark = pytest.mark.ray

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
PIPELINE = "pipelines/digits.py"
PAUSED = "        time.sleep(PAUSE_S)\n"  # so that a run is disturbed before it ends


@dataclass(frozen=True)
class Read:
    """The outcome of each command, and the run that it made. stopped: how the second one ended, whose run was resumed;
    events: of the journal up to there."""

    done: dict[str, Done]
    runs: dict[str, str]
    stopped: Done
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With a remote of DVC, where nothing is yet."""
    clone = make_clone(tmp_path_factory.mktemp("clone"), STEPS)
    remote = clone.path.with_name("remote")
    with (clone.path / ".dvc" / "config").open("a") as config:
        config.write(f"    remote = far\n['remote \"far\"']\n    url = {remote}\n")
    clone.commit()
    return clone


@pytest.fixture(scope="module")
def read(clone: Project) -> Read:
    done, runs = {}, {}
    done[DEMO] = clone.shell(DEMO)
    assert done[DEMO].code == 0, done[DEMO].err
    (runs[DEMO],) = clone.runs()
    shutil.copytree(clone.path / ".dvc" / "cache" / "files", clone.path.with_name("remote") / "files")
    pause(clone)
    run, stopped = disturbed(clone)
    events = run.journal()
    done[LAUNCH], runs[LAUNCH] = resumed(clone, run), run.run_id
    forget(clone)
    before = _without_bytecode(clone)
    cached = max(clone.path.glob(".dvc/cache/files/md5/*/*"), key=lambda file: file.stat().st_size)
    with tampered(cached):
        done[RERUN] = other(clone, OTHER_PLACE).shell(RERUN)
    assert done[RERUN].code == 0, done[RERUN].err
    assert f"the object {cached} is damaged: its bytes are not those of its name" in done[RERUN].err
    assert _without_bytecode(clone) == before, "a rerun touched something of the project"
    (runs[RERUN],) = set(clone.runs()) - set(runs.values())
    return Read(done, runs, stopped, events)


def pause(clone: Project) -> None:
    """Each micro-batch waits a moment. The pipeline is modified for that, and imports a module that git does not know."""
    (clone.path / "pipelines" / "more.py").write_text("PAUSE_S = 0.01\n")
    pipeline = clone.path / PIPELINE
    imports, there, loss = pipeline.read_text().partition("import numpy\n")
    loss = loss.replace("        images, labels = batch\n", f"        images, labels = batch\n{PAUSED}", 1)
    pipeline.write_text(f"{imports}import time\n\n{there}from pipelines.more import PAUSE_S\n{loss}")


def disturbed(clone: Project) -> tuple[WatchedRun, Done]:
    """The command of the README up to Ctrl-C. A worker is killed before that."""
    python, *arguments = shlex.split(LAUNCH)
    assert (python, arguments[:2]) == ("python", ["-m", "orchestrator"])
    run = WatchedRun(clone, *arguments[2:], "checkpoint.every=5")
    run.wait_for_steps(5)
    run.kill(run.living()[0])
    run.wait_for("recovered")
    run.wait_for("checkpoint_saved", 2)
    run.wait_for_steps(run.steps + 1)
    run.process.send_signal(signal.SIGINT)
    return run, run.end()


def resumed(clone: Project, run: WatchedRun) -> Done:
    """To the end, on another layout, though the last checkpoint is damaged. The server is killed on the way."""
    spoil(run.folder / "checkpoints")
    stopped_at = run.steps
    layout = ("topology=parameter_server", "cluster.workers=1", "data.loaders=1")
    again = WatchedRun(clone, f"resume={run.run_id[:12]}", *layout, "output=json", run_id=run.run_id)
    again.wait_for("server_started")
    again.wait_for_steps(stopped_at + 1)
    (server,) = again.living("server").values()
    again.kill(server)
    again.wait_for("server_lost")
    done = again.end()
    assert done.code == 0, done.err
    return done


def forget(clone: Project) -> None:
    """The code has gone on, in a repository that knows no older one, and the data are gone."""
    (clone.path / "pipelines" / "more.py").unlink()
    pipeline = clone.path / PIPELINE
    shutil.copy2(REPOSITORY / PIPELINE, pipeline)
    pipeline.write_text(pipeline.read_text().replace("cross_entropy(", "2 * functional.cross_entropy("))
    shutil.rmtree(clone.path / ".git")
    shutil.rmtree(clone.path / "data" / "digits")
    clone.commit()


def _without_bytecode(clone: Project) -> dict[str, bytes]:
    return {name: content for name, content in untouchable(clone.path).items() if "__pycache__" not in name}


def trace_of(clone: Project, run_id: str) -> str:
    return (clone.folder(run_id) / "trace.jsonl").read_text()


def test_the_commands_of_the_readme(clone: Project, read: Read) -> None:
    told = {command: done.err for command, done in read.done.items()}
    assert [digest_in(told[command]) for command in COMMANDS] == [GOLDEN["digits"][str(STEPS)]] * 3
    one, *others = (trace_of(clone, run_id) for run_id in read.runs.values())
    assert others == [one] * 2
    assert len(one.splitlines()) == STEPS
    assert told[RERUN].splitlines()[-1] == f"exact: all {STEPS} steps and the final parameters agree to the last bit"
    assert clone.leftovers() == []


def test_the_demo_has_its_accuracy(read: Read) -> None:
    accuracy = re.search(r"results .*validation/accuracy ([\d.]+)", read.done[DEMO].err)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.97


def test_a_run_is_interrupted_in_order_after_a_worker_was_killed(read: Read) -> None:
    """At most a step that only the dead had applied is computed twice."""
    stopped = read.stopped
    assert stopped.code == 130
    assert "interrupted by SIGINT" in stopped.err
    assert (stopped.report["status"], stopped.report["error"]["kind"]) == ("killed", "Interrupted")
    assert "Traceback" not in stopped.err
    assert f"python -m orchestrator resume={read.runs[LAUNCH]}" in stopped.err
    (lost,) = (each for each in stopped.report["recoveries"] if each["kind"] == "lost")
    assert lost["steps_lost"] <= 1
    assert [each["worker"] for each in read.events if each["event"] == "worker_lost"] == [0]
    assert 10 <= stopped.report["steps"] < STEPS


def test_it_is_resumed_on_another_layout_though_its_last_checkpoint_is_damaged(clone: Project, read: Read) -> None:
    """A server is killed on the way to the end, which is that of the undisturbed run."""
    done, run_id = read.done[LAUNCH], read.runs[LAUNCH]
    assert "going on from the checkpoint of step" in done.err
    assert "Traceback" not in done.err
    assert (done.report["run_id"], done.report["status"], done.report["steps"]) == (run_id, "finished", STEPS)
    assert done.report["generations"] >= 2
    assert trace_of(clone, run_id) == trace_of(clone, read.runs[DEMO])
    assert clone.runs()[run_id] == "FINISHED"


def test_the_report_has_the_fields_of_the_contract(read: Read) -> None:
    report = read.done[LAUNCH].report
    assert set(report) == FIELDS
    assert report["workers"] == 1
    assert report["launch_s"] > 0
    assert report["steps_per_s"] > 0
    assert set(report["metrics"]) == {"validation/loss", "validation/accuracy"}
    assert len(read.done[LAUNCH].out.splitlines()) == 1


def test_the_output_is_calm(read: Read) -> None:
    expected = ("starting ", "each worker holds ", "after step ", "step ", "digits: finished ", "  ")
    assert [line for line in read.done[DEMO].err.splitlines() if not line.startswith(expected)] == []


def test_a_run_is_repeated_though_its_code_and_data_are_gone(clone: Project, read: Read) -> None:
    """On other workers, in another time zone, with another hash seed. The copy in DVC's cache is found to be damaged."""
    run_id, repetition = read.runs[LAUNCH], read.runs[RERUN]
    told = read.done[RERUN].err
    assert "data/digits: from the remote" in told
    assert "the same digest as an earlier run of equal code, data, settings and environment" in told
    assert "cannot be repeated" not in told
    assert "Traceback" not in told
    assert list((clone.path / ".orchestrator" / "worktrees").iterdir()) == []
    tags = {each: tags_of(clone, each) for each in (run_id, repetition)}
    assert tags[run_id]["identity"] == tags[repetition]["identity"]
    assert tags[run_id]["verdict"] == tags[repetition]["verdict"] == "exact"
    assert (tags[repetition]["rerun_of"], tags[run_id]["verdict_by"]) == (run_id, repetition)
    assert (tags[repetition]["confirms"], tags[run_id]["confirms"]) == (run_id, repetition)
    artifacts = clone.path / ".orchestrator" / "artifacts" / "0"  # of the experiment that MLflow itself makes
    assert (artifacts / run_id / "artifacts" / "reruns" / repetition / "verdict.json").exists()
    card = (artifacts / repetition / "artifacts" / "run" / "card.md").read_text()
    assert f"python -m orchestrator rerun={repetition}" in card
    assert "It may be that" not in card
    assert f"exact, of {run_id[:8]}" in clone.run("runs").out


@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_mlflow_has_one_complete_run_per_launch(clone: Project, read: Read) -> None:
    run_id = read.runs[DEMO]
    store = Store(None, clone.path / ".orchestrator")
    run = store.client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "digits"
    assert run.data.params["optimizer.lr"] == "0.002"
    assert run.data.params["topology.name"] == "ring"
    assert run.data.tags["digest"] == GOLDEN["digits"][str(STEPS)]
    assert len(run.data.tags["git.commit"]) == 40
    assert run.data.tags["git.dirty"] == "false"
    assert run.data.tags["data.data/digits.md5"] == "4e8dbba9f9f44dcd0544dee665a46e9c.dir"
    assert run.data.tags["package.torch"].startswith("2.13.0")
    assert run.data.metrics["validation/accuracy"] == read.done[LAUNCH].report["metrics"]["validation/accuracy"]
    losses = store.client.get_metric_history(run_id, "train/loss")
    trace = [json.loads(line) for line in trace_of(clone, run_id).splitlines()]
    assert [(m.step, m.value) for m in losses] == [(line["step"], float.fromhex(line["loss"])) for line in trace]
    artifacts = {file.path for file in store.client.list_artifacts(run_id, "run")}
    recorded = (
        "Dockerfile code.bundle code.json code.patch data.json environment.json identity.json settings.yaml "
        "settings_from.json"
    )
    assert artifacts == {
        f"run/{name}"
        for name in ("card.md", "card.html", "journal.jsonl", "times.jsonl", "trace.jsonl", *recorded.split())
    }
    assert [file.path for file in store.client.list_artifacts(run_id, "model")] == ["model/model.safetensors"]
    assert [file.path for file in store.client.list_artifacts(run_id, "pictures")] == [
        "pictures/loss.png",
        "pictures/time.png",
        "pictures/topology.svg",
    ]
    assert set(clone.runs().values()) == {"FINISHED"}


def test_workers_see_no_gpu_but_their_own(clone: Project, read: Read) -> None:
    """Nothing records what a pipeline computes on another GPU."""
    recorded = clone.folder(read.runs[DEMO]) / "environment.json"
    for node in json.loads(recorded.read_text())["nodes"].values():
        assert node["host"]["variables"]["CUDA_VISIBLE_DEVICES"] == ""


def test_the_journal_tells_who_took_part(clone: Project, read: Read) -> None:
    """Four workers of a ring; two workers and a server of the repetition."""
    for command, members in ((DEMO, (4, [])), (RERUN, (2, [2]))):
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


@pytest.mark.long
def test_after_all_its_steps_too_and_fewer_are_their_beginning(tmp_path: Path) -> None:
    """Four hundred by four workers in a ring, and the first of them by three in a tree."""
    clone = make_clone(tmp_path / "clone")
    whole = trained(clone, DEMO, 400)
    with_steps(clone, STEPS)
    assert trained(clone, LAUNCH, STEPS)[:-1] == whole[: STEPS - 1]


def trained(clone: Project, command: str, steps: int) -> list[str]:
    """The trace of a run that came to its golden digest."""
    before = set(clone.runs())
    done = clone.shell(command)
    assert done.code == 0, done.err
    assert digest_in(done.err) == GOLDEN["digits"][str(steps)]
    assert "note: " not in done.err
    assert clone.leftovers() == []
    (run_id,) = set(clone.runs()) - before
    lines = trace_of(clone, run_id).splitlines()
    assert len(lines) == steps
    return lines


def digest_in(told: str) -> str:
    match = re.search(r"digest +([0-9a-f]{64})", told)
    assert match is not None, told
    return match.group(1)
