"""A worker whose model lies beside host memory, as on a GPU: nothing is computed across, and no bit differs.

There is no GPU where these tests run; what stands for it, and what that cannot show, says `apart.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Every
from orchestrator.numerics import cuda, layout, staging
from orchestrator.pipeline import Pipeline
from orchestrator.worker.member.cuda_stamps import CudaStamps
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.member.time_account import TimeAccount
from orchestrator.worker.worker import Worker
from tests.comm.transports.memory import LocalRegions
from tests.products import thinned
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.apart import There, Watching, compute_apart
from tests.worker.elastic import Fault, survive
from tests.worker.runs import SGD, Layout, members_end, settings_for, train

pytestmark = pytest.mark.slow

CASES: list[tuple[type[Pipeline], dict[str, Any]]] = [
    (p.Mlp, {"clip": 0.05, "optimizer": {"name": "adamw", "lr": 0.01}}),
    (p.Mlp, {"reduction": "fast"}),
    (p.Mlp, {"optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}}),
    (p.Batchnorm, {"evaluate_every": Every(steps=1)}),
    (p.CumulativeBatchnorm, {}),
    (p.Images, {}),
    (p.ChannelsLast, {}),
    (p.Attention, {"precision": "bfloat16"}),
    (p.MaskedTokens, {"args": {"rows": 27}}),
    (p.Frozen, {}),
    (p.FrozenBatchnorm, {}),
    (p.LayerDrop, {"steps": 6}),
    (p.OwnOptimizer, {"optimizer": None}),
    (p.AwkwardBuffers, {}),
]


@pytest.mark.parametrize("number", thinned(range(len(CASES)), 10, 8))
def test_nothing_is_computed_across(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    pipeline, settings = CASES[number]
    direct = train(pipeline, **settings)
    compute_apart(monkeypatch)
    beside = train(pipeline, Layout(2 if settings.get("reduction") is None else 1), **settings)
    assert (beside.trace, beside.digest) == (direct.trace, direct.digest)
    assert str(beside.metrics) == str(direct.metrics)


def test_the_watching_sees() -> None:
    there = There()
    weight, inputs = torch.ones(2), torch.ones(2)
    there.add(weight)
    with Watching(there):
        product = weight * 2 + torch.tensor(1.0)
        assert product in there
        assert inputs.copy_(product) not in there
        with pytest.raises(AssertionError, match=r"aten.mul.Tensor computes with tensors of two devices"):
            product * inputs


def test_the_sums_may_not_read_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_apart(monkeypatch)
    monkeypatch.setattr(staging._Carrying, "out", lambda _host_transfer, tensors, _nth: tensors)
    with pytest.raises(AssertionError, match="sums read host memory, by addresses"):
        train(p.Mlp)


def test_what_is_kept_there_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_apart(monkeypatch)
    (end,) = members_end(f.CentresItsOutput)
    assert "what had changed: model.centre" in str(end)


def test_the_facts_say_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers have to agree on what is in force; what a GPU is, is told where its bits differ."""
    plain = settings_for(p.Mlp)
    settings = replace(
        plain,
        run=replace(plain.run, device="cuda", tf32=True),
        cluster=replace(plain.cluster, gpus_per_worker=1.0),
    )
    prepared: list[bool] = []
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))
    monkeypatch.setattr(cuda, "start", lambda: prepared.append(True))
    monkeypatch.setattr(cuda, "prepare", lambda: {"device": "cuda"})
    monkeypatch.setattr(cuda, "describe", lambda: {"models": ["X"]})
    monkeypatch.setattr(cuda, "card", lambda: {"card": "X", "uuid": "x"})
    monkeypatch.setattr(cuda, "uuid", lambda: "x")
    account, stamps = TimeAccount(), list[Any]()
    monkeypatch.setattr(account, "use", stamps.append)
    run_manifest = Worker(resolve(settings), LocalRegions(), ProcessServices(Heartbeat(times=account))).prepare()
    assert prepared == [True]
    assert [type(each) for each in stamps] == [CudaStamps], "and its time is that of the card"
    assert {"device": "cuda", "tf32": True}.items() <= run_manifest["compute"].items()
    assert run_manifest["machine"]["GPU: models"] == "['X']"
    assert run_manifest["reference"] == Worker(resolve(plain), LocalRegions()).prepare()["reference"]


@pytest.mark.parametrize("waiting", thinned([1, 2, 3], 3, 1))
def test_contributions_that_wait_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    """Empty shards in between, and the repetition of a worker with one shard, included."""
    settings: dict[str, Any] = {"shards": 8, "batch_size": 8, "steps": 5, "args": {"rows": 11}}
    direct = train(p.Mlp, **settings)
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))
    monkeypatch.setattr(layout, "_WAITING_BYTES", waiting * 4 * 4096)
    for workers in (1, 3, 8):
        assert train(p.Mlp, Layout(workers), **settings).trace == direct.trace


@pytest.mark.long
@pytest.mark.parametrize("pipeline", [p.Batchnorm, p.AwkwardBuffers, p.ChannelsLast])
def test_state_is_handed_over_into_place(monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline]) -> None:
    settings: dict[str, Any] = {"steps": 4, "optimizer": {**SGD, "momentum": 0.9}, "checkpoint_every": 1}
    whole = survive(pipeline, Layout(1), **settings)
    monkeypatch.setattr(staging, "on", lambda _: staging.Copying(torch.device("cpu")))
    told = survive(pipeline, Layout(2), [Fault(0, 17, "join"), Fault(1, 38, "die")], **settings)
    assert told.generations == 3
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)
    from_checkpoint = survive(pipeline, Layout(2), [Fault(0, 40, "die"), Fault(1, 40, "die")], **settings)
    assert 0 < len(from_checkpoint.trace) < len(whole.trace)
    assert from_checkpoint.trace == whole.trace[-len(from_checkpoint.trace) :]
    assert from_checkpoint.digest == whole.digest
