"""Buffers in one piece of memory: what one copy takes and sets, and what is read from it later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.staging import Copying
from orchestrator.worker.model import replica as replicas
from orchestrator.worker.model.replica import Replica

RULES = {"wide": "mean", "none": "mean", "queue": "first"}


def model(*, shares: bool = False) -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.BatchNorm1d(5))
    made.register_buffer("wide", torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
    made.register_buffer("none", torch.empty(0))
    made.register_buffer("flags", torch.tensor([[1, 0], [0, 0]], dtype=torch.int32))
    made.register_buffer("turned", torch.arange(6, dtype=torch.int16).reshape(2, 3).t())
    made.register_buffer("queue", torch.rand(7, dtype=torch.float64))
    if shares:
        made.register_buffer("other", made.get_buffer("wide")[0])
    return made


def replica(*, shares: bool = False) -> Replica:
    return Replica(
        model(shares=shares), Copying(torch.device("cpu")), rules={**RULES, **({"other": "mean"} if shares else {})}
    )


@pytest.mark.parametrize("few", [0, 1 << 20])
@pytest.mark.parametrize("shares", [False, True])
def test_what_shards_leave_is_read_later_as_it_is_at_once(
    monkeypatch: pytest.MonkeyPatch, few: int, *, shares: bool
) -> None:
    monkeypatch.setattr(replicas, "_FEW_BYTES", few)
    made = replica(shares=shares)
    names = dict(made.model.named_buffers())
    changes = [
        {},
        {"1.running_mean": -0.0, "flags": 1},  # other bits of the same number
        {"wide": 1.0, "turned": 3, "2.num_batches_tracked": 1},
        {"2.running_var": float("nan"), "queue": 2.0},
    ]
    at_once, unread = [], []
    for change in changes:
        made.begin_shard()
        for name, value in change.items():
            names[name].data.fill_(value)
        contribution = made.contribution()
        at_once.append((made.present(contribution), made.counter_values()))
        unread.append(made.unread(contribution))
    assert made.read(unread) == at_once
    assert len({str(each) for each in at_once}) == len(changes)
    assert made.read([]) == []


@pytest.mark.parametrize("shares", [False, True])
def test_each_shard_starts_from_the_buffers_of_its_step(*, shares: bool) -> None:
    made = replica(shares=shares)
    before, versions = made.buffers(), [buffer._version for buffer in made.model.buffers()]
    for buffer in made.model.buffers():
        buffer.data.fill_(1)
    made.begin_shard()
    assert all(torch.equal(one, other) for one, other in zip(made.buffers(), before, strict=True))
    assert [buffer._version for buffer in made.model.buffers()] == versions
    strides = [buffer.stride() for buffer in model(shares=shares).buffers()]
    assert [buffer.stride() for buffer in made.model.buffers()] == strides
    storages = {buffer.untyped_storage().data_ptr() for buffer in made.model.buffers() if buffer.numel()}
    assert (len(storages) == 1) is not shares


@pytest.mark.parametrize("staging", [Copying(torch.device("cpu")), None], ids=["a device", "host memory"])
def test_a_buffer_that_is_resized_is_refused_by_its_name_and_begins_anew(staging: Copying | None) -> None:
    """As observers of quantisation do in their first batch."""
    made = Replica(model(), staging, rules=RULES)
    made.model.get_buffer("none").resize_(5).fill_(1)
    with pytest.raises(PipelineRaised, match=r"'none' went from the shape \[0\] to \[5\]"):
        made.check_shard()
    if staging is None:
        made.begin_shard()
        assert made.model.get_buffer("none").shape == (0,)
        made.check_shard()


def test_a_buffer_that_leaves_the_piece_is_refused_by_its_name() -> None:
    """The next shard would begin with what this one left, and other workers would not."""
    made = replica()
    queue = made.model.get_buffer("queue")
    queue.data = queue.data + 1
    with pytest.raises(PipelineRaised, match=r"'queue' was put into other memory"):
        made.check_shard()
    alone = Replica(model(), rules=RULES)
    queue = alone.model.get_buffer("queue")
    before = queue.clone()
    queue.data = queue.data + 1
    alone.check_shard()
    alone.begin_shard()
    assert torch.equal(queue, before)
