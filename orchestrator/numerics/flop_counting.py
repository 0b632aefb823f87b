"""How many floating-point operations a computation takes.

Products and attention are counted, by the formulas of `torch.utils.flop_counter`, forward and backward; what is computed again
(activation checkpoints) counts again. torch's own counter is not used: it imports torch's compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def counted(compute: Callable[[], object]) -> int:
    """The number of operations in what this computes eagerly."""
    with _Counting() as counting:
        compute()
    found: int = counting.total
    return found


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True  # they are left to torch, and what they call is counted

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, only to keep it from what follows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "overloadpacket"):
            return NotImplemented
        formula = flop_registry.get(func.overloadpacket)
        if formula is None and torch.is_inference_mode_enabled():  # elsewhere a product comes as one
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        out = func(*args, **kwargs)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=out))
        return out
