"""The stages that made an input are found in their order with their raw data, executed by DVC, and compared file by file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.provenance.data import dvc_files, stages
from orchestrator.provenance.data.restoring import restore
from orchestrator.records.data_stage_replay import Made
from tests.provenance.data.dvc_project import capture, git, listing, work_tree
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise")  # DVC's own use of a library

SPLIT = "mkdir made/parts && cp made/clean.csv made/parts/a.csv && echo 1 > made/parts/b.csv"
STAGES = {
    "split": {"cmd": SPLIT, "deps": ["made/clean.csv"], "outs": ["made/parts"]},
    "clean": {
        "cmd": "sed s/1/7/ raw.csv > made/clean.csv",
        "deps": ["raw.csv", "notes.txt"],
        "outs": ["made/clean.csv"],
    },
    "other": {"cmd": "date > made/other.txt", "deps": ["raw.csv"], "outs": ["made/other.txt"]},
}


@pytest.fixture
def prepared(tracked: Path) -> Path:
    (tracked / "dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}))
    dvc = [sys.executable, "-m", "dvc", "repro", "--quiet"]
    subprocess.run(dvc, cwd=tracked, check=True, env=stages.variables(os.environ, tracked.parent / "site"))
    return tracked


def execute(tree: Path, found: stages.Pipeline) -> list[tuple[Made, ...]]:
    made = []
    (tree / "made").mkdir(exist_ok=True)
    for stage in found.stages:
        variables = stages.variables(os.environ, tree.parent / "scratch")
        subprocess.run(
            stages.command(sys.executable, stage), cwd=found.top, check=True, env=variables, capture_output=True
        )
        made.append(stages.made(tree, stage, dvc_files.storage(tree.parent / "p")))
    return made


@pytest.mark.long
@pytest.mark.slow
def test_stages_are_executed_from_the_raw_data_on_and_what_they_make_is_compared(
    prepared: Path, tmp_path: Path
) -> None:
    """Without a look at DVC's cache, and without a change to it; a stage that the input does not depend on is left out."""
    inputs = capture(prepared, ["made/parts", "data/imgs"])
    tree = work_tree(prepared, tmp_path / "w")
    found = stages.pipeline(tree, inputs)
    assert [stage.name for stage in found.stages] == ["clean", "split"]
    assert [item.path for item in found.raw] == ["raw.csv"]
    git(tree, "init", "-q")  # as a restored tree is
    restore(tree, found.raw, prepared)
    untouched = listing(prepared)
    assert [stages.changed(found.top, stage) for stage in found.stages[:1]] == [[]]
    same = execute(tree, found)
    assert all(each.is_same for stage in same for each in stage)
    assert [each.path for stage in same for each in stage] == ["made/clean.csv", "made/parts"]
    (tree / "raw.csv").write_text("1,3\n")
    (first,), (second,) = execute(tree, found)
    assert (first.path, first.is_same) == ("made/clean.csv", False)
    assert (second.path, second.files) == ("made/parts", ("a.csv",))
    (tree / "notes.txt").write_text("other")
    (tree / "dvc.yaml").write_text((tree / "dvc.yaml").read_text().replace("s/1/7/", "s/1/8/"))
    said = ["notes.txt is modified", "raw.csv is modified", "its command is another one"]
    (tree / "dvc.lock").write_text((prepared / "dvc.lock").read_text())
    assert stages.changed(found.top, found.stages[0]) == said
    assert listing(prepared) == untouched


def test_data_that_no_stage_made_are_refused(tracked: Path, tmp_path: Path) -> None:
    tree = work_tree(tracked, tmp_path / "w")
    with refused("dvc.no-stage"):
        stages.pipeline(tree, capture(tracked, ["raw.csv"]))
    with refused("dvc.no-stage"):
        stages.pipeline(tree, [])
