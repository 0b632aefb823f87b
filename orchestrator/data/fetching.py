"""Fetching a batch from a map-style dataset in the compute thread, with generators that are seeded for it (rule B2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import torch
from torch.utils.data import Subset, TensorDataset

from orchestrator.pipeline import Pipeline

_AS_IT_IS = nullcontext()
_TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)  # that torch indexes on a processor
_PLACES = (torch.int64, torch.int32, torch.int16, torch.int8)  # types that index; torch.uint8 is a mask


def fetch(
    dataset: Any,
    indices: Sequence[int],
    collate: Callable[[Sequence[Any]], Any],
    seeded: AbstractContextManager[None] = _AS_IT_IS,
) -> Any:
    """The batch of these samples. Uses the dataset's own batched access (`__getitems__`) where it has one, as torch does.
    seeded: what seeds the generators, where code of the user's runs that may draw."""
    rows = _rows(dataset, indices) if getattr(collate, "__func__", None) is Pipeline.collate else None
    if rows is not None:
        return rows
    with seeded:
        batched = getattr(dataset, "__getitems__", None)
        return collate(batched(list(indices)) if batched is not None else [dataset[index] for index in indices])


def fetch_together(
    dataset: Any, indices: Sequence[int], collate: Callable[[Sequence[Any]], Any], most_bytes: int
) -> list[torch.Tensor] | None:
    """As `fetch`, of the samples of several batches, which are its rows one behind the other. None where code of the user's
    would run, which sees batches as they are, and where they take more bytes. Raises IndexError."""
    if getattr(collate, "__func__", None) is not Pipeline.collate:
        return None
    return _rows(dataset, indices, most_bytes)


def _rows(dataset: Any, indices: Sequence[int], most_bytes: float = math.inf) -> list[torch.Tensor] | None:
    """The batch as `default_collate` makes it of the samples of a TensorDataset, or of a Subset of one, but taken from each
    tensor at once: that takes a sixth of the time for sixteen small samples. None for other datasets."""
    chosen: list[Sequence[Any]] = []  # of each Subset, from the outermost one on
    while type(dataset) is Subset:
        chosen.append(dataset.indices)
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or not indices or not all(map(_is_plain, dataset.tensors)):
        return None
    if len(indices) * sum([tensor.nbytes // tensor.shape[0] for tensor in dataset.tensors]) > most_bytes:
        return None
    found: Sequence[Any] = indices
    for each in chosen:
        found = [each[index] for index in found]
    wanted = [index if type(index) is int else _number(index) for index in found]
    if None in wanted:
        return None
    places = torch.tensor(wanted)  # once, and not for each tensor
    return [tensor[places] for tensor in dataset.tensors]


def _number(index: Any) -> int | None:
    """It as torch takes it for the place of one row. A list of tensors, or of numpy's bytes, would be taken for another kind of
    index. None for what is not one number, or a mask."""
    if isinstance(index, torch.Tensor):
        index = index.numpy()[()] if index.device.type == "cpu" and index.dtype in _PLACES else None
    return int(index) if isinstance(index, (int, numpy.integer)) and not isinstance(index, bool) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether nothing but elements in host memory, row by row, is there to be taken over."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.dtype in _TYPES
        and tensor.numel() > 0
        and _is_row_by_row(tensor)
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _is_row_by_row(tensor: torch.Tensor) -> bool:
    """Whether its strides are those of a new tensor. They say more than `is_contiguous`: torch keeps the strides of dimensions
    of one element, and chooses kernels by them."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= size
    return True
