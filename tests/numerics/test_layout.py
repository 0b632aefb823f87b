"""The places of tensors in the flat buffer: aligned, apart, cut between blocks, and the same after a journey as JSON."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.numerics.layout import ALIGNMENT, BLOCK, Layout

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
sizes = st.one_of(shapes, st.tuples(st.integers(0, 3 * BLOCK)))
layouts = st.lists(sizes, max_size=8).map(
    lambda drawn: Layout.of((str(i), torch.empty(shape)) for i, shape in enumerate(drawn))
)


@given(layouts)
def test_slots_are_aligned_and_apart(layout: Layout) -> None:
    end = 0
    for slot in layout.slots:
        assert slot.offset % ALIGNMENT == 0
        assert slot.offset >= end
        end = slot.offset + slot.elements
    assert end <= layout.size
    assert layout.size % BLOCK == 0
    assert layout.size - end < BLOCK + ALIGNMENT


@given(layouts, st.integers(1, 40))
def test_borders_cover_in_whole_blocks_of_nearly_equal_number(layout: Layout, chunks: int) -> None:
    borders = layout.borders(chunks)
    assert len(borders) == chunks + 1
    assert (borders[0], borders[-1]) == (0, layout.size)
    lengths = [end - start for start, end in itertools.pairwise(borders)]
    assert all(length % BLOCK == 0 for length in lengths)
    assert max(lengths) - min(lengths) in (0, BLOCK)


@given(layouts)
def test_a_journey_as_json_changes_nothing(layout: Layout) -> None:
    assert Layout.from_dict(layout.as_dict()) == layout
    assert Layout.from_dict(json.loads(json.dumps(layout.as_dict()))) == layout


@settings(max_examples=50)
@given(layouts, st.integers(0, 3))
def test_views_are_the_tensors(layout: Layout, before: int) -> None:
    """Also where the flat buffer is itself a part of something."""
    flat = torch.zeros(layout.size + before)[before:]
    for number, view in enumerate(layout.views(flat)):
        assert view.shape == layout.slots[number].shape
        view.fill_(number + 1)
    for number, (slot, view) in enumerate(zip(layout.slots, layout.views(flat), strict=True)):
        assert bool((view == number + 1).all())
        assert bool((flat[slot.offset : slot.offset + slot.elements] == number + 1).all())
    assert flat.count_nonzero() == sum(slot.elements for slot in layout.slots)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        torch.randn(6, 5).T,
        torch.randn(1, 5, 1),
        torch.randn(3, 1, 2, 2).to(memory_format=torch.channels_last),
        torch.randn(()),
        torch.randn(0, 4),
        torch.randn(4, 0, 2),
    ],
    ids=lambda tensor: str(tuple(tensor.shape)),
)
def test_dense_strides_survive(tensor: torch.Tensor) -> None:
    layout = Layout.of([("first", torch.empty(3)), ("t", tensor), ("last", torch.empty(3))])
    flat = torch.zeros(layout.size)
    view = layout.views(flat)[1]
    view.copy_(tensor)
    assert view.stride() == tensor.stride()
    assert torch.equal(view, tensor)
    assert flat.count_nonzero() == tensor.count_nonzero()
    assert Layout.from_dict(layout.as_dict()).views(flat)[1].stride() == tensor.stride()


@pytest.mark.parametrize(
    "tensor", [torch.randn(4).expand(3, 4), torch.randn(8, 8)[::2, ::2], torch.randn(5, 5)[:, 1:3]]
)
def test_tensors_with_gaps_or_overlaps_are_laid_out_densely(tensor: torch.Tensor) -> None:
    layout = Layout.of([("t", tensor), ("next", torch.empty(3))])
    assert layout.slots[0].stride == torch.empty(tensor.shape).stride()
    flat = torch.zeros(layout.size)
    views = layout.views(flat)
    views[0].copy_(tensor)
    assert torch.equal(views[0], tensor)
    assert not views[1].any()


def test_no_tensors_take_no_room() -> None:
    layout = Layout.of([])
    assert layout.size == 0
    assert layout.borders(3) == (0, 0, 0, 0)
