"""A trained model from one run to the next, by true command lines: registered, loaded by MLflow, begun with, rerun, refused;
what the card says of it; and data that drift."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import pytest

from orchestrator.provenance.tracking import Store
from tests.projects import REPOSITORY, Done, Project, make_digits
from tests.provenance.tracking.server import Server

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings(
        "ignore:The ..noload.. loader strategy is deprecated"  # MLflow's own use of SQLAlchemy
    ),
]
PIPELINE = """
import numpy, torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from orchestrator import Pipeline

class Points(Pipeline):
    def __init__(self, hidden=8):
        self.hidden = hidden
    def model(self):
        return nn.Sequential(nn.Linear(2, self.hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(self.hidden, 2))
    def datasets(self):
        rows = numpy.loadtxt("data/points.csv", delimiter=",", dtype=numpy.float32)
        whole = TensorDataset(torch.from_numpy(rows[:, :2]), torch.from_numpy(rows[:, 2]).long())
        return whole, whole
    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])
    def metrics(self, model, batch):
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}
"""
CONF = """\
run: {name: points, experiment: points, steps: 10, seed: 3}
pipeline: {target: "points:Points"}
data: {shards: 4, batch_size: 32, inputs: [data/points.csv]}
cluster: {workers: 2}
optimizer: {name: adam, lr: 0.01}
evaluation: {every: 5}
"""
LOADED = """\
import json, mlflow, numpy, sys
from orchestrator.numerics.digests import model_digest
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
rows = numpy.array([[0.5, -1.0], [2.0, 1.0]])
print(json.dumps([model_digest(model.get_raw_model()), model.predict(rows).tolist(), model.metadata.run_id]))
"""


def write_points(project: Project, shift: float) -> None:
    values = numpy.random.default_rng(1).normal(size=(200, 2))
    values[:, 1] += shift
    rows = [f"{x:.6f},{y:.6f},{int(x > 0)}" for x, y in values]
    (project.path / "data" / "points.csv").write_text("\n".join(rows) + "\n")


@dataclass
class Trained:
    """The project after a run whose model was registered, and, once asked for, after another that began with it."""

    project: Project
    first: dict[str, Any]

    @cached_property
    def begun(self) -> Done:
        settings = ("run.steps=6", "initial=models:/points@newest", "tracking.register=points", "output=json")
        done = self.project.run("conf=points", *settings)
        assert done.code == 0, done.err
        return done

    @property
    def second(self) -> dict[str, Any]:
        return self.begun.report

    @property
    def said(self) -> str:
        """At the launch of the second."""
        return self.begun.err

    @property
    def store(self) -> Store:
        return Store(None, self.project.path / ".orchestrator")


def make_points(path: Path) -> Project:
    project = Project(path)
    for folder in ("conf", "data"):
        (project.path / folder).mkdir(parents=True)
    (project.path / "points.py").write_text(PIPELINE)
    (project.path / "conf" / "points.yaml").write_text(CONF)
    write_points(project, 0.0)
    project.commit()
    return project


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    project = make_points(tmp_path_factory.mktemp("points") / "project")
    project.git("remote", "add", "origin", "https://host.invalid/points")
    first = project.run("conf=points", "tracking.register=points", "output=json")
    assert first.code == 0, first.err
    assert "for others who rerun this" not in first.err
    yield Trained(project, first.report)
    assert project.leftovers() == []


@pytest.mark.long
def test_a_run_begins_with_the_registered_model_of_another_and_is_rerun_though_the_alias_has_moved(
    trained: Trained,
) -> None:
    project, first, second = trained.project, trained.first, trained.second
    params = trained.store.client.get_run(second["run_id"]).data.params
    assert (params["initial.name"], params["initial.digest"]) == ("models:/points/1", first["digest"])
    identity = json.loads((project.folder(second["run_id"]) / "identity.json").read_text())
    assert identity["parts"]["initial_parameters"] == first["digest"] != second["digest"]
    assert str(trained.store.client.get_model_version_by_alias("points", "newest").version) == "2"
    again = project.run(f"rerun={second['run_id']}", "cluster.workers=1", "output=json")
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err
    told = f"note: for others who rerun this: the weights of models:/points/1 lie in {trained.store.uri}, and only this machine"
    assert told in trained.said
    assert f"export={second['run_id']} to=PATH takes them along" in trained.said
    assert "for others who rerun this" not in again.err  # of a repetition they have the original


@pytest.mark.long
def test_mlflow_loads_and_serves_the_model_to_the_bit(trained: Trained, tmp_path: Path) -> None:
    """In a folder where the pipeline is not: its code came with the model."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, trained.store.uri, "models:/points/1"],
        cwd=tmp_path,
        env=trained.project.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    digest, answers, run_id = json.loads(done.stdout.splitlines()[-1])
    assert (digest, run_id) == (trained.first["digest"], trained.first["run_id"])
    assert numpy.array(answers).shape == (2, 2)


@pytest.mark.long
def test_every_number_of_the_card_is_mlflows(trained: Trained, tmp_path: Path) -> None:
    client, report = trained.store.client, trained.first
    run_id = report["run_id"]
    run = client.get_run(run_id)
    page = Path(client.download_artifacts(run_id, "run/card.html", str(tmp_path))).read_text()
    facts = dict(re.findall(r"<tr><th>([^<]+)</th><td><code>([^<]*)</code></td></tr>", page))
    facts = {name: html.unescape(value) for name, value in facts.items()}
    assert float(facts["loss"]) == run.data.metrics["train/loss"] == report["loss"]
    for name in ("validation/loss", "validation/accuracy"):
        assert float(facts[name]) == run.data.metrics[name]
        history = {str(each.step + 1): each.value for each in client.get_metric_history(run_id, name)}
        column = page.split("<th>after step</th>")[1]
        for step, value in history.items():
            assert f"<td><code>{step}</code></td>" in column
            assert f"<td><code>{value}</code></td>" in column
    tags = run.data.tags
    assert (facts["steps"], facts["digest"], facts["identity"]) == (tags["steps"], tags["digest"], tags["identity"])
    (model,) = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
    assert facts["parameters"] == model.params["parameters"] == str(2 * 8 + 8 + 8 * 2 + 2)
    assert run.inputs is not None
    (data,) = run.inputs.dataset_inputs
    assert f"<td>{data.dataset.name}</td><td>{data.dataset.digest}</td>" in page
    settings = dict(re.findall(r"<tr><td><code>([^<]*)</code></td><td><code>([^<]*)</code></td></tr>", page))
    unset = re.findall(r"<tr><th>null</th><td><code>([^<]*)</code></td></tr>", page)
    shown = {key: html.unescape(value) for key, value in settings.items()}
    shown |= dict.fromkeys((key for keys in unset for key in keys.split(", ")), "null")
    assert {key: value for key, value in shown.items() if key in run.data.params} == run.data.params
    profile = json.loads(Path(client.download_artifacts(run_id, "run/data.json", str(tmp_path))).read_text())["profile"]
    assert facts["samples"] == str(profile["length"])
    for part, told in profile["fields"].items():
        cells = "".join(f"<td>{told[name]}</td>" for name in ("dtype", "shape", "min", "max", "mean", "std"))
        assert f"<tr><td>{part}</td>{cells}</tr>" in page
    assert page.count('<img src="data:image/') == 3  # the loss, the topology, the time
    assert f"python -m orchestrator rerun={run_id}" in page


@pytest.mark.long
def test_the_lines_of_the_card_load_the_model_and_leave_nothing_in_the_project(trained: Trained) -> None:
    project, first = trained.project, trained.first
    card = (project.folder(first["run_id"]) / "card.md").read_text()
    lines = "; ".join(re.findall(r"^    ((?:import |mlflow\.|model = ).*)$", card, re.MULTILINE))
    before = sorted(project.path.iterdir())
    done = project.shell(f"python -c {shlex.quote(f'{lines}; print(model.metadata.run_id)')}")
    assert done.out.split() == [first["run_id"]], done.err  # other runs of this file register, too
    assert sorted(project.path.iterdir()) == before


@pytest.mark.long
def test_weights_that_changed_or_do_not_fit_are_refused_by_name_before_anything_is_started(
    trained: Trained, tmp_path: Path
) -> None:
    project, second = trained.project, trained.second
    before = set(project.runs())
    wrong = project.run("conf=points", "initial=models:/points/1", "pipeline.args.hidden=9")
    assert wrong.code == 2
    assert (
        "the weights of models:/points/1 do not fit the pipeline's model: 0.weight is float32 of shape [8, 2]"
        in wrong.err
    )
    unknown = project.run("conf=points", "initial=models:/points@best")
    assert unknown.code == 2
    assert "points has the versions 1, 2 and the aliases newest (version 2)" in unknown.err
    one, two = (
        Path(trained.store.client.get_model_version_download_uri("points", version).removeprefix("file://"))
        for version in ("1", "2")
    )
    kept = (one / "model.safetensors").read_bytes()
    shutil.copyfile(two / "model.safetensors", one / "model.safetensors")
    shutil.rmtree(project.path / ".orchestrator" / "initial")  # or they would not be fetched
    try:
        again = project.run(f"rerun={second['run_id']}", "output=json")
        made = project.run(f"export={second['run_id']}", f"to={tmp_path / 'lacking'}", "output=json")
    finally:
        (one / "model.safetensors").write_bytes(kept)
    assert again.code == 4
    told = f"models:/points/1 has weights of digest {second['digest']} now, and the run began with"
    assert told in again.report["error"]["message"]
    assert trained.first["digest"] in again.report["error"]["message"]
    assert set(project.runs()) == before
    assert (made.code, made.report["initial"]) == (0, "missing")
    (note,) = (note for note in made.report["notes"] if "weights" in note)
    assert note.startswith("the crate lacks the weights that the run began with, so nobody can repeat it: ")
    assert told in note
    (tmp_path / "there").mkdir()
    there = Project(tmp_path / "there")
    refused = there.run(f"rerun={tmp_path / 'lacking'}", "trust=true", "output=json")
    assert refused.code == 4
    assert "initial: there is no models:/points/1 in " in refused.report["error"]["message"]


@pytest.mark.long
def test_a_crate_has_the_weights_that_its_run_began_with(trained: Trained, tmp_path: Path) -> None:
    """It is repeated where there is no store, a changed byte of them is named, and the repetition is a record as good."""
    project, first, second = trained.project, trained.first, trained.second
    made = project.run(f"export={second['run_id']}", f"to={tmp_path / 'points.zip'}", "data=true", "output=json")
    assert made.code == 0, made.err
    assert (made.report["initial"], made.report["notes"]) == ("included", [])
    with zipfile.ZipFile(tmp_path / "points.zip") as archive:
        archive.extractall(tmp_path / "points")
    weights = tmp_path / "points" / "initial" / f"{first['digest']}.safetensors"
    (tmp_path / "there").mkdir()
    there = Project(tmp_path / "there", variables={"HOME": str(tmp_path)})
    asked = there.run(f"rerun={tmp_path / 'points.zip'}", "output=json")
    told = asked.report["would_execute"]
    assert (told["names"], told["initial"]) == (["points:Points"], "models:/points/1")
    assert not (there.path / ".orchestrator" / "initial").exists()
    done = there.run(f"rerun={tmp_path / 'points.zip'}", "trust=true", "cluster.workers=1", "output=json")
    assert done.code == 0, done.err
    assert (done.report["verdict"], done.report["differences"]) == ("exact", [])
    again = there.run(f"export={done.report['run_id']}", "to=again", "data=true", "output=json")
    assert (again.code, again.report["initial"]) == (0, "included"), again.err
    assert (there.path / "again" / "initial" / weights.name).read_bytes() == weights.read_bytes()
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    refused = there.run(f"rerun={tmp_path / 'points'}", "trust=true", "output=json")
    assert refused.code == 4
    told = rf"initial/{weights.name}: expected sha256 \w{{64}}, found \w{{64}}"
    assert re.search(told, refused.report["error"]["message"])
    assert there.leftovers() == []


@pytest.mark.long
def test_a_model_at_a_server_is_registered_begun_with_and_rerun_and_its_weights_are_fetched_once(
    tmp_path: Path,
) -> None:
    """By each of its names; from the server's files only where they are not here; and a server that is gone is said."""
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    server.start()
    project = make_points(tmp_path / "project")
    uri, here = f"tracking.uri={server.uri}", project.path / ".orchestrator" / "initial"
    try:
        first = _done(project, "conf=points", "tracking.register=points", uri)
        begun = ("conf=points", "run.steps=6", "tracking.register=points", uri)
        second = _done(project, *begun, "initial=models:/points@newest")
        store = Store(server.uri, project.path)
        params = store.client.get_run(second["run_id"]).data.params
        assert (params["initial.name"], params["initial.digest"]) == ("models:/points/1", first["digest"])
        assert str(store.client.get_model_version_by_alias("points", "newest").version) == "2"
        shutil.rmtree(here)
        again = _done(project, f"rerun={second['run_id']}", "cluster.workers=1", uri)
        assert again["verdict"] == "exact"
        assert [file.stem for file in here.iterdir()] == [first["digest"]]
        files = [
            file for file in (tmp_path / "server" / "artifacts").rglob("model.safetensors") if "models" in file.parts
        ]
        assert len(files) == 3  # of the repetition, too
        for file in files:
            file.unlink()
        assert _done(project, f"rerun={second['run_id']}", uri)["verdict"] == "exact"
        other = _done(project, "conf=points", "run.steps=6", f"initial=runs:/{first['run_id'][:12]}", uri)
        assert other["digest"] == second["digest"]
        shutil.rmtree(here)
        before = {past.run_id for past in store.past()}
        lacking = project.run(f"rerun={second['run_id']}", uri, "output=json")
        assert lacking.code == 4
        told = f"models:/points/1 has no model.safetensors that can be had from {server.uri}"
        assert told in lacking.report["error"]["message"]
        assert f"the run began with weights of digest {first['digest']}" in lacking.report["error"]["message"]
        assert {past.run_id for past in store.past()} == before
    finally:
        server.stop()
    for command in (("conf=points", "initial=models:/points@newest"), (f"rerun={second['run_id']}",)):
        gone = project.run(*command, uri, "output=json")
        assert gone.code == 2
        assert f"tracking.uri: the MLflow server {server.uri} cannot be used" in gone.report["error"]["message"]
        assert "starting" not in gone.err
        assert "Traceback" not in gone.err
    assert project.leftovers() == []


def _done(project: Project, *arguments: str) -> dict[str, Any]:
    """The report of a command, which has to succeed."""
    done = project.run(*arguments, "output=json")
    assert done.code == 0, done.err
    return done.report


@pytest.mark.long
def test_data_that_drifted_are_said_at_launch_in_a_comparison_and_on_the_card(trained: Trained) -> None:
    project, second = trained.project, trained.second
    write_points(project, 1.5)
    try:
        moved = project.run("conf=points", "run.steps=40", "output=json")
    finally:
        write_points(project, 0.0)
    assert moved.code == 0, moved.err
    run_id = moved.report["run_id"]
    assert f"note: since run {second['run_id']} of this experiment the data have drifted:" in moved.err
    assert moved.err.count("the data have drifted") == 1
    assert "0[1]: median" in moved.err
    tags = trained.store.client.get_run(run_id).data.tags
    assert (tags["drift"], tags["drift_from"]) == ("0[1]", second["run_id"])
    assert trained.store.client.get_run(second["run_id"]).data.tags["drift"] == "none"
    assert (project.folder(run_id) / "pictures" / "drift.png").exists()
    assert "0\\[1]: median" in (project.folder(run_id) / "card.md").read_text(), "a link in Markdown otherwise"
    compared = project.run(f"compare={trained.first['run_id']},{run_id}", "output=json")
    assert compared.report["drift"]["drifted"] == ["0[1]"]
    assert Path(compared.report["picture"]).read_bytes().startswith(b"\x89PNG")
    text = project.run(f"compare={trained.first['run_id']},{run_id}").out
    assert "the data have drifted:\n  0[1]: median" in text


@pytest.mark.long
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "models.md").read_text()
    project = make_digits(tmp_path)
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["bash", "python", *["bash"] * 4]
    for kind, block in blocks:
        cards = (project.path / ".orchestrator").glob("*/card.md")
        last = max(cards, key=lambda card: card.stat().st_mtime, default=project.path / "none" / "card.md").parent.name
        (project.path / "block.py").write_text(block)
        done = project.shell("python block.py" if kind == "python" else block.replace("RUN_ID", last))
        (project.path / "block.py").unlink()
        assert done.code == 0, (block, done.err)
    store = Store(None, project.path / ".orchestrator")
    runs = [past for past in store.past() if past.settings["initial.name"] == "models:/digits/1"]
    assert len(runs) == 1
    assert project.leftovers() == []
