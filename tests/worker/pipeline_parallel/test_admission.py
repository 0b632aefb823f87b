"""The proof that a cut model computes what the unsplit one does: what it finds, how often it computes, and who does it for a
host."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from orchestrator.config.resolve import resolve
from orchestrator.numerics import staging
from orchestrator.pipeline import Pipeline
from orchestrator.worker.admission import proof
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.pipeline_parallel import planning, turns
from orchestrator.worker.pipeline_parallel.all_stages import WholeModel
from orchestrator.worker.worker import ProcessServices, Worker
from tests.comm.transports.memory import LocalRegions
from tests.refusals import refused
from tests.worker import pipelines
from tests.worker.runs import Layout, settings_for

ADAM = {"name": "adam", "lr": 0.02}
TWO = Layout(2, stages=2)


def prepared(kind: type[Pipeline], services: ProcessServices | None = None) -> dict[str, Any]:
    plan = resolve(settings_for(kind, TWO, optimizer=ADAM))
    return Worker(plan, LocalRegions(), services).prepare()


def test_another_gradient_in_stages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = WholeModel.backward
    monkeypatch.setattr(WholeModel, "backward", lambda whole, loss: backward(whole, loss * (1 + 2**-20)))
    with refused("stages.other-gradient", "another gradient of"):
        prepared(pipelines.Mlp)


def test_another_evaluation_in_stages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = WholeModel.forward

    def changed(whole: WholeModel, call: Callable[[], Any], way: Any = "training") -> Any:
        found = forward(whole, call, way)
        return found * (1 + 2**-20) if way == "evaluation" else found

    monkeypatch.setattr(WholeModel, "forward", changed)
    with refused("stages.other-evaluation", "validation batch 0"):
        prepared(pipelines.Mlp)


class Drifts(pipelines.Mlp):
    """Its loss depends on how often it was asked for."""

    _asked = 0

    def loss(self, model: Any, batch: Any) -> Any:
        self._asked += model.training
        return super().loss(model, batch) * (1 + self._asked / 64)


def test_what_varies_unsplit_too_is_no_fault_of_the_cut() -> None:
    with refused("pipeline.not-repeatable", "micro-batch (step 0, shard 0)"):
        prepared(Drifts)


def test_the_unsplit_model_is_computed_once_for_each_batch_and_the_cut_one_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: Counter[str] = Counter()

    def counted(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            passes[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, called)

    counted(PipelineAdapter, "loss", "unsplit")
    counted(PipelineAdapter, "evaluate", "unsplit evaluation")
    counted(WholeModel, "backward", "in stages")
    counted(planning, "survey", "surveyed")
    reference = prepared(pipelines.Mlp)["reference"]
    assert passes["unsplit"] == 2
    assert passes["in stages"] == 1
    assert passes["unsplit evaluation"] <= 2
    assert passes["surveyed"] <= 3
    assert reference


class Host:
    """The turns of a host, each with the member that has it."""

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self._lock = threading.Lock()

    def services(self, member: str) -> ProcessServices:
        def take(number: int) -> Callable[[], None] | None:
            with self._lock:
                if number in self.held:
                    return None
                self.held[number] = member
            return lambda: self.held.__delitem__(number)

        return ProcessServices(Heartbeat(), take_turn=take)

    def dies(self, member: str) -> None:
        self.held = {number: has for number, has in self.held.items() if has != member}


def test_one_of_a_host_does_it_and_the_others_wait_for_it() -> None:
    """They do something else before they wait."""
    host, did, done, others = Host(), list[int](), threading.Event(), list[int]()
    busy = threading.Semaphore(0)

    def take_part(number: int) -> bool:
        def meanwhile() -> None:
            assert not done.is_set()
            others.append(number)
            busy.release()

        with turns.once(host.services(str(number)), meanwhile) as is_to_do:
            if is_to_do:
                did.append(number)
                assert all(busy.acquire(timeout=60) for _ in range(3))
                assert not done.wait(0.3)  # the others wait meanwhile
                done.set()
        return done.is_set()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(take_part, range(4)))
    assert len(did) == 1
    assert sorted([*did, *others]) == [*range(4)]


def test_one_that_fails_or_dies_leaves_it_to_the_next() -> None:
    host = Host()

    def fail() -> None:
        with turns.once(host.services("a"), lambda: None) as is_to_do:
            raise ValueError(f"in vain: {is_to_do}")

    with pytest.raises(ValueError, match="in vain: True"):
        fail()
    with turns.once(host.services("b"), lambda: None) as is_to_do:
        assert is_to_do
    with turns.once(host.services("c"), lambda: None) as is_to_do:
        assert not is_to_do
    host.dies("b")
    with turns.once(host.services("d"), lambda: None) as is_to_do:
        assert is_to_do


def test_for_gpus_one_worker_of_a_host_proves_the_cut_and_each_shows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    proved: list[str] = []
    reference = proof.reference

    def noted(*args: Any, **kwargs: Any) -> str:
        proved.append("")
        return reference(*args, **kwargs)

    monkeypatch.setattr(proof, "reference", noted)
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))
    host = Host()
    told = [prepared(pipelines.Mlp, host.services(member)) for member in "abc"]
    assert len(proved) == 1
    assert told[0] == told[1] == told[2]
    host.dies("a")
    assert prepared(pipelines.Mlp, host.services("d")) == told[0]
    assert len(proved) == 2
