"""A checkpoint is copied beside the computation of the next step, and nothing that is copied changes meanwhile.

One worker in a thread, with the true writer, whose copy is held back until the test lets it through.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from orchestrator.checkpoint.catalog import Catalog, load
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.writer import PartWriter
from orchestrator.comm.topologies import build_schedule
from orchestrator.config.resolve import resolve
from orchestrator.controller.shard_assignment import assign_shards
from orchestrator.numerics.digests import model_digest
from orchestrator.pipeline import Pipeline
from orchestrator.records.progress import Progress
from orchestrator.records.trace import Line
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.worker import Ended, ProcessServices, Worker
from tests.checkpoint.stores import Held, InMemory, same
from tests.comm.transports.memory import Hub, LocalRegions
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.elastic import elastic_settings
from tests.worker.runs import PATIENCE_S, Layout, generation_of

pytestmark = pytest.mark.slow

SAVED = 2  # after so many steps, and every so many


class Visited(p.Batchnorm):
    """Its loss lets the test in first."""

    visits: ClassVar[Iterator[Callable[[nn.Module], object]]] = itertools.repeat(id)

    @classmethod
    def let_in(cls, monkeypatch: pytest.MonkeyPatch, visit: Callable[[nn.Module], object]) -> None:
        """In an iterator, into which no worker looks for the pipeline's state."""
        monkeypatch.setattr(cls, "visits", itertools.repeat(visit))

    def loss(self, model: nn.Module, batch: p.Batch) -> Any:
        next(self.visits)(model)
        return super().loss(model, batch)


class Looking(Heartbeat):
    """Says when its member waits, which with one worker it does for checkpoints only."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def check(self) -> None:
        self.waiting.set()
        super().check()


class Scene:
    """One worker, its storage and all it says. load: the checkpoint that it goes on from where a generation says so."""

    def __init__(
        self, pipeline: type[Pipeline] = p.Batchnorm, load: TrainingState | None = None, **settings: Any
    ) -> None:
        self.storage = InMemory()
        self.told: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []
        self.heartbeat = Looking()
        self.writer = PartWriter(self.storage, self.told.append)
        self._regions = LocalRegions()
        adam = {"name": "adam", "lr": 0.02}
        self._settings = elastic_settings(pipeline, Layout(1), SAVED, steps=5, optimizer=adam, **settings)
        self._restored = load
        host = ProcessServices(self.heartbeat, self.said.append, load=self._load, writer=self.writer)
        self.worker = Worker(resolve(self._settings), self._regions, host)
        self._run_manifest = self.worker.prepare()

    def run(self, number: int = 0) -> Ended:
        shards = assign_shards(self._settings.data.shards, 1)
        restore = None if self._restored is None else 0
        generation = generation_of(
            build_schedule("ring", 1), shards, generation=number, restore=restore, run_manifest=self._run_manifest
        )
        generation = replace(generation, checkpoint="there", writers=(0,))
        return self.worker.run(generation, 0, lambda: Hub(1).transport(0, self._regions))

    def checkpoint(self, step: int) -> TrainingState:
        """The state that was saved after so many steps."""
        assert self.writer.wait(PATIENCE_S)
        written = [event for event in self.told if event["step"] == step]
        return load(self.storage, Catalog(self.storage, 9).commit(step, written).manifest)

    def digest(self) -> str:
        return model_digest(self.worker._workload.model)

    def trace(self) -> list[Line]:
        return [entry["trace"] for entry in self.said if "trace" in entry]

    def _load(self, where: str, wanted: Any = None) -> TrainingState:  # noqa: ARG002
        assert (where, self._restored is not None) == ("there", True)
        assert self._restored is not None
        return self._restored


@pytest.fixture(scope="module")
def undisturbed() -> Scene:
    scene = Scene(Visited)
    # Otherwise a checkpoint is put off while the one before is being written.
    with pytest.MonkeyPatch.context() as patch:
        Visited.let_in(patch, lambda _: scene.writer.wait(PATIENCE_S))
        assert scene.run().kind == "finished"
    return scene


def assert_ended_like(scene: Scene, other: Scene) -> None:
    assert scene.trace() == other.trace()[-len(scene.trace()) :]
    assert scene.digest() == other.digest()


def test_the_update_waits_until_the_state_is_copied(monkeypatch: pytest.MonkeyPatch, undisturbed: Scene) -> None:
    """Meanwhile the step is computed, which changes statistics and counters."""
    scene = Scene(Visited)
    with ThreadPoolExecutor(1) as pool, Held(monkeypatch) as held:

        def visit(_: nn.Module) -> None:
            if held.gate.is_set():
                scene.writer.wait(PATIENCE_S)
            elif scene.writer._copy is not None:
                held.begun.wait(PATIENCE_S)

        Visited.let_in(monkeypatch, visit)
        running = pool.submit(scene.run)
        assert scene.heartbeat.waiting.wait(PATIENCE_S)
        assert scene.heartbeat.snapshot()["activity"] == "update"
        assert scene.trace() == undisturbed.trace()[:SAVED]
        parameters = dict(scene.worker._workload.model.named_parameters())
        saved = undisturbed.checkpoint(SAVED).tensors
        assert all(torch.equal(tensor, saved[f"model/{name}"]) for name, tensor in parameters.items())
        assert scene.told == []
        held.gate.set()
        assert running.result().kind == "finished"
    assert_ended_like(scene, undisturbed)
    assert [event["step"] for event in scene.told] == [SAVED, 2 * SAVED, 5]
    for step in (SAVED, 2 * SAVED, 5):
        assert same(scene.checkpoint(step), undisturbed.checkpoint(step))
    stalls = [event["stall_s"] for event in scene.told]
    assert stalls[0] >= 0.1  # it has looked at least once in vain


@pytest.mark.parametrize("privacy", [None, {"clipping_norm": 1.0}])
def test_local_steps_wait_until_the_state_is_copied(
    monkeypatch: pytest.MonkeyPatch, privacy: dict[str, Any] | None
) -> None:
    """They move the parameters, which elsewhere only the update does."""
    local = {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.05}, "weight": "uniform"}
    scene = Scene(p.Mlp, local=local, privacy=privacy)
    with ThreadPoolExecutor(1) as pool, Held(monkeypatch) as held:
        beat = scene.heartbeat.beat

        def begun(*at: Any) -> None:
            if scene.writer._copy is not None:
                held.begun.wait(PATIENCE_S)
            beat(*at)

        monkeypatch.setattr(scene.heartbeat, "beat", begun)
        running = pool.submit(scene.run)
        assert scene.heartbeat.waiting.wait(PATIENCE_S)
        assert scene.heartbeat.snapshot()["activity"] == "compute"
        held.gate.set()
        assert running.result().kind == "finished"
    assert scene.writer.wait(PATIENCE_S)
    assert {event["event"] for event in scene.told} == {"part_written"}
    assert SAVED in {event["step"] for event in scene.told}


def test_a_checkpoint_brings_back_what_was_copied_beside_a_step(undisturbed: Scene) -> None:
    resumed = Scene(load=undisturbed.checkpoint(SAVED))
    assert resumed.run().kind == "finished"
    assert len(resumed.trace()) == 5 - SAVED
    assert_ended_like(resumed, undisturbed)


def test_who_waits_can_be_called_off_and_takes_no_state_over_before_the_copy(
    monkeypatch: pytest.MonkeyPatch, undisturbed: Scene
) -> None:
    later = undisturbed.checkpoint(2 * SAVED)
    scene = Scene(Visited)
    with ThreadPoolExecutor(1) as pool, Held(monkeypatch) as held:
        Visited.let_in(monkeypatch, lambda _: scene.writer._copy is None or held.begun.wait(PATIENCE_S))
        running = pool.submit(scene.run)
        assert scene.heartbeat.waiting.wait(PATIENCE_S)
        scene.heartbeat.call_off(0)
        ended = running.result(PATIENCE_S)
        assert (ended.kind, ended.progress) == ("called off", Progress(SAVED))
        assert scene.digest() == undisturbed.trace()[SAVED - 1]["parameters"]
        scene._restored = later
        scene.heartbeat.waiting.clear()
        running = pool.submit(scene.run, 1)
        assert scene.heartbeat.waiting.wait(PATIENCE_S)
        assert scene.digest() == undisturbed.trace()[SAVED - 1]["parameters"]
        held.gate.set()
        assert running.result().kind == "finished"
    assert same(scene.checkpoint(SAVED), undisturbed.checkpoint(SAVED))
    assert scene.trace()[SAVED:] == undisturbed.trace()[2 * SAVED :]
    assert scene.digest() == undisturbed.digest()


@pytest.mark.parametrize("copied", ["before", "afterwards"])
def test_a_parameter_that_the_pipeline_changes_is_in_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, copied: str
) -> None:
    held, visits = Held(monkeypatch), list[str]()

    def visit(model: nn.Module) -> None:
        if visits or not scene.writer.busy:
            return
        visits.append(copied)
        if copied == "before":
            held.gate.set()
            assert scene.writer._copying.wait(PATIENCE_S)
        with torch.no_grad():
            next(iter(model.parameters())).mul_(2)
        held.gate.set()

    Visited.let_in(monkeypatch, visit)
    scene = Scene(Visited)
    with refused("model.parameter-changed"):
        scene.run()
    assert scene.writer.wait(PATIENCE_S)
    assert visits == [copied]
    (event,) = scene.told
    assert (event["event"], event["step"]) == ("part_failed", SAVED)
    assert "0.weight was changed while it was copied" in event["why"]
    assert scene.storage.files == {}


def test_what_is_copied_is_written_while_the_step_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next micro-batch on."""
    held, begun = Held(monkeypatch), list[bool]()

    def visit(model: nn.Module) -> None:  # noqa: ARG001
        if len(begun) == 1 or (scene.writer.busy and not begun):
            held.gate.set()
            assert scene.writer._copying.wait(PATIENCE_S)
            begun.append(scene.writer._copy is None)

    Visited.let_in(monkeypatch, visit)
    scene = Scene(Visited)
    assert scene.run().kind == "finished"
    assert begun == [False, True]


def test_a_run_that_fails_while_computing_keeps_the_checkpoint_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes to the update that would have waited."""
    held = Held(monkeypatch)

    def visit(model: nn.Module) -> None:  # noqa: ARG001
        if scene.writer.busy:
            held.gate.set()
            assert scene.writer._copying.wait(PATIENCE_S)
            raise ZeroDivisionError

    Visited.let_in(monkeypatch, visit)
    scene = Scene(Visited)
    with refused("pipeline.raised"):
        scene.run()
    assert scene.writer._writing.wait(PATIENCE_S)
    assert [(event["event"], event["step"]) for event in scene.told] == [("part_written", SAVED)]
