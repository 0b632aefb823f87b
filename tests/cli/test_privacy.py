"""The page about privacy: its commands run in the order in which a reader types them; the secret is nowhere, and without it
there is no rerun."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml

from tests.projects import PATIENCE_S, REPOSITORY, Project, make_digits

PAGE = (REPOSITORY / "docs" / "privacy.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]
MASKED = """
import os, signal

from orchestrator.optim.privacy.masks import Masks
from pipelines.digits import Digits


class DiesOnce(Digits):
    \"\"\"The first worker that has masked its sum of the fourth step is killed, before it sends anything of it.\"\"\"

    def __init__(self, mark, **options):
        super().__init__(**options)
        add = Masks.add

        def add_and_die(masks, step, attempt, total):
            add(masks, step, attempt, total)
            if step == 3:
                try:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

        Masks.add = add_and_die
"""


@pytest.mark.long
@pytest.mark.ray
def test_the_commands_of_the_page_and_the_secret_is_nowhere(digits: Project, tmp_path: Path) -> None:
    digits.variables["XDG_CONFIG_HOME"] = str(tmp_path)
    file = tmp_path / "orchestrator" / "privacy.secret"
    first, again = (digits.shell(f"{command} output=json") for command in COMMANDS)
    assert (first.code, again.code) == (0, 0), (first.err, again.err)
    assert again.report["verdict"] == "exact"
    assert first.err.count(f"the secret {file} was made") == 1
    assert "was made" not in again.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert first.report["loss"] is None
    assert 0 < first.report["epsilon"] < 8
    assert f"epsilon {first.report['epsilon']:.4g}" in first.err

    folder = digits.folder(first.report["run_id"])
    trace = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    assert all(line["loss"].startswith("hmac:") for line in trace)
    recorded = json.loads((folder / "privacy.json").read_text())
    assert set(recorded) == {"commitment", "bound_to"}
    assert json.loads((folder / "data.json").read_text())["profile"] is None
    assert not (folder / "pictures" / "partition.png").exists()
    value = bytes.fromhex(file.read_text())
    written = [path for path in [*digits.path.rglob("*"), *Path(digits.temporary).rglob("*")] if path.is_file()]
    assert folder / "journal.jsonl" in written
    shown = [path for path in written if _shows(path.read_bytes(), value)]
    assert shown == []
    for text in (first.out, first.err, again.out, again.err):
        assert not _shows(text.encode(), value)

    away = file.rename(tmp_path / "away")
    without = digits.run(f"rerun={first.report['run_id']}", "output=json")
    assert without.code == 4, without.err
    assert "is not here" in without.err
    moved = digits.run(f"rerun={first.report['run_id']}", f"privacy.secret={away}", "output=json")
    assert (moved.code, moved.report["verdict"]) == (0, "exact"), moved.err
    other = tmp_path / "other"
    other.write_text("1" * 64 + "\n")
    other.chmod(0o600)
    wrong = digits.run(f"rerun={first.report['run_id']}", f"privacy.secret={other}", "output=json")
    assert wrong.code == 4, wrong.err
    assert "began with another secret" in wrong.err
    del digits.variables["XDG_CONFIG_HOME"]


@pytest.mark.long
@pytest.mark.ray
def test_a_run_whose_secret_was_given_by_its_path_goes_on_and_is_repeated(tmp_path: Path) -> None:
    """The path, from the command line or from a file, is in the record; older ones have '***' in its place, and ask for it."""
    project = make_digits(tmp_path / "project")
    project.variables["HOME"] = str(tmp_path / "home")
    private = yaml.safe_load((project.path / "conf" / "private.yaml").read_text().replace("1e-4", "0.0001"))
    private |= {"local": {"steps": 1, "optimizer": {"name": "sgd", "lr": 0.05}, "weight": "uniform"}}
    private["data"] |= {"shards": 60, "batch_size": 60, "partition": {"name": "iid", "clients": 120}}
    private |= {"checkpoint": {"every": 2}, "evaluation": {"every": 40}}
    private["run"]["steps"], private["cluster"]["workers"] = 40, 2
    (project.path / "conf" / "mine.yaml").write_text(yaml.safe_dump(private))
    private["privacy"]["secret"] = "~/keys/secret"
    (project.path / "conf" / "home.yaml").write_text(yaml.safe_dump(private))
    project.commit()
    path = tmp_path / "home" / "keys" / "secret"
    for given in (["once=mine", "conf=mine", f"privacy.secret={path}"], ["conf=home"]):
        before = {*project.runs()}
        process = project.start(*given)
        await_checkpoint(project, before)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        (run_id,) = {*project.runs()} - before
        again = [*given, "output=json"] if "once=mine" in given else [f"resume={run_id}", "output=json"]
        resumed = project.run(*again)
        assert resumed.code == 0, resumed.err
        assert resumed.report["run_id"] == run_id
        other = ["cluster.workers=1", "secure_aggregation=false", "output=json"]
        repeated = project.run(f"rerun={run_id}", *other)
        assert (repeated.code, repeated.report["verdict"]) == (0, "exact"), repeated.err

    record = project.folder(run_id) / "settings.yaml"
    record.write_text(record.read_text().replace("secret: ~/keys/secret", "secret: '***'"))
    asked = project.run(f"rerun={run_id}", *other)
    assert asked.code == 2
    assert asked.report["error"]["message"] == "the configuration is wrong: privacy.secret: this record lacks the path"
    assert asked.report["error"]["remedy"] == "give it again: privacy.secret=PATH"
    old = project.run(f"rerun={run_id}", f"privacy.secret={path}", *other)
    assert (old.code, old.report["verdict"]) == (0, "exact"), old.err
    assert project.leftovers() == []


def await_checkpoint(project: Project, before: set[str]) -> None:
    """Waits for the checkpoint of a run that was not there before."""
    deadline = time.monotonic() + PATIENCE_S
    while not any('"checkpoint_saved"' in file.read_text() for file in _journals(project, before)):
        assert time.monotonic() < deadline, "no checkpoint was made"
        time.sleep(0.05)  # looks at a file that another process writes


def _journals(project: Project, before: set[str]) -> list[Path]:
    return [file for file in project.path.glob(".orchestrator/*/journal.jsonl") if file.parent.name not in before]


@pytest.mark.long
@pytest.mark.ray
def test_a_worker_killed_right_after_masking_changes_no_bit(tmp_path: Path) -> None:
    project = make_digits(tmp_path / "project")
    (project.path / "masked.py").write_text(MASKED)
    project.commit()
    mark = tmp_path / "mark"
    given = ["conf=private", "run.steps=6", "evaluation.every=6", "cluster.workers=3", "output=json"]
    given += ["pipeline.target=masked:DiesOnce", f"pipeline.args.mark={mark}", f"privacy.secret={tmp_path / 'secret'}"]
    mark.touch()  # nobody is killed; noise follows from the settings, and so they have to be the same
    plain, whole = (project.run(*given, f"secure_aggregation={masked}") for masked in ("false", "true"))
    mark.unlink()
    killed = project.run(*given)
    assert [done.code for done in (plain, whole, killed)] == [0, 0, 0], (plain.err, whole.err, killed.err)
    assert mark.exists()
    assert [each["kind"] for each in killed.report["recoveries"]][:1] == ["lost"]
    assert plain.report["digest"] == whole.report["digest"] == killed.report["digest"]
    traces = {(project.folder(done.report["run_id"]) / "trace.jsonl").read_bytes() for done in (plain, whole, killed)}
    assert len(traces) == 1
    assert project.leftovers() == []


def _shows(data: bytes, value: bytes) -> bool:
    return any(form in data for form in (value, value.hex().encode(), value.hex().upper().encode()))


@pytest.mark.long
@pytest.mark.slow
def test_the_figures_of_the_page_are_those_of_the_accountant() -> None:
    from orchestrator.optim.privacy.accounting import Accountant

    assert "an epsilon of 68 in 60 rounds instead of 5.6" in PAGE
    assert round(Accountant(1.0, 1.0, 1e-4).epsilon(60)) == 68
    assert round(Accountant(1.0, 0.1, 1e-4).epsilon(60), 1) == 5.6


@pytest.mark.ray
@pytest.mark.long
def test_private_digits_are_accurate_at_an_epsilon_below_eight(digits: Project, tmp_path: Path) -> None:
    """Each secret is other noise: 96.7 to 96.9 % were measured with three."""
    done = digits.run("conf=private", f"privacy.secret={tmp_path / 'secret'}", "output=json")
    assert done.code == 0, done.err
    assert done.report["epsilon"] <= 8
    assert done.report["metrics"]["validation/accuracy"] >= 0.95
