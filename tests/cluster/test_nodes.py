"""A joined Ray of two nodes: the result of a private one, clear refusals, the loss of a node."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.records.lines import read
from tests.cli.alone import Alone, alone, assert_as_alone, trace_of
from tests.cli.watching import WatchedRun
from tests.cluster.conftest import SHORT, Joined, raylets
from tests.projects import PATIENCE_S, Project

pytestmark = pytest.mark.ray

LAYOUTS = [
    ("topology=parameter_server", "cluster.workers=3", "transport=tcp"),
    ("topology=ring", "cluster.workers=4"),
]


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_a_run_over_nodes_gives_the_result_of_a_private_one(
    digits: Project, two_nodes: Joined, at_home: Alone, layout: tuple[str, ...]
) -> None:
    project = replace(digits, variables=two_nodes.access)
    done = project.run(*SHORT, f"cluster.address={two_nodes.address}", *layout)
    assert_as_alone(project, done, at_home)
    assert "carrying" not in done.err
    assert "no worker runs on this machine, so there are no checkpoints" in done.err
    folder = project.folder(done.report["run_id"])
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert len({event["node"] for event in events if event["event"].endswith("_started") and "node" in event}) == 2
    assert project.processes() == []


@pytest.mark.long
def test_the_weights_of_a_model_in_stages_come_in_parts_from_other_nodes(
    digits: Project, two_nodes: Joined, at_home: Alone, tmp_path: Path
) -> None:
    """From a worker of each stage. If the workers do not reach the checkpoints the run is refused."""
    project = replace(digits, variables=two_nodes.access)
    layout = (f"cluster.address={two_nodes.address}", "cluster.workers=4", "cluster.stages=2", "topology=tree")
    refused = project.run(*SHORT, *layout)
    assert refused.code == 2
    assert (
        "does not reach the checkpoints, and alone has what its stage has learned" in refused.report["error"]["message"]
    )
    assert "checkpoint.uri" in refused.report["error"]["remedy"]
    done = project.run(*SHORT, *layout, f"checkpoint.uri={tmp_path}")
    assert_as_alone(project, done, at_home)
    assert not list(project.folder(done.report["run_id"]).glob("*.stage-*"))
    assert project.processes() == []


@pytest.mark.long
def test_the_characters_over_nodes(digits: Project, two_nodes: Joined) -> None:
    short = ("conf=characters", "run.steps=3", "output=json")
    project = replace(digits, variables=two_nodes.access)
    over_nodes = project.run(*short, f"cluster.address={two_nodes.address}", "cluster.workers=3")
    at_home = digits.run(*short, "cluster.workers=1")
    assert (over_nodes.code, at_home.code) == (0, 0), over_nodes.err
    assert over_nodes.report["digest"] == at_home.report["digest"]
    assert trace_of(project, over_nodes) == trace_of(digits, at_home)


# Settings -> what the message says.
TOO_MUCH = {
    "cluster.workers=5": "the run needs 5 processes with 1 CPU and 0 GPUs each, more than this Ray has: node ",
    "cluster.gpus_per_worker=0.5": "the run needs 1 process with 1 CPU and 0.5 GPUs each",
    "cluster.workers=3 transport=shared_memory": "on one node, as transport=shared_memory needs it",
}


@pytest.mark.long
@pytest.mark.parametrize("settings", TOO_MUCH)
def test_more_than_there_is_is_refused_at_once(digits: Project, two_nodes: Joined, settings: str) -> None:
    project = replace(digits, variables=two_nodes.access)
    began = time.monotonic()
    patient = f"cluster.start_timeout_s={PATIENCE_S}"
    arguments = (f"cluster.address={two_nodes.address}", "cluster.workers=1", patient, *settings.split())
    done = project.run(*SHORT, *arguments)
    assert done.code == 1
    assert done.report["error"]["kind"] == "ClusterUnavailable"
    assert TOO_MUCH[settings] in done.report["error"]["message"]
    assert time.monotonic() - began < PATIENCE_S


# Program -> what is said.
VITAL = {"gcs_server": "the head of the Ray at {address} is gone", "raylet": "the raylet of this node of the Ray at"}


@pytest.mark.long
@pytest.mark.parametrize("program", VITAL)
def test_a_run_whose_joined_ray_dies_says_so_soon_and_can_be_resumed(digits: Project, program: str) -> None:
    with raylets(2) as joined:
        project = replace(digits, variables=joined.access)
        endless = ("conf=digits", "run.steps=1000000", "evaluation.every=1000", "checkpoint.every=20", "output=json")
        run = WatchedRun(project, *endless, f"cluster.address={joined.address}", "cluster.workers=2")
        run.wait_for("checkpoint_saved")
        joined.kill(program)
        done = run.end()
    assert done.code == 1  # Ray itself would end the driver after a minute, without a report
    assert done.report["error"]["kind"] == "ClusterUnavailable"
    assert VITAL[program].format(address=joined.address) in done.report["error"]["message"]
    assert f"python -m orchestrator resume={run.run_id}" in done.err
    assert "Traceback" not in done.err
    assert project.runs()[run.run_id] == "FAILED"
    assert project.processes() == []


@pytest.mark.long
@pytest.mark.parametrize("lost", ["gcs_server, driver", "raylet"])
def test_a_supervised_run_goes_on_alone_where_its_ray_is_gone_for_its_driver(
    digits: Project, at_home: Alone, lost: str
) -> None:
    """The head goes with the driver, or the raylet of its node goes and nobody else knows of the run: it was FAILED."""
    with raylets(2) as joined:
        project = replace(digits, variables=joined.access)
        chosen = ("checkpoint.every=4", f"cluster.address={joined.address}", "cluster.workers=2", "run.supervised=true")
        run = WatchedRun(project, *SHORT, *chosen)
        run.wait_for("checkpoint_saved")
        joined.kill(lost.partition(",")[0])
        if "driver" in lost:
            run.process.kill()
        done = run.end()
        assert project.processes() == []
    assert f"run {run.run_id} goes on without it, on this machine alone, with" in done.err
    assert "Traceback" not in done.err
    assert json.loads(done.out.splitlines()[-1])["digest"] == at_home.digest
    assert project.runs()[run.run_id] == "FINISHED"


@pytest.mark.long
def test_a_worker_that_cannot_compute_on_a_gpu_says_why(digits: Project) -> None:
    """Its node says that it has GPUs; the torch of these tests is built without CUDA."""
    with raylets("2:1") as joined:
        project = replace(digits, variables=joined.access)
        done = project.run(
            *SHORT,
            f"cluster.address={joined.address}",
            "cluster.workers=2",
            "run.device=cuda",
            "cluster.gpus_per_worker=0.5",
        )
    assert done.code == 2
    assert done.err.count("error: ") == 1
    assert "is built without CUDA; install a build with CUDA, or launch a new run with run.device=cpu" in done.err
    assert "Traceback" not in done.err
    assert project.runs()[done.report["run_id"]] == "FAILED"


@pytest.mark.long
def test_an_address_without_a_ray_is_refused_at_once(digits: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = digits.run(*SHORT, f"cluster.address=127.0.0.1:{silent.getsockname()[1]}")
    assert (done.code, done.report["error"]["kind"]) == (1, "ClusterUnavailable")
    assert "is no Ray" in done.report["error"]["message"]
    assert "ray start --head" in done.report["error"]["remedy"]


@pytest.mark.long
@pytest.mark.parametrize(
    "access", [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}]
)
def test_a_token_that_is_not_the_rays_is_told_with_the_remedy(
    digits: Project, two_nodes: Joined, access: dict[str, str], tmp_path: Path
) -> None:
    project = replace(digits, variables={**access, "HOME": str(tmp_path)})
    done = project.run(*SHORT, f"cluster.address={two_nodes.address}")
    assert (done.code, done.report["error"]["kind"]) == (1, "ClusterUnavailable")
    assert "and this launch do not agree on a token: " in done.report["error"]["message"]
    assert "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN=" in done.report["error"]["remedy"]


@pytest.mark.long
def test_what_a_far_worker_keeps_is_had_again_from_the_checkpoint(
    digits: Project, two_nodes: Joined, tmp_path: Path
) -> None:
    """No worker is on the driver's machine, as these nodes say: what shards keep goes with its process, which is said."""
    project = replace(digits, variables=two_nodes.access)
    run_of = ("conf=digits", "run.steps=120", "compression={name: powersgd, rank: 2}")
    given = (*run_of, f"cluster.address={two_nodes.address}", "cluster.workers=3", "output=json")
    run = WatchedRun(project, *given, f"checkpoint.uri=file://{tmp_path}", "checkpoint.every=20")
    run.wait_for("checkpoint_saved")
    run.kill(next(iter(run.living().values())))
    done = run.end()
    assert_as_alone(project, done, alone(digits, "digits", *run_of[1:]))
    assert "note: what the shards of workers 0, 1, 2 keep is lost with their processes" in done.err
    assert len(run.journal("shard_state_unprotected")) >= 3
    assert any("all members go back to step" in event["reason"] for event in run.journal("decided"))


@pytest.mark.long
def test_a_run_whose_relay_of_reports_is_killed_loses_nobody_and_no_line(digits: Project, two_nodes: Joined) -> None:
    project = replace(digits, variables=two_nodes.access)
    given = ("conf=digits", "run.steps=120", "output=json")
    run = WatchedRun(project, *given, f"cluster.address={two_nodes.address}", "cluster.workers=3")
    killed = {run.wait(two_nodes.kill_relay)}
    for steps in (20, 60):
        run.wait_for_steps(steps)
        killed.add(run.wait(two_nodes.kill_relay))
    done = run.end()
    assert_as_alone(project, done, alone(digits, "digits", "run.steps=120"))
    assert len(killed) == 3
    assert run.journal("worker_lost") == []
    assert project.processes() == []


@pytest.mark.long
def test_a_resume_has_a_worker_where_the_checkpoint_lies_though_all_have_room_elsewhere(digits: Project) -> None:
    """The driver's node has room for one of the two, and Ray would put both on the other."""
    undisturbed = alone(digits, "digits", "run.steps=200")
    with raylets(1, 2) as joined:
        project = replace(digits, variables=joined.access)
        begun = ("conf=digits", "run.steps=200", "checkpoint.every=5", f"cluster.address={joined.address}")
        run = WatchedRun(project, *begun, "cluster.workers=3", "output=json")
        run.wait_for("checkpoint_saved")
        run.process.send_signal(signal.SIGINT)
        assert run.end().code == 130
        done = project.run(f"resume={run.run_id}", "cluster.workers=2", "output=json")
    assert_as_alone(project, done, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("here", [1, 2])
def test_a_launch_has_a_worker_where_its_checkpoints_lie_though_all_have_room_elsewhere(
    digits: Project, at_home: Alone, here: int
) -> None:
    with raylets(here, 4) as joined:
        project = replace(digits, variables=joined.access)
        done = project.run(*SHORT, f"cluster.address={joined.address}", "cluster.workers=2", "checkpoint.every=5")
    assert_as_alone(project, done, at_home)
    assert "there are no checkpoints" not in done.err
    journal = list(read(project.folder(done.report["run_id"]) / "journal.jsonl"))
    assert [each["step"] for each in journal if each["event"] == "checkpoint_saved"] == [5, 10, 12]
    (generation,) = [each for each in journal if each["event"] == "generation_started"]
    assert len(set(generation["nodes"])) == 3 - here, "on one node where it has room for all"


@pytest.mark.long
def test_a_run_that_loses_a_node_goes_on_without_it(digits: Project, two_nodes: Joined) -> None:
    """The last test here: the node does not come back."""
    project = replace(digits, variables=two_nodes.access)
    given = ("conf=digits", "run.steps=300", "output=json")
    run = WatchedRun(project, *given, f"cluster.address={two_nodes.address}", "cluster.workers=3")
    run.wait_for_steps(20)
    nodes = Counter(event["node"] for event in run.journal("worker_started"))
    two_nodes.kill_last_node()
    done = run.end()
    assert_as_alone(project, done, alone(digits, "digits", "run.steps=300"))
    assert len(nodes) == 2
    assert done.report["workers"] in nodes.values()  # those of the other node
    assert {each["kind"] for each in done.report["recoveries"]} == {"lost"}
