"""The table of contributions: what a shard makes of the gradient of its micro-batch before the sum.

An entry is called with its options and returns a transform (`transforms.Transform`) with a state per shard, or None where the
gradient itself is contributed. Adding one is a function and a line. A user's own meets the laws at launch
(`contribution_laws.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.common.registry import Table

if TYPE_CHECKING:
    from orchestrator.optim.transforms import Transform


def gradient() -> None:
    """A shard contributes its gradient as it is."""


CONTRIBUTIONS: Table[Callable[..., Transform | None]] = Table("contribution", {"gradient": gradient}, given=0)
