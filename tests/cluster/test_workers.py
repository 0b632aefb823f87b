"""When the workers of a private Ray are forked, and how its raylet is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from ray._private import services

from orchestrator.cluster.forkserver import client, launch_server
from orchestrator.cluster.sessions import workers
from orchestrator.common import tested_versions


@pytest.fixture(autouse=True)
def _usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OMP_NUM_THREADS", workers.OFF):
        monkeypatch.delenv(name, raising=False)
    yield
    workers.end()


def test_they_are_where_one_thread_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [workers._can_be_forked(cpus) for cpus in (0.5, 1.0, 1.5, 2.0)] == [True, True, True, False]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not workers._can_be_forked(1.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert workers._can_be_forked(2.0)


def test_who_does_not_want_it_and_another_ray_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_server, "LaunchServer", lambda: pytest.fail("a server was begun"))
    usual = services.start_ray_process
    with monkeypatch.context() as other:
        other.setattr(tested_versions, "RAY", tested_versions.Tried("ray", ("1.0",)))
        with workers.forked(1.0) as server:
            assert (server, services.start_ray_process) == (None, usual)
    monkeypatch.setenv(workers.OFF, "0")
    with workers.forked(1.0) as server:
        assert (server, services.start_ray_process) == (None, usual)


def test_the_raylet_is_told_to_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun:
        place = "/run/s.sock"

        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    made: list[object] = []
    closed: list[object] = []
    commands: list[list[str]] = []
    monkeypatch.setattr(launch_server, "LaunchServer", Begun)
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_arguments: commands.append(command))
    with workers.forked(1.0) as server:
        start: Any = services.start_ray_process
        start(["raylet", "--python_worker_command=python default_worker.py", "--port=1"], "raylet")
    (command,) = commands
    asking = command[1].removeprefix("--python_worker_command=").split()
    assert asking[1:] == ["-I", "-S", client.__file__, "/run/s.sock", "python", "default_worker.py"]
    assert [command[0], command[2]] == ["raylet", "--port=1"]
    workers.begin(1.0)
    workers.end()
    first, second = made
    assert (server, closed) == (first, [second])


def test_where_none_can_be_made_workers_begin_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("no space left")

    monkeypatch.setattr(launch_server, "LaunchServer", fails)
    with workers.forked(1.0) as server:
        assert server is None
    assert os.environ.get(workers.OFF) is None
