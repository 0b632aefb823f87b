"""Rows of tensors that are fetched at once are the batch that torch collates of single samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, default_collate

from orchestrator.data import fetching
from orchestrator.pipeline import Pipeline

SAMPLES = 12
SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=3)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)


class Plain(Pipeline):
    """It collates as every pipeline does."""


class Reversing(Pipeline):
    def collate(self, items: Sequence[Any]) -> Any:
        return super().collate(items[::-1])


def _same(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and len(one) == len(other)
        and all(
            (mine.dtype, mine.shape, mine.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
            and torch.equal(mine, theirs)
            for mine, theirs in zip(one, other, strict=True)
        )
    )


def _one_by_one(dataset: Dataset[Any], indices: Sequence[int]) -> Any:
    return default_collate([dataset[index] for index in indices])


@given(SHAPES, st.data())
def test_rows_are_what_single_samples_are_collated_to(shapes: list[list[int]], data: st.DataObject) -> None:
    dice = torch.Generator().manual_seed(1)
    tensors = [
        torch.randint(0, 200, (SAMPLES, *shape), generator=dice).to(data.draw(st.sampled_from(TYPES)))
        for shape in shapes
    ]
    if data.draw(st.booleans()):  # columns before rows
        tensors = [tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in tensors]
    dataset: Any = TensorDataset(*tensors)
    for _ in range(data.draw(st.integers(0, 2))):
        dataset = Subset(dataset, data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1)))
    indices = data.draw(st.lists(st.integers(-len(dataset), len(dataset) - 1), min_size=1))
    assert _same(fetching.fetch(dataset, indices, Plain().collate), _one_by_one(dataset, indices))


@given(SHAPES, st.lists(st.lists(st.integers(-SAMPLES, SAMPLES - 1), min_size=1), min_size=1, max_size=4))
def test_batches_are_fetched_together_as_each_by_itself(shapes: list[list[int]], parts: list[list[int]]) -> None:
    dice = torch.Generator().manual_seed(1)
    dataset = TensorDataset(*(torch.randint(0, 200, (SAMPLES, *shape), generator=dice) for shape in shapes))
    collate = Plain().collate
    found = fetching.fetch_together(dataset, [index for part in parts for index in part], collate, 1 << 20)
    if found is None:  # a tensor without elements is stacked
        assert any(0 in shape for shape in shapes)
        return
    rows = zip(*(torch.split(tensor, list(map(len, parts))) for tensor in found), strict=True)
    for part, batch in zip(parts, rows, strict=True):
        assert _same(list(batch), fetching.fetch(dataset, part, collate))


def test_nothing_is_fetched_together_that_is_large_or_passes_through_code_of_the_users() -> None:
    dataset = TensorDataset(torch.zeros(SAMPLES, 2))
    assert fetching.fetch_together(dataset, [0, 1], Plain().collate, 15) is None
    assert fetching.fetch_together(dataset, [0, 1], Plain().collate, 16) is not None
    assert fetching.fetch_together(dataset, [0, 1], Reversing().collate, 16) is None
    assert fetching.fetch_together([dataset[0]], [0], Plain().collate, 16) is None


@pytest.mark.parametrize(
    "chosen",
    [
        torch.tensor([4, 1, 3]),
        torch.tensor([4, 1, 3], dtype=torch.int32),
        torch.tensor([4, 1, 3], dtype=torch.uint8),  # a mask, to torch
        torch.tensor([[4], [1], [3]]),
        numpy.array([4, 1, 3]),
        numpy.array([4, 1, 3], numpy.uint8),
        [[4], [1], [3]],
        [True, True, True],
    ],
    ids=lambda chosen: f"{type(chosen).__name__}-{getattr(chosen, 'dtype', type(chosen[0]).__name__)}",
)
@pytest.mark.parametrize("indices", [[2], [2, 0], [2, 0, 1]])
def test_a_subset_is_chosen_by_numbers_of_any_kind(chosen: Any, indices: Sequence[int]) -> None:
    dataset = Subset(TensorDataset(torch.arange(SAMPLES * 25).reshape(SAMPLES, 5, 5)), chosen)
    assert _same(fetching.fetch(dataset, indices, Plain().collate), _one_by_one(dataset, indices))


@pytest.mark.parametrize("strides", [(15, 3, 1), (3, 1, 15), (3, 1, 1)])
def test_rows_have_the_strides_of_single_samples(strides: tuple[int, ...]) -> None:
    dataset = TensorDataset(torch.arange(75).as_strided((5, 3, 1), strides))
    assert _same(fetching.fetch(dataset, [3, 0], Plain().collate), _one_by_one(dataset, [3, 0]))


def test_types_that_cannot_be_indexed_are_stacked() -> None:
    dataset = TensorDataset(torch.arange(SAMPLES, dtype=torch.uint8).view(torch.bits8))
    batch = fetching.fetch(dataset, [3, 0], Plain().collate)
    assert batch[0].view(torch.uint8).tolist() == [3, 0]


def test_images_of_one_channel_keep_their_format() -> None:
    dataset = TensorDataset(torch.rand(SAMPLES, 1, 4, 4).to(memory_format=torch.channels_last))
    assert _same(fetching.fetch(dataset, [3, 0], Plain().collate), _one_by_one(dataset, [3, 0]))


def test_rows_are_copies() -> None:
    tensor = torch.arange(SAMPLES)
    fetching.fetch(TensorDataset(tensor), [0, 1], Plain().collate)[0].fill_(-1)
    assert torch.equal(tensor, torch.arange(SAMPLES))


@pytest.mark.parametrize("wrapped", [ConcatDataset, StackDataset])
def test_other_datasets_are_asked_for_each_sample(wrapped: Any) -> None:
    inner = TensorDataset(torch.arange(SAMPLES))
    dataset = wrapped([inner]) if wrapped is ConcatDataset else wrapped(inner)
    mine = fetching.fetch(dataset, [3, 1], Plain().collate)
    theirs = _one_by_one(dataset, [3, 1])
    assert str(mine) == str(theirs)


def test_a_collate_of_the_users_own_is_called() -> None:
    assert fetching.fetch(TensorDataset(torch.arange(SAMPLES)), [3, 1], Reversing().collate)[0].tolist() == [1, 3]


def test_a_dataset_that_overrides_reading_is_read_by_it() -> None:
    class Doubling(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            return tuple(2 * tensor[index] for tensor in self.tensors)

    assert fetching.fetch(Doubling(torch.arange(SAMPLES)), [3], Plain().collate)[0].tolist() == [6]


@pytest.mark.parametrize("index", [SAMPLES, -SAMPLES - 1])
def test_a_sample_that_is_not_there_is_an_error(index: int) -> None:
    with pytest.raises(IndexError):
        fetching.fetch(TensorDataset(torch.arange(SAMPLES)), [0, index], Plain().collate)
