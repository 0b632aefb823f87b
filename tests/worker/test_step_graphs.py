"""Steps that are done again as one recording: the bits of their micro-batches one by one, whoever comes and goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from orchestrator.data.loaders import Key, Loaders
from orchestrator.pipeline import Pipeline
from orchestrator.records.progress import Activity
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.step import step_graphs
from orchestrator.worker.step.step_graphs import StepGraphs
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.elastic import Fault, survive
from tests.worker.retracing import Retracer, records
from tests.worker.runs import PATIENCE_S, SGD, Layout, members_end, train
from tests.worker.test_on_device import trained
from tests.worker.test_shard_graphs import Masked, WithMask, WithWeight

pytestmark = pytest.mark.slow


class Long(p.Mlp):
    """A sample is no number, and is met when steps are done again."""

    def datasets(self) -> Any:
        given, held_out = super().datasets()
        assert isinstance(given, TensorDataset)
        inputs, labels = given.tensors
        inputs[len(inputs) // 2] = float("nan")
        return TensorDataset(inputs, labels), held_out


CASES: list[tuple[type[Pipeline], dict[str, Any]]] = [
    (p.Mlp, {"clip": 0.05, "optimizer": {"name": "adamw", "lr": 0.01}}),
    (WithMask, {}),
    (WithWeight, {"batch_size": 13, "args": {"rows": 80}}),  # micro-batches of two lengths in one step
    (Masked, {"batch_size": 8, "args": {"rows": 160}}),  # some weigh nothing
    (p.Attention, {"precision": "bfloat16"}),
    (p.Frozen, {}),
    (p.Mlp, {"check_every": 2}),
    (p.Batchnorm, {"args": {"rows": 70}}),  # the last step of an epoch is a short one
]


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 4, 2), ids=lambda number: CASES[number][0].__name__)
def test_a_step_that_is_done_again_has_the_bits_of_its_micro_batches(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    pipeline, settings = CASES[number]
    given = {"steps": 14, "shards": 4, "claims": False, **settings}
    recorded = trained(pipeline, Layout(2), **given)
    assert retracer.steps > 5
    monkeypatch.undo()
    direct = train(pipeline, **given)
    assert (recorded.trace, recorded.digest) == (direct.trace, direct.digest)


def test_a_worker_claims_its_own_shards_at_once_and_others_after_them(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"steps": 40, "shards": 6, "batch_size": 12, "args": {"rows": 120}}
    recorded = trained(p.Batchnorm, Layout(3), claims=True, **given)
    assert retracer.steps > 6
    monkeypatch.undo()
    direct = train(p.Batchnorm, **given)
    assert (recorded.trace, recorded.digest) == (direct.trace, direct.digest)


def test_so_is_a_step_that_loaders_have_read(retracer: Retracer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of its micro-batches may be on its way to the device already."""
    plain = Loaders.has_read

    def has_read(loaders: Loaders, key: Key) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while any(loader.asked == key for loader in loaders._loaders) and not plain(loaders, key):
            assert time.monotonic() < deadline
            os.sched_yield()
        return plain(loaders, key)

    monkeypatch.setattr(Loaders, "has_read", has_read)
    given: dict[str, Any] = {"steps": 9, "shards": 3, "batch_size": 6, "args": {"rows": 60}, "claims": False}
    recorded = trained(p.Mlp, Layout(1), loaders=3, **given)
    assert retracer.steps > 5
    monkeypatch.undo()
    direct = train(p.Mlp, **given)
    assert (recorded.trace, recorded.digest) == (direct.trace, direct.digest)


def test_members_come_and_go(retracer: Retracer, monkeypatch: pytest.MonkeyPatch) -> None:
    momentum = {**SGD, "momentum": 0.9}
    settings: dict[str, Any] = {"steps": 9, "shards": 6, "optimizer": momentum, "checkpoint_every": 1, "claims": False}
    told = survive(p.Batchnorm, Layout(2), [Fault(0, 40, "join"), Fault(1, 90, "die")], **settings)
    assert told.generations == 3
    assert retracer.steps > 3
    monkeypatch.undo()
    whole = survive(p.Batchnorm, Layout(1), **settings)
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)


@dataclass
class Noted:
    """The micro-batches that heartbeats tell: a shard, or how many are computed as one."""

    steps: dict[int | None, list[Any]] = field(default_factory=dict)

    def beat(
        self, plain: Any, heart: Any, activity: Activity, step: Any = None, shard: Any = None, *, together: int = 0
    ) -> None:
        if activity == "compute":
            self.steps.setdefault(step, []).append(f"{together} as one" if together else shard)
        plain(heart, activity, step, shard, together=together)


@pytest.mark.usefixtures("retracer")
def test_a_first_step_is_computed_shard_by_shard_and_so_are_those_that_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a micro-batch that costs each worker that computes it is known by its number."""
    noted, plain = Noted(), Heartbeat.beat
    monkeypatch.setattr(Heartbeat, "beat", lambda *given, **more: noted.beat(plain, *given, **more))
    train(p.Mlp, steps=7, shards=3, batch_size=6, args={"rows": 60})
    assert noted.steps[0] == [0, 1, 2] * 2  # the first step is computed twice
    assert [noted.steps[step] for step in (1, 2, 3)] == [[0, 1, 2]] * 3
    assert [noted.steps[step] for step in (4, 5, 6)] == [["3 as one"]] * 3


class Shifted(Retracer):
    """Its steps draw other random numbers."""

    def in_turn(self, works: Sequence[Callable[[], None]]) -> Callable[[Sequence[int]], None]:
        again = super().in_turn(works)
        return lambda seeds: again([seed + 1 for seed in seeds])


class Refusing(Retracer):
    """It records no step."""

    def in_turn(self, works: Sequence[Callable[[], None]]) -> Callable[[Sequence[int]], None]:
        works[0]()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


@pytest.mark.parametrize(("kind", "why"), [(Shifted, "gives other bits"), (Refusing, "not permitted")])
def test_a_step_that_does_not_fit_is_computed_shard_by_shard_and_told_once(
    monkeypatch: pytest.MonkeyPatch, kind: type[Retracer], why: str
) -> None:
    lines, recorder, plain = list[str](), kind(), StepGraphs._give_up
    records(monkeypatch, recorder)

    def told(graphs: StepGraphs, reason: str) -> None:
        lines.append(reason)
        plain(graphs, reason)

    monkeypatch.setattr(StepGraphs, "_give_up", told)
    found = train(p.Batchnorm, steps=7, shards=3)
    assert len(lines) == 1
    assert why in lines[0]
    assert recorder.replays > recorder.recorded
    monkeypatch.undo()
    direct = train(p.Batchnorm, steps=7, shards=3)
    assert (found.trace, found.digest) == (direct.trace, direct.digest)


def test_a_card_without_memory_to_compare_a_step_computes_it_shard_by_shard(
    retracer: Retracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 16 GiB")

    monkeypatch.setattr(step_graphs, "torch", SimpleNamespace(stack=full, OutOfMemoryError=torch.OutOfMemoryError))
    found = train(p.Batchnorm, steps=7, shards=3)
    assert retracer.replays > retracer.recorded
    assert retracer.steps == 0
    monkeypatch.undo()
    direct = train(p.Batchnorm, steps=7, shards=3)
    assert (found.trace, found.digest) == (direct.trace, direct.digest)


def test_a_sample_that_is_no_number_is_named(retracer: Retracer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"steps": 40, "shards": 3, "batch_size": 6, "args": {"rows": 240}}
    (recorded,) = members_end(Long, **settings)
    assert retracer.steps > 3
    monkeypatch.undo()
    (plain,) = members_end(Long, **settings)
    assert "not finite itself" in str(plain)
    assert str(recorded) == str(plain)


def test_a_large_model_is_computed_shard_by_shard(retracer: Retracer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "MOST_ELEMENTS", 10)
    train(p.Mlp, steps=5, shards=3)
    assert retracer.recorded
    assert retracer.steps == 0
