"""A repetition that is to end after a step is watched by its trace."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli.rerun import _failed
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal import child_process
from orchestrator.driver.terminal.child_process import Done
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.experiments.rerun.repeater import Reached, Repeater, _variables
from orchestrator.experiments.rerun.repetition import _original
from orchestrator.experiments.rerun.run import Rerun, _replay, read_beside, undisturbed, unshown, why_not
from orchestrator.provenance.code import checkout
from orchestrator.provenance.environment import region
from orchestrator.provenance.tracking import Past
from orchestrator.records.input_audit import File, InputAudit
from orchestrator.records.verdict import Verdict
from tests.refusals import refused


@pytest.mark.parametrize("last", [0, 1, 3])
def test_a_step_is_reached_once_its_line_is_whole(tmp_path: Path, last: int) -> None:
    reached = Reached(tmp_path, last)
    assert not reached()
    (tmp_path / "worktrees").mkdir()
    trace = tmp_path / "0123" / "trace.jsonl"
    trace.parent.mkdir()
    assert not reached()
    with trace.open("a") as file:
        for step in range(last + 1):
            file.write(f'{{"step": {step}')
            file.flush()
            assert not reached()
            file.write("}\n")
            file.flush()
            assert reached() == (step == last)
    assert reached()


def test_a_repetition_that_lacks_what_the_launch_named_cannot_be_repeated(tmp_path: Path) -> None:
    """It is no wrong use then, as it would be for whoever launched this."""
    original = Recorded(Past("0123", "a run", "default", "FINISHED", 0, 3, {}, None), RunFolder(tmp_path, "0123"))
    error = ConfigurationError(["no module named 'hidden'"], "mend the import").as_dict()
    refused: dict[str, Any] = {"run_id": None, "status": "failed", "error": error}
    assert why_not(original, refused).exit_code == 2
    original.files.code.write_text(json.dumps({"obstacles": ["hidden.py is imported, but not in the snapshot"]}))
    found = why_not(original, refused)
    assert isinstance(found, NotRerunnable)
    assert "no module named 'hidden'\n" in found.message
    assert found.message.endswith("\n  - hidden.py is imported, but not in the snapshot")
    assert why_not(original, {**refused, "run_id": "4567"}).exit_code == 2


@pytest.mark.parametrize("rerun_of", [None, "4567"])
def test_a_run_that_failed_before_its_first_step_has_nothing_to_repeat(tmp_path: Path, rerun_of: str | None) -> None:
    """If it had been mended, there would be nothing to compare, and that would be known at the end only."""
    past = Past("0123", "a run", "default", "FAILED", 0, None, {}, None, rerun_of)
    original = Recorded(past, RunFolder(tmp_path, "0123"))
    original.files.settings.write_text("run: {steps: 3}\npipeline: {target: a:B}\n")
    with refused("replay.no-step", "launch it again" if rerun_of is None else "rerun=4567"):
        _replay(original)
    original.files.trace.write_text('{"step": 0}\n')
    assert _replay(original) == []


@pytest.mark.parametrize("verdict", [None, "exact"])
def test_after_failed_repetitions_last_is_the_run_that_they_repeat(verdict: str | None) -> None:
    """As a user types the same command once more, who has mended what failed."""
    past = {
        name: Past(name, "a run", "default", "FAILED", 0, 5, {}, None, of, told)
        for name, of, told in [("1", None, None), ("2", "1", None), ("3", "2", verdict)]
    }
    store = cast(Any, SimpleNamespace(find=lambda name: past["3" if name == "last" else name]))
    told: list[str] = []
    assert _original("last", store, told.append) == ("3" if verdict else "1")
    assert [sentence[:16] for sentence in told] == ([] if verdict else ["3 is a repetitio"])
    assert _original("3", store, told.append) == "3", "by its own name it is meant itself"


@pytest.mark.parametrize("begun", [None, "4567"])
def test_the_error_of_a_repetition_that_had_begun_is_not_told_twice(begun: str | None) -> None:
    done = Rerun(begun, "0123", None, error=ConfigurationError(["no module named 'hidden'"], "mend it"))
    assert ("no module named" in _failed(done, "run 4567 repeats run")) == (begun is None)


AT_SITES = (
    "cluster: {address: h:1, workers: 2}\ndata: {shards: 2, partition: natural, sites: {here: [0], there: [1]}}\n"
)


@pytest.mark.parametrize("sites", ["", AT_SITES])
def test_a_repetition_of_a_run_with_sites_is_told_who_sat_out(tmp_path: Path, sites: str) -> None:
    """Also if nobody did, so that it waits for a site that is away."""
    original = Recorded(Past("0123", "a run", "default", "FINISHED", 0, 3, {}, None), RunFolder(tmp_path, "0123"))
    original.files.settings.write_text(f"run: {{steps: 3}}\npipeline: {{target: a:B}}\n{sites}")
    original.files.trace.write_text('{"step": 0}\n')
    assert _replay(original) == ([f"sat_out={original.files.trace}"] if sites else [])


@pytest.mark.parametrize(
    ("rehearsed", "given", "expected"),
    [
        ("", ["run.tags=[x]"], ["run.tags=[x]"]),
        (
            "chaos: {every: 1s}\ncluster: {workers: 3}\n",
            ["cluster.workers=1"],
            ["chaos.every=null", "cluster.workers=1"],
        ),
        ("chaos: {every: 1s}\ncluster: {workers: 3}\n", ["chaos.every=60s"], ["chaos.every=60s"]),
        ("chaos: {every: 1s}\ncluster: {workers: 3}\n", ["chaos={every: 60s}"], ["chaos={every: 60s}"]),
    ],
)
def test_a_repetition_rehearses_losses_only_where_they_are_asked_for(
    tmp_path: Path, rehearsed: str, given: list[str], expected: list[str]
) -> None:
    """With one every second, a replay that is slower than the original came to no end."""
    original = Recorded(Past("0123", "a run", "default", "FINISHED", 0, 3, {}, None), RunFolder(tmp_path, "0123"))
    original.files.settings.write_text(
        f"run: {{steps: 3}}\npipeline: {{target: 'a:B'}}\noptimizer: {{name: sgd, lr: 0.1}}\n{rehearsed}"
    )
    assert undisturbed(original, given) == expected


def test_a_repetition_is_not_the_run_of_its_originals_job(tmp_path: Path) -> None:
    """A job that is started again takes the newest run of its id, so it went on with the repetition, or took it for its end."""
    original = Recorded(Past("0123", "a run", "default", "KILLED", 0, 3, {}, None), RunFolder(tmp_path, "0123"))
    settings = "run: {steps: 3SUBMISSION}\npipeline: {target: 'a:B'}\noptimizer: {name: sgd, lr: 0.1}\n"
    original.files.settings.write_text(settings.replace("SUBMISSION", ", submission: job-1"))
    assert unshown(original.settings([])) == ["run.submission=null"]
    original.files.settings.write_text(settings.replace("SUBMISSION", ""))
    assert unshown(original.settings([])) == []


def test_a_repetition_has_the_variables_that_the_original_read(tmp_path: Path) -> None:
    original = Recorded(Past("0123", "a run", "default", "FINISHED", 0, 3, {}, None), RunFolder(tmp_path, "0123"))
    masked = {"masked": "***", "scrypt": "0" * 64}
    variables = {"SCALE": ["2"], "MODE": [None], "TOKEN": [masked]}
    original.files.input_audit.write_text(json.dumps({"variables": variables, "obstacles": ["TOKEN: masked"]}))
    found = _variables(original, tmp_path, {"SCALE": "3", "MODE": "fast", "TOKEN": "here", "HOME": "/home"})
    assert found == {"SCALE": "2", "TOKEN": "here", "HOME": "/home"}
    assert original.obstacles == ["TOKEN: masked"]


@pytest.mark.parametrize(
    ("recorded", "here", "expected"),
    [
        ({"variables": {"TZ": "UTC"}}, {"TZ": "Asia/Tokyo", "LANG": "de_DE"}, {"TZ": "UTC"}),
        ({"variables": {"TZ": "UTC", "OMP_NUM_THREADS": "1"}}, {}, {"TZ": "UTC"}),
        ({"variables": {}, "time_zone": "Asia/Tokyo"}, {"TZ": "UTC"}, {"TZ": "Asia/Tokyo"}),
        ({"variables": {}, "time_zone": "Asia/Tokyo"}, {}, {"TZ": "Asia/Tokyo"}),
        ({"variables": {}, "time_zone": region.time_zone()}, {}, {}),
        ({}, {"TZ": "UTC"}, {"TZ": "UTC"}),
    ],
)
def test_a_repetition_has_the_language_and_the_time_zone_of_the_original(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorded: dict[str, object],
    here: dict[str, str],
    expected: dict[str, str],
) -> None:
    """A feature such as the hour of the day is taken from a time stamp in the time zone of the process."""
    for name in [each for each in os.environ if each.startswith(("TZ", "LANG", "LC_"))]:
        monkeypatch.delenv(name)
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    original = Recorded(Past("0123", "a run", "default", "FINISHED", 0, 3, {}, None), RunFolder(tmp_path, "0123"))
    original.files.environment.write_text(json.dumps({"nodes": {"0": {"bits": {}, "host": recorded}}}))
    assert _variables(original, tmp_path, here) == expected


def test_what_a_repetition_reads_by_its_whole_path_of_the_project_is_told() -> None:
    """As a list with whole paths among the data leads to, whatever lies there by now."""
    inside, here = File("/w/code/a", inside="a", size=1), File("/project/data/1.txt", size=1)
    others = [File("/project/data", folder=True), File("/projects/b", size=1), File("/etc/c", size=1)]
    read = InputAudit({each.name: each for each in (inside, here, *others)})
    assert read_beside(read, Path("/project")) == ["/project/data/1.txt"]
    verdict = Verdict("exact", None, 3)
    assert (
        "read /project/data/1.txt here, and not what was recorded"
        in Rerun("b", "a", verdict, beside=["/project/data/1.txt"]).text
    )


@pytest.mark.parametrize("was_looked_at", [False, True])
def test_the_files_come_home_whether_or_not_somebody_has_looked_at_the_run(
    tmp_path: Path, *, was_looked_at: bool
) -> None:
    """A look at it makes its folder, and brings what the store has of it by then."""
    tree, home = tmp_path / "tree", tmp_path / "home"
    for folder in (tree, home):
        folder.mkdir()
    files = RunFolder(tree, "0123")
    files.settings.write_text("run: {}")
    files.trace.write_text("all\n")
    files.model.mkdir()
    (files.model / "MLmodel").touch()
    if was_looked_at:
        looked = RunFolder(home, "0123")
        with looked.leased():
            looked.trace.write_text("a part\n")
            looked.model.mkdir()
            looked.fetched.write_text("RUNNING None")
            held = looked.path.joinpath("lock").stat().st_ino
    checkout.bring_home(files.path, home)
    assert {file.name for file in (home / "0123").iterdir()} - {"lock"} == {"settings.yaml", "trace.jsonl", "model"}
    assert (home / "0123" / "trace.jsonl").read_text() == "all\n"
    assert (home / "0123" / "model" / "MLmodel").exists()
    if was_looked_at:
        assert (home / "0123" / "lock").stat().st_ino == held


@pytest.mark.parametrize(("interrupted", "code"), [(False, "rerun.no-report"), (True, "rerun.interrupted")])
def test_the_files_of_a_repetition_that_is_killed_come_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool, code: str
) -> None:
    """Its checkpoints are in its tree, which is removed. A signal that came before it listened to them has ended it, too."""
    restored = checkout.Restored(tmp_path / "tree", tmp_path / "tree", "", "", None)
    home = tmp_path / ".orchestrator"
    home.mkdir()

    def killed(*_: object) -> Done:
        left = restored.project / ".orchestrator" / "0123"
        (left / "checkpoints").mkdir(parents=True)
        (left / "lock").touch()
        if interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        return Done(-9, "")

    monkeypatch.setattr(child_process, "run", killed)
    said: Any = SimpleNamespace(say=lambda _: None)
    repeater = Repeater(tmp_path, home, cast("Any", SimpleNamespace(uri="sqlite:///x")), cast("Any", None), (), said)
    monkeypatch.setattr(Repeater, "environment", lambda *_: ("python", {}))
    monkeypatch.setattr(Repeater, "_declared", lambda _: [])
    with refused(code):
        repeater._launch("conf=x", restored, child_process.never)
    assert (home / "0123" / "checkpoints").is_dir()


@pytest.mark.parametrize(
    ("status", "is_orphan", "told"),
    [("RUNNING", False, "is still running"), ("RUNNING", True, "ended before"), ("FAILED", False, "ended before")],
)
def test_a_run_without_settings_is_told_from_one_that_still_runs(
    tmp_path: Path, status: str, *, is_orphan: bool, told: str
) -> None:
    past = Past("0123", "a run", "default", status, 0, None, {}, None, is_orphan=is_orphan)
    with pytest.raises(NotRerunnable, match=told):
        Recorded(past, RunFolder(tmp_path, "0123")).require_readable()


def test_a_verdict_that_one_run_does_not_take_is_noted_at_the_other(tmp_path: Path) -> None:
    """The original is a run of others, which this user may only read: that is told once."""
    noted: list[str] = []

    class ReadOnly:
        def tag(self, run_id: str, _: object) -> None:
            if run_id == "theirs":
                raise OSError("403 Forbidden\nResponse text")
            noted.append(run_id)

    said = SimpleNamespace(say=noted.append)
    repeater = Repeater(tmp_path, tmp_path, cast("Any", ReadOnly()), cast("Any", None), (), cast("Any", said))
    repeater.tag({"theirs": {"verdict": "exact"}, "mine": {"verdict": "exact"}})
    repeater.tag({"theirs": {"verdict_by": "mine"}})
    told = "warning: MLflow did not take all of the rerun's outcome for run theirs: 403 Forbidden"
    assert noted == [told, "mine"]
