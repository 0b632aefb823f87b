"""Looking at a run while it goes on, on true processes."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.watching import WatchedRun
from tests.projects import Project

RUN = ("conf=digits", "sync=bap", "topology=parameter_server", "output=json")
SCRIPT = """
import json, sys, orchestrator
first = orchestrator.look(sys.argv[1])
name = max(first.parameters)
ahead = int(sys.argv[2])
while (seen := orchestrator.look(sys.argv[1], name)).slices[0].step < first.slices[0].step + ahead:
    pass
assert first.values is None and tuple(seen.values.shape) == first.parameters[name]
print(json.dumps([first.as_dict(), seen.as_dict()]))
"""


def looks(project: Project, run_id: str, ahead: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two looks from Python, the second of one parameter, so many steps after the first or more."""
    (project.path / "looking.py").write_text(SCRIPT)
    done = project.shell(f"python looking.py {run_id} {ahead}")
    assert done.code == 0, done.err
    first, seen = json.loads(done.out)
    return first, seen


def refused(project: Project, *arguments: str) -> str:
    done = project.run(*arguments)
    assert (done.code, done.out) == (2, "")
    return done.err


@pytest.mark.long
@pytest.mark.ray
def test_a_look_is_what_a_run_of_so_many_steps_ends_with(digits: Project) -> None:
    """A single worker makes its updates always in the same order, and its server knows of them at its rests."""
    given = (*RUN, "sync.rest_every=5", "cluster.workers=1", "topology.servers=1")
    run = WatchedRun(digits, *given, "run.steps=100000")
    run.wait_for_steps(10)
    _, seen = looks(digits, run.run_id, 0)
    name, step = seen["parameter"], seen["slices"][0]["step"]
    part = digits.run(f"look={run.run_id}", f"parameter={name}", "first=1", "count=2", "output=json").report
    assert (len(part["values"]), part["slices"][0]["start"], part["slices"][0]["end"]) == (2, 1, 3)
    assert part["slices"][0]["step"] >= step
    assert f"{name}: " in digits.run(f"look={run.run_id}", f"parameter={name}").out
    assert f"did you mean {name}?" in refused(digits, f"look={run.run_id}", f"parameter={name}s")
    assert " elements" in refused(digits, f"look={run.run_id}", f"parameter={name}", "first=1000000")
    run.process.send_signal(signal.SIGINT)
    assert run.end().code == 130
    assert not (run.folder / "looks").exists()
    assert "is not running: it is killed" in refused(digits, f"look={run.run_id}")
    whole = digits.run(*given, f"run.steps={step}").report
    weights = load_file(digits.folder(whole["run_id"]) / "model.safetensors")
    assert torch.equal(weights[name], torch.tensor(seen["values"]))


@pytest.mark.ray
@pytest.mark.long
def test_between_rests_servers_tell_of_what_has_come(digits: Project) -> None:
    never = [f"{key}=100000" for key in ("sync.rest_every", "checkpoint.every", "evaluation.every", "run.steps")]
    run = WatchedRun(digits, *RUN, *never, "cluster.workers=3", "topology.servers=2")
    run.wait_for("generation_started")
    first, seen = looks(digits, run.run_id, 5)
    assert [each["server"] for each in first["slices"]] == sorted({each["server"] for each in first["slices"]})
    assert len(first["slices"]) == 2
    assert sum(each["end"] - each["start"] for each in seen["slices"]) == torch.tensor(seen["values"]).numel()
    run.process.send_signal(signal.SIGINT)
    assert run.end().code == 130
