"""Faults that are found before anything is started."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.settings import load
from orchestrator.driver.preflight import checks
from orchestrator.driver.preflight.visible_cards import Visible
from orchestrator.errors import ConfigurationError, NotRerunnable, coded
from orchestrator.provenance.data import hashing, versions
from tests.provenance.code.repositories import create, write
from tests.refusals import refused

PIPELINE = """
import of_nobody
from orchestrator import Pipeline
class Empty(Pipeline):
    def model(self): ...
    def datasets(self): ...
    def loss(self, model, batch): ...
"""
RUN = {"run": {"steps": 1}, "pipeline": {"target": "of_the_project:Empty"}, "optimizer": {"name": "sgd", "lr": 1}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    files = {"of_the_project.py": PIPELINE, ".gitignore": "/of_nobody.py\n/ignored\n__pycache__\n"}
    project = create(tmp_path / "p", files)
    write(project, {"of_nobody.py": ""})
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    yield project
    for name in ("of_the_project", "of_nobody"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_code_that_a_snapshot_lacks_is_refused_where_that_is_strict(project: Path) -> None:
    assert checks.check(load([RUN], []), project).obstacles == []  # a worker tells of it, which has imported more
    with refused("rerun.strict"):
        checks.check(load([RUN], ["strict=true"]), project)


def test_a_plan_for_cards_elsewhere_notes_what_this_machine_lacks(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_visible", lambda _: Visible(coded("gpu.none-here", "run.device: no GPU")))
    settings = load([RUN], ["run.device=cuda", "cluster.gpus_per_worker=1", "cluster.gpu_gb=24"])
    with refused("gpu.none-here"):
        checks.check(settings, project)
    assert "not on this machine: run.device: no GPU" in checks.check(settings, project, cards_elsewhere=True).notes


def test_a_torch_that_lacks_a_name_is_refused_with_the_one_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("torch.nn.utils.parametrizations._SpectralNorm")
    with refused("environment.torch-lacks") as caught:
        checks.check(load([RUN], []), project)
    assert caught.value.remedy is not None
    assert "install torch==" in caught.value.remedy


@pytest.mark.parametrize(
    ("uri", "is_among"),
    [("sqlite:///own.db", True), ("sqlite:///ignored/own.db", False), ("sqlite:////elsewhere/own.db", False)],
)
def test_a_store_among_the_code_is_pointed_out(project: Path, uri: str, is_among: bool) -> None:
    notes = checks.check(load([RUN], [f"tracking.uri={uri}"]), project).notes
    assert [f"the MLflow store {project}/own.db lies in the repository" in note for note in notes] == [True] * is_among


@pytest.mark.parametrize(
    ("variable", "settings", "is_told"),
    [
        ("http://me:secret@host:5000", [], True),
        ("http://host:5000", ["tracking.uri=sqlite:////elsewhere/own.db"], False),
        ("sqlite:///.orchestrator/mlflow.db", [], False),
        ("", [], False),
    ],
)
def test_a_store_that_only_mlflows_variable_names_is_told_of(
    project: Path, monkeypatch: pytest.MonkeyPatch, variable: str, settings: list[str], is_told: bool
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    notes = [note for note in checks.check(load([RUN], settings), project).notes if "MLFLOW_TRACKING_URI" in note]
    assert [note.endswith("here tracking.uri=http://host:5000") for note in notes] == [True] * is_told


def test_pointers_of_git_lfs_in_place_of_data_are_told(project: Path) -> None:
    (project / "data").mkdir()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 16128\n"
    (project / "data" / "a.txt").write_text(pointer)
    (project / "data" / "b.txt").write_text(pointer.replace("oid", "old"))
    notes = [
        note
        for inputs in ("data", "data/a.txt", "data/b.txt")
        for note in checks.check(load([RUN], [f"data.inputs=[{inputs}]"]), project).notes
        if "git-lfs" in note
    ]
    assert notes == [
        "data has pointers of git-lfs in place of 1 of its 2 files (a.txt); git lfs pull",
        "data/a.txt is a pointer of git-lfs in place of the file; git lfs pull",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["data", "data/deep", "data/a.txt"])
def test_an_input_that_may_not_be_read_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A file was a traceback. A folder counted as an empty one, and the record said so."""
    (project / "data" / "deep").mkdir(parents=True)
    (project / "data" / "a.txt").touch()

    def of_another_user(path: Any, is_it: Callable[..., Any], *given: Any) -> Any:
        if Path(path) == project / place:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_it(path, *given)

    monkeypatch.setattr(os, "scandir", partial(of_another_user, is_it=os.scandir))
    monkeypatch.setattr(hashing, "_md5_of_file", lambda path, kind: of_another_user(path, lambda _: kind))
    with refused("data.input-unreadable", f"{place} cannot be read: Permission denied"):
        checks.check(load([RUN], ["data.inputs=[data]"]), project)


@pytest.mark.slow
def test_of_inputs_that_were_read_before_only_what_was_written_since_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of a sweep have the same ones."""
    (project / "data").mkdir()
    files = [project / "data" / name for name in ("a.txt", "b.txt")]
    for file in files:
        file.write_text("1")
    settings, read = load([RUN], ["data.inputs=[data]"]), list[Path]()
    known = checks.check(settings, project).scans
    md5_of_file = hashing._md5_of_file

    def watched(path: Path, *kind: str) -> str:
        read.append(path)
        return md5_of_file(path, *kind)

    monkeypatch.setattr(hashing, "_md5_of_file", watched)
    files[1].write_text("1")
    assert (checks.check(settings, project, known).scans, read) == (known, files[1:])
    files[0].write_text("2")
    assert checks.check(settings, project, known).scans["data"].md5 != known["data"].md5


@pytest.mark.slow
def test_dvc_is_not_asked_before_the_start(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes longer than all the rest; only `strict` cannot do without."""
    asked: list[Path] = []

    def look_up(place: Path, _: object) -> list[versions.Input]:
        asked.append(place)
        return []

    monkeypatch.setattr(versions, "look_up", look_up)
    found = checks.check(load([RUN], ["data.inputs=[of_nobody.py]"]), project)
    assert (list(found.scans), asked) == (["of_nobody.py"], [])
    assert (found.inputs, found.obstacles, asked) == ([], [], [project])  # once
    with pytest.raises(NotRerunnable):
        checks.check(load([RUN], ["data.inputs=[of_nobody.py]", "strict=true"]), project)
    assert len(asked) == 2


def test_a_free_mode_of_ones_own_meets_the_same_rules_once_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "staged.py").write_text(STAGED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "staged", raising=False)
    own = load([RUN], ["pipeline.target=staged:Empty", "sync=staged:free", "reduction=fast"])
    with refused("sync.fast", "reduction: with sync=staged:free"):
        checks.check(own, tmp_path)
    sys.modules.pop("staged", None)


def test_servers_have_nothing_to_do_where_models_are_mixed(project: Path) -> None:
    checks.check(load([RUN], ["sync=bap", "topology=parameter_server", "data.loaders=1"]), project)
    with refused("sync.gossip-servers", "topology"):
        checks.check(load([RUN], ["sync=gossip", "topology=parameter_server", "data.loaders=1"]), project)


DRAWING = """
from orchestrator import Pipeline
class Empty(Pipeline):
    def model(self): ...
    def datasets(self): ...
    def loss(self, model, batch): ...
def unowned(population): return None
def odd(population, part): return [1.0] * len(part)
"""
REFUSED = {
    "data.sampling=weighted": "data.sampling: weighted needs weights(self, train) in the pipeline, a weight for each training",
    "data.partition=drawing:unowned": "data.partition: drawing:unowned gives NoneType; expected a numpy array of whole numbers",
    "data.partition=drawing:nothing": "data.partition: drawing has no data.partition 'nothing'",
    "data.partition={name: 'drawing:unowned', x: 1}": "data.partition.x: drawing:unowned has no x",
    "data.sampling=drawing:odd": "data.sampling: drawing:odd gives a list; expected an array of",
}


@pytest.mark.parametrize(("override", "problem"), REFUSED.items())
def test_what_nothing_can_be_drawn_by_is_refused(
    override: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawing.py").write_text(DRAWING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "drawing", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        checks.check(load([RUN], ["pipeline.target=drawing:Empty", override]), tmp_path)
    sys.modules.pop("drawing", None)
    (found,) = caught.value.problems
    assert found.startswith(problem), found


def test_options_of_a_local_optimizer_are_looked_at_as_those_of_the_other(project: Path) -> None:
    overrides = ["local.steps=2", "local.optimizer={name: sgd, momentun: 0.9}"]
    with refused("settings.no-such-option", "local.optimizer.momentun"):
        checks.check(load([RUN], overrides), project)


def test_an_alias_that_mlflow_keeps_for_itself_is_refused_before_the_training(project: Path) -> None:
    with refused("mlflow.alias", "tracking.register: 'latest'"):
        checks.check(load([RUN], ["tracking.register=digits@latest"]), project)


def test_what_a_client_dropped_is_not_added_by_another(project: Path) -> None:
    clients = ["data.partition={name: iid, clients: 40}", "local.steps=2", "local.optimizer={name: sgd, lr: 0.1}"]
    checks.check(load([RUN], [*clients, "compression={name: quantize, error_feedback: false}"]), project)
    with refused("compression.feedback-of-clients", "compression.error_feedback"):
        checks.check(load([RUN], [*clients, "compression=quantize"]), project)


STAGED = """
import torch
from orchestrator import Pipeline
from orchestrator.comm.pipeline_schedules import Order
from orchestrator.comm.synchronization import build_mode
from orchestrator.comm.topologies import parameter_server
class Empty(Pipeline):
    def model(self): ...
    def datasets(self): ...
    def loss(self, model, batch): ...
class Own(Empty):
    def optimizer(self, model): return torch.optim.SGD(model.parameters(), lr=1)
class Called(Empty):
    def on_evaluation(self, step, metrics, model): ...
def served(workers: int, *, servers: int = 1): return parameter_server(workers, servers=servers)
def free(): return build_mode("bap", {})
def eager(place, *, more: int = 0): return Order(in_flight=place.stages - place.stage + more)
def stuck(place): return Order(in_flight=place.stage)
"""
NOT_IN_STAGES = {
    "topology=staged:served": "topology: with cluster.stages a stage is added up by the workers that host it, without servers, "
    "so staged:served is not on offer; set topology=ring, or cluster.stages=1",
    "sync=staged:free": "sync: with cluster.stages all stages of a model take a step together, so staged:free is not on offer; "
    "set sync=bsp, or cluster.stages=1",
    "pipeline.target=staged:Own": "optimizer: the pipeline's optimizer() may look at all parameters; leave it out, and name "
    "one, as optimizer=adamw, or cluster.stages=1, because a worker has one stage only",
    "pipeline.target=staged:Called": "pipeline: on_evaluation() gets the whole model; leave it out, or cluster.stages=1, "
    "because a worker has one stage only",
    "cluster.pipeline=staged:stuck": "cluster.pipeline: staged:stuck with stages of 1 + 1 members and 8 shards has a deadlock: "
    "no task can start: an order must let each stage have a shard in flight",
    "cluster.pipeline={name: 'staged:eager', mor: 1}": "cluster.pipeline.mor: staged:eager has no mor; did you mean more?",
}


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "problem"), NOT_IN_STAGES.items())
def test_what_does_not_go_with_stages_is_known_once_it_is_imported(
    overrides: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "staged.py").write_text(STAGED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "staged", raising=False)
    given = [overrides] if ", " in overrides else overrides.split()
    staged = ["pipeline.target=staged:Empty", "cluster.stages=2", "cluster.workers=2", "cluster.pipeline=staged:eager"]
    checks.check(load([RUN], staged), tmp_path)
    optimizer = {} if overrides.endswith("Own") else RUN["optimizer"]
    with pytest.raises(ConfigurationError) as caught:
        checks.check(load([{**RUN, "optimizer": optimizer}], [*staged, *given]), tmp_path)
    sys.modules.pop("staged", None)
    assert caught.value.problems == (problem,)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "1"},
            "torchrun or accelerate has started 4 launches",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "leave it out: python -m orchestrator conf=NAME cluster.workers=2"),
        ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "8"}, None),
        ({}, None),
    ],
)
def test_a_launcher_that_starts_a_launch_for_each_worker_is_told(
    environment: dict[str, str], words: str | None
) -> None:
    """So training scripts are started, and here each process would be a whole run."""
    note = checks.several_launches(environment)
    assert (note is None) if words is None else (note is not None and words in note)
