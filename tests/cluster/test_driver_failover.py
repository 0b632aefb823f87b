"""The machine of the driver or of the head is lost, or both are, and another one goes on with the run, to the undisturbed
result."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import ray

from orchestrator.cluster.actors import driver_failover
from orchestrator.cluster.actors.driver_failover import FailoverActor, FailoverTask, is_locked, is_lost, standing_by
from orchestrator.common import locks
from orchestrator.records.lines import read
from tests.cli.test_rerun import points, shell, write
from tests.cluster.conftest import Hosts, some_hosts
from tests.projects import PATIENCE_S, Project
from tests.provenance.tracking.server import Server

T = TypeVar("T")

CONF = """\
run: {steps: 600, seed: 3}
pipeline: {target: "study:Study"}
data: {shards: 4, batch_size: 16, inputs: [data/points.csv]}
optimizer: {name: adam, lr: 0.01}
checkpoint: {every: 20}
tracking: {every_s: 1}
"""


def test_only_a_node_that_ray_holds_for_dead_is_lost() -> None:
    nodes = [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": False}]
    assert is_lost("b", nodes)
    assert not is_lost("a", nodes)
    assert not is_lost("c", nodes)
    assert not is_lost("b", [])


def test_the_driver_is_told_once_where_the_home_there_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailoverActor, "_watch", lambda _: None)
    monkeypatch.setattr(ray, "get", lambda answer, **_: answer)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    monkeypatch.setattr(driver_failover, "_BEAT_S", 0.001)
    home = tmp_path / "home"
    home.write_text("no folder")
    monkeypatch.setenv("HOME", str(home))
    task = FailoverTask("run", "node", 1, ["driver"], str(tmp_path), {}, "DRIVER", first_line="{}")
    actor = FailoverActor(task)
    answers, heard = [], Event()

    class Called:
        """As Ray makes it."""

        def remote(self) -> str | None:
            answers.append(actor.beat())
            if len(answers) > 2:
                heard.set()
            return answers[-1]

    said: list[str] = []
    handle = SimpleNamespace(beat=Called(), over=SimpleNamespace(remote=lambda: None))
    with standing_by(lambda: handle, lambda: None, said.append):
        assert heard.wait(PATIENCE_S)
    assert said == answers[:1]
    assert str(home) in said[0]
    home.unlink()
    started: list[FailoverTask] = []
    monkeypatch.setattr(driver_failover, "take_over", started.append)
    assert actor.beat() is None
    assert started == [task]


def test_nobody_goes_on_with_a_run_that_is_locked_in_the_folder_that_would_be_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    task = FailoverTask("run", "node", 1, ["driver"], str(project), {}, "DRIVER", lock=".orchestrator/run/lock")
    at_home = tmp_path / ".orchestrator-standby" / "run" / task.lock
    for lock in (at_home, project / task.lock):
        assert not is_locked(task)
        lock.parent.mkdir(parents=True)
        held = locks.take(lock)
        assert is_locked(task)
        os.close(held)
    assert not is_locked(task)


def study(place: Path, conf: str) -> Project:
    """A project whose data only DVC's remote has, beside its own folder."""
    project = Project(place / "project")
    text = (Path(__file__).parents[1] / "cli" / "study.py").read_text()
    write(project, {"study.py": text, "helper.py": "SCALE = 3.0\n", "conf/study.yaml": conf})
    write(project, {"data/points.csv": points(1)})
    shell(
        project,
        f"git init -q && dvc init -q && dvc config core.analytics false && dvc remote add -q -d far {place / 'remote'}",
        "dvc add -q data/points.csv && dvc push -q",
    )
    project.commit()
    return project


def soon(look: Callable[[], T | None], log: Path) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) is None:
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "nobody goes on"
        time.sleep(0.1)
    return seen


@dataclass
class Elsewhere:
    """A run that is under way on two hosts; home: of the user on both; started: the launch; folder: of the run."""

    hosts: Hosts
    server: Server
    home: Path
    started: subprocess.Popen[str]
    folder: Path
    expected: bytes
    digest: str

    @property
    def log(self) -> Path:
        return self.home / ".orchestrator-standby" / f"{self.folder.name}.log"

    @property
    def there(self) -> Path:
        """The run's folder on the other machine."""
        return self.home / ".orchestrator-standby" / self.folder.name / ".orchestrator" / self.folder.name

    def goes_on_there(self) -> bool | None:
        """Whether the other machine has done a step; None where not yet."""
        return True if self.log.exists() and "after " in self.log.read_text() else None

    def ended(self) -> dict[str, Any]:
        return soon(lambda: _ended(self.server, self.folder.name), self.log)

    def require_undisturbed(self, trace: Path) -> None:
        told = self.ended()
        tags = {each["key"]: each["value"] for each in told["data"]["tags"]}
        assert told["info"]["status"] == "FINISHED", self.log.read_text()
        assert tags["digest"] == self.digest
        assert trace.read_bytes() == self.expected


@contextlib.contextmanager
def elsewhere(
    tmp_path: Path, conf: str, *, driver_on_head: bool, store_on_head: bool, pause_s: float = 0.02
) -> Iterator[Elsewhere]:
    """The driver is on the head, or on the other host. pause_s: of each worker in each step."""
    project, home = study(tmp_path, conf), tmp_path / "home"
    home.mkdir()
    (tmp_path / "server").mkdir()
    undisturbed = project.run("conf=study", "output=json")
    assert undisturbed.code == 0, undisturbed.err
    expected = (project.folder(undisturbed.report["run_id"]) / "trace.jsonl").read_bytes()
    runs = project.path / ".orchestrator"
    before = set(runs.glob("*/journal.jsonl"))
    with some_hosts(hidden=project.path, of_first=not driver_on_head, home=home) as hosts:
        where = hosts.inside if store_on_head else ("ip", "netns", "exec", hosts.names[-1])
        server = Server(tmp_path / "server", f"10.77.0.{1 if store_on_head else 2}", where)
        server.start()
        try:
            there = replace(project, variables=hosts.access, before=hosts.inside if driver_on_head else hosts.there)
            process = there.start(
                *("conf=study", f"cluster.address={hosts.address}", "cluster.workers={min: 1, max: 3}", "output=json"),
                *(f"tracking.uri={server.uri}", f"checkpoint.uri={tmp_path / 'checkpoints'}"),
                f"pipeline.args={{pause_s: {pause_s}}}",
            )
            folder = soon(lambda: next(iter(set(runs.glob("*/journal.jsonl")) - before), None), tmp_path).parent
            soon(lambda: True if _steps(folder) >= 100 or process.poll() is not None else None, tmp_path)
            assert process.poll() is None, process.communicate()
            yield Elsewhere(hosts, server, home, process, folder, expected, undisturbed.report["digest"])
        finally:
            server.stop()


def require_taken_over(run: Elsewhere, lose: Callable[[], None]) -> None:
    """The other machine goes on with the run to the undisturbed result, and knows of the driver that was lost."""
    lost_at, since = _steps(run.folder), time.monotonic()
    lose()
    run.started.communicate()
    soon(run.goes_on_there, run.log)
    took_s = time.monotonic() - since
    run.require_undisturbed(run.there / "trace.jsonl")
    print(f"\nlost at step {lost_at}, next step after {took_s:.1f} s\n{run.log.read_text()}")
    (lost,) = [each for each in read(run.there / "journal.jsonl") if each["event"] == "driver_lost"]
    assert lost["pid"]


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_when_the_machine_of_the_driver_is_lost_another_node_goes_on(tmp_path: Path) -> None:
    """The other node has neither project nor data: they come from the record and from DVC's remote."""
    with elsewhere(tmp_path, CONF, driver_on_head=False, store_on_head=True) as run:
        require_taken_over(run, run.hosts.lose_last)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
@pytest.mark.parametrize("more", ["", "compression: {name: topk, ratio: 0.2, error_feedback: true}\n"])
def test_when_the_head_is_lost_with_its_driver_another_machine_goes_on_without_ray(tmp_path: Path, more: str) -> None:
    """No Ray is left; that machine has neither project nor data. more: what shards keep is lost with the head's workers."""
    with elsewhere(tmp_path, CONF + more, driver_on_head=True, store_on_head=False) as run:
        require_taken_over(run, run.hosts.lose_first)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_a_driver_that_was_cut_off_ends_itself_where_another_machine_has_its_run(tmp_path: Path) -> None:
    """The head and its driver reach neither the other machine nor the store, for long enough to be taken for dead."""
    with elsewhere(tmp_path, CONF, driver_on_head=True, store_on_head=False, pause_s=0.1) as run:
        run.hosts.cable("down")
        soon(run.goes_on_there, run.log)
        assert run.started.poll() is None
        run.hosts.cable("up")
        _, err = run.started.communicate()
        assert run.started.returncode == 1, err
        assert f"goes on with run {run.folder.name}, which had not heard of this driver; this one ends" in err
        run.require_undisturbed(run.there / "trace.jsonl")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_a_driver_elsewhere_goes_on_alone_when_the_head_is_lost(tmp_path: Path) -> None:
    """The same process, with the same output and exit code."""
    with elsewhere(tmp_path, CONF, driver_on_head=False, store_on_head=False) as run:
        lost_at, since = _steps(run.folder), time.monotonic()
        run.hosts.lose_first()
        soon(lambda: True if _steps(run.folder) > lost_at + 50 or run.started.poll() is not None else None, run.log)
        took_s = time.monotonic() - since
        out, err = run.started.communicate()
        assert run.started.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["digest"] == run.digest
        run.require_undisturbed(run.folder / "trace.jsonl")
    print(f"\nlost at step {lost_at}, 50 steps more after {took_s:.1f} s\n{err}")
    assert "goes on without it, on this machine alone, with" in err


def _steps(folder: Path) -> int:
    trace = folder / "trace.jsonl"
    return len(list(read(trace))) if trace.exists() else 0


def _ended(server: Server, run_id: str) -> dict[str, Any] | None:
    answer = server.get(f"/api/2.0/mlflow/runs/get?run_id={run_id}")
    run: dict[str, Any] | None = None if answer is None else json.loads(answer)["run"]
    return run if run is not None and run["info"]["status"] in ("FINISHED", "FAILED", "KILLED") else None
