"""What docs/tuning.md shows works word for word, and what is chosen changes no bit."""

from __future__ import annotations

import json
import os

import pytest

from orchestrator.records.lines import read
from orchestrator.settings import from_yaml
from orchestrator.topologies import TOPOLOGIES
from tests.commands.alone import alone, assert_as_alone
from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "tuning.md").read_text()
TUNE, LAUNCH = (line for line in PAGE.splitlines() if line.startswith("python -m orchestrator"))
SHORTLY = "tuning.seconds=0.3 output=json"


@pytest.mark.long
@pytest.mark.slow
def test_a_launch_measures_chooses_and_keeps_what_it_chose(digits: Project) -> None:
    before = set(digits.runs())
    done = digits.shell(f"{LAUNCH} {SHORTLY}")
    assert_as_alone(digits, done, alone(digits, "digits", "run.steps=60"))
    assert set(digits.runs()) - before == {done.report["run_id"]}, "what was measured is no run of the project"
    folder = digits.folder(done.report["run_id"])
    told, settings = json.loads((folder / "tuning.json").read_text()), from_yaml((folder / "settings.yaml").read_text())
    assert told["keys"] == ["topology", "cluster.workers"]
    assert told["chosen"] == {"topology": settings.topology.name, "cluster.workers": settings.cluster.workers.start}
    assert settings.tuning.auto == ()
    assert 1 <= settings.cluster.workers.start <= len(os.sched_getaffinity(0))
    assert f"topology={settings.topology.name} cluster.workers=" in done.err
    assert told["reason"] in done.err
    (event,) = [each for each in read(folder / "journal.jsonl") if each["event"] == "tuned"]
    assert event["chosen"] == told["chosen"]
    assert "tuning.json" in json.loads((folder / "settings_from.json").read_text())["cluster.workers"]
    assert digits.leftovers() == []


@pytest.mark.long
def test_tune_measures_the_best_three(digits: Project) -> None:
    done = digits.shell(f"{TUNE} {SHORTLY}")
    assert done.code == 0, done.err
    listed, cores = done.report["candidates"], len(os.sched_getaffinity(0))
    workers = min(8, cores)
    assert len(listed) == 2 * (1 + (workers - 1) * len(TOPOLOGIES))
    assert [each["measured_s"] is not None for each in listed] == [True] * 3 + [False] * (len(listed) - 3)
    assert set(done.report["chosen"]) == {"topology", "cluster.workers", "data.loaders"}
    assert digits.leftovers() == []


@pytest.mark.long
@pytest.mark.slow
def test_what_cannot_be_chosen_is_refused(digits: Project) -> None:
    done = digits.run("tune", "conf=digits", "sync=ssp")
    assert done.code == 2
    assert "what is chosen by measuring is the layout of lockstep, not of sync=ssp" in done.err
    done = digits.run("conf=digits", "topology=auto", "plan=true")
    assert done.code == 2
    assert "topology: auto is decided by a measurement when a run is launched" in done.err
    done = digits.run("tune")
    assert done.code == 2
    assert "tune: it needs a configuration" in done.err
