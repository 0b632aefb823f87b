"""The program that stands in for Ray's agents."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import ray_constants, services

from orchestrator.cluster.sessions import agent, local

RAYS_OWN: Any = importlib.import_module("ray._raylet")  # it has no types
METRICS, RUNTIME_ENVS = RAYS_OWN.METRICS_AGENT_PORT_NAME, RAYS_OWN.RUNTIME_ENV_AGENT_PORT_NAME
NODE = "ab" * 28
RAYLET = """
import os, signal, subprocess, sys, time
ends, noted, *command = sys.argv[1:]
agent = subprocess.Popen(command)
while not os.path.exists(noted):
    time.sleep(0.01)
print("noted", flush=True)
if ends == "raylet":
    os.kill(os.getpid(), signal.SIGKILL)
agent.wait()
"""


def agents() -> list[list[str]]:
    kinds = (ray_constants.PROCESS_TYPE_DASHBOARD_AGENT, ray_constants.PROCESS_TYPE_RUNTIME_ENV_AGENT)
    return [services._build_python_executable_command_memory_profileable(kind, "folder") for kind in kinds]


def test_ports_are_noted_as_ray_notes_them(tmp_path: Path) -> None:
    names = (METRICS, RUNTIME_ENVS)
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    agent.note(names, str(tmp_path / "ours"), NODE)
    for name in names:
        RAYS_OWN.persist_port(str(tmp_path / "theirs"), NODE, name, -1)
    ours, theirs = (
        {file.name: file.read_text() for file in (tmp_path / folder).iterdir()} for folder in ("ours", "theirs")
    )
    assert ours == theirs
    assert len(ours) == len(names)


def test_what_is_not_asked_for_is_left_out_and_the_next_ray_has_it() -> None:
    usual = agents()
    with local._smaller_agents(runtime_envs=False):
        metrics, runtime_envs = agents()
    with local._smaller_agents(runtime_envs=True):
        assert agents() == [metrics, usual[1]]
    assert agents() == usual
    assert metrics[:4] == runtime_envs[:4] == [sys.executable, "-I", "-S", agent.__file__]
    assert METRICS in metrics
    assert runtime_envs[4:] == [str(os.getpid()), RUNTIME_ENVS]


def test_where_there_are_no_descriptors_of_processes_they_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:

        def end(seconds: float) -> None:
            looks.append(seconds)
            other.kill()
            other.wait()

        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(agent, "time", SimpleNamespace(sleep=end))
        agent.wait_for_one([os.getpid(), other.pid])
    assert len(looks) == 1


@pytest.mark.slow
@pytest.mark.parametrize("first", ["raylet", "driver"])
def test_it_ends_with_whoever_started_it_also_by_sigkill(tmp_path: Path, first: str) -> None:
    noted = str(tmp_path / f"any_port_{NODE}")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        command = [sys.executable, "-I", "-S", agent.__file__, str(driver.pid), "any_port", "/ray/agent.py"]
        options = [f"--session-dir={tmp_path}", f"--node-id={NODE}", "--minimal"]
        raylet = [sys.executable, "-c", RAYLET, first, noted, *command, *options]
        with subprocess.Popen(raylet, stdout=subprocess.PIPE) as started:
            assert started.stdout is not None
            assert started.stdout.readline() == b"noted\n"
            if first == "driver":
                driver.kill()
            assert started.stdout.read() == b""  # its other end is closed by whoever ends last, which is the agent
        driver.kill()
