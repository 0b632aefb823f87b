"""The result of a run that nobody disturbs and that needs nobody: a single worker, a thread of the tests, without Ray.

It costs a fifth of a launch, and the runs of true processes are compared with what no process, socket or driver took part in.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file

from orchestrator.config.settings import load
from orchestrator.records.trace import Line
from tests.projects import Done, Project
from tests.worker.elastic import Elastic
from tests.worker.runs import Layout


@dataclass(frozen=True)
class Alone:
    """state: parameters and buffers at the end; metrics: of the last evaluation, as text."""

    digest: str
    trace: list[Line]
    metrics: str
    state: dict[str, torch.Tensor]


def alone(project: Project, name: str, *overrides: str) -> Alone:
    """The run of conf/NAME.yaml of the project. Its pipeline is imported by this process."""
    with contextlib.chdir(project.path):
        run = Elastic(load([name], overrides), Layout(1))
        told = run.run()
    assert told.digest is not None
    (member,) = run.members
    return Alone(told.digest, told.trace, list(told.metrics.values())[-1], member.state())


def trace_of(project: Project, done: Done) -> list[dict[str, Any]]:
    lines = (project.folder(done.report["run_id"]) / "trace.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_as_alone(project: Project, done: Done, expected: Alone) -> None:
    """One digest, one trace, the same metrics and weights."""
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert done.report["digest"] == expected.digest
    assert trace_of(project, done) == expected.trace
    assert str(done.report["metrics"]) == expected.metrics
    weights = load_file(project.folder(done.report["run_id"]) / "model.safetensors")
    assert weights.keys() == expected.state.keys()
    assert all(torch.equal(weight, expected.state[name]) for name, weight in weights.items())
