"""Whether rows hold several sequences each, which transformers finds out by looking at their positions.

It looks in each pass of a causal model without a mask, waits for the device, and takes another way while a pass is
recorded as a CUDA graph. Without positions in the batch a model counts them itself, from the first token to the last, so
there is one sequence in a row.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchestrator.adapters.transformers.library import package

_here = threading.local()


@contextmanager
def counted(batch: Mapping[str, Any]) -> Iterator[None]:
    """Within the block transformers does not look, if the batch has no positions."""
    _answered()
    _here.counted = "position_ids" not in batch
    try:
        yield
    finally:
        _here.counted = False


@functools.cache
def _answered() -> None:
    """Have transformers ask here before it looks, where this version of it looks."""
    masking: Any = package("transformers.masking_utils")
    look = getattr(masking, "find_packed_sequence_indices", None)
    if look is not None:
        masking.find_packed_sequence_indices = lambda positions: (
            None if getattr(_here, "counted", False) else look(positions)
        )
