"""The table of orders: when the members of a pipeline take which shard forward and backward.

An order is a function of a member's place that returns an `Order`; adding one is a file and a line here, and the laws of
`laws.py` then hold it to the same properties as the others. A user's own meets the laws at launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.comm.pipeline_schedules.gpipe import gpipe
from orchestrator.comm.pipeline_schedules.one_forward_one_backward import one_forward_one_backward
from orchestrator.comm.pipeline_schedules.order import Decide, Order
from orchestrator.common.registry import Table

PIPELINING: Table[Callable[..., Order]] = Table("cluster.pipeline", {"1f1b": one_forward_one_backward, "gpipe": gpipe})


def build_order(name: str, options: Mapping[str, Any]) -> Decide:
    """An order; options that are not given have their defaults. Raises ConfigurationError."""
    return PIPELINING.build(name, options)
