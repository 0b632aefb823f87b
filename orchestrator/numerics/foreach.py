"""One call of torch for many tensors, where it has one: small tensors cost calls.

torch's own optimizers make these calls, which have no public name. A torch without them is called for each tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import torch

_Call = Callable[..., Sequence[torch.Tensor]]
# On CUDA torch has kernels that copy lists of these, and refuses lists of others, such as torch.uint16 and torch.complex32.
_IN_ONE_CALL: Final = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16, torch.float16)
    + (torch.float32, torch.float64, torch.complex64, torch.complex128)
)
_COPY: _Call | None = getattr(torch, "_foreach_copy_", None)
_PRODUCTS: _Call | None = getattr(torch, "_foreach_mul", None)
_SUMS: _Call | None = getattr(torch, "_foreach_add", None)
_NORMS: _Call | None = getattr(torch, "_foreach_norm", None)


def copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target."""
    pairs = defaultdict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]](list)
    for target, source in zip(targets, sources, strict=True):
        pairs[target.dtype].append((target, source))
    for kind, own in pairs.items():  # on a GPU a call is one kernel only where all are of one type
        if _COPY is not None and kind in _IN_ONE_CALL:
            _COPY(*zip(*own, strict=True))
            continue
        for target, source in own:
            target.copy_(source)


def products(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Each tensor times the factor, which is one number."""
    return [tensor * factor for tensor in tensors] if _PRODUCTS is None else _PRODUCTS(tensors, factor)


def sums(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Each tensor plus the other one of its place, in new memory."""
    if _SUMS is None or not tensors:
        return [tensor + other for tensor, other in zip(tensors, others, strict=True)]
    return _SUMS(tensors, others)


def norms(tensors: Sequence[torch.Tensor], of: float = 2.0) -> Sequence[torch.Tensor]:
    """The norm of each tensor: the Euclidean one, or with infinity the largest magnitude."""
    if _NORMS is None or not tensors:
        return [torch.linalg.vector_norm(tensor, of) for tensor in tensors]
    return _NORMS(tensors, of)
