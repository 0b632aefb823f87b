"""Fetching a batch from a map-style dataset in the compute thread, whose generators the caller has seeded (rule B2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def fetch(dataset: Any, indices: Sequence[int], collate: Callable[[Sequence[Any]], Any]) -> Any:
    """The batch of these samples. Uses the dataset's own batched access (`__getitems__`) where it has one, as torch does."""
    batched = getattr(dataset, "__getitems__", None)
    items = batched(list(indices)) if batched is not None else [dataset[index] for index in indices]
    return collate(items)
