"""A stage's part of the layout, and border messages, as values."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.numerics import exact, streams
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.border_values import (
    Activations,
    Generators,
    Gradients,
    pack,
    same_generators,
    unpack,
)
from orchestrator.worker.pipeline_parallel.stage_module import PartLayout


@given(st.lists(st.integers(0, 3 * BLOCK), min_size=2, max_size=12), st.data())
def test_fingerprints_of_the_parts_add_up_to_that_of_the_whole(sizes: list[int], data: st.DataObject) -> None:
    tensors = [(f"t{i}", torch.empty(size, device="meta")) for i, size in enumerate(sizes)]
    layout = Layout.of(tensors)
    stages = data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    whole = torch.zeros(layout.size)
    values = torch.Generator().manual_seed(len(sizes))
    for view in layout.views(whole):
        view.copy_(torch.randn(view.shape, generator=values))
    total = 0
    for stage in range(3):
        part = PartLayout.of(layout, {f"t{i}" for i, other in enumerate(stages) if other == stage})
        assert part.layout.size == len(part.numbers) * BLOCK
        result = torch.zeros(part.layout.size)
        for place, view in zip(part.places, part.layout.views(result), strict=True):
            view.copy_(layout.slots[place].view(whole))
        assert sum(run.end - run.start for run in part.runs) == part.layout.size
        total += sum(exact.fingerprint_of(result[start:end], first_block) for start, end, first_block in part.runs)
    assert exact.wrap(total) == exact.wrap(exact.fingerprint_of(whole, 0))


def _states() -> tuple[Generators, Generators]:
    """As of the seed, and after draws of each kind."""
    with streams.seeded_with(5):
        seeded = Generators.now()
        torch.rand(3)
        random.gauss(0, 1)
        numpy.random.standard_normal()
        return seeded, Generators.now()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64])
def test_activations_arrive_as_they_were_sent(dtype: torch.dtype) -> None:
    seeded, later = _states()
    tensors = [
        torch.arange(12).reshape(3, 4).t().to(dtype),
        torch.ones(1, 5, dtype=dtype).expand(3, 5),
        torch.zeros(0, 3),
    ]
    flows, skips = [True, False, False], [(("a.b", 1, 0), 2)]
    sent = Activations([pack(each) for each in tensors], flows, [(0, 1)], skips, later, told="[]")
    came = messages.activations(messages.encode(sent, seeded), seeded)
    assert came is not None
    assert (came.flows, came.places, came.skips, came.told) == (flows, [(0, 1)], skips, "[]")
    for border_value, tensor in zip(came.border_values, tensors, strict=True):
        arrived = unpack(border_value)
        assert (arrived.stride(), arrived.dtype) == (tensor.stride(), tensor.dtype)
        assert torch.equal(arrived, tensor)
    with streams.held():
        came.generators.restore()
        assert same_generators(Generators.now(), later)
    assert not same_generators(later, seeded)


def test_gradients_arrive_as_they_were_sent() -> None:
    seeded, _ = _states()
    sent = Gradients([None, pack(torch.randn(2, 3))], seeded, {"tied": pack(torch.ones(2))}, 0.1)
    message = messages.encode(sent, seeded)
    came = messages.gradients(message, seeded)
    assert came is not None
    assert came.border_values[0] is None
    assert came.border_values[1] is not None
    assert sent.border_values[1] is not None
    assert torch.equal(unpack(came.border_values[1]), unpack(sent.border_values[1]))
    assert (list(came.tied), came.weight) == (["tied"], 0.1)
    assert message.payload.numel() < 1000, "generators that are as the seed left them do not travel"


def test_nothing_is_told_as_nothing() -> None:
    seeded, _ = _states()
    nothing = messages.Message(torch.empty(0, dtype=torch.uint8), 0)
    assert messages.activations(nothing, seeded) is None
    assert messages.gradients(nothing, seeded) is None
