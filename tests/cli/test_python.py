"""docs/python.md, followed word for word: as a script up to what launches a second run, and whole as a notebook.

Two runs serve all tests of `make test`, of which one fails: the asserts are of the script itself, which has imported what they
need.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.projects import PATIENCE_S, REPOSITORY, Done, Project, packages

PAGE = (REPOSITORY / "docs" / "python.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FIRST, AGAIN = (BLOCK.findall(part) for part in PAGE.split("\n## Again\n"))
STEPS = 3000  # of a run that is stopped

ASSERTS = """
from pathlib import Path
import re

assert [(each["step"], each["loss"]) for each in heard if each["event"] == "step"] == list(history.loss.items())
assert history.index.tolist() == list(range(60)) and history.loss.iloc[-1] == run.loss
assert history["validation/accuracy"].dropna().tolist()[-1] == run.metrics["validation/accuracy"]
assert run.settings["pipeline.target"] == "signs_cells:Signs" and run.settings["run.tags"] == ["try=first"]
assert run.command == f"python -m orchestrator conf=.orchestrator/{run.run_id}/settings.yaml"
assert f"command: `{run.command}`" in run.card and "<iframe" in run.card._repr_html_()
assert run.figures["loss"].is_file() and run.figures._repr_html_().count("data:image/png") == 2
assert run.verdict is None
assert same == run and orchestrator.run(run.run_id[:12]).digest == run.digest
assert found.to_dict("list") == {"run": [run.run_id], "optimizer.lr": [0.02], "tag.try": ["first"]}
assert orchestrator.runs().steps.tolist() == [60] and orchestrator.runs("steps>60").empty
assert refused.code == "optimizer.option-is-text" and refused.run_id is None

assert not model.training
trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
answer = run.predict([[1.0, 2.0, -0.5, 0.25]])
assert answer.shape == (1, 2) and answer.argmax() == 1


def code_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except orchestrator.OrchestratorError as error:
        return error.code


assert code_of(orchestrator.run, "none-such") == "mlflow.no-such-run"
assert code_of(orchestrator.runs, columns=["speed"]) == "record.no-such-name"
assert code_of(orchestrator.resume, run) == "resume.of-finished"
assert code_of(orchestrator.rerun, run, audit=0) == "rerun.audit-number"
assert code_of(orchestrator.rerun, run, seed="a") == "rerun.audit-seed"
assert code_of(orchestrator.rerun, run, environment="other") == "rerun.environment"
assert code_of(orchestrator.rerun, run, wheels="w") == "rerun.wheels-unused"
assert code_of(orchestrator.sweep, conf) == "sweep.space-required", code_of(orchestrator.sweep, conf)

# The module is changed, as by a cell that was executed again: the run's model is made by what the run was recorded with.
module = Path("signs_cells.py")
text = module.read_text()
module.write_text(text.replace("WIDTH = 16", "WIDTH = 8"))
again = orchestrator.run("last")
assert all((tensor == trained[name]).all() for name, tensor in again.model().state_dict().items())
assert (again.predict([[1.0, 2.0, -0.5, 0.25]]) == answer).all()
module.write_text("# my own\\n")
assert code_of(orchestrator.launch, conf) == "cells.file-taken"
module.write_text(text)
older = Signs


class Signs(older):
    pass


assert code_of(orchestrator.launch, conf) == "cells.older"
assert module.read_text() == text
print(run.run_id)
"""

FAILS = """
failing = {**conf, "run": {"steps": 2}, "pipeline": {"target": "faults:Raises"}, "cluster": {"workers": 1}}
del failing["evaluation"]
try:
    orchestrator.launch(failing)
except orchestrator.OrchestratorError as error:
    failed = error
why = "loss() (step 0, shard 0) raised KeyError: 'no such column'"
assert failed.message.startswith(why) and "faults.py:" in failed.message, failed.message
assert orchestrator.runs("status=failed").run.tolist() == [failed.run_id]
told = Path(".orchestrator", failed.run_id, "error.txt").read_text()
assert why in told and "Traceback" in told
"""


def bash(project: Project, command: str, stdin: str = "") -> Done:
    done = subprocess.run(
        command,
        shell=True,
        cwd=project.path,
        env=project.environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def tree_of(project: Project, run_id: str) -> dict[str, str]:
    """The files of the snapshot of a run's code."""
    tree = json.loads((project.folder(run_id) / "code.json").read_text())["tree"]
    listed = bash(project, f"git ls-tree --name-only {tree}").out.split()
    return {name: bash(project, f"git show {tree}:{name}").out for name in listed}


@pytest.mark.ray
def test_the_page_as_a_script_up_to_a_second_run(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "signs.py").write_text("\n".join([*FIRST, ASSERTS, FAILS]))
    shutil.copy2(Path(__file__).with_name("faults.py"), tmp_path)
    project.commit()
    done = bash(project, f"{sys.executable} signs.py")
    assert done.code == 0, done.err
    assert "] about to fail" in done.err
    assert "Traceback" not in done.err
    files = tree_of(project, done.out.split()[-1])
    assert files.keys() == {"faults.py", "signs.py", "signs_cells.py"}
    assert "class Signs" in files["signs_cells.py"]
    assert not {"launch(", "conf", "history"} & {*re.findall(r"\w+\(?", files["signs_cells.py"])}
    assert "signs_cells.py" not in done.err.partition("starting 1 worker")[0]
    assert project.leftovers() == []


ELSEWHERE = """
import shutil

drawn = {name: path.read_bytes() for name, path in run.figures.items()}
shutil.rmtree(run.folder)
unchanged = orchestrator.run(run.run_id)
assert (unchanged.predict([[1.0, 2.0, -0.5, 0.25]]) == answer).all()
assert all((tensor == trained[name]).all() for name, tensor in unchanged.model().state_dict().items())
assert drawn and {name: path.read_bytes() for name, path in unchanged.figures.items()} == drawn
assert unchanged.history().equals(history) and unchanged.card == run.card

conf = {**conf, "pipeline": {"target": "signs_cells:Signs"}}
members = {**conf, "ensemble": {"members": 2}}
ensemble = orchestrator.sweep(members, "run.steps=4", "cluster.workers=1", kind="ensemble")
assert len(ensemble.trials) == 2 and ensemble.trials.digest.nunique() == 2
whole = ensemble.model()
given = torch.tensor([[1.0, 2.0, -0.5, 0.25]])
assert whole(given).shape == (1, 2) and whole.disagreement(given).shape == (1,)
assert code_of(orchestrator.resume, ensemble.sweep_id) == "sweep.of-finished"

from orchestrator.provenance.tracking import Store, store

Store(None, Path(".orchestrator")).client.set_tag(run.run_id, store.USER, "somebody-else")
theirs, begins = orchestrator.run(run.run_id), f"initial=runs:/{run.run_id}/trained"
shutil.rmtree(run.folder / "model")
for refuse in (
    lambda: theirs.model(),
    lambda: orchestrator.rerun(theirs),
    lambda: orchestrator.launch(conf, begins),
    lambda: orchestrator.sweep(members, "run.steps=4", begins, kind="ensemble"),
):
    assert code_of(refuse) == "record.untrusted", code_of(refuse)
assert (theirs.predict([[1.0, 2.0, -0.5, 0.25]], trust=True) == answer).all()
assert orchestrator.launch(conf, begins, "run.steps=2", "trust=true").loss < run.history().loss[0]
assert len(orchestrator.sweep(members, "run.steps=4", begins, kind="ensemble", trust=True).trials) == 2
assert orchestrator.rerun(theirs, "cluster.workers=1", trust=True).verdict == "exact"
"""


@pytest.mark.long
@pytest.mark.ray
def test_what_is_elsewhere_is_fetched_and_what_is_of_others_is_trusted_first(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "signs.py").write_text("\n".join([*FIRST, ASSERTS, ELSEWHERE]))
    project.commit()
    done = bash(project, f"{sys.executable} signs.py")
    assert done.code == 0, done.err
    assert project.leftovers() == []


# After the cell of this number of the part of the page that launches again.
CHECKS = {
    0: "assert repeated.verdict == 'exact' == run.verdict and repeated.run.digest == run.digest",
    1: "assert 'optimizer.lr' in set(difference.differences.name) and 'optimizer.lr' in str(difference)",
    2: "assert swept.settings == {'optimizer.lr': 0.05} and len(swept.trials) == 2 and swept.best.steps == 60",
    3: f"assert 0 < orchestrator.run(stopped_id).steps < {STEPS}",
}
ALONE = """
from pathlib import Path
assert not "".join(each.read_text() for each in Path("/proc/self/task").glob("*/children"))  # no process is left
"""
LAST = """
gone_on = orchestrator.resume(stopped_id)
assert gone_on.steps == 3000 and gone_on.run_id == stopped_id
WIDTH = 8
assert orchestrator.launch(conf, "run.steps=2").model()[0].out_features == 8
assert orchestrator.run(run.run_id).model()[0].out_features == 16  # of the record, not of the notebook
print(run.run_id, run.digest)
"""


@pytest.mark.long
@pytest.mark.ray
def test_the_page_is_a_notebook_and_its_runs_need_none(tmp_path: Path) -> None:
    """The last cell of the page is stopped as by the button, and its run is gone on with."""
    project = Project(tmp_path)
    (tmp_path / "README.md").write_text("A project without code.\n")
    project.commit()
    places = dict.fromkeys(("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"), project.temporary)
    project.variables |= {**places, "PYTHONPATH": f"{REPOSITORY}:{packages('notebooks')}"}
    stopped = AGAIN[-1].replace("100000", str(STEPS)) + "    stopped_id = stopped.run_id\n"
    again = [cell for number, text in enumerate([*AGAIN[:-1], stopped]) for cell in (text, CHECKS[number], ALONE)]
    seen = bash(
        project, f"{sys.executable} -m tests.cli.notebook run.steps={STEPS}", json.dumps([*FIRST, *again, LAST])
    )
    assert seen.code == 0, seen.err
    outputs = json.loads(seen.out.splitlines()[-1])
    assert sum("<iframe" in each.get("text/html", "") for each in outputs) == 1
    assert any("progress" in kind or "widget" in kind for kind in outputs[1]), outputs[1].keys()
    run_id, digest = outputs[-1]["text"].split()[-2:]
    assert "WIDTH = 16" in tree_of(project, run_id)["notebook_cells.py"]
    assert project.leftovers() == []
    (tmp_path / "notebook_cells.py").unlink()
    done = project.run(f"rerun={run_id}", "cluster.workers=1", "output=json")
    assert done.report["verdict"] == "exact", done.err
    assert done.report["run_id"] != run_id
    assert digest in done.err
    assert project.leftovers() == []
