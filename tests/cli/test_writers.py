"""The true packages of other trackers, and Ray's own agent: what they have of a run, read back.

wandb and tensorboard lie in a folder of their own (`make others`), and what an agent of Ray needs (`make dashboard`).
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.projects import PATIENCE_S, REPOSITORY, Project, make_digits, packages

pytestmark = [pytest.mark.ray, pytest.mark.long]
SECRET = "ghp_" + "a1B2" * 9
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

found = EventAccumulator(sys.argv[1], {"scalars": 0}).Reload()
texts = {tag: [each.tensor_proto.string_val[0].decode() for each in found.Tensors(tag)] for tag in found.Tags()["tensors"]}
points = {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
print(json.dumps([points, texts]))
"""


def with_packages(project: Project, folder: Path) -> Project:
    project.variables = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}", "WANDB_MODE": "offline"}
    return project


def test_tensorboard_and_wandb_have_all_of_a_run_and_no_credential(tmp_path: Path) -> None:
    project = with_packages(make_digits(tmp_path / "digits"), packages("others"))
    words = (f"run.note=What for, not {SECRET}", "run.tags=[a,team=vision]", "tracking.also=[tensorboard,wandb]")
    long = ("conf=digits", "run.steps=120", "evaluation.every=40", "checkpoint.every=10", "cluster.workers=2")
    first = project.start(*long, *words)
    deadline = time.monotonic() + PATIENCE_S
    while not any(
        '"checkpoint_saved"' in file.read_text() for file in project.path.glob(".orchestrator/*/journal.jsonl")
    ):
        assert time.monotonic() < deadline, "no checkpoint was made"
        time.sleep(0.05)  # looks at a file that another process writes
    first.kill()
    first.communicate()
    done = project.run("resume=last", words[0], "output=json")
    assert done.code == 0, done.err
    assert "not_told" not in done.report, done.err
    folder = project.folder(done.report["run_id"])
    read = project.shell(f"python -c '{READ}' {folder / 'tensorboard'}")
    points, texts = json.loads(read.out)
    told = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    assert [step for step, _ in points["train/loss"]] == list(range(120))
    assert [value for _, value in points["train/loss"]] == pytest.approx([float.fromhex(line["loss"]) for line in told])
    assert [step for step, _ in points["validation/accuracy"]] == [39, 79, 119]
    assert texts["run/note/text_summary"][-1] == "What for, not ***"
    assert done.report["digest"] in texts["run/end/text_summary"][-1]
    offline = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert [file.stem for file in offline] == [f"run-{done.report['run_id']}"] * 2  # before the kill and after it
    written = b"".join(file.read_bytes() for file in offline)
    for word in ("validation/accuracy", "What for", "team=vision", done.report["digest"]):
        assert word.encode() in written
    everything = [
        file.read_bytes() for kind in ("tensorboard", "wandb") for file in (folder / kind).rglob("*") if file.is_file()
    ]
    assert [SECRET.encode() in each for each in everything] == [False] * len(everything)
    assert project.leftovers() == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def shown(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""


def test_prometheus_sees_a_running_job(tmp_path: Path) -> None:
    project = with_packages(make_digits(tmp_path / "digits"), packages("dashboard"))
    port = free_port()
    process = project.start("conf=digits", "run.steps=100000", "run.name=seen", f"tracking.metrics_port={port}")
    deadline = time.monotonic() + PATIENCE_S
    found: list[tuple[str, str, str]] = []
    while "steps" not in [name for name, *_ in found]:  # others may come before
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no metrics came"
        time.sleep(0.2)  # another process reports every ten seconds
        found = re.findall(r"^ray_orchestrator_(\w+)\{(.*)\} (\S+)$", shown(port), re.MULTILINE)
    taken = project.run("conf=digits", "run.steps=3", f"tracking.metrics_port={port}")
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    values = {name: float(value) for name, _, value in found}
    assert values["steps"] > 0
    assert values["train_loss"] > 0
    assert all('name="seen"' in labels and 'run="' in labels for _, labels, _ in found)
    assert taken.code != 0
    assert f"port {port}" in taken.err
    assert shown(port) == ""
    assert project.leftovers() == []
