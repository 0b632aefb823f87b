"""Which Ray a sweep, or what is resumed, joins is known before Ray is imported, wherever it was said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cli import command_table
from orchestrator.cli.arguments import Arguments
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.errors import ConfigurationError
from orchestrator.provenance.tracking import Past, Store

RUN = "run: {steps: 4}\npipeline: {target: 'a:B'}\ncluster: {address: 'head:6379'}\n"
SWEEP = f"{RUN}space: {{optimizer.lr: {{choices: [0.1, 0.2]}}}}\nsearch: {{name: grid}}\n"


class Told(Exception):
    """The address was told."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def tell(address: str | None) -> None:
        raise Told(address)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_table, "prepare_environment", tell)
    return tmp_path


def joined(command: str, value: str, *more: str) -> str | None:
    with pytest.raises(Told) as told:
        command_table.COMMANDS[command].run(Arguments(value, more, 0.0))
    found: str | None = told.value.args[0]
    return found


@pytest.mark.parametrize("command", ["sweep", "ensemble"])
def test_a_sweep_joins_the_ray_that_its_file_names(project: Path, command: str) -> None:
    file = project / "s.yaml"
    file.write_text(SWEEP if command == "sweep" else RUN)
    assert joined(command, str(file), "output=json") == "head:6379"
    assert joined(command, str(file), "cluster.address=other:1") == "other:1"
    assert joined(command, str(file), "cluster.address=null") is None
    file.write_text("nothing: {")
    assert joined(command, str(file)) is None


@pytest.mark.parametrize(("kind", "name", "text"), [("run", "settings.yaml", RUN), ("sweep", "sweep.yaml", SWEEP)])
def test_what_is_resumed_joins_the_ray_that_it_was_launched_on(
    project: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, text: str
) -> None:
    """Also what is not on this machine yet, of which MLflow knows."""
    past = Past("a" * 32, "n", "e", "KILLED", 0, 1, {}, None, kind=kind, settings={"cluster.address": "head:6379"})
    monkeypatch.setattr(Store, "with_run", lambda *_: SimpleNamespace(find=lambda _: past))
    assert joined("resume", "last", "cluster.address=null") is None
    assert joined("resume", "last") == "head:6379"
    (RunFolder(project_folder(project), past.run_id).path / name).write_text(text.replace("head", "there"))
    assert joined("resume", "last", "cluster.workers=2") == "there:6379"
    assert joined("resume", "last", "cluster.address=null") is None


def test_what_is_on_this_machine_joins_its_ray_while_its_server_is_away(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that goes on with a run waits for its server, and would not be let in with a token of a private Ray."""

    def away(*_: object) -> Store:
        raise ConfigurationError(["tracking.uri: it is away"], code="mlflow.unusable")

    monkeypatch.setattr(Store, "with_run", away)
    assert joined("resume", "a" * 32) is None
    RunFolder(project_folder(project), "a" * 32).settings.write_text(RUN)
    assert joined("resume", "a" * 32) == "head:6379"
