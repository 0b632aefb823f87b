"""An ensemble is trained, made one model, gone on with after a SIGKILL, and rerun exactly; nothing stays."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.numerics.digests import model_digest
from orchestrator.provenance.tracking import KIND, PARENT, Store
from orchestrator.worker.ensemble import saved
from tests.cli.test_sweep import kill_at
from tests.projects import REPOSITORY, Project

pytestmark = pytest.mark.ray
PAGE = (REPOSITORY / "docs" / "sweeps.md").read_text()
SMALL = ("ensemble=ensemble", "run.steps=6", "ensemble.members=3")


def came_to(report: dict[str, Any]) -> list[Any]:
    """All of a report that must not depend on how an ensemble was executed."""
    members = [[each[key] for key in ("number", "settings", "value", "status", "digest")] for each in report["trials"]]
    return [members, {key: value for key, value in report["whole"].items() if key != "model"}]


def assert_whole(project: Project, report: dict[str, Any]) -> None:
    """The whole has the members' bits, is one model of MLflow with its members below it, and is judged as they are."""
    whole, members = report["whole"], report["trials"]
    folder = Path(whole["model"])
    described = json.loads((folder / "ensemble.json").read_text())
    assert described["seeds"] == [member["settings"]["run.seed"] for member in members]
    assert len({member["digest"] for member in members}) == len(members)
    client = Store(None, project.path / ".orchestrator").client
    run = client.get_run(report["sweep_id"])
    assert (run.info.status, run.data.tags["digest"], run.data.tags[KIND]) == ("FINISHED", whole["digest"], "ensemble")
    assert run.data.metrics["validation/accuracy"] == whole["metrics"]["validation/accuracy"]
    assert run.data.metrics["disagreement"] == whole["disagreement"]
    model = client.get_logged_model(run.data.tags["model"].removeprefix("models:/"))
    assert (model.source_run_id, str(model.status)) == (report["sweep_id"], "READY")
    for member in members:
        child = client.get_run(member["run_id"])
        assert child.data.tags[PARENT] == report["sweep_id"]
        assert child.data.tags["digest"] == member["digest"]


@pytest.mark.long
def test_an_ensemble_is_one_model_that_loads_as_one(digits: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    done = digits.run(
        *SMALL, "ensemble.combine=weighted", "ensemble.data=bagging", "ensemble.register=digits", "output=json"
    )
    assert done.code == 0, done.err
    report = done.report
    whole = report["whole"]
    assert "combined by weighted" in done.err
    assert (whole["samples"], whole["chosen_on"], len(whole["weights"])) == (180, 180, 3)
    assert sum(whole["weights"]) == pytest.approx(1)
    assert (digits.folder(report["sweep_id"]) / "pictures" / "members.png").exists()
    monkeypatch.chdir(digits.path)
    monkeypatch.syspath_prepend(str(digits.path))
    model = saved.load(Path(whole["model"]))
    assert model_digest(model) == whole["digest"]
    for member, trial in zip(model.members, report["trials"], strict=True):
        assert model_digest(member) == trial["digest"]
    # MLflow loads the same model by its registered name.
    code = (
        "import mlflow, numpy; mlflow.set_tracking_uri('sqlite:///.orchestrator/mlflow.db'); "
        "images = numpy.load('data/digits/test_images.npy') / 16; "
        "found = mlflow.pyfunc.load_model('models:/digits/1').predict(images); "
        "numpy.save('predicted.npy', found['prediction'])"
    )
    loaded = digits.shell(f'python -c "{code}"')
    assert loaded.code == 0, loaded.err
    import numpy

    images = torch.from_numpy(numpy.load("data/digits/test_images.npy")).float() / 16
    with torch.no_grad():
        expected = model(images).exp()
    # Another process, with other threads: the same parameters, to the last bits of their products.
    assert torch.allclose(torch.from_numpy(numpy.load("predicted.npy")), expected, atol=1e-5)
    Path("predicted.npy").unlink()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_the_commands_of_the_page(digits: Project) -> None:
    """As its figures say: on disjoint data the whole is better than its members are on average."""
    _, block = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = block.splitlines()
    done = digits.shell(f"{launch} output=json")
    assert done.code == 0, done.err
    assert set(done.report) == {"sweep_id", "status", "objective", "trials", "best", "whole"}
    whole = done.report["whole"]
    assert_whole(digits, done.report)
    accuracy = "validation/accuracy"
    client = Store(None, digits.path / ".orchestrator").client
    for member in done.report["trials"]:  # the process that judges them finds what their own runs have found
        found = client.get_run(member["run_id"]).data.metrics[accuracy]
        assert found == pytest.approx(whole["of_members"][member["number"]][accuracy])
    assert whole["metrics"][accuracy] > whole["mean_of_members"][accuracy]
    assert whole["agreed"][accuracy] > whole["disagreed"][accuracy]
    again = digits.shell(f"{rerun} output=json")
    assert again.code == 0, again.err
    assert (again.report["rerun_of"], again.report["verdict"]) == (done.report["sweep_id"], "exact")
    assert [trial["verdict"] for trial in again.report["trials"]] == ["exact"] * 5
    member = digits.run(f"rerun={done.report['trials'][3]['run_id']}", "output=json")
    assert (member.code, member.report["verdict"]) == (0, "exact"), member.err


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_an_ensemble_whose_driver_is_killed_goes_on_to_the_same_end(digits: Project) -> None:
    whole = digits.run(*SMALL, "parallel=3", "output=json")
    assert whole.code == 0, whole.err
    ensemble_id = kill_at(digits, 1, *SMALL, "parallel=2")
    gone = digits.run(f"resume={ensemble_id}", "parallel=1", "output=json")
    assert gone.code == 0, gone.err
    assert came_to(gone.report) == came_to(whole.report)
    assert_whole(digits, gone.report)
    other = digits.run(f"resume={ensemble_id}")
    assert (other.code, other.out) == (2, "")
    assert f"ensemble {ensemble_id} has finished" in other.err


@pytest.mark.long
def test_a_member_that_fails_ends_the_ensemble_and_is_tried_again(faulty: Project) -> None:
    (faulty.path / "conf" / "failing.yaml").write_text(
        "conf: good\npipeline: {target: 'faults:Raises'}\nensemble: {members: 2}\n"
    )
    done = faulty.run("ensemble=failing", "output=json")
    assert (done.code, done.report["status"]) == (1, "failed")
    assert "member 0, run" in done.err
    assert "PipelineRaised" in done.err
    again = faulty.run(f"resume={done.report['sweep_id']}", "output=json")
    assert (again.code, again.report["sweep_id"]) == (1, done.report["sweep_id"])
    assert "member 0, run" in again.err
    nothing = faulty.run("ensemble=good", "ensemble.members=2")
    assert nothing.code == 1
    assert "judged by validation samples" in nothing.err
