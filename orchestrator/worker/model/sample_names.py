"""Which samples a message speaks of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

_NAMED: Final = 20
_CHECKED: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def listed(indices: Sequence[int]) -> str:
    """ "4, 17, 90", of many the first; a stretch by its ends."""
    if len(indices) > 2 and list(indices) == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(map(str, indices[:_NAMED])) + more


def strange(batch: Any, indices: Sequence[int]) -> list[int]:
    """Those of the samples of a batch, in its order, that have a value that is not finite; as far as its tensors have a row for
    each sample."""
    rows = torch.zeros(len(indices), dtype=torch.bool)
    for leaf in tree_leaves(batch):
        is_plain = isinstance(leaf, torch.Tensor) and leaf.dtype in _CHECKED and leaf.layout is torch.strided
        if is_plain and leaf.shape[:1] == (len(indices),):
            rows |= ~torch.isfinite(leaf.detach()).unsqueeze(-1).flatten(1).all(1).cpu()
    return [index for index, is_strange in zip(indices, rows.tolist(), strict=True) if is_strange]
