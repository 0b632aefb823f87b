"""The table of compressions: in which form gradients travel between workers.

An entry is called with the model and its options and returns a codec (`codec.py`), or None where gradients travel as they are.
Adding one is a file and a line. A shard keeps state where its option `error_feedback` is set.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.common.registry import Table
from orchestrator.optim.compressions.codec import Codec, Model
from orchestrator.optim.compressions.powersgd import powersgd
from orchestrator.optim.compressions.quantize import Quantize
from orchestrator.optim.compressions.topk import TopK

__all__ = ["COMPRESSIONS"]


def none(model: Model) -> None:
    """Gradients travel as they are: exact sums of all elements."""


COMPRESSIONS: Table[Callable[..., Codec | None]] = Table(
    "compression", {"none": none, "quantize": Quantize, "powersgd": powersgd, "topk": TopK}
)
