"""Record, rerun and compare, by true command lines in a project under git and DVC."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.common.values import Steps
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import shuffled
from tests.cli.watching import WatchedRun
from tests.projects import REPOSITORY, Done, Project

pytestmark = pytest.mark.ray

PAGE, ABOUT_FILES = ((REPOSITORY / "docs" / name).read_text() for name in ("rerun.md", "sharing.md"))
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]

EXECUTED = "executed.txt"  # what the pipeline's module leaves where it is imported
STEPS, BATCH, SHARDS, ROWS, SEED = 20, 16, 4, 256, 1
CONF = f"""\
run: {{steps: {STEPS}, seed: {SEED}}}
pipeline: {{target: "study:Study"}}
data: {{shards: {SHARDS}, batch_size: {BATCH}, inputs: [data/points.csv]}}
cluster: {{workers: 2}}
optimizer: {{name: adam, lr: 0.01}}
trace: {{digest_every: 10, tensors_every: 5}}
"""
MARKED = shuffled(Epochs(SEED, ROWS, Steps.constant(BATCH), SHARDS)).indices(12, 1)[
    0
]  # a sample that is first drawn at step 12
FIELDS = [
    "run_id",
    "rerun_of",
    "status",
    "verdict",
    "first_divergence",
    "differences",
    "explanation",
    "stages",
    "audit",
]
OTHER_PLACE = {  # what is restored as it was recorded, and what must not matter
    "MKL_CBWR": "COMPATIBLE",
    "MKL_DYNAMIC": "TRUE",
    "ATEN_CPU_CAPABILITY": "default",
    "PYTHONHASHSEED": "77",
    "OMP_NUM_THREADS": "2",
    "TZ": "Asia/Kathmandu",
    "LC_ALL": "C.UTF-8",
}
TAMPERED = bytes.maketrans(b"456", b"564")  # no class is touched; the third time it is what it was
NOBODY = 65534
AS_NOBODY = (  # may read the interpreter, wherever the tests' own user keeps it
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
)


@dataclass(frozen=True)
class Study:
    """The project after its first run, when code and data have gone on. run: what the first one reported; crate: the file made
    of it; executed: a file that there is once the code of the run was imported."""

    project: Project
    remote: Path
    run: dict[str, Any]
    crate: Path
    executed: Path

    @property
    def run_id(self) -> str:
        run_id: str = self.run["run_id"]
        return run_id

    @property
    def cached(self) -> Path:
        """The object of its data in DVC's cache."""
        (md5,) = (str(item["md5"]) for item in recorded(self.project, self.run_id, "data.json")["inputs"])
        return self.project.path / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]

    def rerun(self, *arguments: str, run_id: str | None = None, variables: dict[str, str] | None = None) -> Done:
        """Nothing of the project may be touched by it."""
        before = untouchable(self.project.path)
        done = other(self.project, variables or {}).run(f"rerun={run_id or self.run_id}", *arguments, "output=json")
        assert untouchable(self.project.path) == before
        assert list((self.project.path / ".orchestrator" / "worktrees").iterdir()) == []
        assert "Traceback" not in done.err
        assert list(done.report)[: len(FIELDS)] == FIELDS
        return done


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """Launched from modified, staged and untracked files; replicas run free, and a worker is lost. Then code and data are
    changed, and the snapshot is lost to git."""
    place = tmp_path_factory.mktemp("study")
    project, remote = Project(place / "project"), place / "remote"
    write(project, {"study.py": Path(__file__).with_name("study.py").read_text(), "helper.py": "SCALE = 3.0\n"})
    write(
        project,
        {
            "conf/study.yaml": CONF,
            "data/points.csv": points(1),
            "notes.txt": "n\n",
            ".gitignore": "*.log\n/hidden.py\n",
        },
    )
    shell(
        project,
        f"git init -q && dvc init -q && dvc config core.analytics false && dvc remote add -q -d far {remote}",
        "dvc add -q data/points.csv && dvc push -q && dvc config core.autostage false",
    )
    project.commit()
    executed = place / EXECUTED
    helper = f"open({str(executed)!r}, 'a').write('x')\nfrom more import SCALE\n"
    write(project, {"helper.py": helper, "notes.txt": "staged\n", "run.log": "ignored\n"})
    project.git("add", "notes.txt")
    write(project, {"notes.txt": "staged, and modified again\n", "more.py": "SCALE = 2.0\n", ".env": "TOKEN=abc\n"})
    done = lost_a_worker(
        project, "conf=study", "sync=bap", "sync.rest_every=5", "pipeline.args.pause_s=0.03", "output=json"
    )
    assert done.code == 0, done.err
    assert "note: .env: left out of the record, since by their names they hold secrets" in done.err
    assert "cannot be repeated" not in done.err
    made = project.run(*of_the_page_about_files("export=last to=run.zip data=true"), "output=json")
    assert made.code == 0, made.err
    assert made.report["data"] == {"data/points.csv": "included"}
    crate = shutil.move(project.path / "run.zip", place)
    (project.path / "more.py").unlink()
    (project.path / ".env").unlink()
    write(project, {"helper.py": "SCALE = 1.0\n", "data/points.csv": points(2)})
    shell(project, "dvc add -q data/points.csv", "git add -A", "git -c user.name=t -c user.email=t@t commit -qm later")
    shell(project, "git for-each-ref --format='delete %(refname)' refs/orchestrator | git update-ref --stdin")
    shell(project, "git reflog expire --expire=now --all", "git gc -q --prune=now")
    yield Study(project, remote, done.report, Path(crate), executed)
    assert project.leftovers() == []


def lost_a_worker(project: Project, *arguments: str) -> Done:
    run = WatchedRun(project, *arguments)
    run.wait_for_steps(5)
    run.kill(run.living()[1])
    done = run.end()
    assert [each["worker"] for each in run.journal("worker_lost")] == [1]
    return done


@pytest.fixture(scope="module")
def later(study: Study) -> Done:
    """Another run: other code and data, other settings, other workers. One of its samples comes out differently each time."""
    given = (f"pipeline.args.marked={MARKED}", "optimizer.lr=0.02", "cluster.workers=1", "run.name=later")
    done = study.project.run("conf=study", *given, "output=json")
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def careless(study: Study) -> Done:
    """A run with a module that git ignores, and with data changed behind DVC's back."""
    write(study.project, {"hidden.py": "X = 1\n"})
    with tampered(study.project.path / "data" / "points.csv"):
        done = study.project.run("conf=study", "optimizer.lr=0.02", "cluster.workers=1", "output=json")
        assert done.code == 0, done.err
        (study.project.path / "hidden.py").unlink()
        strict = study.project.run("conf=study", "strict=true")
    assert strict.code == 4
    for told in (done.err, strict.err):
        assert "data/points.csv is not what DVC has recorded; dvc commit data/points.csv" in told
    return done


@pytest.mark.long
def test_a_run_is_repeated_though_code_data_and_snapshot_are_gone(study: Study) -> None:
    """On other workers and another topology, under another folder, time zone, language and hash seed. The copy in DVC's cache
    was tampered with: that is found, and the remote is asked."""
    assert git(study.project, "for-each-ref", "refs/orchestrator") == ""
    with tampered(study.cached):
        done = study.rerun(*arguments_of("rerun=last"), run_id="last", variables=OTHER_PLACE)
    assert done.code == 0, done.err
    assert f"the object {study.cached} is damaged: its bytes are not those of its name" in done.err
    assert "data/points.csv: from the remote" in done.err
    repetition = done.report["run_id"]
    assert done.report == dict(
        zip(FIELDS, [repetition, study.run_id, "finished", "exact", None, [], None, None, None], strict=True)
    )
    assert f"exact: all {STEPS} steps and the final parameters agree to the last bit" in done.err
    assert "the same digest as an earlier run of equal code, data, settings and environment" in done.err
    assert "cannot be repeated" not in done.err
    assert git(study.project, "for-each-ref", "refs/orchestrator") == ""
    for name in ("trace.jsonl", "rests.jsonl"):
        files = [study.project.folder(run_id) / name for run_id in (study.run_id, repetition)]
        assert files[0].read_bytes() == files[1].read_bytes()
    tags = {run_id: tags_of(study.project, run_id) for run_id in (study.run_id, repetition)}
    assert tags[study.run_id]["identity"] == tags[repetition]["identity"]
    assert tags[study.run_id]["verdict"] == tags[repetition]["verdict"] == "exact"
    assert (tags[repetition]["rerun_of"], tags[study.run_id]["verdict_by"]) == (study.run_id, repetition)
    assert (tags[repetition]["confirms"], tags[study.run_id]["confirms"]) == (study.run_id, repetition)
    artifacts = study.project.path / ".orchestrator" / "artifacts" / "0"  # of the experiment that MLflow itself makes
    assert (artifacts / study.run_id / "artifacts" / "reruns" / repetition / "verdict.json").exists()
    card = (artifacts / repetition / "artifacts" / "run" / "card.md").read_text()
    assert f"python -m orchestrator rerun={repetition}" in card
    assert study.run["digest"] in card
    assert "It may be that" not in card
    listed = study.project.run("runs").out
    assert f"exact, of {study.run_id[:8]}" in listed


@pytest.mark.long
def test_a_run_is_repeated_from_a_file_in_an_empty_folder(study: Study, tmp_path: Path) -> None:
    """Not before it is trusted, and not where a byte has changed."""
    there = elsewhere(tmp_path / "there")
    shutil.copy(study.crate, there.path)
    study.executed.unlink(missing_ok=True)
    asked = there.run(*of_the_page_about_files("rerun=run.zip"), "output=json")
    assert (asked.code, asked.report["error"]["kind"]) == (2, "Untrusted")
    assert asked.report["would_execute"]["names"] == ["study:Study"]
    assert asked.report["would_execute"]["modules"] == ["helper", "more", "study"]
    for told in ("pipeline: study:Study", "modules of its code: helper, more, study", "add trust=true"):
        assert told in asked.err
    assert not study.executed.exists()
    done = there.run(*of_the_page_about_files("rerun=run.zip trust=true"), "cluster.workers=1", "output=json")
    assert done.code == 0, done.err
    assert "data/points.csv: from the crate" in done.err
    assert study.executed.exists()
    assert (done.report["rerun_of"], done.report["verdict"], done.report["differences"]) == (study.run_id, "exact", [])
    assert there.runs() == {done.report["run_id"]: "FINISHED"}
    assert list((there.path / ".orchestrator" / "worktrees").iterdir()) == []
    assert there.leftovers() == []
    with zipfile.ZipFile(there.path / "run.zip") as archive:
        archive.extractall(there.path / "run")
    trace = there.path / "run" / "record" / "trace.jsonl"
    trace.write_bytes(trace.read_bytes().replace(b"0x1.", b"0x2.", 1))
    refused = there.run("rerun=run/", "trust=true", "output=json")
    assert refused.code == 4
    assert re.search(r"record/trace.jsonl: expected sha256 \w{64}, found \w{64}", refused.report["error"]["message"])


@pytest.fixture
def apart() -> Iterator[Path]:
    """A folder that others may come to: pytest closes its own to them whenever another session begins."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.long
def test_a_run_is_repeated_in_a_fresh_clone_that_has_the_store_and_the_remote(study: Study, apart: Path) -> None:
    """Repeated by another user, if the tests' user is root and others can reach the interpreter."""
    git(study.project, "clone", "--quiet", ".", str(apart / "clone"))
    clone = other(study.project, {"HOME": str(apart), "USER": "nobody"}, path=apart / "clone")
    for name in ("mlflow.db", "artifacts"):
        source, target = (place.path / ".orchestrator" / name for place in (study.project, clone))
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
    if os.geteuid() == 0 and all(folder.stat().st_mode & 0o001 for folder in Path(sys.prefix).parents):
        hand_over(apart, Path(clone.temporary))
        clone.before = AS_NOBODY
    done = clone.run(
        f"rerun={study.run_id[:10]}", "trust=true", "cluster.workers=1", "topology=peer_to_peer", "output=json"
    )
    assert done.code == 0, done.err
    assert "data/points.csv: from the remote" in done.err
    assert "Downloading" not in done.err
    assert "cannot be repeated" not in done.err
    assert (done.report["verdict"], done.report["differences"]) == ("exact", [])
    assert clone.leftovers() == []


@pytest.mark.long
def test_what_determines_the_result_cannot_be_changed(study: Study) -> None:
    done = study.rerun("run.threads=2", "optimizer.lr=1", "cluster.workers=3")
    assert done.code == 2
    assert "run.threads: it determines the result" in done.err
    assert "optimizer.lr: it determines the result" in done.err
    assert "cluster.workers:" not in done.err
    assert (done.report["verdict"], done.report["error"]["kind"]) == (None, "ConfigurationError")


@pytest.mark.long
def test_data_that_dvc_does_not_know_are_named_and_cannot_be_restored(study: Study, careless: Done) -> None:
    assert "hidden.py is imported, but not in the snapshot (ignored by git, or too large)" in careless.err
    done = study.rerun(run_id=careless.report["run_id"])
    assert done.code == 4
    assert "data/points.csv" in done.report["error"]["message"]
    assert "has other bytes now" in done.report["error"]["message"]
    assert (done.report["run_id"], done.report["verdict"]) == (None, None)


@pytest.mark.long
def test_a_damaged_cache_is_named_and_not_believed(study: Study) -> None:
    with tampered(study.cached), moved(study.remote):
        done = study.rerun()
    assert done.code == 4
    assert f"no sound object {study.cached.parent.name}{study.cached.name}" in done.report["error"]["message"]
    assert "is damaged" in done.report["error"]["message"]


@pytest.mark.long
def test_another_package_is_named_and_no_exactness_is_claimed(study: Study, tmp_path: Path) -> None:
    metadata = tmp_path / "plus-1.2.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: plus\nVersion: 1.2\n")
    path = {"PYTHONPATH": f"{study.project.environment()['PYTHONPATH']}:{tmp_path}"}
    done = study.rerun(variables=path)
    assert done.code == 4
    assert (done.report["verdict"], done.report["first_divergence"]) == ("inputs-differ", None)
    (difference,) = done.report["differences"]
    assert (difference["kind"], difference["name"], difference["b"]) == ("package", "plus", "1.2")
    assert "inputs-differ: package plus: none -> 1.2. Even so, all 20 steps" in done.err
    ignored = study.rerun("environment=ignore", variables=path)
    assert ignored.code == 0
    assert (ignored.report["verdict"], ignored.report["differences"]) == ("exact", [difference])


@pytest.mark.long
def test_what_is_not_a_function_of_the_record_is_found_at_its_first_step(study: Study, later: Done) -> None:
    """A sample that comes out differently each time is first drawn at step 12. A second repetition shows that it is chance."""
    first = later
    done = study.rerun(
        *arguments_of("rerun=RUN_ID", "explain=true"), "trace.tensors_every=7", run_id=first.report["run_id"]
    )
    assert done.code == 3, done.err
    assert done.report["verdict"] == "diverged"
    again = done.report["explanation"]["run_id"]
    original, one, other = (
        trace(study.project, run_id) for run_id in (first.report["run_id"], done.report["run_id"], again)
    )
    expected, got = original[12]["loss"], one[12]["loss"]
    assert done.report["first_divergence"] == {"step": 12, "what": "loss", "expected": expected, "got": got}
    assert len({json.dumps([line["loss"] for line in each[:12]]) for each in (original, one, other)}) == 1
    named = re.search(r"tensors that differ after step 14: (.*)", done.err)
    assert named is not None
    assert set(named[1].split(", ")) <= {"0.bias", "0.weight", "3.bias", "3.weight"}  # which of them, chance decides
    assert "0.weight" in named[1]
    digests = [each[12]["tensors"] for each in (one, other)]
    tensors = [f"tensor:{name}" for name in digests[0] if digests[0][name] != digests[1][name]]
    assert "tensor:0.weight" in tensors
    differs = ["loss", "gradient", *tensors]
    assert done.report["explanation"] == {"run_id": again, "step": 12, "differs": differs, "as_original": False}
    assert "run once more, step 12 came out in yet another way: chance within the step" in done.err
    assert tags_of(study.project, again)["explains"] == done.report["run_id"]
    verdict = recorded(study.project, done.report["run_id"], "verdict.json")
    assert verdict["explanation"] == done.report["explanation"]
    assert "chance within the step" in verdict["text"]
    assert "ALARM: an earlier run of equal code, data, settings and environment came to another digest" in done.err
    both = first.report["run_id"], done.report["run_id"]
    contradicts = [tags_of(study.project, run_id)["contradicts"] for run_id in both]
    assert contradicts in (
        [*reversed(both)],
        [again, again],
    )  # whether it was ended before the last step, the machine decides
    assert {each["share"] for each in done.report["differences"]} == {"outcome"}


@pytest.mark.long
def test_a_run_whose_data_changed_while_it_trained_differs_and_its_record_says_why(study: Study) -> None:
    given = ("optimizer.lr=0.02", "cluster.workers=1", "pipeline.args.lazily=true", "pipeline.args.pause_s=0.03")
    watched = WatchedRun(study.project, "conf=study", *given, "output=json")
    watched.wait_for_steps(5)
    with tampered(study.project.path / "data" / "points.csv"):
        first = watched.end()
    assert first.code == 0, first.err
    told = "data/points.csv changed while the run trained: what it read after that is not what was recorded"
    assert f"warning: {told}" in first.err
    assert watched.journal("inputs_changed")[0]["inputs"] == ["data/points.csv"]
    done = study.rerun(run_id=watched.run_id)
    assert (done.code, done.report["verdict"]) == (3, "diverged"), done.err
    assert f"the record of the original says why it may differ:\n  - {told}" in done.err


@pytest.mark.long
def test_a_run_that_lost_and_gained_workers_and_was_resumed_is_repeated(study: Study) -> None:
    given = ("run.steps=200", "pipeline.args.pause_s=0.03", "cluster.spares=1")
    run = WatchedRun(study.project, "conf=study", *given, "output=json")
    run.wait_for_steps(5)
    run.wait_for("worker_started", 3)  # the spare is ready, too
    victim, other_one = run.journal("generation_started")[0]["members"]  # whoever was ready first
    (spare,) = {0, 1, 2} - {victim, other_one}
    run.kill(run.living()[victim])
    run.wait_for("recovered")
    run.process.send_signal(signal.SIGTERM)
    stopped = run.end()
    assert stopped.code == 130
    assert 5 <= stopped.report["steps"] < 200
    assert [each["members"] for each in run.journal("generation_started")] == [
        [victim, other_one],
        sorted([other_one, spare]),
    ]
    resumed = study.project.run(f"resume={run.run_id}", "output=json")
    assert resumed.code == 0, resumed.err
    done = study.rerun("cluster.workers=4", run_id=run.run_id)
    assert done.code == 0, done.err
    assert (done.report["verdict"], done.report["differences"]) == ("exact", [])


@pytest.mark.long
def test_a_rerun_that_is_interrupted_leaves_nothing_and_claims_nothing(study: Study) -> None:
    before = untouchable(study.project.path)
    rerun = WatchedRun(study.project, f"rerun={study.run_id}", "output=json")
    rerun.process.send_signal(signal.SIGTERM)
    done = rerun.end()
    assert done.code == 130
    assert list(done.report)[: len(FIELDS)] == FIELDS
    assert (done.report["rerun_of"], done.report["status"], done.report["verdict"]) == (study.run_id, "killed", None)
    assert study.project.runs()[rerun.run_id] == "KILLED"
    assert list((study.project.path / ".orchestrator" / "worktrees").iterdir()) == []
    assert untouchable(study.project.path) == before


@pytest.mark.long
def test_two_runs_are_compared(study: Study, later: Done) -> None:
    """Other code, data, settings and workers."""
    both = f"{study.run_id},{later.report['run_id']}"
    arguments_of("compare=RUN_A,RUN_B")
    text = study.project.run(f"compare={both}")
    assert text.code == 0, text.err
    result, _, rest = text.out.partition("the outcome:")
    outcome, _, execution = rest.partition("only the execution:")
    for told, where in {
        "helper.py": result,
        "more.py": result,
        "data/points.csv": result,
        "optimizer.lr": result,
        "0.01 -> 0.02": result,
        "final parameters": outcome,
        "training.classes.0": outcome,
        "cluster.workers": execution,
        "-from more import SCALE": execution,  # the diffs come last
        "first difference of the traces: step 0: loss": execution,
    }.items():
        assert told in where, (told, text.out)


@pytest.mark.long
def test_a_comparison_is_told_to_programs_too(study: Study, later: Done) -> None:
    both = f"{study.run_id},{later.report['run_id']}"
    report = study.project.run(f"compare={both}", "output=json").report
    several = study.project.run(f"compare={both},{both.partition(',')[0]}", "output=json").report
    assert several["runs"] == [*report["runs"], report["runs"][0]]
    assert several["comparisons"][0] == report
    assert several["comparisons"][1]["differences"] == []
    assert report["runs"] == both.split(",")
    assert report["first_divergence"]["step"] == 0
    kinds = {(each["kind"], each["name"]): each["share"] for each in report["differences"]}
    assert (
        kinds["code", "helper.py"] == kinds["data", "data/points.csv"] == kinds["setting", "optimizer.lr"] == "result"
    )
    assert kinds["setting", "cluster.workers"] == "execution"
    assert {each["path"] for each in report["files"]} >= {"helper.py", "more.py"}


def arguments_of(*words: str) -> list[str]:
    """The arguments of the command line of docs/rerun.md that has these words; the first of them is its command."""
    (typed,) = (shlex.split(command) for command in COMMANDS if set(words) <= set(command.split()))
    command = words[0]
    assert typed[:4] == ["python", "-m", "orchestrator", command]
    return typed[4:]


def of_the_page_about_files(command: str) -> list[str]:
    """A command of docs/sharing.md, as arguments."""
    assert f"\npython -m orchestrator {command}\n" in ABOUT_FILES
    return shlex.split(command)


def elsewhere(path: Path) -> Project:
    """An empty folder of somebody whose home has nothing."""
    path.mkdir()
    (path.parent / "home").mkdir(exist_ok=True)
    return Project(path, variables={"HOME": str(path.parent / "home")})


def points(seed: int) -> str:
    """288 rows: three numbers and a class."""
    draw = random.Random(seed)
    rows = [[draw.gauss(0, 1) for _ in range(3)] for _ in range(ROWS + 32)]
    return "".join(f"{a:.6f},{b:.6f},{c:.6f},{int(a + b * c > 0)}\n" for a, b, c in rows)


def write(project: Project, files: dict[str, str]) -> None:
    for name, text in files.items():
        (project.path / name).parent.mkdir(parents=True, exist_ok=True)
        (project.path / name).write_text(text)


def shell(project: Project, *commands: str) -> None:
    for command in commands:
        done = project.shell(command)
        assert done.code == 0, (command, done.err)


def git(project: Project, *arguments: str) -> str:
    return project.shell(f"git {' '.join(arguments)}").out


def other(project: Project, variables: dict[str, str], path: Path | None = None) -> Project:
    """The same project, or one at another place, with other variables."""
    found = Project(path or project.path, variables={**project.variables, **variables})
    if path is None:
        found.mark, found.temporary = project.mark, project.temporary
    return found


def untouchable(folder: Path) -> dict[str, bytes]:
    """Every file of a work tree, of git and of DVC, apart from what runs write."""
    found = (Path(place, name) for place, _, files in os.walk(folder) for name in files)
    return {str(file): file.read_bytes() for file in found if ".orchestrator" not in file.parts}


def hand_over(*folders: Path) -> None:
    """To nobody, with the way that leads there."""
    for folder in folders:
        for parent in (folder, *folder.parents):
            if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        for place, below, files in os.walk(folder):
            for name in [".", *below, *files]:
                os.chown(Path(place, name), NOBODY, NOBODY, follow_symlinks=False)


def tamper(file: Path) -> None:
    """Other bytes of the same length, under the same time and permissions: DVC does not notice."""
    status, content = file.stat(), file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(content.translate(TAMPERED))
    assert file.read_bytes() != content
    file.chmod(status.st_mode & 0o777)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextmanager
def tampered(file: Path) -> Iterator[None]:
    tamper(file)
    yield
    tamper(file)
    tamper(file)


@contextmanager
def moved(folder: Path) -> Iterator[None]:
    away = folder.rename(folder.with_name("away"))
    yield
    away.rename(folder)


def recorded(project: Project, run_id: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder(run_id) / name).read_text())
    return found


def trace(project: Project, run_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project.folder(run_id) / "trace.jsonl").read_text().splitlines()]


def tags_of(project: Project, run_id: str) -> dict[str, str]:
    """Read from the store without MLflow."""
    connection = sqlite3.connect(project.path / ".orchestrator" / "mlflow.db")
    try:
        return dict(connection.execute("select key, value from tags where run_uuid = ?", (run_id,)))
    finally:
        connection.close()
