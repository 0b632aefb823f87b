"""Launching the digits: one digest and one trace for all layouts, a true record, calm output."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.alone import Alone, alone, assert_as_alone
from tests.projects import Done, Project

pytestmark = pytest.mark.ray

SHORT = ("conf=digits", "run.steps=25", "evaluation.every=10", "output=json")
FIRST = ("topology=parameter_server", "cluster.workers=2", "transport=tcp", "data.loaders=1")
OTHERS = (("ring", 4), ("tree", 3), ("peer_to_peer", 5), ("ring", 1))
BESIDE = """
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.numerics import determinism

determinism.prepare_environment()
prepare_environment(None)


from orchestrator.cluster.sessions.local import LocalRay
from orchestrator.driver.launch.launch import launch
from orchestrator.driver.run.job import Beside
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.config.settings import load

SHORT = ["run.steps=25", "evaluation.every=10", "cluster.workers=2"]
LAYOUTS = (["digits"], [*SHORT, "topology=ring"]), (["digits"], [*SHORT, "topology=peer_to_peer"])


def run(shared, confs, overrides):
    beside = Beside(Path(".orchestrator").absolute(), Mock(), PendingSignal(), shared)
    run_id, outcome = launch(load(confs, overrides), {}, beside=beside)
    return run_id, outcome.digest


with LocalRay(5, 300.0) as shared, ThreadPoolExecutor(2) as pool:
    ended = list(pool.map(lambda layout: run(shared, *layout), LAYOUTS))
    ended.append(run(shared, [sys.argv[1]], []))
    print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *SHORT[1:])


@pytest.fixture(scope="module")
def launched(digits: Project) -> Done:
    """By the console script: TCP, and processes that fetch ahead."""
    return digits.shell(f"orchestrator {' '.join((*SHORT, *FIRST))}")


@pytest.fixture(scope="module")
def beside(digits: Project, launched: Done) -> list[tuple[str, str]]:
    """(run, digest) of two runs side by side on one Ray that outlives them, and of the settings of the first launch again."""
    settings = digits.folder(launched.report["run_id"]) / "settings.yaml"
    done = digits.shell(f"{sys.executable} - {settings} <<'END'\n{BESIDE}\nEND")
    assert done.code == 0, done.err
    return [(run_id, digest) for run_id, digest in json.loads(done.out)]


@pytest.mark.long
def test_every_layout_gives_one_digest_and_one_trace(digits: Project, undisturbed: Alone, launched: Done) -> None:
    """By TCP, with processes that fetch ahead, and without any process."""
    assert_as_alone(digits, launched, undisturbed)
    assert [line["step"] for line in undisturbed.trace] == list(range(25))
    assert undisturbed.trace[-1]["parameters"] == undisturbed.digest


@pytest.mark.long
def test_runs_share_a_ray_side_by_side_and_one_after_the_other(
    digits: Project, undisturbed: Alone, launched: Done, beside: list[tuple[str, str]]
) -> None:
    """By shared memory. Nothing of one run changes another's bits, or stays in the Ray."""
    runs = (launched.report["run_id"], *dict(beside))
    assert len({(digits.folder(run_id) / "trace.jsonl").read_bytes() for run_id in runs}) == 1
    assert [digest for _, digest in beside] == [undisturbed.digest] * 3
    assert [digits.runs()[run_id] for run_id, _ in beside] == ["FINISHED"] * 3


@pytest.mark.long
def test_other_layouts_give_it_too(digits: Project, undisturbed: Alone) -> None:
    for topology, workers in OTHERS:
        done = digits.run(*SHORT, f"topology={topology}", f"cluster.workers={workers}")
        assert_as_alone(digits, done, undisturbed)


@pytest.mark.long
def test_another_seed_gives_another_digest(digits: Project, undisturbed: Alone) -> None:
    other = digits.run(*SHORT, "run.seed=2", "cluster.workers=2")
    assert other.report["digest"] != undisturbed.digest


@pytest.mark.long
def test_resolved_settings_can_be_launched_again(
    digits: Project, launched: Done, beside: list[tuple[str, str]]
) -> None:
    *_, (again, digest) = beside
    assert digest == launched.report["digest"]
    texts = {(digits.folder(run_id) / "settings.yaml").read_text() for run_id in (launched.report["run_id"], again)}
    assert len(texts) == 1


@pytest.mark.long
def test_fast_sums_are_repeatable_for_one_layout(digits: Project, undisturbed: Alone) -> None:
    first, second = (digits.run(*SHORT, "reduction=fast", "cluster.workers=3").report for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["digest"] != undisturbed.digest
    assert first["loss"] == pytest.approx(float.fromhex(undisturbed.trace[-1]["loss"]), rel=0.05)


@pytest.mark.long
def test_the_characters_have_one_digest_too(digits: Project) -> None:
    short = ("conf=characters", "run.steps=3", "evaluation.every=1000", "output=json")
    ring = digits.run(*short, "topology=ring", "cluster.workers=2")
    tree = digits.run(*short, "topology=tree", "cluster.workers=3", "transport=tcp", "data.loaders=1")
    assert (ring.code, tree.code) == (0, 0), ring.err + tree.err
    assert ring.report["digest"] == tree.report["digest"]
    traces = [(digits.folder(done.report["run_id"]) / "trace.jsonl").read_bytes() for done in (ring, tree)]
    assert traces[0] == traces[1]


@pytest.mark.long
def test_dvc_trains_the_characters(characters: Project) -> None:
    """The stage as it stands in dvc.yaml, with fewer steps; DVC knows when nothing has to be done again."""
    conf = characters.path / "conf" / "characters.yaml"
    conf.write_text(conf.read_text().replace("steps: 300", "steps: 3").replace("workers: 4", "workers: 2"))
    first = characters.shell("dvc repro train_characters")
    assert first.code == 0, first.err
    report = json.loads((characters.path / "reports" / "characters.json").read_text())
    assert (report["status"], report["steps"]) == ("finished", 3)
    second = characters.shell("dvc repro train_characters")
    assert "didn't change, skipping" in second.out
    assert list(characters.runs().values()) == ["FINISHED"]
    assert characters.leftovers() == []
