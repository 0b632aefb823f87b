"""Batches that go to a device beside what it computes. A double judges the order of streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from orchestrator.numerics import copy_stream, staging
from orchestrator.numerics.copy_stream import CopyStream
from orchestrator.numerics.staging import Copying
from tests.numerics.ordered_streams import Ordered, Stream, order_streams

pytestmark = pytest.mark.slow

HERE = torch.device("cpu")


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


@dataclass
class Fields:
    values: torch.Tensor
    rest: Any


class Moves:
    """Goes there by itself."""

    def to(self, device: torch.device) -> str:
        return f"moved to {device}"


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> Ordered:
    monkeypatch.setattr(staging, "_BESIDE_BYTES", 0)
    return order_streams(monkeypatch)


def beside() -> Copying:
    return Copying(HERE, CopyStream(HERE))


def test_every_tensor_arrives_in_its_place_and_in_order(ordered: Ordered) -> None:
    rows, sparse = torch.arange(6.0).view(2, 3), torch.eye(2).to_sparse()
    batch = {"a": [rows, Pair(rows, sparse)], "b": Fields(rows.T, (1, "x", Moves(), rows.expand(4, 2, 3)))}
    with ordered.watched():
        arriving = beside().begin(batch)
        found = arriving.there()
        first, pair = found["a"]
        sums = [float(each.sum()) for each in (first, pair.left, found["b"].values, found["b"].rest[3])]
    assert sums == [15, 15, 15, 60]
    assert torch.equal(pair.right.to_dense(), torch.eye(2))
    assert found["b"].rest[:3] == (1, "x", "moved to cpu")
    assert first.data_ptr() != pair.left.data_ptr(), "what shares memory here is two tensors there, as ever"
    assert arriving.host is batch
    assert not ordered.wrong


def used_after(ordered: Ordered) -> list[str]:
    """Two batches, the second of which begins while the first one is computed with."""
    with ordered.watched():
        copying = beside()
        first = copying.begin(torch.ones(5))
        second = copying.begin(torch.ones(5))
        first.there().add_(1)
        second.there().add_(1)
    return ordered.wrong


def test_nothing_is_used_too_early(ordered: Ordered) -> None:
    assert used_after(ordered) == []


def _nothing(*_: object) -> None: ...


def test_a_wait_that_is_left_out_is_found(ordered: Ordered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "wait_event", _nothing)
    assert any("before what another stream writes" in each for each in used_after(ordered))


def test_an_event_before_the_copy_is_found(ordered: Ordered, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(_: CopyStream, tensors: Sequence[torch.Tensor]) -> copy_stream.Begun:
        with ordered.within(Stream()):
            return copy_stream.Begun([each.clone() for each in tensors], Stream().record_event())

    monkeypatch.setattr(CopyStream, "begin", begin)
    assert any("before what another stream writes" in each for each in used_after(ordered))


def test_memory_that_the_allocator_is_not_told_of_is_found(ordered: Ordered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "record_stream", _nothing)
    assert any("give away" in each for each in used_after(ordered))


def test_what_another_stream_reads_is_not_written_over(ordered: Ordered) -> None:
    with ordered.watched():
        place = beside().batch(torch.zeros(5))
        place.sum()
        with ordered.within(Stream()):
            place.copy_(torch.ones(5))
    assert any("still uses" in each for each in ordered.wrong)


def test_small_batches_and_those_without_room_are_copied_when_their_turn_comes(
    ordered: Ordered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    rows = torch.ones(3)
    with monkeypatch.context() as patched:
        patched.setattr(CopyStream, "begin", full)
        arriving = beside().begin(rows)
    monkeypatch.setattr(staging, "_BESIDE_BYTES", rows.nbytes + 1)
    for each in (arriving, beside().begin(rows)):
        assert each.nearest() is rows
        assert torch.equal(each.there(), rows)
    assert not ordered.wrong


def test_page_locked_memory_of_the_user_is_copied_before_the_device_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's `pin_memory`, which returns a tensor that is page-locked already."""
    card, plain, own = torch.device("cuda"), torch.zeros(2, 3).T, torch.ones(2, 3).T
    locked = {own.data_ptr()}

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        found = tensor if tensor.is_pinned() else tensor.clone()
        locked.add(found.data_ptr())
        return found

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in locked)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    for given in (plain, own):
        found = copy_stream.page_locked(given, card)
        assert found.is_pinned()
        assert found.data_ptr() != given.data_ptr()
        assert torch.equal(found, given)
        assert found.stride() == given.stride()
