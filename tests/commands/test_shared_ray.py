"""One Ray outlives a run and serves others beside it: nothing of one run changes another's bits, or stays in the Ray."""

from __future__ import annotations

import sys

import pytest

from tests.projects import Project

TWO = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.numerics import determinism

determinism.prepare_environment()
prepare_environment(None)


from orchestrator.cluster.sessions.local import LocalRay
from orchestrator.commands.launch import launch
from orchestrator.settings import load

LAYOUTS = ("topology=ring", "topology=parameter_server")


def digest(shared, layout):
    settings = load(["digits"], ["run.steps=20", "cluster.workers=2", layout])
    return launch(settings, {}, lambda plan: nullcontext(shared))[1].digest


with LocalRay(5, 300.0) as shared, ThreadPoolExecutor(2) as pool:
    print(*pool.map(lambda layout: digest(shared, layout), LAYOUTS))
    print(digest(shared, "topology=tree"))
"""


@pytest.mark.ray
def test_runs_share_a_ray_side_by_side_and_one_after_the_other(digits: Project) -> None:
    done = digits.shell(f"{sys.executable} - <<'END'\n{TWO}\nEND")
    assert done.code == 0, done.err
    digests = done.out.split()
    assert len(digests) == 3
    assert len(set(digests)) == 1
    assert "None" not in digests
    assert list(digits.runs().values())[-3:] == ["FINISHED"] * 3
