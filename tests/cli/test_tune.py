"""The examples of `tune` and `auto` in docs/simulation.md work word for word, and what is chosen changes no bit."""

from __future__ import annotations

import json
import os
import re

import pytest

from orchestrator.comm.topologies import TOPOLOGIES, asks_for_nodes
from orchestrator.config.settings import from_yaml, load
from orchestrator.driver.preflight import visible_cards
from orchestrator.driver.preflight.visible_cards import Visible
from orchestrator.experiments.tuning import stage_tuning
from orchestrator.numerics import cuda
from orchestrator.provenance.environment.cards import CardsUnknown
from orchestrator.records.lines import read
from tests.cli.alone import alone, assert_as_alone
from tests.projects import REPOSITORY, Project
from tests.refusals import refused

PAGE = (REPOSITORY / "docs" / "simulation.md").read_text()
TUNE, LAUNCH, STAGES = re.findall(r"^(?!.* simulate )python -m orchestrator .*$", PAGE, re.MULTILINE)
SHORTLY = "tuning.seconds=0.3 output=json"


@pytest.mark.long
@pytest.mark.slow
def test_a_launch_measures_chooses_and_keeps_what_it_chose(digits: Project) -> None:
    before = set(digits.runs())
    done = digits.shell(f"{LAUNCH} {SHORTLY}")
    assert_as_alone(digits, done, alone(digits, "digits", "run.steps=60"))
    assert set(digits.runs()) - before == {done.report["run_id"]}, "what was measured is no run of the project"
    folder = digits.folder(done.report["run_id"])
    told, settings = json.loads((folder / "tuning.json").read_text()), from_yaml((folder / "settings.yaml").read_text())
    assert told["keys"] == ["topology", "cluster.workers"]
    assert told["chosen"] == {"topology": settings.topology.name, "cluster.workers": settings.cluster.workers.start}
    assert settings.tuning.auto == ()
    assert 1 <= settings.cluster.workers.start <= len(os.sched_getaffinity(0))
    assert f"topology={settings.topology.name} cluster.workers=" in done.err
    assert told["reason"] in done.err
    (event,) = [each for each in read(folder / "journal.jsonl") if each["event"] == "tuned"]
    assert event["chosen"] == told["chosen"]
    assert "tuning.json" in json.loads((folder / "settings_from.json").read_text())["cluster.workers"]
    assert digits.leftovers() == []


@pytest.mark.long
def test_tune_measures_the_best_three(digits: Project) -> None:
    done = digits.shell(f"{TUNE} {SHORTLY}")
    assert done.code == 0, done.err
    listed, cores = done.report["candidates"], len(os.sched_getaffinity(0))
    workers = min(8, cores)
    topologies = [
        name for name in TOPOLOGIES if not asks_for_nodes(name)
    ]  # the others have nothing to gain on one host
    assert len(listed) == 2 * (1 + (workers - 1) * len(topologies))
    assert [each["measured_s"] is not None for each in listed] == [True] * 3 + [False] * (len(listed) - 3)
    assert set(done.report["chosen"]) == {"topology", "cluster.workers", "data.loaders"}
    assert digits.leftovers() == []


def _leaving(monkeypatch: pytest.MonkeyPatch, each_bytes: int, workers: int) -> None:
    """So much memory for each worker beside its process."""
    monkeypatch.setattr(stage_tuning, "_own_bytes", lambda: 10**8)
    monkeypatch.setattr(stage_tuning, "available_bytes", lambda: workers * (10**8 + each_bytes))


@pytest.mark.slow
def test_stages_are_chosen_by_memory(digits: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(digits.path)
    monkeypatch.syspath_prepend(str(digits.path))
    settings = load(["digits"], ["cluster.stages=auto", "run.steps=20"])
    assert settings.tuning.auto == ("cluster.stages",)
    _leaving(monkeypatch, 10**8, 4)
    chosen, choice = stage_tuning.staged(settings)
    assert choice is not None
    assert (chosen.tuning.auto, chosen.cluster.stages, len(choice.needs)) == ((), 1, 1)
    _leaving(monkeypatch, choice.needs[0].bytes - 1, 4)
    chosen, choice = stage_tuning.staged(settings)
    assert choice is not None
    assert (chosen.cluster.stages, len(choice.needs)) == (2, 2)
    _leaving(monkeypatch, 300_000, 4)
    with refused("stages.memory", "cluster.stages"):
        stage_tuning.staged(settings)
    for overrides, code in (
        (["cluster.address=127.0.0.1:6379"], "stages.auto-joined"),
        (["sync=ssp"], "stages.sync"),
    ):
        _leaving(monkeypatch, 1_000_000, 4)
        with refused(code):
            stage_tuning.staged(load(["digits"], ["cluster.stages=auto", *overrides]))


def _cards(monkeypatch: pytest.MonkeyPatch, free: int | str) -> None:
    """A machine with one card that has so many bytes free; a text: nobody tells how many, for this reason."""

    def free_bytes() -> list[int]:
        if isinstance(free, str):
            raise CardsUnknown(free)
        return [free]

    monkeypatch.setattr(cuda, "build_problem", lambda: None)
    monkeypatch.setattr(visible_cards, "look", Visible)
    monkeypatch.setattr(visible_cards, "free_bytes", free_bytes)


@pytest.mark.slow
def test_on_gpus_stages_are_chosen_by_the_memory_of_the_cards(digits: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(digits.path)
    monkeypatch.syspath_prepend(str(digits.path))
    on_card = ["cluster.stages=auto", "run.steps=20", "run.device=cuda", "cluster.gpus_per_worker=0.25"]
    settings, of_driver = load(["digits"], on_card), 1_500_000_000
    _leaving(monkeypatch, 10**9, 4)
    _cards(monkeypatch, 4 * (of_driver + 10**9))
    chosen, whole = stage_tuning.staged(settings)
    assert whole is not None
    assert (chosen.tuning.auto, chosen.cluster.stages, whole.card_room_bytes) == ((), 1, 10**9)
    short = whole.needs[0].card_bytes - 1
    _cards(monkeypatch, 4 * (of_driver + short))
    chosen, choice = stage_tuning.staged(settings)
    assert choice is not None
    assert (chosen.cluster.stages, choice.card_room_bytes) == (2, short)
    assert choice.needs[0] == whole.needs[0]
    _cards(monkeypatch, "nvidia-smi has no figure for MIG-1")
    with refused("stages.auto-cards-unknown", "cluster.stages"):
        stage_tuning.staged(settings)
    bounded = load(["digits"], [*on_card, f"cluster.gpu_gb={short / 1e9}"])
    for free in ("nvidia-smi has no figure for MIG-1", 10**12):
        _cards(monkeypatch, free)
        chosen, choice = stage_tuning.staged(bounded)
        assert choice is not None
        assert (chosen.cluster.stages, choice.card_room_bytes) == (2, short)
    _cards(monkeypatch, 10**9)
    with refused("stages.memory", "cluster.stages"):
        stage_tuning.staged(settings)


# A launch that finds a byte less for each worker than the whole model needs.
SHORT_OF_MEMORY = """
from orchestrator.numerics.determinism import prepare_environment
prepare_environment()
import orchestrator
from orchestrator.experiments.tuning import stage_tuning
from orchestrator.config.settings import load
stage_tuning.available_bytes = lambda: 1 << 40
_, choice = stage_tuning.staged(load(["digits"], ["cluster.stages=auto"]))
stage_tuning.available_bytes = lambda: 4 * (stage_tuning._own_bytes() + choice.needs[0].bytes - 1)
run = orchestrator.launch("digits", "cluster.stages=auto", "run.steps=20")
print(run.run_id, run.digest)
"""


@pytest.mark.long
@pytest.mark.ray
def test_a_launch_in_as_many_stages_as_memory_asks_for_has_the_same_bits(digits: Project) -> None:
    (digits.path / "short.py").write_text(SHORT_OF_MEMORY)
    done = digits.shell("python short.py")
    assert done.code == 0, done.err
    assert "chosen by the memory that is there: cluster.stages=2: a worker needs about" in done.err
    run_id, digest = done.out.split()
    told = json.loads((digits.folder(run_id) / "tuning.json").read_text())
    assert (told["keys"], told["chosen"]) == (["cluster.stages"], {"cluster.stages": 2})
    assert from_yaml((digits.folder(run_id) / "settings.yaml").read_text()).cluster.stages == 2
    assert "tuning.json" in json.loads((digits.folder(run_id) / "settings_from.json").read_text())["cluster.stages"]
    whole = digits.shell(f"{STAGES} run.steps=20 output=json")
    assert "chosen by the memory that is there: cluster.stages=1" in whole.err
    assert whole.report["digest"] == digest
    assert digits.leftovers() == []


@pytest.mark.long
@pytest.mark.slow
def test_what_cannot_be_chosen_is_refused(digits: Project) -> None:
    done = digits.run("tune", "conf=digits", "sync=ssp")
    assert done.code == 2
    assert "measuring chooses the layout of lockstep, not of sync=ssp" in done.err
    done = digits.run("conf=digits", "topology=auto", "plan=true")
    assert done.code == 2
    assert "topology: auto is decided by a measurement when a run is launched" in done.err
    done = digits.run("tune")
    assert done.code == 2
    assert "tune: it needs a configuration" in done.err
